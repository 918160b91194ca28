"""Benchmarks of fleets without rounds: what they measure happens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from turnout.bench.paced_fleets import PACED_CONDITIONS
from turnout.bench.slots import _decisions, measure_decision, measure_server
from turnout.cli.app import app


@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_a_decision_gives_one_turn_and_everybody_earns(condition: str) -> None:
    fleet = PACED_CONDITIONS[condition](2000, 1, np.random.default_rng(0))
    fleet.available[:] = True
    turns, rounds = fleet.policy.turns.copy(), np.asarray(fleet.policy.debts.accounts().rounds).copy()
    decide = _decisions(fleet)
    for _ in range(3):
        decide()
    assert int((fleet.policy.turns - turns).sum()) == 3
    assert (np.asarray(fleet.policy.debts.accounts().rounds) - rounds == 3).all()
    figures = measure_decision(2000, condition, repeats=1)
    assert figures.milliseconds > 0
    assert figures.reads > 0


def test_a_server_gives_every_turn_and_its_file_is_read_as_it_was_written() -> None:
    given: list[int] = []
    figures = measure_server(30, 6, 21, watch=given.append)
    assert (figures.turns, figures.slots, figures.clients) == (sum(given), 6, 30)
    assert given == [6, 3, 3, 3, 3, 3]
    assert -1 < figures.most_behind < 1
    assert figures.restored
    assert figures.problems == 0


def test_the_command_prints_targets_and_the_live_fleet() -> None:
    arguments = ["bench", "slots", "--clients", "1000", "--slots", "4", "--turns", "10", "--repeats", "1"]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [target["most"] for target in found["targets"]] == [1.3] * len(PACED_CONDITIONS)
    assert found["server"]["clients"] == 20
    shown = CliRunner().invoke(app, arguments).stdout
    assert "A live fleet, 20 clients, 4 slots, 10 turns" in shown
    assert "1,000 idle clients" in shown
