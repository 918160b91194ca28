"""An exact test, before the first round, of whether any policy can keep given guaranteed rates."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.arrays import FINEST, FloatArray, as_count, as_floats, refuse_where
from turnout.kernel.certificate import Accrual, Tolerance

# Rates and availabilities are floats; the test tolerates their rounding errors.
ROUNDING = 1e-9
NEGLIGIBLE = 1e-30


@dataclass(frozen=True, slots=True)
class Feasibility:
    """The result of the feasibility test.

    Attributes:
        scale: The largest factor by which all rates could be multiplied and still be kept.
        bottleneck: The rows of the clients that limit the factor.
    """

    scale: float
    bottleneck: tuple[int, ...]

    @property
    def holds(self) -> bool:
        """Whether the rates can be kept as they are."""
        return self.scale >= 1 - ROUNDING


def feasibility(
    rates: npt.ArrayLike, availability: npt.ArrayLike, cohort_size: int, accrual: Accrual = "always"
) -> Feasibility:
    """Tests whether the rates, one per client, can be kept if clients are available independently.

    They are shares of all rounds, or with accrual="available" of the rounds for which a client is available.

    Rates are achievable if and only if no set S of clients is promised more turns than it can get:
    Σ rates over S ≤ E[min(cohort_size, number of S available)]. Adding a client to S increases the right side by
    availability · P(fewer than cohort_size of S available), which decreases as S grows. Hence the sets with the least
    slack are prefixes of the clients in descending order of rate/availability, and only these have to be tested.
    """
    probability = as_probabilities(availability)
    requested = as_floats("rates", rates, 1, SettingError)
    if requested.shape != probability.shape:
        raise SettingError(
            f"rates has {len(requested)} entries, availability {len(probability)}: give one entry per client in both"
        )
    requested = _earned(requested, probability, accrual)
    size = as_count("cohort_size", cohort_size, SettingError)
    promised = np.flatnonzero(requested > 0)
    if not len(promised):
        return Feasibility(np.inf, ())
    if _all_equal(requested) and _all_equal(probability):
        # The turns per client decrease with the size of the set, so the set of all clients has the least slack.
        turns = binomial_turns(len(requested), float(probability[0]), size)
        return Feasibility(turns / (len(requested) * float(requested[0])), tuple(range(len(requested))))
    with np.errstate(divide="ignore"):
        order = promised[np.argsort(-(requested[promised] / probability[promised]), kind="stable")]
    promised_turns = np.cumsum(requested[order])
    scales = expected_turns(probability[order], size) / promised_turns
    # Among equal scales, report the largest set.
    worst = len(scales) - 1 - int(np.argmin(scales[::-1]))
    return Feasibility(float(scales[worst]), tuple(order[: worst + 1].tolist()))


def expected_turns(probabilities: FloatArray, cohort_size: int) -> FloatArray:
    """Returns E[min(cohort_size, number available)] of the first 1, 2, … clients, by dynamic programming.

    >>> expected_turns(np.array([1.0, 1.0, 1.0]), 2)
    array([1., 2., 2.])
    """
    if (probabilities == 1).all():
        all_available: FloatArray = np.minimum(np.arange(1.0, len(probabilities) + 1), cohort_size)
        return all_available
    turns = np.empty(len(probabilities))
    # P(exactly j clients are available) for j < cohort_size; the last entry collects the overflow.
    distribution = np.zeros(cohort_size + 1)
    distribution[0] = 1.0
    low, total = 0, 0.0
    for i, probability in enumerate(probabilities.tolist()):
        support = distribution[low : min(i + 1, cohort_size)]
        not_full = float(support.sum())
        if not_full < NEGLIGIBLE:
            # The cohort is full with certainty: further clients add nothing.
            turns[i:] = total
            break
        total += probability * not_full
        turns[i] = total
        shifted = support * probability
        support -= shifted
        distribution[low + 1 : low + 1 + len(shifted)] += shifted
        while low < cohort_size - 1 and distribution[low] < NEGLIGIBLE and low < i:
            low += 1
    bounded: FloatArray = np.minimum(turns, cohort_size)
    return bounded


def binomial_turns(clients: int, probability: float, cohort_size: int) -> float:
    """Returns E[min(cohort_size, number available)] of clients that are all available with the same probability.

    >>> round(binomial_turns(40, 0.2, 8), 4)
    7.0017
    """
    if probability in (0.0, 1.0) or cohort_size >= clients:
        return min(clients * probability, float(cohort_size))
    mode = min(int((clients + 1) * probability), clients)
    reach = int(14 * math.sqrt(clients * probability * (1 - probability))) + 60
    counts = np.arange(max(mode - reach, 0), min(mode + reach, clients) + 1, dtype=np.float64)
    # P(j + 1) / P(j) = (n − j)/(j + 1) · p/(1 − p).
    steps = np.log((clients - counts[:-1]) / (counts[:-1] + 1)) + math.log(probability) - math.log1p(-probability)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    return float((np.minimum(counts, cohort_size) * weights).sum() / weights.sum())


def largest_feasible_rate(availability: npt.ArrayLike, cohort_size: int, accrual: Accrual = "always") -> Fraction:
    """Returns the largest rate that can be guaranteed to every client.

    `availability` is the probability that a client is available in a round, one number per client. The rate is a share
    of all rounds, or with accrual="available" of the rounds for which a client is available.

    >>> largest_feasible_rate([1.0] * 40, 8), largest_feasible_rate([0.8] * 40, 8, "available")
    (Fraction(1, 5), Fraction(1, 4))
    >>> round(float(largest_feasible_rate([0.2] * 40, 8)), 4)
    0.175
    """
    probability = as_probabilities(availability)
    scale = feasibility(np.ones(len(probability)), probability, cohort_size, accrual).scale
    return Fraction(min(scale, 1.0)).limit_denominator(FINEST)


def _earned(rates: FloatArray, probability: FloatArray, accrual: Accrual) -> FloatArray:
    """Returns what each client earns per round."""
    return rates * probability if accrual == "available" else rates


def require_feasible(
    rates: npt.ArrayLike,
    availability: npt.ArrayLike,
    cohort_size: int,
    *,
    accrual: Accrual = "always",
    tolerance: Tolerance | None = None,
) -> None:
    """Raises InfeasiblePromise, with a remedy in terms of the given rates, unless these can be kept.

    Args:
        rates: The guaranteed rate of each client.
        availability: The probability that each client is available in a round.
        cohort_size: The number of clients to select in a round.
        accrual: Whether rates are shares of all rounds ("always"), or of those for which a client is available.
        tolerance: The number of turns that a client may be behind; then the error says what is proved with the largest
            rate for which something is.
    """
    requested, probability = as_floats("rates", rates, 1, SettingError), as_probabilities(availability)
    result = feasibility(requested, probability, cohort_size, accrual)
    if result.holds:
        return
    earned = _earned(requested, probability, accrual)
    sufficient_size = _sufficient_cohort_size(earned, probability, cohort_size)
    largest = Fraction(requested[0] * result.scale).limit_denominator(FINEST) if _all_equal(requested) else None
    problem = (
        f"guaranteed_rate {requested[0]:g} cannot be kept with cohort_size {cohort_size}: the largest feasible rate is "
        f"{float(largest):.6g}"
        if largest is not None
        else f"these guaranteed rates cannot be kept with cohort_size {cohort_size}: all of them would have to be "
        f"multiplied by {result.scale:.6g}"
    )
    raise InfeasiblePromise(
        f"{problem} ({_reason(result.bottleneck, earned, probability, cohort_size)}). "
        + _remedy(largest, result.scale, sufficient_size)
        + ", or pass allow_infeasible=True to go on without a guarantee"
        + _proved(largest, tolerance, len(requested), cohort_size),
        largest_rate=largest,
        scale=result.scale,
        cohort_size=sufficient_size,
        clients=result.bottleneck,
    )


def _sufficient_cohort_size(rates: FloatArray, probability: FloatArray, cohort_size: int) -> int | None:
    """Returns the smallest cohort size for which the rates are feasible, or None if there is none."""
    if (rates > probability * (1 + ROUNDING)).any():
        return None
    # The sum of the rates is a lower bound, and the answer is usually close to it.
    low = max(cohort_size, math.ceil(float(rates.sum()) * (1 - ROUNDING)) - 1)
    high, stride = low + 1, 1
    while high < len(rates) and not feasibility(rates, probability, high).holds:
        low, high, stride = high, min(high + stride, len(rates)), 2 * stride
    between = range(low + 1, high)
    return low + 1 + bisect_left(between, True, key=lambda size: feasibility(rates, probability, size).holds)


def _reason(clients: tuple[int, ...], rates: FloatArray, probability: FloatArray, cohort_size: int) -> str:
    rows = np.array(clients)
    if len(rows) == 1:
        return (
            f"client {rows[0]} is promised {rates[rows[0]]:g} of the rounds and is available in "
            f"{probability[rows[0]]:g} of them"
        )
    turns = (
        binomial_turns(len(rows), float(probability[rows[0]]), cohort_size)
        if _all_equal(probability[rows])
        else expected_turns(probability[rows], cohort_size)[-1]
    )
    subject = "all clients" if len(rows) == len(rates) else f"{len(rows)} of {len(rates)} clients"
    return f"{subject} together are promised {rates[rows].sum():.6g} turns per round and can get {turns:.6g}"


def _remedy(largest: Fraction | None, scale: float, sufficient_size: int | None) -> str:
    lower = f"Multiply the rates by {scale:.4g}"
    if largest is not None:
        lower = f"Use a guaranteed_rate of at most {_round_down(float(largest))}"
    return lower if sufficient_size is None else f"{lower}, or a cohort_size of at least {sufficient_size}"


def _proved(largest: Fraction | None, tolerance: Tolerance | None, clients: int, cohort_size: int) -> str:
    """Returns a sentence about what is proved with the largest rate that the proof covers; "" if there is none."""
    if not largest or tolerance is None:
        return ""
    proved_rate = min(largest, Fraction(cohort_size, clients))  # with accrual="available", more can be feasible
    rate = _round_down(float(proved_rate))
    if tolerance <= proved_rate:
        return f". The tolerance must exceed the rate: with a guaranteed_rate of {rate} it must be above {rate}"
    from turnout.kernel.pace.bounds import proved_bound  # which a scheduler does not need

    bound = proved_bound(proved_rate, clients, cohort_size, tolerance=tolerance).turns
    return (
        f". With a guaranteed_rate of {rate} and the tolerance {float(tolerance):g}, FairPace is proved to keep every "
        f"client less than {bound:.3f} turns behind if accrual='available' and counts='selected'; the tolerance "
        f"must be above {rate}"
    )


def _round_down(rate: float) -> str:
    """Rounds to five digits, downwards, so that the result is feasible."""
    if rate == 0:
        return "0"
    digits = 4 - int(np.floor(np.log10(rate)))
    return f"{np.floor(rate * 10.0**digits * (1 + ROUNDING)) / 10.0**digits:.{max(digits, 0)}f}".rstrip("0")


def _all_equal(values: FloatArray) -> bool:
    return bool((values == values[0]).all())


def as_probabilities(availability: npt.ArrayLike) -> FloatArray:
    """Converts availabilities to a vector of probabilities, one per client."""
    probability = as_floats("availability", availability, 1, SettingError)
    if not len(probability):
        raise SettingError("availability must hold one probability per client, but it is empty")
    refuse_where((probability < 0) | (probability > 1), "availability", probability, "must lie in [0, 1]", SettingError)
    return probability
