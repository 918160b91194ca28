"""What a call of `fill` or `check_in` offers: who may be given a turn, and which rules hold turns back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.counting import pluralize
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.pace.prices import ClientPrices
from turnout.kernel.rounds import RoundOffer
from turnout.live.features import Features, FleetStatus, Status
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.offering import build_offer
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
    fleet: SlotFleet,
    settings: SchedulerSettings,
    candidates: Candidates,
    available: BoolArray,
    awaited: BoolArray,
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
