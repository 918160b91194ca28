"""Reported losses: recorded with their turns, and passed to the policy when the round is closed."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live.fleets import (
    OpenFleet,
    exported,
    named,
    offered,
    packed,
    packed_from_disk,
    play_round,
    problems,
    rows_of,
    state_of,
    turns_in,
)
from narrowing import known
from postgres import stored_bytes
from turnout.errors import ReportError
from turnout.live import Reporter


def test_losses_are_passed_to_the_policy_when_the_round_is_closed(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4})
    scheduler.choose(offered(*"abcd"))
    scheduler.report("a", 2.0, loss=0.5)
    scheduler.report("b", loss=np.float32(0.25))  # type: ignore[arg-type]
    scheduler.report("c", 3.0)
    scheduler.report_failure("d", "its battery died")
    report = scheduler.close_round().report
    np.testing.assert_array_equal(known(report.losses), [0.5, 0.25, math.nan, math.nan])
    assert [turn.loss for turn in scheduler.history(round=1)] == [0.5, 0.25, None, None]
    assert packed(scheduler) == packed_from_disk(scheduler.path)


def test_the_policy_gets_no_losses_if_none_were_reported(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    scheduler.report_many(dict.fromkeys(scheduler.choose(offered("a", "b")), 1.0), losses={})
    assert scheduler.close_round().report.losses is None


def test_power_of_choice_selects_the_largest_losses_also_after_a_restart(open_fleet: OpenFleet, folder: Path) -> None:
    clients = named(6)
    with open_fleet(policy="power-of-choice", settings={"cohort_size": 2, "candidates": 6}) as scheduler:
        for _ in range(3):
            chosen = scheduler.choose(offered(*clients))
            with Reporter(folder / "fleet.turnout") as reporter:
                losses = {client: abs(int(client[1:]) - 3.1) for client in chosen}
                assert reporter.report(chosen[0], 1.0, loss=losses.pop(chosen[0]))
                assert reporter.report_many({chosen[1]: 1.0}, losses=losses) == 1
            scheduler.close_round()
    assert open_fleet().choose(offered(*clients)) == ["c0", "c1"]


def test_the_loss_of_a_surplus_client_is_learned(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="oort", settings={"cohort_size": 2}, overcommit=1.5)
    scheduler.choose(offered(*"abc"))
    scheduler.report_many({"a": 1.0, "b": 2.0, "c": 3.0}, losses={"c": 7.0})
    report = scheduler.close_round().report
    assert report.outcomes is not None
    assert report.outcomes.tolist() == ["arrived", "arrived", "late"]  # type: ignore[union-attr]  # outcomes are an array here
    assert known(report.losses)[2] == 7.0


def test_the_loss_of_a_late_client_is_recorded_but_not_learned(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="oort")
    scheduler.choose(offered("a", "b"))
    scheduler.report("a", 1.0, loss=2.0)
    scheduler.close_round()
    assert scheduler.report("b", 20.0, loss=5.0)
    assert not scheduler.report("b", 20.0, loss=5.0)
    for other in (4.0, None):
        with pytest.raises(ReportError, match=r"\(late, after 20 s, loss 5\): the first report is kept"):
            scheduler.report("b", 20.0, loss=other)
    play_round(scheduler, offered("a"), 1.0)
    assert scheduler.history("b")[0].loss == 5.0
    assert state_of(scheduler).state()["policy.losses.values"].tolist() == [2.0, -math.inf]
    assert packed(scheduler) == packed_from_disk(scheduler.path)


def test_a_repeated_loss_has_no_effect_and_a_different_one_is_refused(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    scheduler.choose(offered("a", "b", "c"))
    assert scheduler.report("a", 2.0, loss=0.5)
    assert scheduler.report("b", 2.0)
    turns = turns_in(scheduler.path)
    assert not scheduler.report("a", 2, loss=np.float64(0.5))
    assert scheduler.report_many({"a": 2.0, "b": 2.0}, losses={"a": 0.5}) == 0
    attempts: list[Callable[[], object]] = [
        lambda: scheduler.report("a", 2.0),
        lambda: scheduler.report("a", 2.0, loss=0.6),
        lambda: scheduler.report("b", 2.0, loss=0.5),
        lambda: scheduler.report_many({"c": 1.0, "a": 2.0}, losses={"a": 0.7}),  # nothing of it is recorded
    ]
    for attempt in attempts:
        with pytest.raises(ReportError, match=r"after 2 s(, loss 0\.5)?\): the first report is kept"):
            attempt()
    assert turns_in(scheduler.path) == turns
    scheduler.close_round()
    assert not scheduler.report("a", 2.0, loss=0.5)
    for attempt in attempts[:3]:
        with pytest.raises(ReportError, match="the first report is kept"):
            attempt()


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (math.nan, "loss of 'a' must be finite, not nan"),
        (math.inf, "loss of 'a' must be finite, not inf"),
        ("low", "loss of 'a' must be a number, not 'low'"),
        (True, "loss of 'a' must be a number, not True"),
    ],
)
def test_invalid_losses_are_refused(open_fleet: OpenFleet, loss: Any, complaint: str) -> None:
    scheduler = open_fleet()
    scheduler.choose(offered("a", "b"))
    before = turns_in(scheduler.path)
    with pytest.raises(ReportError, match=complaint):
        scheduler.report("a", 2.0, loss=loss)
    with pytest.raises(ReportError, match=complaint):
        scheduler.report_many({"b": 2.0, "a": 2.0}, losses={"a": loss})
    with pytest.raises(ReportError, match="losses has 'b', but seconds does not: pass both"):
        scheduler.report_many({"a": 2.0}, losses={"a": 0.5, "b": 0.5})
    assert turns_in(scheduler.path) == before


@pytest.mark.files
def test_losses_are_exported_and_those_of_a_forgotten_client_leave_the_file(
    open_fleet: OpenFleet, folder: Path
) -> None:
    """Uses a policy that does not learn from losses; what other policies learn is tested elsewhere."""
    in_a_column, in_an_array = struct.pack(">d", 0.1234567), struct.pack("<d", 0.1234567)
    scheduler = open_fleet()
    scheduler.choose(offered("a", "b"))
    scheduler.report_many({"a": 2.0, "b": 3.0}, losses={"b": 0.1234567})
    scheduler.close_round()
    play_round(scheduler, offered("a", "b"), 1.0)
    rounds = [event["losses"] for event in exported(scheduler) if event["kind"] == "round"]
    assert json.loads(json.dumps(rounds, allow_nan=False)) == [[None, 0.1234567], [None, None]]
    before = stored_bytes(folder / "fleet.turnout")
    assert in_a_column in before
    assert in_an_array in before
    scheduler.forget("b")
    after = stored_bytes(folder / "fleet.turnout")
    assert in_a_column not in after
    assert in_an_array not in after
    assert [event["losses"] for event in exported(scheduler) if event["kind"] == "round"] == [[None, None]] * 2
    assert rows_of(folder / "fleet.turnout", "SELECT loss FROM turns") == [(None,)] * 4
    assert problems(folder / "fleet.turnout") == []
    assert packed(scheduler) == packed_from_disk(folder / "fleet.turnout")
