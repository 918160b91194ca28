"""Ends turns, and gives new ones for the slots that are free."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, as_contexts
from turnout.kernel.rounds import RoundOffer
from turnout.live import clock
from turnout.live.clock import boot_id
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.offering import deadline_of, learnable_contexts, record_offer
from turnout.live.turns.outcomes import KINDS, LATE
from turnout.live.turns.records import LateTimes, RecordedOffer, Turn, signals_of
from turnout.live.turns.slots.offering import Hold, SlotOffer
from turnout.live.turns.slots.records import EndedTurns, FilledSlots, RunningTurnRecord
from turnout.live.turns.slots.state import SlotFleet


class FillResult(NamedTuple):
    """A call of `fill`, before it is written.

    Attributes:
        event: What it changes.
        running_turns: The turns that were given.
        late: The turns of clients that are late since this call.
        offer: What the first decision was made from; None if no turn was given.
        hold: Why nobody was given a turn, if a rule of the fleet held all turns back.
    """

    event: FilledSlots
    running_turns: list[RunningTurnRecord]
    late: list[Turn]
    offer: RecordedOffer | None
    hold: Hold | None


def ended_turns(running_turns: Mapping[int, RunningTurnRecord], turns: Sequence[Turn]) -> tuple[EndedTurns, list[Turn]]:
    """Returns the running turns that have ended, and those among them whose clients are late since now.

    A turn has ended if an outcome was reported, or if its deadline has passed.

    Args:
        running_turns: The running turns, by decision.
        turns: The same with the outcomes that were reported.
    """
    ended, late, reported = [], [], []
    for turn in turns:
        running_turn = running_turns[turn.round]
        waited = running_turn.elapsed
        if turn.kind is None:
            if running_turn.deadline is None or waited < running_turn.deadline:
                continue
            turn = Turn(turn.round, turn.row, turn.id, KINDS[LATE], float(running_turn.deadline))
            late.append(turn)
        if turn.seconds is not None:
            waited = turn.seconds
        loss = math.nan if turn.loss is None else turn.loss
        ended.append((turn.round, turn.row, 0.0 if math.isnan(waited) else waited, KINDS.index(str(turn.kind)), loss))
        reported.append(turn)
    types: Any = (np.int64, np.int64, np.float64, np.int64, np.float64)
    columns: Any = zip(*ended, strict=True) if ended else ((),) * len(types)
    decisions, rows, seconds, kinds, losses = map(np.array, columns, types)
    return EndedTurns(decisions, rows, seconds, kinds, losses, signals_of(reported)), late


def fill_slots(
    fleet: SlotFleet,
    settings: SchedulerSettings,
    offered: Callable[[], SlotOffer],
    ended: EndedTurns,
    late: list[Turn],
    reported_late: Sequence[Turn],
    most: int | None = None,
) -> FillResult:
    """Applies the turns that have ended to the fleet, and gives one turn for every free slot.

    Args:
        fleet: The state of the fleet, which is changed.
        settings: Its settings.
        offered: Returns the offer. It is called when the turns have ended: a client that is just back needs no cold
            start.
        ended: The turns that have ended.
        late: Those of clients that are late since now.
        reported_late: Turns of late clients whose actual times were reported since.
        most: The most turns that are given; None for all free slots.
    """
    end_only = FilledSlots(
        first=fleet.round + 1,
        rows=np.empty(0, dtype=np.int64),
        contexts=np.empty((0, 0)),
        present=np.empty(0, dtype=np.bool_),
        ended=ended,
        late=LateTimes.of(reported_late),
        at=clock.now(),
    )
    fleet.end_turns(end_only)
    available, contexts, awaited, is_there, cold, hold = offered()
    idle = fleet.running.idle
    present = available | awaited | ~idle
    idle &= available
    running_turns, offer = list[RunningTurnRecord](), None
    for _ in range(fleet.free_slots)[:most]:
        if not idle.any():
            break
        decision = fleet.round + 1
        if not running_turns:  # once for all decisions
            _check_contexts(contexts, is_there)
        selection = fleet.policy.ask(RoundOffer.trusted(decision, idle.copy(), contexts, places=1))
        if not len(selection.clients):
            break  # a policy may find nobody eligible
        row = int(selection.clients[0])
        if offer is None:
            offer = record_offer(settings, decision, selection.clients, selection.reasons, idle, contexts)
        given = learnable_contexts(fleet, selection.clients, contexts, cold)
        running_turns.append(
            RunningTurnRecord(
                decision,
                row,
                given[0],
                deadline_of(fleet, settings, selection.clients, given),
                clock.now(),
                clock.monotonic_seconds(),
                boot_id(),
                {name: float(np.ravel(value)[0]) for name, value in selection.reasons.items()},
            )
        )
        fleet.give_turn(row, present, given[0])
        idle[row] = False
    rows = np.array([running_turn.row for running_turn in running_turns], dtype=np.int64)
    learnable = np.array([running_turn.context for running_turn in running_turns]).reshape(-1, contexts.shape[1])
    event = replace(end_only, rows=rows, contexts=learnable, present=present)
    return FillResult(event, running_turns, late, offer, hold)


def _check_contexts(contexts: FloatArray, is_there: BoolArray) -> None:
    """Raises OfferError if a context is invalid; those of absent clients are 0, and need not be read."""
    rows = np.flatnonzero(is_there)
    if 2 * len(rows) < len(contexts):
        try:
            as_contexts(contexts[rows], OfferError)
        except OfferError:
            pass  # the next check names the row
        else:
            return
    as_contexts(contexts, OfferError)
