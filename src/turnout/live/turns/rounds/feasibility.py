"""Tests whether any policy could give the clients of a live fleet what they are promised."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from turnout.errors import InfeasiblePromise
from turnout.kernel.arrays import FINEST, FloatArray, IntArray
from turnout.kernel.feasibility import ROUNDING, require_feasible
from turnout.live.turns.rounds.state import ENOUGH_ROUNDS, Fleet

#: In larger fleets the exact test takes seconds, and no test is made whenever a client joins or leaves.
LARGE_FLEET = 10_000


def require_feasible_fleet(fleet: Fleet) -> None:
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
        if total > places * (1 + ROUNDING):
            raise _problem(rate, places, places / total, math.ceil(total * (1 - ROUNDING)), active)
        return
    try:
        require_feasible(rates, availability, places)
    except InfeasiblePromise as problem:
        raise _problem(rate, places, problem.scale, problem.cohort_size, active[list(problem.clients)]) from None


def _problem(
    rate: float, cohort_size: int, scale: float, sufficient: int | None, clients: IntArray
) -> InfeasiblePromise:
    """Returns the error, with a remedy.

    Args:
        rate: The guaranteed rate.
        cohort_size: The number of clients to select in a round.
        scale: The factor that makes the rate feasible.
        sufficient: The cohort size with which the rate is feasible, if there is one.
        clients: The rows of the clients that are promised too much together.
    """
    largest = Fraction(rate * scale).limit_denominator(FINEST)
    larger = "" if sufficient is None else f", use a cohort_size of at least {sufficient:,}"
    return InfeasiblePromise(
        f"guaranteed_rate {rate:g} cannot be kept with cohort_size {cohort_size} for the clients of this fleet, as "
        f"often as they are available: use a guaranteed_rate of at most {rounded_down(largest)}{larger}, or pass "
        "allow_infeasible=True to go on without a guarantee",
        largest_rate=largest,
        scale=scale,
        cohort_size=sufficient,
        clients=tuple(clients.tolist()),
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
