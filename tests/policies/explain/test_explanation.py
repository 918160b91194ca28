from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from narrowing import known
from turnout.kernel.backend import using_kernel
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import as_exact
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.lab import PaperWorld, play
from turnout.policies import FairOracle
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.explanation import explain_choice
from turnout.policies.explain.margin import SelectionMargin, selection_margin
from turnout.policies.registry import make_policy

WEIGHTS = (0.0, 0.1, 1.0, 7.0, 20.0, 1e6, 1e12)


def random_problem(rng: np.random.Generator) -> CohortProblem:
    """Returns a small problem, often with ties: equal times, times of 0, equal debts, few units per turn."""
    clients = int(rng.integers(1, 8))
    times = (
        rng.random(clients) * 5,
        rng.integers(0, 4, clients).astype(float),
        np.zeros(clients),
        np.full(clients, 2.5),
    )[rng.integers(4)]
    units = (rng.integers(0, 5, clients), np.full(clients, 3), np.zeros(clients), rng.integers(0, 400, clients))
    owed = OwedTurns(units[rng.integers(4)].astype(np.int64), int(rng.integers(0, 3)), float(rng.choice([1, 3, 20])))
    available = rng.random(clients) < rng.choice([0.5, 0.9, 1.0])
    available[rng.integers(clients)] = True
    return CohortProblem(times, owed, int(rng.integers(1, clients + 2)), float(rng.choice(WEIGHTS)), available)


def brute_force(
    problem: CohortProblem, *, without: int | None = None, with_: int | None = None
) -> tuple[tuple[int, ...], float]:
    """Returns the best of all cohorts, with the solver's rules for ties, and its objective."""
    rows = [row for row in np.flatnonzero(problem.available).tolist() if row != without]
    size = min(problem.size, int(problem.available.sum()))
    units, times = problem.values.units.tolist(), problem.times.tolist()

    def key(members: tuple[int, ...]) -> tuple[float, float, list[tuple[int, float, int]]]:
        slowest = max(times[row] for row in members)
        total = sum(units[row] + problem.values.credit for row in members)
        objective = problem.speed_weight * slowest - float(total) / problem.values.units_per_turn
        return objective, slowest, sorted((-units[row], times[row], row) for row in members)

    cohorts = itertools.combinations(rows, size)
    best = min((cohort for cohort in cohorts if with_ is None or with_ in cohort), key=key)
    return best, key(best)[0]


def with_more(problem: CohortProblem, row: int, more: int) -> CohortProblem:
    units = problem.values.units.copy()
    units[row] += more
    return replace(problem, values=problem.values._replace(units=units))


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("problems", [100, pytest.param(1000, marks=pytest.mark.thorough)])
def test_margins_equal_those_of_a_search_through_all_cohorts(kernel: str, seed: int, problems: int) -> None:
    """Tests margins and missing debts of every available client of many problems."""
    rng = np.random.default_rng(seed)
    counts = {"chosen": 0, "all chosen": 0, "not chosen": 0, "never": 0}
    with using_kernel(kernel):
        for _ in range(problems):
            problem = random_problem(rng)
            cohort, objective = brute_force(problem)
            for row in np.flatnonzero(problem.available).tolist():
                result = selection_margin(problem, row)
                assert result.chosen == (row in cohort)
                assert result.objective == objective
                if result.chosen:
                    check_chosen(problem, row, result, counts)
                else:
                    check_not_chosen(problem, row, result, counts)
    assert min(counts["chosen"], counts["all chosen"], counts["not chosen"]) > problems / 10
    assert counts["never"] == 0


def check_chosen(problem: CohortProblem, row: int, result: SelectionMargin, counts: dict[str, int]) -> None:
    assert result.missing_units == 0
    if problem.size >= problem.available.sum():
        counts["all chosen"] += 1
        assert (result.margin, result.leaving, result.joining) == (None, (), ())
        return
    counts["chosen"] += 1
    rival, objective = brute_force(problem, without=row)
    assert result.margin == objective - result.objective
    assert known(result.margin) >= 0
    assert (set(brute_force(problem)[0]) - set(result.leaving)) | set(result.joining) == set(rival)


def check_not_chosen(problem: CohortProblem, row: int, result: SelectionMargin, counts: dict[str, int]) -> None:
    if result.missing_units is None:
        counts["never"] += 1
        return
    counts["not chosen"] += 1
    assert result.missing_units >= 1
    assert row in brute_force(with_more(problem, row, result.missing_units))[0]
    assert row not in brute_force(with_more(problem, row, result.missing_units - 1))[0]
    assert result.rival_objective == brute_force(problem, with_=row)[1]
    assert result.margin is not None
    assert result.margin >= 0
    if problem.speed_weight < 1e5:  # with larger weights the objective has rounding errors of whole turns
        turns = result.missing_units / problem.values.units_per_turn
        assert result.margin <= turns + 1e-9
        assert turns - result.margin <= 1 / problem.values.units_per_turn + 1e-9


def test_the_missing_debt_agrees_with_the_solver_in_a_large_fleet() -> None:
    rng = np.random.default_rng(5)
    clients = 3000
    problem = CohortProblem(
        rng.random(clients) * 30, OwedTurns(rng.integers(0, 400, clients), 7, 20.0), 50, 2.0, rng.random(clients) < 0.8
    )
    tested = 0
    for row in rng.choice(np.flatnonzero(problem.available), 40, replace=False).tolist():
        result = selection_margin(problem, row)
        if result.missing_units:
            tested += 1
            assert row in with_more(problem, row, result.missing_units).solve().rows
            assert row not in with_more(problem, row, result.missing_units - 1).solve().rows
    assert tested > 20


def test_a_missing_debt_of_more_than_64_bits_is_exact() -> None:
    owed = as_exact("owed", [0.25, 0.125, 0.0], 1)
    problem = CohortProblem(np.array([0.0, 1.0, 1e6]), owed, 1, 1000.0, np.ones(3, dtype=np.bool_))
    result = selection_margin(problem, 2)
    assert result.missing_units is not None
    assert result.missing_units.bit_length() > 64
    # 10⁹ turns for the seconds and 0.25 that the other client is owed, up to the rounding of the objective.
    assert result.missing_units / owed.units_per_turn == pytest.approx(1e9 + 0.25, rel=1e-15)


def test_the_missing_debt_is_none_if_no_debt_is_large_enough() -> None:
    owed = OwedTurns(np.zeros(2, dtype=np.int64), 0, 1.0)
    problem = CohortProblem(np.array([0.0, 1e300]), owed, 1, 1e300, np.ones(2, dtype=np.bool_))
    assert selection_margin(problem, 1).missing_units is None
    assert selection_margin(replace(problem, size=0), 1).missing_units is None
    with pytest.raises(ValueError, match="client 0 was not available"):
        selection_margin(replace(problem, available=np.array([False, True])), 0)


# Policies


def next_round(policy: SelectionPolicy, world: PaperWorld, rounds: int) -> tuple[RoundOffer, Selection]:
    """Plays rounds, and returns the offer and the selection of the next one."""
    assert sum(1 for _ in play(policy, world, rounds)) == rounds
    offer = world.offer(rounds + 1)
    return offer, policy.ask(offer if policy.requires_expected_times else offer.without_truth())


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("rbcsf", {}),
    ("rbcsf", {"speed_weight": 1.0, "accrual": "available", "max_owed": 5}),
    ("rbcsf", {"speed_weight": 0.0}),
    ("rbcsf", {"horizon": 80}),
    ("fair-oracle", {}),
    ("fair-oracle", {"speed_weight": 3.0}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
@pytest.mark.parametrize("rounds", [0, 1, 30])
def test_every_client_of_a_round_is_explained_exactly(name: str, settings: dict[str, Any], rounds: int) -> None:
    policy = make_policy(name, 40, **settings)
    offer, selection = next_round(policy, PaperWorld(seed=3), rounds)
    for row in range(40):
        result = explain_choice(policy, offer, selection, row)
        assert result.exact
        assert result.client == str(row)
        if not offer.available[row]:
            assert (result.outcome, result.margin) == ("not available", None)
            assert result.sentence == f"{row} was not available in round {rounds + 1}."
        elif row in selection.clients:
            assert result.outcome == "chosen"
            assert known(result.margin) >= 0
            assert result.objective == selection.reasons["objective"]
        else:
            assert result.outcome == "not chosen"
            check_missing_debt(policy, offer, row, result.missing_units)
            if name == "rbcsf" and not settings:  # it waits until the missing debt is earned
                missing = Fraction(known(result.missing_units)) / Fraction(known(result.units_per_turn))
                assert result.rounds_until == math.ceil(missing / Fraction(3, 20))


def check_missing_debt(policy: SelectionPolicy, offer: RoundOffer, row: int, missing: int | None) -> None:
    problem = known(policy.cohort_problem(offer))
    assert missing is not None
    if (int(problem.values.units.max()) + problem.values.credit + missing) * problem.size < 2**61:
        assert row in with_more(problem, row, missing).solve().rows
        assert row not in with_more(problem, row, missing - 1).solve().rows


def test_the_sentence_names_seconds_turns_and_clients() -> None:
    policy = FairOracle(3, cohort_size=1, guaranteed_rate="1/4", speed_weight=20.0)
    policy.debts.advance([0])
    offer = RoundOffer(2, np.ones(3, dtype=np.bool_), np.ones((3, 3)), expected_times=np.array([1.0, 9.0, 4.1]))
    selection = policy.ask(offer)
    assert selection.clients.tolist() == [0]
    result = explain_choice(policy, offer, selection, 2, "c{}".format)
    assert result.sentence == (
        "choosing c2 would lengthen the round by 3.1 s (worth 62 turns); it is owed 0.25 turns and would replace c0 "
        "(owed 0): with 62 turns more it would have been chosen. At its guaranteed rate c2 earns that in 248 rounds, "
        "if it is available in each and nothing else changes."
    )
    assert (result.missing_units, result.units_per_turn, result.rounds_until) == (248, 4.0, 248)
    assert result.longer == pytest.approx(3.1)
    assert result.worth == pytest.approx(62.0)
    assert result.instead == ("c0",)
    own = explain_choice(policy, offer, selection, 0, "c{}".format)
    assert own.sentence == (
        "c0 was chosen with a margin of 61.75 turns: the best cohort without it would last 3.1 s longer (worth 62 "
        "turns) and pay 0.25 turns more of the debts."
    )
    assert own.margin == pytest.approx(61.75)
    assert own.instead == ("c2",)


def test_ties_and_cohorts_of_all_available_clients_are_explained() -> None:
    policy = make_policy("fair-oracle", 4, cohort_size=2, guaranteed_rate="1/4", speed_weight=1.0)
    offer = RoundOffer(1, np.ones(4, dtype=np.bool_), np.ones((4, 3)), expected_times=np.array([2.0, 2.0, 2.0, 3.0]))
    selection = policy.ask(offer)
    assert selection.clients.tolist() == [0, 1]
    result = explain_choice(policy, offer, selection, 2)
    assert result.missing_units == 1
    assert result.sentence.startswith(
        "2 is fast enough, but it is owed 0 turns and would replace 1 (owed 0): with 0.25"
    )
    few = replace(offer, available=np.array([True, False, False, True]))
    only = explain_choice(policy, few, policy.ask(few), 3)
    assert only.sentence == "3 was chosen because all available clients were."
    assert (only.exact, only.margin, only.outcome) == (True, None, "chosen")


def test_the_sentence_states_why_the_number_of_rounds_is_unknown() -> None:
    world = PaperWorld(seed=1)
    for settings, reason in (
        ({"horizon": 100}, "How long it has to wait is unknown: with a horizon"),
        ({"max_owed": 1}, "its debt is limited to 1 turn by max_owed"),
        ({"guaranteed_rate": 0.0}, "its guaranteed rate is 0"),
    ):
        policy = make_policy("rbcsf", 40, **settings)
        offer, selection = next_round(policy, world, 30)
        not_chosen = np.setdiff1d(np.flatnonzero(offer.available), selection.clients)
        explanations = [explain_choice(policy, offer, selection, int(row)) for row in not_chosen]
        assert any(reason in each.sentence and each.rounds_until is None for each in explanations)


def test_other_policies_are_explained_with_the_recorded_reasons_only() -> None:
    for name in ("random", "oort", "fastest"):
        policy = make_policy(name, 40)
        offer, selection = next_round(policy, PaperWorld(seed=2), 5)
        for row in (int(selection.clients[0]), *np.setdiff1d(np.flatnonzero(offer.available), selection.clients)[:2]):
            result = explain_choice(policy, offer, selection, int(row))
            assert not result.exact
            assert (result.margin, result.missing_units) == (None, None)
            assert f"an exact explanation is not possible: {name} did not weigh" in result.sentence


def test_a_selection_that_cannot_be_computed_again_is_not_explained_exactly() -> None:
    policy = make_policy("rbcsf", 40)
    offer, selection = next_round(policy, PaperWorld(seed=2), 25)
    row = int(selection.clients[0])
    forged = replace(selection, reasons={**selection.reasons, "objective": np.array(1.0)})
    result = explain_choice(policy, offer, forged, row)
    assert not result.exact
    assert "computing it again gives another selection" in result.sentence
    other = Selection(selection.round, np.delete(np.flatnonzero(offer.available), 0)[:8], {})
    assert not explain_choice(policy, offer, other, row).exact


@pytest.mark.parametrize("places", [1, 3, 8, 12])
def test_the_places_of_the_offer_are_explained(places: int) -> None:
    policy = make_policy("rbcsf", 40)
    offer, _ = next_round(policy, PaperWorld(seed=2), 25)
    offer = offer.restricted(places=places)
    selection = policy.ask(offer)
    assert len(selection.clients) == places
    for row in np.flatnonzero(offer.available).tolist():
        result = explain_choice(policy, offer, selection, row)
        assert result.exact
        assert result.outcome == ("chosen" if row in selection.clients else "not chosen")
    more = policy.ask(replace(offer, places=10))  # as over-selection does, whose number of places is not recorded
    assert explain_choice(policy, replace(offer, places=None), more, int(more.clients[0])).exact


def test_a_client_that_a_wrapper_excludes_is_explained() -> None:
    policy = make_policy("eligible", 40, policy="rbcsf", allowed=list(range(30)))
    offer, selection = next_round(policy, PaperWorld(seed=2), 10)
    excluded = int(np.flatnonzero(offer.available)[-1])
    assert excluded >= 30
    result = explain_choice(policy, offer, selection, excluded)
    assert (result.outcome, result.exact) == ("excluded", True)
    assert result.sentence == f"{excluded} was excluded in round 11 by a wrapper around the policy."
    assert explain_choice(policy, offer, selection, int(selection.clients[0])).outcome == "chosen"
