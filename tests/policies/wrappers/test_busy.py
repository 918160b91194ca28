from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import Spy, late_arrivals, offer_of, report_of
from turnout.policies import ExcludeBusy, UniformRandom


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_a_late_client_is_not_offered_until_it_returns_or_the_limit_passes(seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    spy = Spy(8, cohort_size=3)
    policy = ExcludeBusy(spy, rounds)
    busy_since: dict[int, int] = {}
    pending: set[tuple[int, int]] = set()  # late turns without a late arrival so far
    for round_ in range(1, 30):
        available = rng.random(8) < 0.8
        free = [
            row for row in range(8) if available[row] and not (row in busy_since and round_ <= busy_since[row] + rounds)
        ]
        chosen = policy.ask(offer_of(round_, available)).clients
        assert np.flatnonzero(spy.offers[-1].available).tolist() == free
        outcomes = rng.choice(["arrived", "late", "failed"], len(chosen), p=[0.4, 0.5, 0.1])
        returned = [pair for pair in sorted(pending) if rng.random() < 0.3]
        times = np.where(outcomes == "late", 9.0, 1.0)
        arrivals = late_arrivals(returned)
        policy.tell(report_of(round_, chosen, times, outcomes=outcomes, available=available, late_arrivals=arrivals))
        reported = spy.reports[-1].available
        assert reported is not None
        assert np.flatnonzero(reported).tolist() == free
        pending -= set(returned)
        for late_round, row in returned:
            if busy_since.get(row) == late_round:
                del busy_since[row]
        for row, outcome in zip(chosen.tolist(), outcomes, strict=True):
            busy_since.pop(row, None)
            if outcome == "late":
                busy_since[row] = round_
                pending.add((round_, row))


def test_a_client_that_returned_after_enough_others_is_late_but_not_busy() -> None:
    """As the scheduler reports: a late client that returned has its own time, a busy one that of the last arrival."""
    policy = ExcludeBusy(UniformRandom(6, cohort_size=2), 5)
    policy.tell(report_of(1, [0, 1, 2, 3], [1.0, 2.0, 2.5, 2.0], outcomes=["arrived", "arrived", "late", "late"]))
    assert policy.busy(2).tolist() == [False, False, False, True, False, False]
    policy.tell(report_of(2, [0, 1, 2], [1.0, 9.0, 9.0], outcomes=["arrived", "late", "late"]))
    assert policy.busy(3).tolist() == [False, True, True, True, False, False]
    assert not policy.busy(8)[[1, 2, 3]].any()
