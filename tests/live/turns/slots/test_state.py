"""A state of a fleet without rounds is refused if its parts contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from live.turns.slots.played import SLOTS
from turnout.errors import ReportError, StateError
from turnout.live.features import PAPER_FEATURES
from turnout.live.journal.replay import fresh_fleet
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.records import LateTimes
from turnout.live.turns.slots.filling import ended_turns
from turnout.live.turns.slots.records import EndedTurns, FilledSlots
from turnout.live.turns.slots.state import SlotFleet
from turnout.storage.encoding.packing import pack_snapshot

IDS = ["a", "b", "c", "d"]
NOBODY, NONE = np.empty(0, dtype=np.int64), np.empty(0)


def new_fleet() -> SlotFleet:
    """Returns a fleet with four clients, of which two train."""
    fleet = fresh_fleet(SchedulerSettings(**SLOTS), PAPER_FEATURES)
    assert isinstance(fleet, SlotFleet)
    fleet.join(IDS)
    fleet.fill(filled(1, [2, 0]))
    return fleet


def filled(first: int, rows: list[int], ended: EndedTurns | None = None) -> FilledSlots:
    """Returns a call of `fill` in which all clients are present."""
    return FilledSlots(
        first=first,
        rows=np.array(rows, dtype=np.int64),
        contexts=np.ones((len(rows), 3)),
        present=np.ones(len(IDS), dtype=np.bool_),
        ended=ended_turns({}, [])[0] if ended is None else ended,
        late=LateTimes.of([]),
        at="2026-01-01T00:00:00.000+00:00",
    )


def ended_turn(decision: int, row: int) -> EndedTurns:
    return EndedTurns(np.array([decision]), np.array([row]), np.array([4.0]), np.array([0]), np.array([np.nan]))


@pytest.mark.parametrize("first", [2, 4])
def test_a_decision_that_is_missing_or_doubled_is_refused(first: int) -> None:
    fleet = new_fleet()
    before = pack_snapshot(fleet.state())
    with pytest.raises(StateError, match=f"decision {first} follows decision 2: one is missing or was doubled"):
        fleet.fill(filled(first, [1]))
    assert pack_snapshot(fleet.state()) == before
    fleet.fill(filled(3, [1]))
    assert fleet.training() == {1: 2, 2: 0, 3: 1}


@pytest.mark.parametrize(("decision", "row"), [(1, 0), (2, 1), (9, 2)])
def test_only_the_client_of_a_turn_can_end_it(decision: int, row: int) -> None:
    fleet = new_fleet()
    with pytest.raises(ReportError, match=f"client {row} has no turn of decision {decision}"):
        fleet.fill(filled(3, [], ended_turn(decision, row)))
    assert fleet.history.arrived.sum() == 0
    fleet = new_fleet()
    fleet.fill(filled(3, [], ended_turn(1, 2)))
    assert fleet.history.arrived.tolist() == [0, 0, 1, 0]


def test_a_late_time_that_no_turn_waits_for_is_refused() -> None:
    fleet = new_fleet()
    late = replace(filled(3, []), late=LateTimes(np.array([1]), np.array([2]), np.array([150.0])))
    with pytest.raises(StateError, match="the late time of client 2 in turn 1 was learned before, or it was not late"):
        fleet.fill(late)


def add_a_context(state: dict[str, Any]) -> None:
    state["running_turns.decisions"] = np.array([1, 2, 3])
    state["running_turns.contexts"] = np.ones((3, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(clients=3), "the saved state has 3 clients, but 4 ids were given"),
        (
            lambda state: state.update(given=state["given"][:3]),
            "the saved state has 3 times of turns, but 4 ids were given",
        ),
        (
            lambda state: state.update({"running_turns.decisions": np.array([1, 3])}),
            "the saved state has other contexts than running turns",
        ),
        (add_a_context, "the saved state has other contexts than running turns"),
    ],
)
def test_a_state_whose_parts_contradict_each_other_is_refused(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    fleet, restored = new_fleet(), fresh_fleet(SchedulerSettings(**SLOTS), PAPER_FEATURES)
    state = fleet.state()
    restored.restore(state, IDS)
    assert pack_snapshot(restored.state()) == pack_snapshot(state)
    change(state)
    with pytest.raises(StateError, match=message):
        restored.restore(state, IDS)
