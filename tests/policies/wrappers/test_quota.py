from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import GROUPS, INNER, offer_of
from turnout.policies import Fastest, Quota, UniformRandom
from turnout.policies.small_fleet import SmallFleet


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_around_fastest_it_selects_the_fastest_cohort_that_meets_the_quotas(data: st.DataObject) -> None:
    """Compares with all possible cohorts."""
    groups = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=3, max_size=8).filter(any))
    names = sorted({group for group in groups if group})
    least = {group: data.draw(st.integers(0, 2)) for group in names}
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
