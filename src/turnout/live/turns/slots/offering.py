"""What a call of `fill` or `check_in` offers: who may be given a turn, and which rules hold turns back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.counting import pluralize
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.cohort_problem import PriceTerms
from turnout.kernel.rounds import RoundOffer
from turnout.live.features import Features, FleetStatus, Status
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.offering import build_offer
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.state import Fleet


@dataclass(frozen=True, slots=True)
class Candidates:
    """Who may be given a turn.

    Attributes:
        statuses: The statuses of the available clients.
        kept: The statuses of clients that have checked in.
        awaited: Which clients wait because they were asked to, by row.
        waited: Returns for how many seconds the clients with these rows have been waiting. Only for check-ins, which
            are gathered in a window.
    """

    statuses: Mapping[str, Status] | FleetStatus
    kept: Mapping[str, Status]
    awaited: BoolArray
    waited: Callable[[IntArray], FloatArray] | None = None


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
        hold: Why nobody is given a turn, if a rule of the fleet holds all turns back.
    """

    available: BoolArray
    contexts: FloatArray
    awaited: BoolArray
    hold: Hold | None = None


def build_slot_offer(
    fleet: SlotFleet, features: Features, settings: SchedulerSettings, candidates: Candidates
) -> SlotOffer:
    """Returns the offer; nobody is available in it while a rule holds all turns back.

    Back-off is counted in decisions. So if only clients that are backed off are there, and nobody trains, they may
    be given a turn: otherwise there would be no further decision. Clients whose updates would be too old count as
    present, but are given a turn only if they are far behind, or if nobody else is there.
    """
    is_there, contexts = _merge(fleet, features, settings, candidates)
    resting = fleet.rest_left(fleet.called) > 0
    excluded = fleet.unavailable | resting
    is_backed_off = not (is_there & ~excluded).any() and not len(fleet.running)
    if is_backed_off:
        excluded = (fleet.counters.retired > 0) | resting
    available, awaited = is_there & ~excluded, np.zeros_like(is_there)
    awaited[: len(candidates.awaited)] = candidates.awaited
    awaited &= ~excluded
    hold = _find_hold(fleet, settings, candidates, available, awaited)
    if hold is not None:
        return SlotOffer(np.zeros_like(available), contexts, awaited | available, hold)
    stale = available & too_stale(fleet, settings)
    if is_backed_off or not stale.any() or not (available & ~stale & fleet.running.idle).any():
        return SlotOffer(available, contexts, awaited)
    return SlotOffer(available & ~stale, contexts, awaited | stale)


def _merge(
    fleet: SlotFleet, features: Features, settings: SchedulerSettings, candidates: Candidates
) -> tuple[BoolArray, FloatArray]:
    """Returns who is there, and the contexts, by the statuses that were passed and by those of check-ins."""
    statuses = candidates.statuses
    if not isinstance(statuses, FleetStatus):
        return build_offer(fleet, features, settings, {**candidates.kept, **statuses})
    is_there, contexts = build_offer(fleet, features, settings, statuses)
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
    hold = too_few_clients(settings, available | awaited | ~fleet.running.idle)
    if hold is not None or candidates.waited is None or settings.window_seconds is None:
        return hold
    return open_window(settings, candidates.waited(np.flatnonzero(available & fleet.running.idle)))


def too_few_clients(settings: SchedulerSettings, present: BoolArray) -> Hold | None:
    """Returns that fewer clients are there than `min_present`; None if there are enough.

    Args:
        settings: The settings of the fleet.
        present: Which clients are available, wait as they were asked, or train.
    """
    count = int(np.count_nonzero(present))
    if count >= settings.min_present:
        return None
    return Hold(
        None,
        f"{pluralize(count, 'client', 'are')} available or training, and turns are given from "
        f"{settings.min_present:,} on",
    )


def open_window(settings: SchedulerSettings, waited: FloatArray) -> Hold | None:
    """Returns that check-ins are still gathered; None if they are not, or if no device waits.

    Args:
        settings: The settings of the fleet.
        waited: For how many seconds each device that could be given a turn has been waiting.
    """
    if settings.window_seconds is None or not len(waited):
        return None
    left = settings.window_seconds - float(waited.max())
    if left <= 0:
        return None
    return Hold(
        left, f"check-ins are gathered for {left:.3g} s more: {pluralize(len(waited), 'device', 'are')} waiting"
    )


def price_terms(fleet: Fleet) -> PriceTerms | None:
    """Returns what the prices of all clients consist of at the next decision; None if the policy has no prices."""
    policy, clients = fleet.policy, len(fleet.ids)
    everyone = np.ones(clients, dtype=np.bool_)
    offer = RoundOffer(fleet.round + 1, everyone, np.zeros((clients, policy.features or 0)), places=1)
    problem = policy.cohort_problem(offer)
    return None if problem is None else problem.prices


def pressing_clients(fleet: Fleet) -> BoolArray:
    """Returns which clients are at least half as far behind as they may be.

    If nobody were given a turn before it is urgent, a turn that takes long would break the tolerance.
    """
    terms, certificate = price_terms(fleet), fleet.policy.certificate()
    if terms is not None:
        pressing: BoolArray = terms.behind >= terms.allowed / 2
        return pressing
    if certificate is None or fleet.queues is None or fleet.policy.guarantee is None:
        return np.zeros(len(fleet.ids), dtype=np.bool_)
    behind: FloatArray = certificate.behind + fleet.queues.guaranteed_rates
    return behind >= float(fleet.policy.guarantee.tolerance) / 2


def expected_staleness(fleet: Fleet, updates_per_version: int) -> FloatArray:
    """Returns how many versions of the model the server is expected to make during a turn of each client.

    While a client trains for its usual time, each of the other slots ends one turn per mean turn, and
    `updates_per_version` updates make a version. It is 0 for a client whose time is not known.

    Args:
        fleet: The state of the fleet.
        updates_per_version: The number of updates that make a version.
    """
    arrived, seconds = fleet.history.arrived, fleet.history.typical_seconds
    total = float((arrived * seconds).sum())
    if not total:
        return np.zeros(len(fleet.ids))
    mean_turn = total / float(arrived.sum())
    staleness: FloatArray = (
        np.where(arrived > 0, seconds, 0.0) * ((fleet.slots or 1) - 1) / (mean_turn * updates_per_version)
    )
    return staleness


def too_stale(fleet: Fleet, settings: SchedulerSettings) -> BoolArray:
    """Returns which clients are not given a turn because of `max_staleness`; pressing clients are given theirs."""
    if settings.max_staleness is None:
        return np.zeros(len(fleet.ids), dtype=np.bool_)
    stale: BoolArray = expected_staleness(fleet, settings.updates_per_version) > settings.max_staleness
    return stale & ~pressing_clients(fleet) if stale.any() else stale
