"""Tests whether the clients of a fleet without rounds can be given what they are promised, by the times learned."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from turnout.errors import InfeasiblePromise
from turnout.kernel.arrays import FINEST, FloatArray
from turnout.kernel.slots.limits import fastest_pace, slot_limits
from turnout.live.turns.rounds.feasibility import LARGE_FLEET, require_feasible_fleet, rounded_down
from turnout.live.turns.rounds.state import Fleet
from turnout.live.turns.slots.state import SlotFleet

#: The part of the largest rate at full speed that is accepted: beyond it, the slowest clients train nearly all the
#: time, and fall behind with every turn that takes longer than usual.
ACCEPTED = 0.9


def require_feasible(fleet: Fleet) -> None:
    """Raises InfeasiblePromise if no policy could keep the promise to the clients that have not retired.

    In a fleet without rounds, all rates together are at most 1. Nobody is in two slots, so the times that were learned
    limit the rate as well (`slot_limits`); a client without a time counts with the median of the others. In large
    fleets, where this limit is far away unless there are nearly as many slots as clients, it is not computed.

    With `rest_seconds`, no more turns are given in the time of a rest than there are clients. So if no turn lasts
    longer than a rest, everyone can have one of them, and that is all that rates with a sum of 1 can promise: rests
    make no promise infeasible.
    """
    if not isinstance(fleet, SlotFleet):
        require_feasible_fleet(fleet)
        return
    try:
        require_feasible_fleet(fleet)
    except InfeasiblePromise as problem:
        most = problem.largest_rate or Fraction(0)
        raise _problem(most, problem.scale, "all rates together exceed 1", None) from None
    times, rate = _times(fleet), _rate(fleet)
    if times is None or rate is None or len(times) > LARGE_FLEET:
        return
    if fleet.rest_seconds is not None and times[-1] <= ACCEPTED * fleet.rest_seconds:
        return
    limits = slot_limits(times, fleet.slots)
    if fleet.slots <= limits.sufficient_slots or rate <= ACCEPTED * limits.full_speed_rate:
        return
    largest = ACCEPTED * limits.full_speed_rate
    raise _problem(
        Fraction(largest).limit_denominator(FINEST),
        largest / rate,
        f"nobody is in two slots, and the turns of one client last {times[-1]:.3g} s",
        limits.sufficient_slots,
    )


def infeasibility(fleet: Fleet) -> InfeasiblePromise | None:
    """Returns why no policy could keep the promise to the clients of a fleet; None if one could."""
    try:
        require_feasible(fleet)
    except InfeasiblePromise as problem:
        return problem
    return None


def longest_deadline(fleet: SlotFleet) -> float | None:
    """Returns the seconds in which a client earns one turn; None if nothing is promised, or no times are known.

    A turn that takes longer costs its client more than this turn.
    """
    times, rate = _times(fleet), _rate(fleet)
    if times is None or not rate:
        return None
    slots = min(fleet.slots, len(times))
    if len(times) > LARGE_FLEET:
        return float(times.mean()) / (rate * slots)
    pace = fastest_pace(times, slots, min(rate, 1 / len(times)))
    return 1 / (rate * pace) if pace else None


def longest_rest(fleet: SlotFleet) -> float | None:
    """Returns the longest rest in seconds with which the clients can use all slots; None if no times are known."""
    times = _times(fleet)
    return None if times is None else float(times.sum()) / min(fleet.slots, len(times))


def _times(fleet: SlotFleet) -> FloatArray | None:
    """Returns the times of all clients that have not retired, ascending; None if none is known."""
    active = fleet.counters.retired == 0
    known = active & (fleet.history.arrived > 0) & (fleet.history.typical_seconds > 0)
    if not known.any():
        return None
    seconds = fleet.history.typical_seconds
    return np.sort(np.where(known, seconds, np.median(seconds[known]))[active])


def _rate(fleet: SlotFleet) -> float | None:
    if not fleet.ids or fleet.policy.guarantee is None or fleet.queues is None:
        return None
    return float(np.max(fleet.queues.guaranteed_rates[fleet.counters.retired == 0], initial=0.0))


def _problem(largest: Fraction, scale: float, why: str, slots: int | None) -> InfeasiblePromise:
    """Returns the error, with a remedy.

    Args:
        largest: The largest rate that is accepted.
        scale: The factor that makes the rate feasible.
        why: Why a larger one is not.
        slots: The number of slots with which every client can have an equal share; None if it makes no difference.
    """
    fewer = "" if slots is None else f", or create a new fleet with a concurrency of at most {slots:,}"
    return InfeasiblePromise(
        f"the guaranteed_rate cannot be kept for the clients of this fleet, because {why}: use a guaranteed_rate of at "
        f"most {rounded_down(largest)}{fewer}, or pass allow_infeasible=True to go on without a guarantee",
        largest_rate=largest,
        scale=scale,
        cohort_size=None,
        clients=(),
        slots=slots,
    )
