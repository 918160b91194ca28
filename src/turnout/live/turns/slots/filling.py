"""What a call of `fill` or `check_in` offers, and which turns it ends and gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from turnout.counting import pluralize
from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_contexts
from turnout.kernel.pace.prices import ClientPrices
from turnout.kernel.rounds import RoundOffer
from turnout.live import clock
from turnout.live.clock import boot_id
from turnout.live.features import Features, FleetStatus, Status
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.offering import build_offer, deadline_of, learnable_contexts, record_offer
from turnout.live.turns.records import KINDS, LATE, LateTimes, RecordedOffer, Turn, signals_of
from turnout.live.turns.slots.records import EndedTurns, FilledSlots, RunningTurnRecord
from turnout.live.turns.slots.state import SlotFleet


@dataclass(frozen=True, slots=True)
class Candidates:
    """Who may be given a turn.

    Attributes:
        statuses: The statuses of the available clients.
        kept: The statuses of clients that have checked in.
        awaited: Which clients wait because they were asked to, by row.
        waited: Returns for how many seconds the clients with these rows have been waiting. Only for check-ins, which
            are gathered in a window.
        rows: The rows of the clients in `statuses`, if they were looked up before.
        cold: The ids of clients that start cold, so that their times are not learned.
    """

    statuses: Mapping[str, Status] | FleetStatus
    kept: Mapping[str, Status]
    awaited: BoolArray
    waited: Callable[[IntArray], FloatArray] | None = None
    rows: IntArray | None = None
    cold: Collection[str] = ()


class Hold(NamedTuple):
    """Why nobody is given a turn, although a slot is free.

    Attributes:
        seconds: The seconds after which turns can be given; None if that depends on who comes.
        why: The reason, for people.
    """

    seconds: float | None
    why: str


class SlotOffer(NamedTuple):
    """What a call of `fill` offers, by row.

    Attributes:
        available: The clients that may be given a turn, if they are not training.
        contexts: The contexts of all clients.
        awaited: The clients that wait because they were asked to: they cannot be given a turn, but count as present.
        is_there: The clients with contexts; those of the others are 0.
        cold: The ids of clients that start cold.
        hold: Why nobody is given a turn, if a rule of the fleet holds all turns back.
    """

    available: BoolArray
    contexts: FloatArray
    awaited: BoolArray
    is_there: BoolArray
    cold: Collection[str]
    hold: Hold | None = None


def build_slot_offer(
    fleet: SlotFleet, features: Features, settings: SchedulerSettings, candidates: Candidates
) -> SlotOffer:
    """Returns the offer; nobody is available in it while a rule holds all turns back.

    Back-off is counted in decisions. So if only clients that are backed off are there, and nobody trains, they may
    be given a turn: otherwise there would be no further decision.
    """
    is_there, contexts = _merge(fleet, features, settings, candidates)
    excluded, resting = fleet.unavailable, None
    if fleet.min_turn_interval is not None:
        resting = fleet.rest_left(fleet.called) > 0
        excluded |= resting
    available, awaited = is_there & ~excluded, np.zeros_like(is_there)
    if not len(fleet.running) and not available.any():
        excluded = fleet.counters.retired > 0
        if resting is not None:
            excluded |= resting
        available = is_there & ~excluded
    awaited[: len(candidates.awaited)] = candidates.awaited
    awaited &= ~excluded
    hold = _find_hold(fleet, settings, candidates, available, awaited)
    if hold is not None:
        return SlotOffer(np.zeros_like(available), contexts, awaited | available, is_there, candidates.cold, hold)
    return SlotOffer(available, contexts, awaited, is_there, candidates.cold)


def _merge(
    fleet: SlotFleet, features: Features, settings: SchedulerSettings, candidates: Candidates
) -> tuple[BoolArray, FloatArray]:
    """Returns who is there, and the contexts, by the statuses that were passed and by those of check-ins."""
    statuses = candidates.statuses
    if not isinstance(statuses, FleetStatus) and not statuses:
        return build_offer(fleet, features, settings, candidates.kept)
    is_there, contexts = build_offer(fleet, features, settings, statuses, candidates.rows)
    if candidates.kept:
        has_checked_in, own = build_offer(fleet, features, settings, candidates.kept)
        new = has_checked_in & ~is_there
        contexts[new] = own[new]
        is_there |= new
    return is_there, contexts


def _find_hold(
    fleet: SlotFleet, settings: SchedulerSettings, candidates: Candidates, available: BoolArray, awaited: BoolArray
) -> Hold | None:
    """Returns why nobody is given a turn now; None if no rule holds turns back, or if no slot is free."""
    if not fleet.free_slots:
        return None
    present = int(np.count_nonzero(available | awaited | ~fleet.running.idle))
    if present < settings.min_present:
        there = pluralize(present, "client", "are")
        return Hold(None, f"{there} available or training, and turns are given from {settings.min_present:,} on")
    if candidates.waited is None or settings.window_seconds is None:
        return None
    devices = np.flatnonzero(available & fleet.running.idle)
    if not len(devices):
        return None
    left = settings.window_seconds - float(candidates.waited(devices).max())
    if left <= 0:
        return None
    waiting = pluralize(len(devices), "device", "are")
    return Hold(left, f"check-ins are gathered for {left:.3g} s more: {waiting} waiting")


def client_prices(fleet: SlotFleet) -> ClientPrices | None:
    """Returns what the prices of clients consist of at the next decision; None if the policy has no prices."""
    policy, clients = fleet.policy, len(fleet.ids)
    contexts = np.broadcast_to(0.0, (clients, policy.features or 0))
    return policy.client_prices(
        RoundOffer.trusted(fleet.round + 1, np.ones(clients, dtype=np.bool_), contexts, places=1)
    )


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
