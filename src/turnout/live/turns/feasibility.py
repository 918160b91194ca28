"""Tests whether any policy could give the clients of a live fleet what they are promised.

Without rounds, the times that were learned limit what can be promised, too: nobody is in two slots.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.errors import InfeasiblePromise
from turnout.kernel import feasibility
from turnout.kernel.arrays import FINEST, FloatArray
from turnout.kernel.feasibility import ROUNDING
from turnout.kernel.slots.turns import slot_limits
from turnout.live.turns.state import ENOUGH_ROUNDS, Fleet

#: In larger fleets the exact test takes seconds, and no test is made whenever a client joins or leaves.
LARGE_FLEET = 10_000
#: The part of the largest rate at full speed that is accepted: beyond it, the slowest clients train nearly all the
#: time, and fall behind with every turn that takes longer than usual.
ACCEPTED = 0.9


def require_feasible(fleet: Fleet) -> None:
    """Raises InfeasiblePromise if no policy could keep the promise to the clients that have not retired.

    In a fleet without rounds, all rates together are at most 1. Nobody is in two slots, so the times that were learned
    limit the rate as well (`slot_limits`); a client without a time counts with the median of the others. In large
    fleets, where this limit is far away unless there are nearly as many slots as clients, it is not computed.

    With `min_turn_interval`, no more turns are given in the time of a rest than there are clients. So if no turn lasts
    longer than a rest, everyone can have one of them, and that is all that rates with a sum of 1 can promise: rests
    make no promise infeasible.
    """
    slots = fleet.slots
    if slots is None:
        _require_feasible_rates(fleet)
        return
    try:
        _require_feasible_rates(fleet)
    except InfeasiblePromise as problem:
        most = problem.largest_rate or Fraction(0)
        raise _problem("all rates together exceed 1", most, problem.scale) from None
    times, rate = _times(fleet), _rate(fleet)
    if times is None or rate is None or len(times) > LARGE_FLEET:
        return
    if fleet.min_turn_interval is not None and times[-1] <= ACCEPTED * fleet.min_turn_interval:
        return
    limits = slot_limits(times, slots)
    if slots <= limits.sufficient_slots or rate <= ACCEPTED * limits.full_speed_rate:
        return
    largest = ACCEPTED * limits.full_speed_rate
    raise _problem(
        f"nobody is in two slots, and the turns of one client last {times[-1]:.3g} s",
        Fraction(largest).limit_denominator(FINEST),
        largest / rate,
        f", or create a new fleet with a concurrency of at most {limits.sufficient_slots:,}",
        slots=limits.sufficient_slots,
    )


def _times(fleet: Fleet) -> FloatArray | None:
    """Returns the times of all clients that have not retired, ascending; None if none is known."""
    active = fleet.counters.retired == 0
    known = active & (fleet.history.arrived > 0) & (fleet.history.typical_seconds > 0)
    if not known.any():
        return None
    seconds = fleet.history.typical_seconds
    return np.sort(np.where(known, seconds, np.median(seconds[known]))[active])


def _rate(fleet: Fleet) -> float | None:
    if not fleet.ids or fleet.policy.guarantee is None or fleet.queues is None:
        return None
    return float(np.max(fleet.queues.guaranteed_rates[fleet.counters.retired == 0], initial=0.0))


def _require_feasible_rates(fleet: Fleet) -> None:
    """Raises InfeasiblePromise if no policy could keep the promise to the clients that have not retired.

    Each client is assumed to be available as often as it was so far, and one that was not observed for long enough as
    often as the others; before the first round, all clients are assumed to be available. With accrual="always", a
    client that is available less often than its rate counts with that availability: a notice names it separately. In
    large fleets only the sum of all rates is compared with the cohort size, which is fast and seldom differs.
    """
    guarantee, queues = (fleet.policy.guarantee, fleet.queues) if fleet.ids else (None, None)
    active = np.flatnonzero(fleet.counters.retired == 0)
    if guarantee is None or queues is None or not len(active):
        return
    rates = np.array(queues.guaranteed_rates)[active]
    rate, size = float(rates.max()), fleet.policy.cohort_size
    sufficient: int | None
    places = len(rates) if size is None else size
    if queues.accrual == "available":
        if len(rates) * rate <= places:
            return  # a client earns only while it is available, and even all clients together would not earn too much
        availability = _availability(fleet, observed_after=1)[active]
        rates *= availability
    else:
        availability = _availability(fleet, observed_after=ENOUGH_ROUNDS)[active]
        rates = np.minimum(rates, availability)
    if len(rates) > LARGE_FLEET:
        total = float(rates.sum())
        if total <= places * (1 + ROUNDING):
            return
        scale, sufficient, clients = places / total, math.ceil(total * (1 - ROUNDING)), active
    else:
        try:
            feasibility.require_feasible(rates, availability, places)
            return
        except InfeasiblePromise as problem:
            scale, sufficient, clients = problem.scale, problem.cohort_size, active[list(problem.clients)]
    raise _problem(
        f"as often as they are available, {rate:g} is too much for a cohort_size of {places}",
        Fraction(rate * scale).limit_denominator(FINEST),
        scale,
        "" if sufficient is None else f", or a cohort_size of at least {sufficient:,}",
        cohort_size=sufficient,
        clients=tuple(clients.tolist()),
    )


def _problem(why: str, largest: Fraction, scale: float, remedy: str = "", **figures: Any) -> InfeasiblePromise:
    """Returns the error, with a remedy.

    Args:
        why: Why the rate cannot be kept.
        largest: The largest rate that can be.
        scale: The factor that makes the rate feasible.
        remedy: What else would make it feasible.
        figures: The further attributes of the error.
    """
    return InfeasiblePromise(
        f"the guaranteed_rate cannot be kept for the clients of this fleet, because {why}: use a guaranteed_rate of at "
        f"most {rounded_down(largest)}{remedy}, or pass allow_infeasible=True to go on without a guarantee",
        largest_rate=largest,
        scale=scale,
        **figures,
    )


def rounded_down(rate: Fraction) -> str:
    """Rounds to three digits, downwards, so that the result is feasible."""
    if rate <= 0:
        return "0"
    digits = 2 - math.floor(math.log10(rate))
    return f"{float(Fraction(math.floor(rate * 10**digits * (1 + Fraction(1, 10**9))), 10**digits)):.3g}"


def _availability(fleet: Fleet, *, observed_after: int) -> FloatArray:
    """Returns how often each client is available, as a share of the rounds since it joined."""
    rounds = fleet.round - fleet.counters.joined
    known = (rounds >= observed_after) & (fleet.counters.retired == 0)
    share = fleet.counters.offered / np.maximum(rounds, 1)
    others = float(share[known].mean()) if known.any() else 1.0
    return np.where(known, np.minimum(share, 1.0), others)
