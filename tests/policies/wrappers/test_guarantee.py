"""WithGuarantee: compared with a literal implementation, and its bound tested against adversaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import Contract, offer_of, report_of
from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy, make_policy
from turnout.errors import InfeasiblePromise, SettingError
from turnout.policies import Fastest, FedCS, RoundRobin, UniformRandom
from turnout.policies.check_support import SmallFleet
from turnout.policies.wrappers.guarantee import MostOwed, WithGuarantee


class InOrder(SelectionPolicy):
    """Selects the first available clients in a given order, at most `most` of them, without regard to debts."""

    name = "in-order"

    def __init__(self, clients: int, *, cohort_size: int | None, order: Sequence[int] | None = None) -> None:
        super().__init__(clients)
        self.cohort_size = cohort_size
        self.order = list(range(clients)) if order is None else list(order)
        self.most = clients
        self.offers: list[tuple[RoundOffer, int | None]] = []

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        self.offers.append((offer, None if self.cohort_size is None else self.places(offer)))
        rows = [row for row in self.order if offer.available[row]]
        return Selection(offer.round, np.sort(np.array(rows[: self.places(offer)][: self.most], dtype=np.int64)))

    def tell(self, report: RoundReport) -> None:
        self.check_report(report)


def play_offer(policy: SelectionPolicy, offer: RoundOffer, **fields: Any) -> None:
    policy.tell(report_of(offer.round, policy.ask(offer).clients, available=offer.available, **fields))


def with_debts(policy: WithGuarantee, units: Sequence[int]) -> WithGuarantee:
    """Restores a state in which clients are owed these numbers of units."""
    state = policy.state()
    state["debts.queues.rounds"] = np.zeros(policy.clients, dtype=np.int64)
    state["debts.queues.balance"] = np.array(units, dtype=np.int64)
    policy.restore(state)
    return policy


# The rule


def literal_selection(
    owed: Sequence[Fraction], available: Sequence[bool], times: Sequence[float], size: int, urgency: Fraction
) -> list[int]:
    """Implements the rule around `fastest` literally."""
    rows = [row for row in range(len(owed)) if available[row]]
    chosen = sorted((row for row in rows if owed[row] >= urgency), key=lambda row: (-owed[row], row))[:size]
    if chosen:
        due = [row for row in rows if row not in chosen and owed[row] >= min(Fraction(1), urgency)]
        chosen += sorted(due, key=lambda row: (times[row], row))[: size - len(chosen)]
    others = [row for row in rows if row not in chosen]
    return sorted(chosen + sorted(others, key=lambda row: (times[row], row))[: size - len(chosen)])


@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.fractions(0, "1/3", max_denominator=9),
    st.sampled_from(["1/2", "1", "3/2", "2", "7/3"]),
    st.sampled_from(["always", "available"]),
    st.sampled_from([0.2, 0.5, 0.9]),
)
@settings(max_examples=14, deadline=None)
def test_urgent_clients_come_first_then_due_ones_then_those_that_the_policy_inside_selects(
    seed: int, size: int, rate: Fraction, urgency: str, accrual: Any, availability: float
) -> None:
    rng = np.random.default_rng(seed)
    policy = WithGuarantee(
        Fastest(9, cohort_size=size), rate, urgency=Fraction(urgency), accrual=accrual, allow_infeasible=True
    )
    owed, turns = [Fraction(0)] * 9, [0] * 9
    earned = [0] * 9
    for round_ in range(1, 20):
        available, times = rng.random(9) < availability, rng.random(9)
        chosen = policy.ask(offer_of(round_, available, times)).clients.tolist()
        assert chosen == literal_selection(owed, available.tolist(), times.tolist(), size, Fraction(urgency))
        selection = policy.ask(offer_of(round_, available, times))
        assert selection.reasons["owed"].tolist() == pytest.approx([float(owed[row]) for row in chosen])
        assert selection.reasons["urgent"].tolist() == [float(owed[row] >= Fraction(urgency)) for row in chosen]
        play_offer(policy, offer_of(round_, available, times))
        for row in range(9):
            earns = accrual == "always" or bool(available[row])
            earned[row] += earns
            owed[row] = max(owed[row] + rate * earns - (row in chosen), Fraction(0))
            turns[row] += row in chosen
    certificate = policy.certificate()
    assert certificate.turns.tolist() == turns
    assert certificate.promised.tolist() == pytest.approx([float(rate * rounds) for rounds in earned])
    assert certificate.owed.tolist() == policy.owed.tolist() == pytest.approx([float(debt) for debt in owed])
    assert certificate.books_balance
    assert [turns[row] >= rate * earned[row] - owed[row] for row in range(9)] == [True] * 9


def test_the_policy_inside_is_not_asked_if_urgent_clients_take_all_places() -> None:
    inner = InOrder(6, cohort_size=2)
    policy = with_debts(WithGuarantee(inner, "1/4"), [9, 8, 8, 10, 0, 0])
    assert policy.ask(offer_of(1, [True] * 6)).clients.tolist() == [0, 3]
    assert policy.ask(offer_of(1, [False, True, True, False, False, False])).clients.tolist() == [1, 2]
    assert (inner.offers, inner.cohort_size) == ([], 2)


def test_around_a_policy_without_a_cohort_size_urgent_clients_are_added_to_its_selection() -> None:
    policy = with_debts(WithGuarantee(FedCS(5, deadline=3.0), "1/4"), [0, 8, 9, 7, 0])
    selection = policy.ask(offer_of(1, [True, True, False, True, True], [1.0, 9.0, 9.0, 9.0, 2.0]))
    assert selection.clients.tolist() == [0, 1, 4]
    np.testing.assert_array_equal(selection.reasons["expected"], [1.0, np.nan, 2.0])
    assert policy.cohort_size is None
    policy.add(2)
    assert policy.ask(offer_of(1, [False] * 7, [1.0] * 7)).clients.tolist() == []
    for round_ in range(1, 60):
        play_offer(policy, offer_of(round_, [True] * 7, [9.0] * 7))
        assert policy.owed.max() < 2 + 0.25 + 1e-9
    assert WithGuarantee(FedCS(5), "1/4", accrual="available").debt_bound == 2.25


def test_a_policy_inside_may_leave_places_empty() -> None:
    class SelectsOne(InOrder):
        def ask(self, offer: RoundOffer) -> Selection:
            return Selection(offer.round, super().ask(offer).clients[:1])

    policy = with_debts(WithGuarantee(SelectsOne(6, cohort_size=4), "1/4"), [0, 0, 4, 4, 8, 0])
    assert policy.ask(offer_of(1, [True] * 6)).clients.tolist() == [0, 2, 4]


@pytest.mark.parametrize("name", ["rbcsf", "fastest", "random", "oort", "cs-ucb-q", "e3cs", "power-of-choice"])
def test_around_any_policy_debts_stay_below_the_bound_and_the_policy_learns_the_same(name: str) -> None:
    policy, twin = WithGuarantee(make_policy(name, 40), 0.15, accrual="available"), make_policy(name, 40)
    fleet = SmallFleet(3, losses=True)
    rounds = np.zeros(40)
    for round_ in range(1, 61):
        offer = fleet.offer(round_)
        report = fleet.play(offer, policy.ask(offer))
        policy.tell(report)
        twin.tell(report)
        rounds += offer.available
        assert policy.owed.max() < policy.debt_bound
    assert (policy.certificate().turns > 0.15 * rounds - policy.debt_bound).all()
    learned, expected = policy.policy.state(), twin.state()
    assert all(
        np.array_equal(learned[key], expected[key], equal_nan=np.asarray(expected[key]).dtype.kind == "f")
        for key in expected
    )


def test_most_owed_is_a_policy_with_a_bound_of_its_own(contract: Contract) -> None:
    contract(MostOwed)
    policy = MostOwed(40, accrual="available")
    fleet = SmallFleet(1)
    for round_ in range(1, 101):
        play_offer(policy, fleet.offer(round_))
        assert policy.owed.max() < 0.15 * (1 + 39 / 8)  # the bound for an urgency of 0


# The bound


@st.composite
def games(draw: st.DrawFn) -> tuple[int, int, Fraction, Fraction]:
    """Draws numbers of clients and places, a feasible rate (often the largest), and an urgency."""
    clients = draw(st.integers(1, 8))
    size = draw(st.integers(1, clients))
    most = Fraction(size, clients)
    rate = draw(st.one_of(st.just(most), st.fractions(0, most, max_denominator=12)))
    return clients, size, rate, draw(st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(2), Fraction(5, 2)]))


@given(games(), st.lists(st.tuples(st.integers(0, 255), st.integers(0, 10**6)), min_size=30, max_size=80))
@settings(max_examples=14, deadline=None)
def test_debts_stay_below_the_bound_for_any_availability_and_any_policy_inside(
    game: tuple[int, int, Fraction, Fraction], script: list[tuple[int, int]]
) -> None:
    clients, size, rate, urgency = game
    inner = InOrder(clients, cohort_size=size)
    policy = WithGuarantee(inner, rate, urgency=urgency, accrual="available")
    bound = urgency + rate * (1 + Fraction(clients - 1, size))
    assert policy.debt_bound == pytest.approx(float(bound))
    for round_, (mask, order) in enumerate(script, start=1):
        inner.order = np.random.default_rng(order).permutation(clients).tolist()
        play_offer(policy, offer_of(round_, [bool(mask >> row & 1) for row in range(clients)]))
        owed = policy.debts.owed_exactly()
        assert all(Fraction(int(unit) + owed.credit, int(owed.units_per_turn)) < bound for unit in owed.units)


def adversarial_availability(policy: WithGuarantee, inner: InOrder, rng: np.random.Generator) -> np.ndarray:
    """Hides clients that are owed most while the policy inside selects those that are owed least, then shows them."""
    owed = policy.owed
    inner.order = np.argsort(owed, kind="stable").tolist()
    hidden = owed > rng.choice([0.5, 1.0, policy.urgency, policy.urgency + 0.5, np.inf])
    shown = rng.random(policy.clients) < rng.choice([0.5, 0.9, 1.0])
    available: np.ndarray = shown & ~hidden if rng.random() < 0.8 else shown | hidden
    return available


def reachable_debts(clients: int, size: int, units: int, turn: int, urgency: int) -> Iterator[tuple[int, ...]]:
    """Yields all debts that any availability and any policy inside can lead to, up to the order of clients."""
    inner = InOrder(clients, cohort_size=size)
    policy = WithGuarantee(inner, Fraction(units, turn), urgency=Fraction(urgency, turn), accrual="available")
    units_per_turn = policy.debts.units_per_turn
    masks = [mask for mask in product([False, True], repeat=clients) if any(mask)]
    orders = {mask: list(permutations(row for row in range(clients) if mask[row])) for mask in masks}
    seen, pending = {(0,) * clients}, [(0,) * clients]
    while pending:
        debts = pending.pop()
        yield debts
        with_debts(policy, [debt * units_per_turn // turn for debt in debts])
        for mask in masks:
            offer = offer_of(1, mask)
            for order, inner.most in product(orders[mask], range(size + 1)):
                inner.order = list(order)
                chosen = policy.ask(offer).clients.tolist()
                after = tuple(
                    sorted(max(debts[row] + units * mask[row] - turn * (row in chosen), 0) for row in range(clients))
                )
                if after not in seen:
                    seen.add(after)
                    pending.append(after)


@pytest.mark.parametrize(
    ("clients", "size", "units", "turn", "urgency"),
    [(3, 1, 1, 3, 3), (2, 1, 1, 2, 4), (3, 2, 1, 2, 2), pytest.param(3, 2, 2, 3, 3, marks=pytest.mark.thorough)],
)
def test_all_reachable_debts_are_below_the_bound_which_is_tight_for_one_place(
    clients: int, size: int, units: int, turn: int, urgency: int
) -> None:
    """Exhaustive search: with one place the largest debt is one unit below the bound."""
    largest = max(max(debts) for debts in reachable_debts(clients, size, units, turn, urgency))
    bound = urgency + units * (1 + Fraction(clients - 1, size))
    assert largest < bound
    assert size > 1 or largest == bound - 1


@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from([Fraction(1), Fraction(3)]))
@settings(max_examples=10, deadline=None)
def test_with_different_rates_debts_grow_at_most_like_the_square_root_of_the_rounds(
    seed: int, clients: int, urgency: Fraction
) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, clients + 1))
    shares = rng.random(clients) ** 3
    rates = np.minimum(np.floor(1000 * size * shares / shares.sum()) / 1000, 1.0)
    inner = InOrder(clients, cohort_size=size)
    policy = WithGuarantee(inner, rates, urgency=urgency, accrual="available")
    for round_ in range(1, 60):
        play_offer(policy, offer_of(round_, adversarial_availability(policy, inner, rng)))
        assert (policy.owed**2).sum() <= 2 * size * (1 + float(urgency)) * round_
        assert policy.owed.max() < policy.debt_bound


def test_the_bound_is_finite_only_if_it_is_proved() -> None:
    def bound(inner: SelectionPolicy, rate: Any, **settings: Any) -> float:
        return WithGuarantee(inner, rate, **{"accrual": "available", **settings}).debt_bound

    inner_policy = UniformRandom(40, cohort_size=8)
    assert bound(inner_policy, 0.2) == pytest.approx(2 + 0.2 * (1 + 39 / 8))
    assert bound(inner_policy, [0.1] * 20 + [0.2] * 20, urgency=1) == pytest.approx(1 + 0.2 * (1 + 39 / 8))
    assert bound(inner_policy, [0.0] * 20 + [0.4] * 20) == pytest.approx(2 + 0.4 * (1 + 19 / 8))
    for unproved in ({"accrual": "always"}, {"counts": "completed"}):
        assert bound(inner_policy, 0.1, **unproved) == math.inf
    assert bound(inner_policy, [0.1] * 39 + [0.9]) == math.inf
    assert bound(inner_policy, [0.1] * 20 + [0.21] * 20) == math.inf, "40 · 0.21 is above 8"


def test_new_clients_are_owed_nothing_and_the_bound_still_holds() -> None:
    rng, inner = np.random.default_rng(5), InOrder(4, cohort_size=2)
    policy = WithGuarantee(inner, "1/4", accrual="available")
    for round_ in range(1, 200):
        if round_ % 40 == 0 and policy.clients < 8:
            policy.add(1)
            assert policy.owed[-1] == 0
        play_offer(policy, offer_of(round_, adversarial_availability(policy, inner, rng)))
        assert policy.owed.max() < policy.debt_bound
    assert policy.certificate().books_balance
    assert policy.clients == 8


def test_no_client_can_join_if_every_client_has_its_own_rate() -> None:
    policy = WithGuarantee(RoundRobin(3, cohort_size=2), [0.1, 0.2, 0.3])
    with pytest.raises(SettingError, match="every client has its own guaranteed_rate, so 2 more cannot join"):
        policy.add(2)
    assert policy.clients == policy.policy.clients == policy.debts.clients == 3


# Settings and reports


def test_a_rate_that_no_policy_could_keep_is_refused() -> None:
    with pytest.raises(InfeasiblePromise, match=r"Use a guaranteed_rate of at most 0\.2"):
        WithGuarantee(UniformRandom(40), 0.3)
    WithGuarantee(FedCS(40), 0.9)
