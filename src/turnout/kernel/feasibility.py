"""Can this promise be kept at all? Exactly, before the first round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_floats, refuse_where
from turnout.kernel.fairness import FINEST

# Rates and availabilities are floats: a promise is not broken by what their rounding adds.
ROUNDING = 1e-9
NEVER = 1e-30


@dataclass(frozen=True, slots=True)
class Feasibility:
    """By what all rates could be multiplied and still be kept, and which clients stand in the way."""

    scale: float
    bottleneck: tuple[int, ...]

    @property
    def holds(self) -> bool:
        """Can the rates be kept as they are?"""
        return self.scale >= 1 - ROUNDING


def feasibility(rates: npt.ArrayLike, availability: npt.ArrayLike, cohort_size: int) -> Feasibility:
    """Hold rates, one a client, against independent availabilities, one a client.

    Rates are achievable if and only if no set S of clients is promised more turns than it can get:
    Σ rates over S ≤ E[min(cohort_size, number of S available)]. To add a client to S raises the right side by
    availability · P(fewer than cohort_size of S available), which falls as S grows; hence the worst sets hold
    the clients of the largest rate/availability, and the sets to look at are the prefixes of that order.
    """
    chance = _as_chances(availability)
    asked = as_floats("rates", rates, 1, SettingError)
    if asked.shape != chance.shape:
        raise SettingError(f"rates are {len(asked)}, availabilities {len(chance)}: one each a client is needed")
    size = as_count("cohort_size", cohort_size, SettingError)
    promised = np.flatnonzero(asked > 0)
    if not len(promised):
        return Feasibility(np.inf, ())
    if _all_alike(asked) and _all_alike(chance):
        # The more of them, the less for each: the worst set is all of them.
        turns = binomial_turns(len(asked), float(chance[0]), size)
        return Feasibility(turns / (len(asked) * float(asked[0])), tuple(range(len(asked))))
    with np.errstate(divide="ignore"):
        order = promised[np.argsort(-(asked[promised] / chance[promised]), kind="stable")]
    together = np.cumsum(asked[order])
    scales = expected_turns(chance[order], size) / together
    # Of equal scales the largest set is the one to tell about.
    worst = len(scales) - 1 - int(np.argmin(scales[::-1]))
    return Feasibility(float(scales[worst]), tuple(order[: worst + 1].tolist()))


def expected_turns(chances: FloatArray, cohort_size: int) -> FloatArray:
    """E[min(cohort_size, number available)] of the first 1, 2, … clients, by dynamic programming.

    >>> expected_turns(np.array([1.0, 1.0, 1.0]), 2)
    array([1., 2., 2.])
    """
    if (chances == 1).all():
        everyone: FloatArray = np.minimum(np.arange(1.0, len(chances) + 1), cohort_size)
        return everyone
    turns = np.empty(len(chances))
    fewer = np.zeros(cohort_size + 1)  # P(exactly j are available), j < cohort_size; one place to spill over
    fewer[0] = 1.0
    low, total = 0, 0.0
    for i, chance in enumerate(chances.tolist()):
        likely = fewer[low : min(i + 1, cohort_size)]
        room = float(likely.sum())
        if room < NEVER:
            # The cohort is full for certain: nobody adds anything more.
            turns[i:] = total
            break
        total += chance * room
        turns[i] = total
        moved = likely * chance
        likely -= moved
        fewer[low + 1 : low + 1 + len(moved)] += moved
        while low < cohort_size - 1 and fewer[low] < NEVER and low < i:
            low += 1
    bounded: FloatArray = np.minimum(turns, cohort_size)
    return bounded


def binomial_turns(clients: int, chance: float, cohort_size: int) -> float:
    """E[min(cohort_size, number available)] of clients that are all there equally often.

    >>> round(binomial_turns(40, 0.2, 8), 4)
    7.0017
    """
    if chance in (0.0, 1.0) or cohort_size >= clients:
        return min(clients * chance, float(cohort_size))
    likeliest = min(int((clients + 1) * chance), clients)
    reach = int(14 * math.sqrt(clients * chance * (1 - chance))) + 60
    numbers = np.arange(max(likeliest - reach, 0), min(likeliest + reach, clients) + 1, dtype=np.float64)
    # From one number to the next the probability changes by (n − j)/(j + 1) · p/(1 − p).
    steps = np.log((clients - numbers[:-1]) / (numbers[:-1] + 1)) + math.log(chance) - math.log1p(-chance)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    return float((np.minimum(numbers, cohort_size) * weights).sum() / weights.sum())


def largest_feasible_rate(availability: npt.ArrayLike, cohort_size: int) -> Fraction:
    """The largest rate that every client can be promised alike.

    `availability`: the chance that a client volunteers, one a client.

    >>> largest_feasible_rate([1.0] * 40, 8)
    Fraction(1, 5)
    >>> round(float(largest_feasible_rate([0.2] * 40, 8)), 4)
    0.175
    """
    chance = _as_chances(availability)
    scale = feasibility(np.ones(len(chance)), chance, cohort_size).scale
    return Fraction(min(scale, 1.0)).limit_denominator(FINEST)


def require_feasible(rates: npt.ArrayLike, availability: npt.ArrayLike, cohort_size: int) -> None:
    """Raise InfeasiblePromise, with a remedy, unless the rates can be kept."""
    asked = as_floats("rates", rates, 1, SettingError)
    found = feasibility(asked, availability, cohort_size)
    if found.holds:
        return
    chance = _as_chances(availability)
    alike = _all_alike(asked)
    enough = _sufficient_cohort(asked, chance, cohort_size)
    largest = Fraction(asked[0] * found.scale).limit_denominator(FINEST) if alike else None
    told = (
        f"guaranteed_rate {asked[0]:g} cannot be kept with cohort_size {cohort_size}: the largest feasible rate is "
        f"{float(largest):.6g}"
        if largest is not None
        else f"these guaranteed rates cannot be kept with cohort_size {cohort_size}: all of them would have to be "
        f"multiplied by {found.scale:.6g}"
    )
    raise InfeasiblePromise(
        f"{told} ({_blame(found.bottleneck, asked, chance, cohort_size)}). "
        + _remedy(largest, found.scale, enough)
        + ", or pass allow_infeasible=True to go on without a guarantee",
        largest_rate=largest,
        scale=found.scale,
        cohort_size=enough,
        clients=found.bottleneck,
    )


def _sufficient_cohort(rates: FloatArray, chance: FloatArray, cohort_size: int) -> int | None:
    """The smallest cohort that would do, or None if none would."""
    if (rates > chance * (1 + ROUNDING)).any():
        return None
    # Fewer than all are promised together cannot be enough; a little more mostly is.
    low = max(cohort_size, math.ceil(float(rates.sum()) * (1 - ROUNDING)) - 1)
    high, stride = low + 1, 1
    while high < len(rates) and not feasibility(rates, chance, high).holds:
        low, high, stride = high, min(high + stride, len(rates)), 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        if feasibility(rates, chance, middle).holds:
            high = middle
        else:
            low = middle
    return high


def _blame(clients: tuple[int, ...], rates: FloatArray, chance: FloatArray, cohort_size: int) -> str:
    rows = np.array(clients)
    if len(rows) == 1:
        return (
            f"client {rows[0]} is promised {rates[rows[0]]:g} of the rounds and is available in {chance[rows[0]]:g} "
            "of them"
        )
    turns = (
        binomial_turns(len(rows), float(chance[rows[0]]), cohort_size)
        if _all_alike(chance[rows])
        else expected_turns(chance[rows], cohort_size)[-1]
    )
    who = "all clients" if len(rows) == len(rates) else f"{len(rows)} of {len(rates)} clients"
    return f"{who} are promised {rates[rows].sum():.6g} turns a round together and can get {turns:.6g}"


def _remedy(largest: Fraction | None, scale: float, enough: int | None) -> str:
    lower = (
        f"Promise at most {_rounded_down(float(largest))}"
        if largest is not None
        else f"Multiply the rates by {scale:.4g}"
    )
    return lower if enough is None else f"{lower}, choose at least {enough} clients a round"


def _rounded_down(rate: float) -> str:
    """Five digits that may be promised."""
    if rate == 0:
        return "0"
    digits = 4 - int(np.floor(np.log10(rate)))
    return f"{np.floor(rate * 10.0**digits * (1 + ROUNDING)) / 10.0**digits:.{max(digits, 0)}f}".rstrip("0")


def _all_alike(values: FloatArray) -> bool:
    return bool((values == values[0]).all())


def _as_chances(availability: npt.ArrayLike) -> FloatArray:
    chance = as_floats("availability", availability, 1, SettingError)
    if not len(chance):
        raise SettingError("availability must hold one chance a client, not none")
    refuse_where((chance < 0) | (chance > 1), "availability", chance, "must lie in [0, 1]", SettingError)
    return chance
