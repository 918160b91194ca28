"""Clients whose updates would be too old are given a turn only if they must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live.fleets import named, offered, packed, packed_from_disk
from turnout import Scheduler
from turnout.live import certify


def open_fleet(path: Path, **options: Any) -> Scheduler:
    settings = {"guaranteed_rate": "1/20", "tolerance": 1.0, "counts": "selected"}
    return Scheduler.open(path, **{"concurrency": 3, "settings": settings, "deadline": 500.0, **options})


def play(scheduler: Scheduler, calls: int) -> list[str]:
    """Plays; the turns of c5 take ten times as long as those of the others. Returns who was given turns."""
    given = []
    for call in range(calls):
        for turn in scheduler.fill(offered(*named(6))):
            given.append(turn.client)
        for turn in scheduler.running():
            if turn.client != "c5" or call % 4 == 3:
                scheduler.report(turn.id, 30.0 if turn.client == "c5" else 3.0)
    return given


def test_a_slow_client_is_given_only_the_turns_that_it_is_guaranteed(tmp_path: Path) -> None:
    shares = {}
    for limit in (None, 4.0):
        path = tmp_path / f"{limit}.turnout"
        with open_fleet(path, policy="with-guarantee", max_staleness=limit, settings=GUARANTEED) as scheduler:
            given = play(scheduler, 50)
            shares[limit] = given.count("c5") / len(given)
            certificate = scheduler.certificate()
            assert certificate.status != "broken"
            assert certificate.promised[5] == pytest.approx(len(given) / 25, abs=1.0)  # it earns although it waits
            assert packed(scheduler) == packed_from_disk(path)
            certify(path, tmp_path / "proof.json", tmp_path / "proof.jsonl")
    assert shares[4.0] == pytest.approx(1 / 25, abs=0.02)
    assert shares[None] > 1.4 * shares[4.0]


GUARANTEED = {"policy": "random", "settings": {}, "guaranteed_rate": "1/25", "tolerance": 2.0, "urgency": 1.0}


def test_the_reason_is_explained(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", max_staleness=4.0) as scheduler:
        play(scheduler, 30)
        decisions = range(scheduler.round - 5, scheduler.round + 1)
        sentences = [scheduler.explain("c5", decision).sentence for decision in decisions]
        why = "max_staleness=4, and it was less than half as far behind as it may be"
        reasons = [sentence for sentence in sentences if why in sentence]
        assert len(reasons) > 2
        assert "during its turn of about 30 s the server makes" in reasons[-1]


def test_other_clients_are_explained_as_usual(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", max_staleness=4.0) as scheduler:
        given = play(scheduler, 30)
        decision = scheduler.round
        explanations = {client: scheduler.explain(client, decision) for client in named(5)}
    available = [client for client, explanation in explanations.items() if explanation.outcome != "training"]
    assert len(available) > 1
    assert explanations[given[-1]].outcome == "chosen"
    for client in available:
        assert explanations[client].exact
        assert "max_staleness" not in explanations[client].sentence


def test_without_a_guarantee_a_slow_client_is_given_no_turn_while_others_are_there(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": "random", "settings": {}}
    with open_fleet(tmp_path / "fleet.turnout", max_staleness=4.0, **options) as scheduler:
        given = play(scheduler, 40)
        assert "c5" in given[:20]  # until its time is known
        assert "c5" not in given[20:]
        for turn in scheduler.running():
            scheduler.report(turn.id, 30.0)
        assert [turn.client for turn in scheduler.fill(offered("c5"))] == ["c5"]
    with open_fleet(tmp_path / "unlimited.turnout", max_staleness=None, **options) as scheduler:
        assert "c5" in play(scheduler, 40)[20:]


def test_stale_clients_are_given_turns_if_nobody_else_is_there(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", max_staleness=4.0) as scheduler:
        play(scheduler, 20)
        for turn in scheduler.running():
            scheduler.report(turn.id, 30.0)
        assert [turn.client for turn in scheduler.fill(offered("c5"))] == ["c5"]
        assert not np.isnan(scheduler.certificate().behind).any()
