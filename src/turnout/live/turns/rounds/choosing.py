"""Selects the cohort of a round from the statuses of the clients."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Literal

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, IntArray
from turnout.kernel.feasibility import require_feasible
from turnout.kernel.rounds import RoundOffer, Selection, invited_clients
from turnout.live import clock
from turnout.live.clock import boot_id, now
from turnout.live.features import Features, FleetStatus, Status
from turnout.live.settings import REPORT_CONFIDENCE, SchedulerSettings
from turnout.live.turns.clients import probability_at_least
from turnout.live.turns.offering import build_offer, deadline_of, learnable_contexts, record_offer
from turnout.live.turns.records import RecordedOffer
from turnout.live.turns.rounds.records import OpenRound
from turnout.live.turns.state import Fleet


def build_open_round(
    fleet: Fleet,
    features: Features,
    settings: SchedulerSettings,
    statuses: Mapping[str, Status] | FleetStatus,
    joined: tuple[str, ...],
    known: IntArray | None = None,
    cold: Collection[str] = (),
) -> tuple[OpenRound, RecordedOffer]:
    """Asks the policy for a cohort, without changing any state; returns the round and its offer.

    Args:
        fleet: The state of the fleet, which the new clients have joined already.
        features: The features of the fleet.
        settings: The settings of the fleet.
        statuses: The statuses of the available clients.
        joined: The ids of the clients that are new in this round.
        known: The rows of the clients, if they were looked up before.
        cold: The ids of clients that start cold: the round has no context for them, so that nothing is learned.
    """
    if not fleet.ids:
        raise OfferError("the fleet has no clients: choose with the status of at least one, or register some")
    is_there, contexts = build_offer(fleet, features, settings, statuses, known)
    available = is_there & ~fleet.unavailable
    if np.count_nonzero(available) < (fleet.policy.cohort_size or 0):
        available |= is_there & fleet.steps_aside
    number = fleet.round + 1
    if number == 1 and not settings.allow_infeasible:
        _require_feasible(fleet, available)
    selection = _select(fleet, settings, RoundOffer(number, available, contexts))
    rows, target = selection.clients, fleet.policy.target_size
    cohort_contexts = learnable_contexts(fleet, rows, contexts, cold)
    opened = OpenRound(
        round=number,
        target_size=len(rows) if target is None else min(target, len(rows)),
        deadline=deadline_of(fleet, settings, rows, cohort_contexts),
        opened=now(),
        monotonic=clock.monotonic_seconds(),
        boot=boot_id(),
        joined=joined,
        rows=rows,
        contexts=cohort_contexts,
        available=available,
        reasons=selection.reasons,
    )
    return opened, record_offer(settings, number, rows, selection.reasons, available, contexts)


def _require_feasible(fleet: Fleet, available: BoolArray) -> None:
    """Raises InfeasiblePromise if the guarantee cannot be kept for the clients that are available."""
    guarantee = fleet.policy.guarantee
    if fleet.queues is None or guarantee is None or not available.any():
        return
    rates = np.array(fleet.queues.guaranteed_rates)[available]
    size = fleet.policy.cohort_size
    places = len(rates) if size is None else size
    require_feasible(rates, np.ones(len(rates)), places, tolerance=guarantee.tolerance)


def _select(fleet: Fleet, settings: SchedulerSettings, offer: RoundOffer) -> Selection:
    """Asks the policy for a cohort: of its cohort size or, with over-selection, larger."""
    policy, cohort_size = fleet.policy, fleet.policy.cohort_size
    if cohort_size is None or settings.overcommit == 1:
        return policy.ask(offer)
    if settings.overcommit != "auto":
        return policy.ask(offer.restricted(places=invited_clients(cohort_size, settings.overcommit)))
    reliability = fleet.history.reliability
    available = int(offer.available.sum())

    @cache
    def select(size: int) -> Selection:
        return policy.ask(offer.restricted(places=size))

    def is_sufficient(size: int) -> bool:
        return probability_at_least(cohort_size, reliability[select(size).clients]) >= REPORT_CONFIDENCE

    return select(_smallest_sufficient(is_sufficient, min(cohort_size, max(available, 1)), available))


def places_of_selection(cohort_size: int | None, overcommit: float | Literal["auto"], selected: int) -> int | None:
    """Returns the number of places for which a policy selected so many clients; None for its cohort size."""
    if cohort_size is None or overcommit == 1:
        return None
    return max(selected, 1) if overcommit == "auto" else invited_clients(cohort_size, overcommit)


def _smallest_sufficient(is_sufficient: Callable[[int], bool], smallest: int, largest: int) -> int:
    """Returns the smallest sufficient size from `smallest` on, or `largest` if none is.

    An exponential search finds a sufficient size, a binary search the smallest one.
    """
    low, high, extra = smallest, smallest, 1
    while high < largest and not is_sufficient(high):
        low, high, extra = high + 1, min(smallest + extra, largest), 2 * extra
    return low + bisect_left(range(low, high), True, key=is_sufficient)
