"""Policies around policies: each rule against a literal reading of it, and what all of them keep."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy, make_policy
from turnout.errors import OfferError, ReportError, SettingError, StateError
from turnout.kernel.rounds import LateArrivals
from turnout.policies import (
    RBCSF,
    CoolDown,
    Eligible,
    ExcludeBusy,
    Fastest,
    FedCS,
    Overcommit,
    Quota,
    RoundRobin,
    SkewedRandom,
    UniformRandom,
    WarmUp,
)
from turnout.policies.checks import CHECKS, the_cohort_has_the_requested_size
from turnout.policies.registry import WRAPPERS, with_defaults
from turnout.policies.small_fleet import SmallFleet
from turnout.policies.wrappers.base import (
    Wrapper,
    merge_selections,
)
from turnout.policies.wrappers.guarantee import WithGuarantee
from turnout.policies.wrappers.overcommit import mark_late_after

Wrap = Callable[[SelectionPolicy], Wrapper]
GROUPS = ["phone", "car", "phone", "tv", None] * 8
ELIGIBLE = np.arange(0, 40, 3)  # also of those who join later
WRAPS: dict[str, Wrap] = {
    "overcommit": lambda policy: Overcommit(policy, 1.3),
    "eligible": lambda policy: Eligible(policy, ELIGIBLE),
    "exclude-busy": lambda policy: ExcludeBusy(policy, 3),
    "cool-down": lambda policy: CoolDown(policy, 2),
    "cool-down-strict": lambda policy: CoolDown(policy, 2, strict=True),
    "quota": lambda policy: Quota(policy, {"car": 2, "tv": 1}, GROUPS),
    "warm-up": lambda policy: WarmUp(policy, 10, cohort_size=policy.cohort_size or 5),
    "with-guarantee": lambda policy: WithGuarantee(policy, 0.1, accrual="available"),
}
LIVE: dict[str, Any] = {"accrual": "available", "paid": "contributed", "max_owed": 5, "speed_weight": 2.0}
INNER: dict[str, Callable[[int], SelectionPolicy]] = {
    "random": lambda clients: UniformRandom(clients, cohort_size=min(6, clients)),
    "fastest": lambda clients: Fastest(clients, cohort_size=5),
    "rbcsf": lambda clients: RBCSF(clients, cohort_size=5, guaranteed_rate=0.1, **LIVE),
    "oort": lambda clients: make_policy("oort", clients, cohort_size=5),
    "tifl": lambda clients: make_policy("tifl", clients, cohort_size=5),
    "fedcs": lambda clients: FedCS(clients, estimates="learned", deadline=9.0),
}
FLOATS = {"fedcs"}
NEED_PLACES = {"overcommit", "quota"}
#: Every pair of a wrapper and a policy inside that can be; some of them, where each costs time.
PAIRS = [(wrap, inner) for wrap in WRAPS for inner in INNER if not (inner in FLOATS and wrap in NEED_PLACES)]

SOME = [
    pair
    for place, wrap in enumerate(WRAPS)
    for pair in PAIRS
    if pair in ((wrap, "rbcsf"), (wrap, list(INNER)[place % 6]))
]


def ANYTHING(value: Any) -> Any:  # noqa: N802
    """For settings that mypy would refuse, too."""
    return value


def around(wrap: str, inner: str, clients: int = 40) -> Wrapper:
    return WRAPS[wrap](INNER[inner](clients))


def nested(clients: int = 40) -> Wrapper:
    return ExcludeBusy(CoolDown(WithGuarantee(INNER["rbcsf"](clients), 0.1, accrual="available"), 1), 4)


def offer_of(round_: int, available: Any, times: Any = None) -> RoundOffer:
    mask = np.array(available, dtype=bool)
    return RoundOffer(round_, mask, np.ones((len(mask), 3)), None if times is None else np.array(times, dtype=float))


def report_of(round_: int, clients: Any, times: Any = None, **more: Any) -> RoundReport:
    rows = np.array(clients, dtype=np.int64)
    seconds = np.ones(len(rows)) if times is None else np.array(times, dtype=float)
    return RoundReport(round_, rows, np.ones((len(rows), 3)), seconds, **more)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """One number for all clients is as good as the same number for each."""
    pairs = [np.broadcast_arrays(one[key], other[key]) for key in one.keys() | other.keys()]
    return all(np.array_equal(first, second) for first, second in pairs)


def rounds_of(policy: SelectionPolicy, fleet: SmallFleet, first: int, last: int) -> list[tuple[RoundOffer, Selection]]:
    played = []
    for round_ in range(first, last + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        policy.tell(fleet.play(offer, selection))
        played.append((offer, selection))
    return played


class Spy(UniformRandom):
    """Remembers what it was offered and told."""

    def __init__(self, clients: int, **given: Any) -> None:
        super().__init__(clients, **given)
        self.offers: list[RoundOffer] = []
        self.reports: list[RoundReport] = []

    def ask(self, offer: RoundOffer) -> Selection:
        self.offers.append(offer)
        return super().ask(offer)

    def tell(self, report: RoundReport) -> None:
        super().tell(report)
        self.reports.append(report)


# What all of them keep


@pytest.mark.parametrize(("wrap", "inner"), SOME)
def test_a_wrapped_policy_keeps_every_promise(wrap: str, inner: str) -> None:
    for check in CHECKS:
        if check is not the_cohort_has_the_requested_size or around(wrap, inner).fills_cohort:
            check(lambda: around(wrap, inner))


def test_three_around_each_other_keep_every_promise() -> None:
    for check in CHECKS:
        if check is not the_cohort_has_the_requested_size:
            check(nested)


@cache
def offers_at(availability: float) -> list[RoundOffer]:
    fleet = SmallFleet(2, availability=availability)
    return [fleet.offer(round_) for round_ in range(1, 501)]


@pytest.mark.parametrize("availability", [0.8, 0.3, 0.05])
@pytest.mark.parametrize("wrap", WRAPS)
def test_500_rounds_of_cohorts_of_the_right_size_without_repeats_or_absentees(wrap: str, availability: float) -> None:
    policy = WRAPS[wrap](RoundRobin(40, cohort_size=6))
    assert policy.cohort_size is not None
    for offer in offers_at(availability):
        chosen = policy.ask(offer).clients
        assert offer.available[chosen].all()
        assert len(set(chosen.tolist())) == len(chosen)
        wanted = min(policy.cohort_size, int(offer.available.sum()))
        assert len(chosen) == wanted if policy.fills_cohort else len(chosen) <= wanted
        outcomes = np.where((chosen + offer.round) % 7 == 0, "late", "arrived")
        policy.tell(report_of(offer.round, chosen, outcomes=outcomes, available=offer.available))


@pytest.mark.parametrize(("wrap", "inner"), [*SOME, ("three", "")])
def test_a_run_that_is_saved_and_restored_half_way_is_the_run_it_would_have_been(wrap: str, inner: str) -> None:
    def build() -> Wrapper:
        return nested() if wrap == "three" else around(wrap, inner)

    fleet, other_fleet = (SmallFleet(4, deadline=12.0, failure_rate=0.1) for _ in range(2))
    whole, half, resumed = build(), build(), build()
    wanted = rounds_of(whole, fleet, 1, 24)
    rounds_of(half, other_fleet, 1, 12)
    resumed.restore(half.state())
    assert [choice for _, choice in rounds_of(resumed, other_fleet, 13, 24)] == [choice for _, choice in wanted[12:]]
    assert same(resumed.state(), whole.state())


@pytest.mark.parametrize(("wrap", "inner"), PAIRS)
def test_a_policy_grown_by_add_equals_one_built_large(wrap: str, inner: str) -> None:
    grown, built = around(wrap, inner, 20), around(wrap, inner, 25)
    small, large = SmallFleet(1, clients=20), SmallFleet(1, clients=25)
    assert grown.cohort_size == built.cohort_size
    for round_ in range(1, 8):
        offer = small.offer(round_)
        assert offer.expected_times is not None
        wide = RoundOffer(
            round_,
            np.concatenate([offer.available, np.zeros(5, dtype=bool)]),
            np.concatenate([offer.contexts, np.ones((5, 3))]),
            np.concatenate([offer.expected_times, np.ones(5)]),
        )
        selection = grown.ask(offer)
        assert built.ask(wide).clients.tolist() == selection.clients.tolist()
        report = small.play(offer, selection)
        grown.tell(report)
        built.tell(
            RoundReport(round_, report.clients, report.contexts, report.exchange_times, available=wide.available)
        )
    grown.add(2)
    grown.add(0)
    grown.add(3)
    assert grown.clients == grown.policy.clients == 25
    assert same(grown.state(), built.state())
    for round_ in range(8, 14):
        offer = large.offer(round_)
        selection = grown.ask(offer)
        assert selection == built.ask(offer)
        report = large.play(offer, selection)
        grown.tell(report)
        built.tell(report)
    assert same(grown.state(), built.state())
    offer = large.offer(14)
    only_new = RoundOffer(14, np.arange(25) >= 20, offer.contexts, offer.expected_times)
    assert grown.ask(only_new) == built.ask(only_new)
    assert inner in FLOATS or len(grown.ask(only_new).clients) > 0, "those who joined are chosen"
    for wrong in (-1, 1.5, True):
        with pytest.raises(SettingError, match="count must be"):
            grown.add(wrong)  # type: ignore[arg-type]
    assert grown.clients == grown.policy.clients == 25
    with pytest.raises(OfferError, match="the offer has 20 clients, this policy was built for 25"):
        grown.ask(small.offer(14))


def test_who_refuses_to_grow_refuses_inside_too() -> None:
    policy = CoolDown(SkewedRandom(9, cohort_size=3))
    with pytest.raises(SettingError, match="skewed draws the weights of all clients at once"):
        policy.add(2)
    assert policy.clients == 9


def test_a_wrapper_shows_what_the_policy_inside_has() -> None:
    policy = CoolDown(Overcommit(INNER["rbcsf"](40), 1.5), 1)
    rounds_of(policy, SmallFleet(), 1, 5)
    inner = policy.policy.policy  # type: ignore[attr-defined]
    assert policy.certificate() is not None
    for name in ("guarantee", "debts", "time_model"):
        assert vars(policy)[name] is vars(inner)[name] is not None
    assert (policy.target_size, policy.cohort_size, policy.features, policy.requires_expected_times) == (5, 8, 3, False)
    assert policy.wanted == policy.target_size
    assert policy.exploration_at(3) == inner.exploration_at(3)
    offer = SmallFleet().offer(6)
    problem = policy.cohort_problem(offer)
    assert problem is not None
    assert problem.size == 8
    assert not problem.available[~offer.available].any()
    assert CoolDown(UniformRandom(9)).certificate() is None
    assert CoolDown(UniformRandom(9)).guarantee is None
    with pytest.raises(AttributeError):
        policy.speed_weight  # type: ignore[attr-defined]  # noqa: B018  # nothing but the declared capabilities
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin.ask(SmallFleet().offer(6)) == policy.ask(SmallFleet().offer(6))


def test_it_can_be_asked_for_another_number_of_places_as_the_scheduler_does() -> None:
    offer = SmallFleet(availability=1.0).offer(1)
    for wrap, inner in PAIRS:
        policy = around(wrap, inner)
        own = policy.cohort_size
        if own is None:
            assert inner in FLOATS
            continue
        for size in (1, 3, 20):
            selected = len(policy.ask(offer.restricted(places=size)).clients)
            assert selected == (min(size, len(ELIGIBLE)) if wrap == "eligible" else size)
        assert len(policy.ask(offer).clients) == own
        assert policy.policy.cohort_size == INNER[inner](40).cohort_size


@pytest.mark.parametrize(("wrap", "inner"), [(wrap, "rbcsf") for wrap in WRAPS])
def test_what_is_refused_changes_nothing(wrap: str, inner: str) -> None:
    policy, other = around(wrap, inner), around(wrap, inner, 43)
    fleet = SmallFleet(deadline=12.0)
    rounds_of(policy, fleet, 1, 6)
    before = policy.state()
    late = LateArrivals(np.array([1]), np.array([77]), np.ones((1, 3)), np.array([9.0]), np.array([14.0]))
    everyone = np.ones(40, dtype=bool)
    for wrong in (
        report_of(7, [99]),
        report_of(7, [1], available=np.ones(41, dtype=bool)),
        report_of(7, [1], available=everyone, late_arrivals=late),
        report_of(7, [1]),  # its queues must know who was available
        RoundReport(7, np.array([1]), np.ones((1, 2)), np.ones(1), available=everyone),
    ):
        with pytest.raises(ReportError):
            policy.tell(wrong)
        assert same(before, policy.state())
    rounds_of(other, SmallFleet(clients=43), 1, 3)
    broken = {key: value for key, value in before.items() if key != "policy.turns"}
    for state in (other.state(), {}, broken):
        with pytest.raises(StateError):
            policy.restore(state)
        assert same(before, policy.state())


# Over-commitment


@given(st.lists(st.tuples(st.sampled_from(["arrived", "late", "failed"]), st.integers(0, 4)), max_size=9), st.data())
@settings(max_examples=50, deadline=None)
def test_the_first_back_are_those_a_server_would_keep(turns: list[tuple[str, int]], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(1, 9))
    rows = data.draw(st.permutations(range(len(turns))))
    report = report_of(3, rows, [seconds for _, seconds in turns], outcomes=[word for word, _ in turns])
    back = sorted((seconds, row) for row, (word, seconds) in zip(rows, turns, strict=True) if word == "arrived")
    kept = [row for _, row in back[:wanted]]
    told, cut = mark_late_after(report, wanted), mark_late_after(report, wanted, cut=True)
    for row, (word, _), now in zip(rows, turns, told.outcomes if told.outcomes is not None else [], strict=True):
        assert now == (word if word != "arrived" or row in kept else "late")
    assert told.exchange_times.tolist() == report.exchange_times.tolist()
    if len(back) > wanted:
        assert cut.duration <= back[wanted - 1][0]
    assert mark_late_after(told, wanted) == told


def test_overcommit_asks_for_more_and_tells_that_later_ones_were_late() -> None:
    spy = Spy(10, cohort_size=3)
    policy = Overcommit(spy, 1.5)
    offer = SmallFleet(clients=10, availability=1.0).offer(1)
    chosen = policy.ask(offer).clients
    assert chosen.tolist() == UniformRandom(10, cohort_size=5).ask(offer).clients.tolist()
    policy.tell(report_of(1, chosen, [4.0, 1.0, 5.0, 2.0, 3.0], losses=np.arange(5.0)))
    (told,) = spy.reports
    assert told.outcomes is not None
    assert list(told.outcomes) == ["late", "arrived", "late", "arrived", "arrived"]
    assert told.exchange_times.tolist() == [4.0, 1.0, 5.0, 2.0, 3.0]
    assert told.losses is not None
    assert told.losses.tolist() == [0, 1, 2, 3, 4]
    assert Overcommit(UniformRandom(200, cohort_size=100), 1.1).cohort_size == 110
    assert Overcommit(policy, 2).wanted == 3


def test_only_who_counted_is_paid_where_a_contribution_pays() -> None:
    policy = Overcommit(RBCSF(10, cohort_size=2, paid="contributed"), 2)
    policy.tell(report_of(1, [0, 1, 2, 3], [4.0, 1.0, 3.0, 2.0]))
    certificate = policy.certificate()
    assert certificate is not None
    assert certificate.turns.tolist()[:4] == [0, 1, 0, 1]


# Eligibility


def test_a_mask_rows_and_groups_say_the_same() -> None:
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
def test_the_eligible_are_offered_as_if_nobody_else_were_there(seed: int, availability: float) -> None:
    allowed = np.random.default_rng(seed).random(40) < 0.4
    allowed[0] = True
    policy, plain = Eligible(INNER["rbcsf"](40), allowed), INNER["rbcsf"](40)
    fleet = SmallFleet(seed, availability=availability)
    for round_ in range(1, 20):
        offer = fleet.offer(round_)
        fewer = RoundOffer(round_, offer.available & allowed, offer.contexts)
        selection = policy.ask(offer)
        assert selection == plain.ask(fewer)
        report = fleet.play(offer, selection)
        policy.tell(report)
        plain.tell(report_like(report, offer.available & allowed))
    assert same(policy.policy.state(), plain.state())
    assert policy.debts is not None
    assert (policy.debts.owed[~allowed] == 0).all()


def report_like(report: RoundReport, available: np.ndarray) -> RoundReport:
    return RoundReport(
        report.round,
        report.clients,
        report.contexts,
        report.exchange_times,
        available=available,
        outcomes=report.outcomes,
    )


def test_who_joins_later_may_be_named_ahead() -> None:
    policy = Eligible(UniformRandom(2, cohort_size=4), [1, 3])
    assert policy.allowed.tolist() == [False, True]
    policy.add(3)
    assert policy.allowed.tolist() == [False, True, False, True, False]
    assert policy.ask(offer_of(1, [True] * 5)).clients.tolist() == [1, 3]


def test_a_report_of_someone_elses_choice_is_taken() -> None:
    spy = Spy(3, cohort_size=1)
    Eligible(spy, [1]).tell(report_of(1, [2], available=np.ones(3, dtype=bool)))
    assert spy.reports[0].available is not None
    assert spy.reports[0].available.tolist() == [False, True, True]
    Eligible(spy, [1]).tell(report_of(2, [2]))
    assert spy.reports[1].available is None


# Busy


def arrivals(pairs: list[tuple[int, int]]) -> LateArrivals | None:
    if not pairs:
        return None
    rounds, rows = zip(*pairs, strict=True)
    count = len(pairs)
    return LateArrivals(
        np.array(rounds), np.array(rows), np.ones((count, 3)), np.full(count, 9.0), np.full(count, 12.0)
    )


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_who_is_late_is_not_offered_until_it_is_back_or_given_up(seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    spy = Spy(8, cohort_size=3)
    policy = ExcludeBusy(spy, rounds)
    out: dict[int, int] = {}  # client -> the round it is still training for
    owing: set[tuple[int, int]] = set()  # late turns of which nothing was heard yet
    for round_ in range(1, 30):
        available = rng.random(8) < 0.8
        free = [row for row in range(8) if available[row] and not (row in out and round_ <= out[row] + rounds)]
        chosen = policy.ask(offer_of(round_, available)).clients
        assert np.flatnonzero(spy.offers[-1].available).tolist() == free
        outcomes = rng.choice(["arrived", "late", "failed"], len(chosen), p=[0.4, 0.5, 0.1])
        back = [pair for pair in sorted(owing) if rng.random() < 0.3]
        times = np.where(outcomes == "late", 9.0, 1.0)
        policy.tell(
            report_of(round_, chosen, times, outcomes=outcomes, available=available, late_arrivals=arrivals(back))
        )
        told = spy.reports[-1].available
        assert told is not None
        assert np.flatnonzero(told).tolist() == free
        owing -= set(back)
        for round_late, row in back:
            if out.get(row) == round_late:
                del out[row]
        for row, word in zip(chosen.tolist(), outcomes, strict=True):
            out.pop(row, None)
            if word == "late":
                out[row] = round_
                owing.add((round_, row))


def test_who_came_back_after_enough_others_is_late_but_not_busy() -> None:
    """As the scheduler reports: who came too late with its own time, who is still out with that of the last kept."""
    policy = ExcludeBusy(UniformRandom(6, cohort_size=2), 5)
    policy.tell(report_of(1, [0, 1, 2, 3], [1.0, 2.0, 2.5, 2.0], outcomes=["arrived", "arrived", "late", "late"]))
    assert policy.busy(2).tolist() == [False, False, False, True, False, False]
    policy.tell(report_of(2, [0, 1, 2], [1.0, 9.0, 9.0], outcomes=["arrived", "late", "late"]))
    assert policy.busy(3).tolist() == [False, True, True, True, False, False]
    assert not policy.busy(8)[[1, 2, 3]].any()
    inside = Overcommit(ExcludeBusy(UniformRandom(6, cohort_size=2), 5), 2)
    inside.tell(report_of(1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]))
    assert isinstance(inside.policy, ExcludeBusy)
    assert not inside.policy.busy(2).any()
    outside = ExcludeBusy(Overcommit(UniformRandom(6, cohort_size=2), 2), 5)
    outside.tell(report_of(1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 2.0], outcomes=["arrived", "arrived", "late", "late"]))
    assert outside.busy(2).tolist() == [False, False, False, True, False, False]


# Cool-down


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), st.sampled_from([0.3, 0.6, 0.9]))
@settings(max_examples=20, deadline=None)
def test_who_was_chosen_of_late_rests(seed: int, rounds: int, strict: bool, availability: float) -> None:
    rng = np.random.default_rng(seed)
    spy = Spy(9, cohort_size=3, seed=seed)
    policy = CoolDown(spy, rounds, strict=strict)
    chosen_in: list[set[int]] = []
    for round_ in range(1, 25):
        available = rng.random(9) < availability
        there = set(np.flatnonzero(available).tolist())
        for pause in range(rounds, -1, -1):
            left = there - set().union(*chosen_in[max(len(chosen_in) - pause, 0) :])
            if strict or len(left) >= min(3, len(there)):
                break
        chosen = policy.ask(offer_of(round_, available)).clients
        assert set(np.flatnonzero(spy.offers[-1].available).tolist()) == left
        assert len(chosen) == min(3, len(left))
        report = report_of(round_, chosen, available=available)
        policy.tell(report)
        assert spy.reports[-1] is report  # the resting volunteer, and go on earning
        chosen_in.append(set(chosen.tolist()))


def test_a_floating_cohort_is_left_with_somebody() -> None:
    policy = CoolDown(FedCS(2, deadline=9.0), 3)
    for round_ in range(1, 6):
        offer = offer_of(round_, [True, False], [1.0, 1.0])
        assert policy.ask(offer).clients.tolist() == [0]
        policy.tell(report_of(round_, [0]))
    assert CoolDown(FedCS(2, deadline=9.0), 3).ask(offer_of(1, [False, False], [1.0, 1.0])).clients.tolist() == []


# Quotas


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_quotas_with_the_fastest_are_the_fastest_cohort_that_meets_them(data: st.DataObject) -> None:
    """Brute force over all cohorts."""
    groups = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=3, max_size=8).filter(any))
    named = sorted({group for group in groups if group})
    least = {group: data.draw(st.integers(0, 2)) for group in named}
    size = max(sum(least.values()), data.draw(st.integers(1, 5)))
    available = np.array(data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))))
    times = np.array(data.draw(st.permutations(range(1, len(groups) + 1))), dtype=float)
    there = np.flatnonzero(available).tolist()
    needed = {group: min(number, sum(groups[row] == group for row in there)) for group, number in least.items()}
    meeting = [
        rows
        for rows in combinations(there, min(size, len(there)))
        if all(sum(groups[row] == group for row in rows) >= number for group, number in needed.items())
    ]
    best = min(meeting, key=lambda rows: sum(times[list(rows)]))
    policy = Quota(Fastest(len(groups), cohort_size=size), least, groups)
    assert policy.ask(offer_of(1, available, times)).clients.tolist() == list(best)


@pytest.mark.parametrize("inner", ["random", "rbcsf", "oort", "tifl"])
def test_every_group_has_its_places_and_a_choice_that_gives_them_stands(inner: str) -> None:
    policy = Quota(INNER[inner](40), {"car": 2, "tv": 1}, GROUPS)
    fleet, stood, corrected = SmallFleet(5, availability=0.4), 0, 0
    groups = np.array([group or "" for group in GROUPS])
    for round_ in range(1, 60):
        offer = fleet.offer(round_)
        inside, selection = policy.policy.ask(offer), policy.ask(offer)
        short = False
        for group, least in (("car", 2), ("tv", 1)):
            wanted = min(least, int((offer.available & (groups == group)).sum()))
            assert (groups[selection.clients] == group).sum() >= wanted
            short |= (groups[inside.clients] == group).sum() < wanted
        stood, corrected = stood + (not short), corrected + short
        assert short or selection == inside
        policy.tell(fleet.play(offer, selection))
    assert stood > 3
    assert corrected > 3


def test_one_quota_for_all_groups_and_groups_of_those_who_join_later() -> None:
    policy = Quota(Fastest(2, cohort_size=2), 1, ["a", "a", "b"])
    assert policy.least == {"a": 1, "b": 1}
    assert policy.ask(offer_of(1, [True] * 2, [1, 2])).clients.tolist() == [0, 1]
    policy.add(2)
    assert policy.ask(offer_of(1, [True] * 4, [1, 2, 9, 3])).clients.tolist() == [0, 2]


def test_choices_are_joined_with_their_reasons() -> None:
    one = Selection(1, np.array([4, 7]), {"owed": np.array([1.0, 2.0]), "objective": np.array(3.0)})
    other = Selection(1, np.array([5]), {"expected": np.array([9.0])})
    both = merge_selections([one, other])
    assert both.clients.tolist() == [4, 5, 7]
    np.testing.assert_array_equal(both.reasons["owed"], [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(both.reasons["expected"], [np.nan, 9.0, np.nan])
    assert set(both.reasons) == {"owed", "expected"}


# Warming up


def test_the_first_rounds_are_drawn_by_lot_and_learned_from() -> None:
    policy, lots, plain = WarmUp(RBCSF(40), 6, seed=3), UniformRandom(40, seed=3), RBCSF(40)
    fleet = SmallFleet()
    for round_ in range(1, 12):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        assert selection == (lots if round_ <= 6 else plain).ask(offer)
        report = fleet.play(offer, selection)
        policy.tell(report)
        plain.tell(report)
    assert same(policy.policy.state(), plain.state())


def test_a_floating_cohort_is_told_how_many_to_draw() -> None:
    policy = WarmUp(FedCS(40, estimates="learned", deadline=9.0), 2, cohort_size=5)
    assert policy.cohort_size is None
    assert len(policy.ask(SmallFleet().offer(1)).clients) == 5
    assert len(policy.ask(SmallFleet().offer(3)).clients) > 20


# Settings


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (
            lambda: Overcommit(ANYTHING("rbcsf")),
            r"overcommit needs a policy, such as make_policy\('rbcsf', 40\), got 'r",
        ),
        (lambda: Overcommit(UniformRandom(9), 0.9), "factor must be at least 1, not 0.9"),
        (lambda: Overcommit(UniformRandom(9), 11), "factor must be at most 10, not 11"),
        (lambda: Overcommit(FedCS(9)), "overcommit needs a policy with a cohort_size, and fedcs has none"),
        (lambda: Eligible(UniformRandom(9), []), "allowed contains no client: pass a mask, rows, or a mapping"),
        (lambda: Eligible(UniformRandom(9), [False] * 9), "allowed contains no client"),
        (lambda: Eligible(UniformRandom(9), [1, 1]), r"allowed\[1\] = 1 is a duplicate"),
        (lambda: Eligible(UniformRandom(9), [-1]), r"allowed\[0\] = -1 must be a row"),
        (lambda: Eligible(UniformRandom(9), ["a"]), "allowed must hold rows"),
        (lambda: Eligible(UniformRandom(9), [[1], [1, 2]]), "allowed must"),
        (lambda: Eligible(UniformRandom(9), {"groups": ["a"]}), "a mapping with groups and names, got the keys groups"),
        (lambda: Eligible(UniformRandom(9), {"groups": ["a"], "names": "a"}), "names must be a list of names, got 'a'"),
        (lambda: Eligible(UniformRandom(9), {"groups": 3, "names": ["a"]}), "groups must be a list of names, got 3"),
        (lambda: Eligible(UniformRandom(9), {"groups": ["a"], "names": ["b"]}), "no client is in 'b': names must"),
        (lambda: ExcludeBusy(UniformRandom(9), 0), "rounds must be at least 1, not 0"),
        (lambda: CoolDown(UniformRandom(9), ANYTHING(1.5)), "rounds must be a whole number, not 1.5"),
        (lambda: CoolDown(UniformRandom(9), 1, strict=ANYTHING("yes")), "strict must be True or False, got 'yes'"),
        (lambda: Quota(FedCS(9), 1, ["a"]), "quota needs a policy with a cohort_size, and fedcs has none"),
        (lambda: Quota(UniformRandom(9), 1, "ab"), "groups must be a list of names, got 'ab'"),
        (lambda: Quota(UniformRandom(9), 1, [None]), "least has no group"),
        (lambda: Quota(UniformRandom(9), {"b": 1}, ["a"]), "least has the unknown group 'b'; groups has a"),
        (lambda: Quota(UniformRandom(9), {"a": -1}, ["a"]), "least of a must be at least 0, not -1"),
        (lambda: Quota(UniformRandom(9), 5, ["a", "b"]), "least reserves 10 places, but cohort_size is 8"),
        (lambda: WarmUp(UniformRandom(9), -1), "rounds must be at least 0, not -1"),
        (lambda: WarmUp(FedCS(9)), "fedcs has no fixed cohort size: pass cohort_size"),
        (lambda: WarmUp(UniformRandom(9), cohort_size=3), "cohort_size must be that of the policy inside, 8, got 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(build: Callable[[], object], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        build()


def test_they_can_be_built_by_name_from_plain_settings() -> None:
    policy: Any = make_policy(
        "cool-down",
        40,
        rounds=2,
        policy="quota",
        settings={
            "policy": "with-guarantee",
            "settings": {"policy": "oort", "settings": {"cohort_size": 5}, "guaranteed_rate": 0.1, "urgency": 3},
            "least": {"car": 1},
            "groups": GROUPS,
        },
    )
    assert [one.name for one in (policy, policy.policy, policy.policy.policy)] == [
        "cool-down",
        "quota",
        "with-guarantee",
    ]
    assert (policy.rounds, policy.policy.least, policy.policy.policy.urgency, policy.cohort_size) == (
        2,
        {"car": 1},
        3,
        5,
    )
    assert len(policy.ask(SmallFleet().offer(1)).clients) == 5
    assert Overcommit.own_settings() == ["factor"]


@pytest.mark.parametrize(
    ("name", "given_settings", "complaint"),
    [
        (
            "overcommit",
            {},
            "overcommit needs the setting policy, the name of the policy inside",
        ),
        ("overcommit", {"policy": "random", "settings": 3}, "settings of random inside overcommit must be a mapping"),
        ("overcommit", {"policy": "random", "much": 2}, "overcommit has no setting 'much'; it has policy, settings, f"),
        ("eligible", {"policy": "random"}, "eligible needs the setting 'allowed'"),
        ("overcommit", {"policy": "randum"}, "unknown policy 'randum'"),
        ("overcommit", {"policy": "random", "settings": {"size": 3}}, "random has no setting 'size'"),
    ],
)
def test_plain_settings_that_cannot_be_are_refused(name: str, given_settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        make_policy(name, 40, **given_settings)


def test_defaults_reach_the_policy_inside_and_give_way_to_what_is_given() -> None:
    told = {"policy": "warm-up", "settings": {"policy": "rbcsf", "settings": {"features": 2}, "rounds": 3}}
    found = with_defaults("overcommit", told, {"seed": 7, "features": 4, "accrual": "available"})
    assert found["settings"] == {
        "seed": 7,
        "policy": "rbcsf",
        "settings": {"features": 2, "accrual": "available"},
        "rounds": 3,
    }
    assert told["settings"] == {"policy": "rbcsf", "settings": {"features": 2}, "rounds": 3}
    policy: Any = make_policy("overcommit", 40, **found)
    assert policy.guarantee.accrual == "available"
    assert with_defaults("random", {}, {"seed": 7, "features": 4}) == {"seed": 7}
    assert with_defaults("no such policy", {"seed": 1}, {"features": 4}) == {"seed": 1}


def test_every_wrapper_is_tested_and_can_be_built_by_name() -> None:
    assert {WRAPS[wrap](UniformRandom(40, cohort_size=6)).name for wrap in WRAPS} == set(WRAPPERS)
