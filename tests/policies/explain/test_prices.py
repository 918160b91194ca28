"""Explanations of FairPace, compared with a search through all cohorts and with really waiting."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.examples import make_report
from turnout import FairPace, RoundOffer, Selection
from turnout.kernel.arrays import BoolArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.pace.prices import exact_prices, price_order
from turnout.policies.check_support import SmallFleet
from turnout.policies.explain.explanation import Explanation, explain_choice
from turnout.policies.explain.margin import selection_margin


def random_policy(rng: np.random.Generator, **settings: Any) -> tuple[FairPace, RoundOffer]:
    """Returns a small policy with a random history, and an offer; often with ties and urgent clients."""
    clients, size = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    tolerance = float(rng.choice([0.4, 0.7, 1.0, 2.0]))
    policy = FairPace(
        clients,
        cohort_size=size,
        guaranteed_rate=float(rng.choice([0.1, 0.2, 0.3])),
        tolerance=tolerance,
        features=1,
        allow_infeasible=True,
        **settings,
    )
    equal = rng.random() < 0.3
    times = np.full(clients, 4.0) if equal else rng.integers(1, 9, clients).astype(float)
    for round_ in range(1, int(rng.integers(1, 15))):
        available = rng.random(clients) < 0.9
        rows = rng.permutation(np.flatnonzero(available))[:size]
        policy.tell(make_report(round_, rows, np.ones((len(rows), 1)), times[rows], available=available))
    available = rng.random(clients) < 0.9
    available[rng.integers(clients)] = True
    contexts = np.ones((clients, 1)) if equal else rng.uniform(0.5, 2, (clients, 1))
    return policy, RoundOffer(100, available, contexts)


def objective_key(
    problem: CohortProblem, cohort: tuple[int, ...]
) -> tuple[float, float, list[tuple[int, int, float, int]]]:
    """Returns the sort key of a cohort of the contested places: the solver's objective and its rules for ties."""
    units, order, rows = problem.values.units, problem.order, list(cohort)
    assert order is not None
    slowest = max(problem.times[rows].tolist(), default=0.0)
    total = sum(units[rows].tolist())
    objective = max(slowest, problem.floor) - float(total) / problem.values.units_per_turn
    return (
        objective,
        slowest,
        sorted((-int(units[row]), -int(order[row]), float(problem.times[row]), row) for row in rows),
    )


def search(problem: CohortProblem, *, without: int | None = None, with_: int | None = None) -> tuple[int, ...]:
    """Returns the best cohort of the contested places, found by comparing all of them."""
    rows = [row for row in np.flatnonzero(problem.available).tolist() if row != without]
    size = min(problem.size, int(problem.available.sum()))
    cohorts = (cohort for cohort in itertools.combinations(rows, size) if with_ is None or with_ in cohort)
    return min(cohorts, key=lambda cohort: objective_key(problem, cohort))


def with_more(problem: CohortProblem, row: int, more: int) -> CohortProblem:
    """Returns the problem in which a client's price is `more` units higher."""
    units = problem.values.units.astype(object)  # without a limit of 64 bits
    units[row] += more
    return replace(problem, values=problem.values._replace(units=units))


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("accrual", ["available", "always"])
@pytest.mark.parametrize("policies", [20, pytest.param(250, marks=pytest.mark.thorough)])
def test_margins_and_missing_prices_equal_those_of_a_full_search(kernel: str, accrual: str, policies: int) -> None:
    rng = np.random.default_rng(8)
    counts = {"chosen": 0, "not chosen": 0, "urgent": 0, "no places": 0}
    with using_kernel(kernel):
        for _ in range(policies):
            policy, offer = random_policy(rng, accrual=accrual)
            selection = policy.ask(offer)
            problem = policy.cohort_problem(offer)
            contested = problem.contested()
            assert problem.solve().rows.tolist() == selection.clients.tolist()
            assert problem.solve().objective == selection.reasons["objective"]
            best = search(contested) if contested.size else ()
            assert selection.clients.tolist() == sorted([*problem.first.tolist(), *best])
            for row in np.flatnonzero(offer.available).tolist():
                check_client(policy, offer, selection, row, counts)
    assert min(counts.values()) > 10


def check_client(policy: FairPace, offer: RoundOffer, selection: Selection, row: int, counts: dict[str, int]) -> None:
    problem, prices = policy.cohort_problem(offer), policy.client_prices(offer)
    terms = problem.prices
    assert terms is not None
    assert (prices.usual(row), prices.behind(row)) == (terms.usual[row], terms.behind[row])
    assert prices.rate(row) == policy.debts.guaranteed_rates[row]
    contested = problem.contested()
    result = explain_choice(policy, offer, selection, row)
    assert result.exact
    assert result.unit == "seconds"
    assert (result.outcome == "chosen") == (row in selection.clients)
    assert result.urgent == (row in problem.urgent)
    if result.urgent or not contested.size:
        counts["urgent" if result.urgent else "no places"] += 1
        assert (result.margin, result.missing_units) == (None, None)
        return
    margin = selection_margin(problem, row)
    best = search(contested)
    if result.outcome == "chosen":
        counts["chosen"] += 1
        if contested.size >= contested.available.sum():
            assert result.margin is None
            return
        rival = search(contested, without=row)
        assert result.margin == objective_key(contested, rival)[0] - objective_key(contested, best)[0]
        assert (set(best) - set(margin.leaving)) | set(margin.joining) == set(rival)
        return
    counts["not chosen"] += 1
    rival = search(contested, with_=row)
    assert result.margin == objective_key(contested, rival)[0] - objective_key(contested, best)[0]
    assert result.missing_units is not None
    assert row in search(with_more(contested, row, result.missing_units))
    assert row not in search(with_more(contested, row, result.missing_units - 1))


# Waiting


def is_selected_after(rounds: int, policy: FairPace, offer: RoundOffer, row: int, **settings: Any) -> bool:
    """Returns whether a client is selected if it waits for so many rounds, and the others stay as they are."""
    problem = policy.cohort_problem(offer)
    then = waited(policy, row, rounds, **settings).cohort_problem(replace(offer, round=offer.round + rounds))
    now, later = problem.prices, then.prices
    assert now is not None
    assert later is not None
    if row in then.urgent:
        own = (later.allowed[row] - later.behind[row], problem.times[row], row)
        others = [(now.allowed[other] - now.behind[other], problem.times[other], other) for other in problem.first]
        return len(others) < problem.size or any(own < other for other in others if other[2] != row)
    seconds = problem.values.units / problem.values.units_per_turn
    seconds[row] = then.values.units[row] / then.values.units_per_turn
    size = min(problem.size, int(problem.available.sum()))
    return row in replace(problem, values=exact_prices(seconds, size), order=price_order(seconds)).solve().rows


def waited(policy: FairPace, row: int, rounds: int, **settings: Any) -> FairPace:
    """Returns the policy as if this client alone had been available, without a turn, for so many rounds."""
    state = policy.state()
    accrued = np.array(np.broadcast_to(state["queues.rounds"], policy.clients))
    accrued[row] += rounds
    state["queues.rounds"] = accrued
    if "presence.present" in state:
        state["presence.present"][row] += rounds
    later = FairPace(policy.clients, **settings)
    later.restore(state)
    return later


@pytest.mark.parametrize("accrual", ["available", "always"])
@pytest.mark.parametrize("tolerance", [0.4, 1.0, 2.0, 6.0])
@pytest.mark.parametrize("policies", [4, pytest.param(40, marks=pytest.mark.thorough)])
def test_a_client_that_waits_as_long_as_announced_is_selected_and_not_before(
    accrual: str, tolerance: float, policies: int
) -> None:
    rng = np.random.default_rng(int(tolerance * 10))
    settings: dict[str, Any] = {
        "cohort_size": 3,
        "guaranteed_rate": 0.2,
        "tolerance": tolerance,
        "features": 1,
        "accrual": accrual,
        "allow_infeasible": True,
    }
    tested = {"priced": 0, "urgent": 0, "no places": 0}
    for _ in range(policies):
        policy = FairPace(9, **settings)
        times = rng.uniform(1, 50, 9)
        for round_ in range(1, int(rng.integers(2, 40))):
            available = rng.random(9) < 0.7
            offer = RoundOffer(round_, available, np.ones((9, 1)))
            rows = policy.ask(offer).clients
            if rng.random() < 0.5:
                rows = rng.permutation(np.flatnonzero(available))[:2]
            policy.tell(make_report(round_, rows, offer.contexts[rows], times[rows], available=available))
        offer = RoundOffer(100, rng.random(9) < 0.8, rng.uniform(0.5, 2, (9, 1)))
        selection = policy.ask(offer)
        for row in np.setdiff1d(np.flatnonzero(offer.available), selection.clients).tolist():
            result = explain_choice(policy, offer, selection, row)
            assert result.rounds_until is not None
            assert result.rounds_until >= 1
            assert is_selected_after(result.rounds_until, policy, offer, row, **settings)
            assert not is_selected_after(result.rounds_until - 1, policy, offer, row, **settings)
            kind = "priced" if result.missing_units is not None else "urgent" if result.urgent else "no places"
            tested[kind] += 1
    assert tested["priced"] > 1.25 * policies or tested["urgent"] > 1.25 * policies


def test_a_client_of_a_tiny_rate_waits_for_very_many_rounds() -> None:
    policy = FairPace(3, cohort_size=1, guaranteed_rate="1/10000000", features=1)
    everyone = np.ones(3, dtype=np.bool_)
    for round_, (row, time) in enumerate([(0, 1.0), (1, 5.0), (2, 400.0)] * 3, start=1):
        policy.tell(make_report(round_, [row], [[1.0]], [time], available=everyone))
    offer = RoundOffer(10, everyone, np.ones((3, 1)))
    result = explain_choice(policy, offer, policy.ask(offer), 2)
    assert isinstance(result.rounds_until, int)
    assert result.rounds_until > 10_000_000
    settings: dict[str, Any] = {"cohort_size": 1, "guaranteed_rate": "1/10000000", "features": 1}
    assert is_selected_after(result.rounds_until, policy, offer, 2, **settings)
    assert not is_selected_after(result.rounds_until - 1, policy, offer, 2, **settings)


def test_a_client_without_a_guaranteed_rate_has_no_waiting_time() -> None:
    policy = FairPace(3, cohort_size=1, guaranteed_rate=0.0, features=1)
    offer = RoundOffer(1, np.ones(3, dtype=np.bool_), np.ones((3, 1)))
    result = explain_choice(policy, offer, policy.ask(offer), 2)
    assert result.rounds_until is None
    assert "How long it has to wait is unknown: its guaranteed rate is 0" in result.sentence


# Sentences


def slow_client(rounds: int, *, usual: float = 420.0, time: float = 160.0) -> tuple[FairPace, RoundOffer]:
    """Returns a policy and an offer: client 11 accrued for `rounds` rounds and takes `time` now, the others 1 s."""
    policy = FairPace(12, cohort_size=10, times="expected", guaranteed_rate=0.1, tolerance=1, head_start=0)
    state = policy.state()
    state["queues.rounds"] = np.array([0] * 11 + [rounds])
    state["usual.sums"] = np.stack([np.full(12, usual), np.ones(12)])
    state["usual.fleet"] = np.array([usual * 12, 12.0])
    policy.restore(state)
    times = np.array([1.0] * 11 + [time])
    return policy, RoundOffer(1, np.ones(12, dtype=np.bool_), np.ones((12, 1)), expected_times=times)


def explained(policy: FairPace, offer: RoundOffer, row: int) -> Explanation:
    return explain_choice(policy, offer, policy.ask(offer), row, "h{}".format)


PRICED = r"worth ([\d.]+) · ([\d.]+)/([\d.]+)(?: \+ ([\d.]+) s for its loss)? = ([\d.]+) s"
PRICE = (
    "it usually takes 420 s, now 260 s less, which counts as 420 + 0.9 · 260 = 654 s, and its share of such a round is "
    "654/7 = 93.43 s; it is 0.6 turns behind and may be 0.9 behind, so a turn is worth 93.43 · 0.9/0.3 = 280.29 s"
)


def test_the_sentences_of_the_worked_example_have_its_numbers() -> None:
    """260 of 420 s saved: 654 s; of ten places seven share such a round; 0.6 turns behind and 0.9 allowed."""
    result = explained(*slow_client(5), 11)
    assert result.sentence == (
        "choosing h11 would lengthen the round by 159 s, and it would replace h9 (worth 128.11 s); "
        f"{PRICE}: with 6.82 s more it would have been chosen. Without a turn h11 reaches that price, or becomes "
        "urgent, in 1 round, if it is available in each and nothing else changes."
    )
    assert (result.usual, result.behind, result.allowed) == pytest.approx((420.0, 0.6, 0.9))
    assert (result.owed, result.missing_turns, result.margin) == pytest.approx((280.2857, 6.8196, 6.8196), rel=1e-4)
    assert (result.longer, result.worth, result.instead, result.rounds_until) == (159.0, 159.0, ("h9",), 1)
    now = PRICE.replace("260", "280").replace("654", "672").replace("93.43", "96").replace("280.29", "288")
    assert explained(*slow_client(5, time=140.0), 11).sentence == (
        f"h11 was chosen with a margin of 20.89 s: {now}; the best cohort without it would last 139 s less and pay "
        "prices of 159.89 s less."
    )
    assert explained(*slow_client(5, time=140.0), 10).sentence.startswith(
        "h10 is fast enough, but it would replace h8 (worth 128.11 s); it usually takes 420 s"
    )


def test_urgent_clients_are_explained() -> None:
    policy, offer = slow_client(8)
    result = explained(policy, offer, 11)
    assert result.sentence == (
        "h11 was chosen first because it is urgent: it is 0.9 turns behind and may be 0.9 behind."
    )
    assert (result.urgent, result.outcome, result.margin, result.rounds_until) == (True, "chosen", None, None)
    other = explained(policy, offer, 3)
    assert (other.urgent, other.outcome) == (False, "chosen")
    assert other.threshold == 160.0


def all_urgent() -> tuple[FairPace, RoundOffer]:
    """Returns a policy of five clients, four of them urgent, with two places."""
    policy = FairPace(5, cohort_size=2, times="expected", guaranteed_rate=0.1, tolerance=1, allow_infeasible=True)
    state = policy.state()
    state["queues.rounds"] = np.array([11, 9, 10, 10, 2])
    policy.restore(state)
    times = np.array([4.0, 1.0, 6.0, 5.0, 1.0])
    return policy, RoundOffer(1, np.ones(5, dtype=np.bool_), np.ones((5, 1)), expected_times=times)


def test_places_that_all_go_to_urgent_clients_are_explained() -> None:
    policy, offer = all_urgent()
    assert policy.ask(offer).clients.tolist() == [0, 3]
    assert explained(policy, offer, 3).sentence == (
        "h3 was chosen first because it is urgent: it is 1.1 turns behind and may be 0.9 behind; 1 urgent client comes "
        "before it."
    )
    urgent = explained(policy, offer, 1)
    assert urgent.sentence == (
        "h1 is urgent (it is 1 turn behind and may be 0.9 behind), but all 2 places went to urgent clients that are "
        "further behind their limits. Without a turn h1 is one of the most urgent in 1 round, if it is available in "
        "each and nothing else changes."
    )
    assert (urgent.urgent, urgent.outcome, urgent.rounds_until) == (True, "not chosen", 1)
    assert explained(policy, offer, 2).rounds_until == 1
    calm = explained(policy, offer, 4)
    assert calm.sentence.startswith(
        "h4 was not chosen because all places went to urgent clients; it usually takes 3.4 s"
    )
    # It is 0.3 turns behind and has to be 1.1 behind, as the last of the others, of which it is faster.
    assert (calm.urgent, calm.outcome, calm.rounds_until) == (False, "not chosen", 8)


def test_a_client_that_should_be_ahead_is_explained() -> None:
    """With accrual="always", a client that is often absent is urgent unless it has a surplus."""
    policy = FairPace(3, cohort_size=1, accrual="always", features=1, allow_infeasible=True)
    for round_ in range(1, 60):
        available = np.array([True, True, round_ == 30])
        row = 2 if round_ == 30 else round_ % 2
        policy.tell(make_report(round_, [row], [[1.0]], [1.0], available=available))
    result = explained(policy, RoundOffer(60, np.ones(3, dtype=np.bool_), np.ones((3, 1))), 2)
    assert result.sentence.startswith("h2 was chosen first because it is urgent: it is 8 turns behind, but should be ")
    assert result.sentence.endswith(" turns ahead, because it is often absent.")


@pytest.mark.parametrize(
    ("places", "time", "share", "price"),
    [
        (1, 100.0, "", "420"),  # a single client bears the whole time
        (2, 420.0, ", and its share of such a round is 420/1.4 = 300 s", "300"),
        (10, 100.0, ", now 320 s less, which counts as 420 + 0.9 · 320 = 708 s, and its share of", "101.14"),
        (10, 520.0, ", now 100 s more, which counts as 420 − 0.9 · 100 = 330 s, and its share of", "47.14"),
        (10, 1000.0, ", now 580 s more, which counts as 0 s, and its share of such a round is 0/7 = 0 s", "0"),
    ],
)
def test_the_share_of_a_round_is_named(places: int, time: float, share: str, price: str) -> None:
    policy, offer = slow_client(3, time=time)
    sentence = explained(policy, replace(offer, places=places), 11).sentence
    assert f"it usually takes 420 s{share}" in sentence
    assert f"so a turn is worth {price} · " in sentence


def test_the_surplus_of_a_client_that_joined_late_is_explained_as_it_counts() -> None:
    policy, offer = slow_client(0, time=420.0)
    state = policy.state()
    state["turns"] = np.array([20] * 11 + [5], dtype=np.int32)
    policy.restore(state)
    sentence = explained(policy, replace(offer, round=126), 11).sentence
    # 0.9 + 1 turns count once and 3.9 turns 150/25 times.
    assert "it is 4.9 turns ahead and may be 0.9 behind, counted as 24.4 turns, so a turn is" in sentence
    assert "60 · 0.9/25.3 = 2.13 s" in sentence


@pytest.mark.parametrize("accrual", ["available", "always"])
@pytest.mark.parametrize("rounds", [0, 3, 30])
def test_prices_with_a_head_start_and_values_are_explained_exactly(accrual: Any, rounds: int) -> None:
    policy = FairPace(40, accrual=accrual, value="loss", value_weight=0.8, head_start=2.0)
    fleet = SmallFleet(seed=5, losses=True)
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        policy.tell(fleet.play(offer, policy.ask(offer)))
    offer = fleet.offer(rounds + 1)
    sentences = [explained(policy, offer, row) for row in np.flatnonzero(offer.available).tolist()]
    assert all(explanation.exact for explanation in sentences)
    priced = [explanation.sentence for explanation in sentences if "so a turn is worth" in explanation.sentence]
    assert priced
    assert all("with a head start of " in sentence for sentence in priced)
    assert all(("s for its loss = " in sentence) == (rounds > 0) for sentence in priced)
    for explanation in sentences:
        match = re.search(PRICED, explanation.sentence)
        if match:
            share, factor, slack, value, price = (float(part or 0) for part in match.groups())
            assert share * factor / slack + value == pytest.approx(price, rel=0.02, abs=0.02)


def test_identical_clients_are_explained_exactly() -> None:
    """Their prices differ by rounding only, and the explanation must order them as the selection did."""
    policy = FairPace(12, cohort_size=4, guaranteed_rate=0.3)
    everyone: BoolArray = np.ones(12, dtype=np.bool_)
    rng = np.random.default_rng(0)
    for round_ in range(1, 60):
        offer = RoundOffer(round_, everyone, np.ones((12, 3)) * [0.1, 0.3, 0.7])
        selection = policy.ask(offer)
        for row in rng.choice(12, 3, replace=False).tolist():
            assert explain_choice(policy, offer, selection, row).exact
        rows = selection.clients
        policy.tell(make_report(round_, rows, offer.contexts[rows], np.full(4, 0.7), available=everyone))


def test_one_price_above_all_others_is_explained_exactly() -> None:
    """The other prices are rounded to 0 units, but the selection distinguishes them."""
    policy = FairPace(6, cohort_size=3, times="expected", guaranteed_rate=0.1, tolerance=1, head_start=0)
    state = policy.state()
    state["queues.rounds"] = np.array([7, 0, 0, 0, 0, 0])
    state["usual.sums"] = np.stack([np.array([1e9, 3e-9, 1e-9, 5e-9, 2e-9, 4e-9]), np.ones(6)])
    state["usual.fleet"] = np.zeros(2)
    policy.restore(state)
    policy.forget([])
    offer = RoundOffer(1, np.ones(6, dtype=np.bool_), np.ones((6, 1)), expected_times=np.zeros(6))
    selection = policy.ask(offer)
    assert selection.clients.tolist() == [0, 3, 5]
    for row in range(6):
        assert explain_choice(policy, offer, selection, row).exact
