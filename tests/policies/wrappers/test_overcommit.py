from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import known
from policies.examples import Spy, report_of
from turnout.errors import SettingError
from turnout.policies import RBCSF, FedCS, Overcommit, UniformRandom
from turnout.policies.small_fleet import SmallFleet
from turnout.policies.wrappers.overcommit import mark_late_after


@given(st.lists(st.tuples(st.sampled_from(["arrived", "late", "failed"]), st.integers(0, 4)), max_size=9), st.data())
@settings(max_examples=50, deadline=None)
def test_the_first_arrivals_count_and_later_ones_are_late(turns: list[tuple[str, int]], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    rows = data.draw(st.permutations(range(len(turns))))
    report = report_of(3, rows, [seconds for _, seconds in turns], outcomes=[outcome for outcome, _ in turns])
    arrivals = sorted(
        (seconds, row) for row, (outcome, seconds) in zip(rows, turns, strict=True) if outcome == "arrived"
    )
    counted = [row for _, row in arrivals[:count]]
    marked, cut = mark_late_after(report, count), mark_late_after(report, count, cut=True)
    for row, (before, _), after in zip(rows, turns, known(marked.outcomes), strict=True):
        assert after == ("late" if before == "arrived" and row not in counted else before)
    assert marked.exchange_times.tolist() == report.exchange_times.tolist()
    if len(arrivals) > count:
        assert cut.duration <= arrivals[count - 1][0]
    assert mark_late_after(marked, count) == marked


def test_more_clients_are_selected_and_the_policy_inside_learns_that_later_ones_were_late() -> None:
    spy = Spy(10, cohort_size=3)
    policy = Overcommit(spy, 1.5)
    offer = SmallFleet(clients=10, availability=1.0).offer(1)
    chosen = policy.ask(offer).clients
    assert chosen.tolist() == UniformRandom(10, cohort_size=5).ask(offer).clients.tolist()
    policy.tell(report_of(1, chosen, [4.0, 1.0, 5.0, 2.0, 3.0], losses=np.arange(5.0)))
    (report,) = spy.reports
    assert list(known(report.outcomes)) == ["late", "arrived", "late", "arrived", "arrived"]
    assert report.exchange_times.tolist() == [4.0, 1.0, 5.0, 2.0, 3.0]
    assert known(report.losses).tolist() == [0, 1, 2, 3, 4]


def test_the_cohort_grows_by_the_factor_and_the_target_stays() -> None:
    policy = Overcommit(UniformRandom(200, cohort_size=100), 1.1)
    assert (policy.cohort_size, policy.target_size) == (110, 100)
    twice = Overcommit(policy, 2)
    assert (twice.cohort_size, twice.target_size) == (220, 100)


def test_only_updates_that_counted_are_paid_if_a_turn_counts_when_it_contributes() -> None:
    policy = Overcommit(RBCSF(10, cohort_size=2, counts="completed"), 2)
    policy.tell(report_of(1, [0, 1, 2, 3], [4.0, 1.0, 3.0, 2.0]))
    certificate = known(policy.certificate())
    assert certificate.turns.tolist()[:4] == [0, 1, 0, 1]


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(SettingError, match=r"factor must be at least 1, not 0\.9"):
        Overcommit(UniformRandom(9), 0.9)
    with pytest.raises(SettingError, match="factor must be at most 10, not 11"):
        Overcommit(UniformRandom(9), 11)
    with pytest.raises(SettingError, match="overcommit needs a policy with a cohort_size, and fedcs has none"):
        Overcommit(FedCS(9))
