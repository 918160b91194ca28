"""The bounds that are proved for FairPace, attacked with adversarial availability and times."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout import FairPace, RoundOffer, RoundReport
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.pace.bounds import Circumstances

STRATEGIES = ("random", "rare", "most behind", "alternating", "all but the most behind", "everyone")


class Adversary:
    """Decides who is available, and how long everyone takes, from the state of the policy."""

    def __init__(self, policy: FairPace, seed: int, strategy: str, times: str) -> None:
        self.policy, self.rng, self.strategy, self.times = policy, np.random.default_rng(seed), strategy, times
        self.known = Circumstances(failures=0)
        self.missing = 0
        self.failed = np.zeros(policy.clients, dtype=np.int64)

    def available(self, round: int) -> BoolArray:
        clients, m = self.policy.clients, self.policy.cohort_size
        by_debt = np.argsort(-self.policy.certificate().behind_units, kind="stable")
        available = np.zeros(clients, dtype=np.bool_)
        strategy = self.rng.choice(STRATEGIES) if self.strategy == "mixed" else self.strategy
        match strategy:
            case "random":
                available = self.rng.random(clients) < 0.7
            case "rare":
                available = self.rng.random(clients) < 0.1
            case "most behind":
                available[by_debt[: m + 1 + int(self.rng.integers(0, m + 1))]] = True
            case "alternating":
                available[round % 2 :: 2] = True
            case "all but the most behind":
                available[by_debt[int(self.rng.integers(0, clients)) :]] = True
            case _:
                available[:] = True
        return available

    def restricted(self, offer: RoundOffer) -> RoundOffer:
        """Removes places while some may be missing, most often when many clients are urgent."""
        places = self.policy.cohort_size
        fewer = min(places - 1, self.known.missing_places - self.missing)
        urgent = int((self.policy.certificate().behind >= float(self.policy.tolerance) - 1).sum())
        if not fewer or urgent <= places or self.rng.random() < 0.5:
            return offer
        self.missing += fewer
        return offer.restricted(places=places - fewer)

    def outcomes(self, rows: IntArray) -> list[str]:
        """Lets as many turns fail as may, those of the clients that are furthest behind."""
        fails = np.zeros(len(rows), dtype=np.bool_)
        able = np.flatnonzero(self.failed[rows] < (self.known.in_a_row or 0))
        most = able[np.argsort(-self.policy.certificate().behind_units[rows[able]], kind="stable")]
        fails[most[: self.known.failures]] = True
        self.failed[rows] = np.where(fails, self.failed[rows] + 1, 0)
        return ["failed" if fail else "arrived" for fail in fails]

    def seconds(self, rows: list[int]) -> FloatArray:
        match self.times:
            case "equal":
                return np.ones(len(rows))
            case "constant":
                return np.array([1.0 + 100.0 * row for row in rows])
            case "wild":
                return 10.0 ** self.rng.uniform(-6, 8, len(rows))
        return self.rng.random(len(rows))


def largest_behind(policy: FairPace, adversary: Adversary, rounds: int) -> Fraction:
    """Plays rounds and returns how far any client was ever behind."""
    largest = Fraction(-1)
    for round_ in range(1, rounds + 1):
        available = adversary.available(round_)
        offer = RoundOffer(round_, available, 1 + adversary.rng.random((policy.clients, 1)))
        rows = policy.ask(adversary.restricted(offer)).clients
        times = adversary.seconds(rows.tolist())
        losses = 10.0 ** adversary.rng.uniform(-3, 3, len(rows))
        outcomes = adversary.outcomes(rows)
        policy.tell(RoundReport(round_, rows, offer.contexts[rows], times, available, outcomes, losses))
        certificate = policy.certificate()
        largest = max(largest, Fraction(int(certificate.behind_units.max()), certificate.units_per_turn))
    return largest


@given(
    clients=st.integers(1, 14),
    size=st.integers(1, 5),
    load=st.fractions(0, 1, max_denominator=20),
    extra=st.fractions(Fraction(1, 50), 4, max_denominator=50),
    strategy=st.sampled_from([*STRATEGIES, "mixed"]),
    times=st.sampled_from(["equal", "constant", "wild", "random"]),
    seed=st.integers(0, 10**6),
    given_settings=st.sampled_from([{}, {"value": "loss", "value_weight": 5.0}, {"value": "loss", "head_start": 3.0}]),
)
@settings(max_examples=30, deadline=None)
def test_the_bound_is_never_violated(
    clients: int,
    size: int,
    load: Fraction,
    extra: Fraction,
    strategy: str,
    times: str,
    seed: int,
    given_settings: dict[str, Any],
) -> None:
    rate = min(load * size / clients, Fraction(1))
    tolerance = rate + extra
    policy = FairPace(
        clients,
        cohort_size=size,
        guaranteed_rate=rate,
        tolerance=tolerance,
        features=1,
        allow_infeasible=True,
        **given_settings,
    )
    bound = tolerance - rate + rate * (clients - 1) / size
    assert policy.bound == float(bound)
    assert largest_behind(policy, Adversary(policy, seed, strategy, times), 40) < bound


@pytest.mark.thorough
@given(
    rates=st.lists(st.fractions(Fraction(1, 40), 1, max_denominator=40), min_size=2, max_size=14),
    size=st.integers(1, 5),
    extra=st.fractions(Fraction(1, 50), 4, max_denominator=50),
    failures=st.integers(0, 2),
    in_a_row=st.integers(1, 2),
    missing=st.integers(0, 6),
    strategy=st.sampled_from([*STRATEGIES, "mixed"]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_the_bounds_for_different_rates_failed_turns_and_missing_places_are_never_violated(
    rates: list[Fraction],
    size: int,
    extra: Fraction,
    failures: int,
    in_a_row: int,
    missing: int,
    strategy: str,
    seed: int,
) -> None:
    failures = min(failures, size - 1)
    useful, stretch = size - failures, 1 + in_a_row if failures else 1
    scale = min(Fraction(1), Fraction(useful) / (stretch * sum(rates)), 1 / (stretch * max(rates)))
    rates = [max((rate * scale).limit_denominator(100) - Fraction(1, 100), Fraction(1, 1000)) for rate in rates]
    policy = FairPace(
        len(rates),
        cohort_size=size,
        guaranteed_rate=list(map(str, rates)),
        tolerance=max(rates) + extra,
        counts="completed",
        features=1,
        allow_infeasible=True,
    )
    adversary = Adversary(policy, seed, strategy, "wild")
    adversary.known = Circumstances(missing, failures, in_a_row)
    bound = policy.guarantee.proved_bound(len(rates), size, adversary.known)
    assert bound.conditions, bound.reason
    assert float(largest_behind(policy, adversary, 60)) < bound.turns
