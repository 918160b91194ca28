from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import known
from policies.examples import GROUPS, INNER, Spy, late_arrivals, offer_of, played, report_of, same_state
from turnout.policies import (
    RBCSF,
    CoolDown,
    Eligible,
    ExcludeBusy,
    FairPace,
    Fastest,
    FedCS,
    Overcommit,
    Quota,
    UniformRandom,
    WarmUp,
)
from turnout.policies.check_support import SmallFleet
from turnout.policies.wrappers.offers import mark_late_after

# Over-selection


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
    marked = mark_late_after(report, count)
    for row, (before, _), after in zip(rows, turns, known(marked.outcomes), strict=True):
        assert after == ("late" if before == "arrived" and row not in counted else before)
    assert marked.exchange_times.tolist() == report.exchange_times.tolist()
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


# Busy clients


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
        reported = known(spy.reports[-1].available)
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
    policy.tell(report_of(8, [0, 1, 2, 3], [0.2, 0.3, 0.5, 0.3], outcomes=["arrived", "arrived", "late", "late"]))
    assert policy.busy(9).tolist() == [False, False, False, True, False, False], "of less than a second"


def test_over_selection_inside_or_outside_does_not_make_clients_busy() -> None:
    outside = Overcommit(ExcludeBusy(UniformRandom(6, cohort_size=2), 5), 2)
    outside.tell(report_of(1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]))
    assert isinstance(outside.policy, ExcludeBusy)
    assert not outside.policy.busy(2).any()
    inside = ExcludeBusy(Overcommit(UniformRandom(6, cohort_size=2), 2), 5)
    inside.tell(report_of(1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 2.0], outcomes=["arrived", "arrived", "late", "late"]))
    assert inside.busy(2).tolist() == [False, False, False, True, False, False]


# Cool-down


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), st.sampled_from([0.3, 0.6, 0.9]))
@settings(max_examples=20, deadline=None)
def test_recently_selected_clients_are_not_offered(seed: int, rounds: int, strict: bool, availability: float) -> None:
    rng = np.random.default_rng(seed)
    spy = Spy(9, cohort_size=3, seed=seed)
    policy = CoolDown(spy, rounds, strict=strict)
    cohorts: list[set[int]] = []
    for round_ in range(1, 25):
        mask = rng.random(9) < availability
        available = set(np.flatnonzero(mask).tolist())
        for length in range(rounds, -1, -1):
            offered = available - set().union(*cohorts[max(len(cohorts) - length, 0) :])
            if strict or len(offered) >= min(3, len(available)):
                break
        chosen = policy.ask(offer_of(round_, mask)).clients
        assert set(np.flatnonzero(spy.offers[-1].available).tolist()) == offered
        assert len(chosen) == min(3, len(offered))
        report = report_of(round_, chosen, available=mask)
        policy.tell(report)
        assert spy.reports[-1] is report  # clients in a cool-down count as available, and continue to earn turns
        cohorts.append(set(chosen.tolist()))


def test_a_policy_without_a_cohort_size_is_offered_at_least_one_client() -> None:
    policy = CoolDown(FedCS(2, deadline=9.0), 3)
    for round_ in range(1, 6):
        assert policy.ask(offer_of(round_, [True, False], [1.0, 1.0])).clients.tolist() == [0]
        policy.tell(report_of(round_, [0]))
    assert CoolDown(FedCS(2, deadline=9.0), 3).ask(offer_of(1, [False, False], [1.0, 1.0])).clients.tolist() == []


def test_the_places_of_the_offer_decide_how_far_a_cool_down_is_shortened() -> None:
    spy = Spy(4, cohort_size=1)
    policy = CoolDown(spy, 3)
    policy.tell(report_of(1, [0]))
    policy.tell(report_of(2, [1]))
    for places, offered in ((1, [2, 3]), (2, [2, 3]), (3, [0, 2, 3]), (4, [0, 1, 2, 3])):
        policy.ask(offer_of(3, [True] * 4).restricted(places=places))
        assert np.flatnonzero(spy.offers[-1].available).tolist() == offered


# Warm-up


def test_the_first_rounds_are_random_and_the_policy_inside_learns_from_them() -> None:
    policy, random, inner = WarmUp(RBCSF(40), 6, seed=3), UniformRandom(40, seed=3), RBCSF(40)
    fleet, prices = SmallFleet(), WarmUp(FairPace(40), 6)
    for offer, selection, report in played(policy, fleet, 11):
        assert selection == (random if offer.round <= 6 else inner).ask(offer)
        assert (policy.cohort_problem(offer) is None) == (offer.round <= 6)
        assert (prices.client_prices(offer) is None) == (offer.round <= 6)
        inner.tell(report)
    assert same_state(policy.policy.state(), inner.state())


def test_cohort_size_is_that_of_the_random_selection_if_the_policy_inside_has_none() -> None:
    policy = WarmUp(FedCS(40, estimates="learned", deadline=9.0), 2, cohort_size=5)
    assert policy.cohort_size is None
    assert len(policy.ask(SmallFleet().offer(1)).clients) == 5
    assert len(policy.ask(SmallFleet().offer(3)).clients) > 20


# Eligible clients


def test_a_mask_rows_and_tags_are_equivalent() -> None:
    offer = SmallFleet(clients=6, availability=1.0).offer(1)
    groups = ["a", ["b", "new"], None, ("a", "b"), "c", []]
    for allowed in (
        [False, True, False, True, True, False],
        np.array([False, True, False, True, True, False]),
        [4, 1, 3],
        np.array([3, 4, 1]),
        {"groups": groups, "names": ["b", "c"]},
        {"groups": groups, "names": {"new", "b", "c"}},
    ):
        policy = Eligible(UniformRandom(6, cohort_size=4), allowed)
        assert policy.allowed.tolist() == [False, True, False, True, True, False]
        assert policy.ask(offer).clients.tolist() == [1, 3, 4]


@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 0.8]))
@settings(max_examples=10, deadline=None)
def test_to_the_policy_inside_other_clients_are_not_available(seed: int, availability: float) -> None:
    allowed = np.random.default_rng(seed).random(40) < 0.4
    allowed[0] = True
    policy, inner = Eligible(INNER["rbcsf"](40), allowed), INNER["rbcsf"](40)
    for offer, selection, report in played(policy, SmallFleet(seed, availability=availability), 19):
        assert selection == inner.ask(replace(offer, available=offer.available & allowed))
        inner.tell(replace(report, available=offer.available & allowed))
    assert same_state(policy.policy.state(), inner.state())
    assert (known(policy.debts).owed[~allowed] == 0).all()


def test_rows_of_clients_that_join_later_can_be_listed_in_advance() -> None:
    policy = Eligible(UniformRandom(2, cohort_size=4), [1, 3])
    assert policy.allowed.tolist() == [False, True]
    policy.add(3)
    assert policy.allowed.tolist() == [False, True, False, True, False]
    assert policy.ask(offer_of(1, [True] * 5)).clients.tolist() == [1, 3]


def test_a_report_with_a_selected_client_that_is_not_allowed_is_accepted() -> None:
    spy = Spy(3, cohort_size=1)
    Eligible(spy, [1]).tell(report_of(1, [2], available=np.ones(3, dtype=bool)))
    assert known(spy.reports[0].available).tolist() == [False, True, True]
    Eligible(spy, [1]).tell(report_of(2, [2]))
    assert spy.reports[1].available is None


# Quotas


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_around_fastest_it_selects_the_fastest_cohort_that_meets_the_quotas(data: st.DataObject) -> None:
    """Compares with all possible cohorts."""
    groups = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=3, max_size=8).filter(any))
    least = {group: data.draw(st.integers(0, 2)) for group in sorted({group for group in groups if group})}
    size = max(sum(least.values()), data.draw(st.integers(1, 5)))
    available = np.array(data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))))
    times = np.array(data.draw(st.permutations(range(1, len(groups) + 1))), dtype=float)
    rows = np.flatnonzero(available).tolist()
    needed = {group: min(number, sum(groups[row] == group for row in rows)) for group, number in least.items()}
    candidates = [
        cohort
        for cohort in combinations(rows, min(size, len(rows)))
        if all(sum(groups[row] == group for row in cohort) >= number for group, number in needed.items())
    ]
    best = min(candidates, key=lambda cohort: sum(times[list(cohort)]))
    policy = Quota(Fastest(len(groups), cohort_size=size), least, groups)
    assert policy.ask(offer_of(1, available, times)).clients.tolist() == list(best)


@pytest.mark.parametrize("inner", ["random", "rbcsf", "oort", "tifl"])
def test_every_group_has_its_places_and_a_selection_that_meets_the_quotas_is_unchanged(inner: str) -> None:
    policy = Quota(INNER[inner](40), {"car": 2, "tv": 1}, GROUPS)
    fleet, unchanged, changed = SmallFleet(5, availability=0.4), 0, 0
    groups = np.array([group or "" for group in GROUPS])
    for round_ in range(1, 60):
        offer = fleet.offer(round_)
        inside, selection = policy.policy.ask(offer), policy.ask(offer)
        is_short = False
        for group, least in (("car", 2), ("tv", 1)):
            needed = min(least, int((offer.available & (groups == group)).sum()))
            assert (groups[selection.clients] == group).sum() >= needed
            is_short |= bool((groups[inside.clients] == group).sum() < needed)
        unchanged, changed = unchanged + (not is_short), changed + is_short
        assert is_short or selection == inside
        policy.tell(fleet.play(offer, selection))
    assert unchanged > 3
    assert changed > 3


def test_with_fewer_places_than_the_quotas_reserve_the_first_groups_come_first() -> None:
    policy = Quota(Fastest(6, cohort_size=4), {"b": 2, "a": 1}, ["a", "a", "a", "b", "b", "b"])
    offer = offer_of(1, [True] * 6, [1, 2, 3, 4, 5, 6])
    assert policy.ask(offer.restricted(places=1)).clients.tolist() == [3]
    assert policy.ask(offer.restricted(places=2)).clients.tolist() == [3, 4]
    assert policy.ask(offer.restricted(places=3)).clients.tolist() == [0, 3, 4]


def test_one_quota_can_hold_for_all_groups_and_groups_can_be_listed_in_advance() -> None:
    policy = Quota(Fastest(2, cohort_size=2), 1, ["a", "a", "b"])
    assert policy.least == {"a": 1, "b": 1}
    assert policy.ask(offer_of(1, [True] * 2, [1, 2])).clients.tolist() == [0, 1]
    policy.add(2)
    assert policy.ask(offer_of(1, [True] * 4, [1, 2, 9, 3])).clients.tolist() == [0, 2]


def test_a_quota_of_a_group_whose_clients_join_later_reserves_nothing_until_then() -> None:
    policy = Quota(Fastest(3, cohort_size=2), {"b": 1}, ["a", None, None, "b"])
    assert policy.ask(offer_of(1, [True] * 3, [1, 2, 3])).clients.tolist() == [0, 1]
    policy.add(1)
    assert policy.ask(offer_of(1, [True] * 4, [1, 2, 3, 9])).clients.tolist() == [0, 3]
    assert Quota(UniformRandom(9), {"b": 1}, []).least == {"b": 1}
