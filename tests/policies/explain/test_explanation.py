from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from turnout.kernel.backend import using_kernel
from turnout.kernel.cohort import as_exact
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.fairness import OwedTurns
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.explain.explanation import explain_choice
from turnout.policies.explain.margin import SelectionMargin, selection_margin
from turnout.policies.registry import make_policy
from turnout.simulator import PaperWorld, play

WEIGHTS = (0.0, 0.1, 1.0, 7.0, 20.0, 1e6, 1e12)


def drawn(rng: np.random.Generator) -> CohortProblem:
    """A small problem, often with ties: equal times, times of 0, equal debts, few units in a turn."""
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


def tried_all(problem: CohortProblem, *, without: int | None = None) -> tuple[tuple[int, ...], float]:
    """The best of all cohorts, by its own rules for ties, and its objective."""
    rows = [row for row in np.flatnonzero(problem.available).tolist() if row != without]
    size = min(problem.size, int(problem.available.sum()))
    units, times = problem.values.units.tolist(), problem.times.tolist()

    def key(members: tuple[int, ...]) -> tuple[float, float, list[tuple[int, float, int]]]:
        slowest = max(times[row] for row in members)
        total = sum(units[row] + problem.values.credit for row in members)
        objective = problem.speed_weight * slowest - float(total) / problem.values.units_per_turn
        return objective, slowest, sorted((-units[row], times[row], row) for row in members)

    best = min(itertools.combinations(rows, size), key=key)
    return best, key(best)[0]


def with_more(problem: CohortProblem, row: int, more: int) -> CohortProblem:
    units = problem.values.units.copy()
    units[row] += more
    return problem._replace(values=problem.values._replace(units=units))


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("seed", range(3))
def test_explanations_equal_trying_every_cohort(kernel: str, seed: int) -> None:
    """Margins and missing debts, of every available client of a thousand problems each time."""
    rng = np.random.default_rng(seed)
    seen = {"chosen": 0, "alone": 0, "not chosen": 0, "never": 0}
    with using_kernel(kernel):
        for _ in range(1000):
            problem = drawn(rng)
            cohort, objective = tried_all(problem)
            for row in np.flatnonzero(problem.available).tolist():
                found = selection_margin(problem, row)
                assert found.chosen == (row in cohort)
                assert found.objective == objective
                if found.chosen:
                    check_chosen(problem, row, found, seen)
                else:
                    check_not_chosen(problem, row, found, seen)
    assert min(seen["chosen"], seen["alone"], seen["not chosen"]) > 100
    assert seen["never"] == 0


def check_chosen(problem: CohortProblem, row: int, found: SelectionMargin, seen: dict[str, int]) -> None:
    assert found.missing_units == 0
    if problem.size >= problem.available.sum():
        seen["alone"] += 1
        assert (found.margin, found.leaving, found.joining) == (None, (), ())
        return
    seen["chosen"] += 1
    rival, objective = tried_all(problem, without=row)
    assert found.margin == objective - found.objective
    assert found.margin is not None
    assert found.margin >= 0
    cohort = tried_all(problem)[0]
    assert (set(cohort) - set(found.leaving)) | set(found.joining) == set(rival)


def check_not_chosen(problem: CohortProblem, row: int, found: SelectionMargin, seen: dict[str, int]) -> None:
    if found.missing_units is None:
        seen["never"] += 1
        return
    seen["not chosen"] += 1
    assert found.missing_units >= 1
    assert row in tried_all(with_more(problem, row, found.missing_units))[0]
    assert row not in tried_all(with_more(problem, row, found.missing_units - 1))[0]
    rows = np.flatnonzero(problem.available).tolist()
    with_it = [one for one in itertools.combinations(rows, problem.size) if row in one]
    times, owed = problem.times, problem.values
    best = min(
        problem.speed_weight * max(times[one].tolist())
        - float(sum(owed.units[one].tolist()) + owed.credit * len(one)) / owed.units_per_turn
        for one in map(list, with_it)
    )
    assert found.rival_objective == best
    assert found.margin is not None
    assert found.margin >= 0
    if problem.speed_weight < 1e5:  # the objective itself is a double
        turns = found.missing_units / problem.values.units_per_turn
        assert found.margin <= turns + 1e-9
        assert turns - found.margin <= 1 / problem.values.units_per_turn + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_every_smaller_debt_leaves_it_out_and_every_larger_one_takes_it_in(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    looked = 0
    while looked < 100:
        problem = drawn(rng)
        if problem.speed_weight > 20:
            continue
        for row in np.flatnonzero(problem.available).tolist():
            found = selection_margin(problem, row)
            if found.missing_units is None or not 0 < found.missing_units < 300:
                continue
            looked += 1
            for more in range(found.missing_units + 20):
                chosen = with_more(problem, row, more).solve().rows.tolist()
                assert (row in chosen) == (more >= found.missing_units)


def test_a_large_fleet_agrees_with_the_solver_itself() -> None:
    rng = np.random.default_rng(5)
    clients = 3000
    problem = CohortProblem(
        rng.random(clients) * 30,
        OwedTurns(rng.integers(0, 400, clients), 7, 20.0),
        50,
        2.0,
        rng.random(clients) < 0.8,
    )
    looked = 0
    for row in rng.choice(np.flatnonzero(problem.available), 40, replace=False).tolist():
        found = selection_margin(problem, row)
        if found.missing_units:
            looked += 1
            assert row in with_more(problem, row, found.missing_units).solve().rows
            assert row not in with_more(problem, row, found.missing_units - 1).solve().rows
    assert looked > 20


def test_a_debt_beyond_64_bits_is_still_exact() -> None:
    owed = as_exact("owed", [0.25, 0.125, 0.0], 1)
    problem = CohortProblem(np.array([0.0, 1.0, 1e6]), owed, 1, 1000.0, np.ones(3, dtype=np.bool_))
    found = selection_margin(problem, 2)
    assert found.missing_units is not None
    assert found.missing_units.bit_length() > 64
    # 10⁹ turns for the seconds, 0.25 that the other is owed; just less than half a last place of a double is enough.
    assert found.missing_units / owed.units_per_turn == pytest.approx(1e9 + 0.25, rel=1e-15)


def test_where_no_debt_helps_that_is_the_answer() -> None:
    owed = OwedTurns(np.zeros(2, dtype=np.int64), 0, 1.0)
    problem = CohortProblem(np.array([0.0, 1e300]), owed, 1, 1e300, np.ones(2, dtype=np.bool_))
    assert selection_margin(problem, 1).missing_units is None
    nobody = problem._replace(size=0)
    assert selection_margin(nobody, 1).missing_units is None
    with pytest.raises(ValueError, match="client 0 was not available"):
        selection_margin(problem._replace(available=np.array([False, True])), 0)


# Policies


def rounds_of(policy: Any, world: PaperWorld, rounds: int) -> tuple[RoundOffer, Selection]:
    """The offer and the choice of the round after these."""
    for _ in play(policy, world, rounds):
        pass
    offer = world.offer(rounds + 1)
    return offer, policy.ask(offer if policy.requires_expected_times else offer.without_truth())


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("rbcsf", {}),
    ("rbcsf", {"speed_weight": 1.0, "accrual": "available", "max_owed": 5}),
    ("rbcsf", {"speed_weight": 0.0}),
    ("rbcsf", {"horizon": 80}),
    ("rbcsf", {"groups": ["a"] * 10 + ["b"] * 30, "group_rates": {"a": 2}}),
    ("rbcsf", {"groups": ["a"] * 10 + ["b"] * 30, "group_rates": {"a": 2}, "horizon": 80}),
    ("fair-oracle", {}),
    ("fair-oracle", {"speed_weight": 3.0}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
@pytest.mark.parametrize("rounds", [0, 1, 60])
def test_every_client_of_a_round_has_an_exact_explanation(name: str, settings: dict[str, Any], rounds: int) -> None:
    policy = make_policy(name, 40, **settings)
    offer, selection = rounds_of(policy, PaperWorld(seed=3), rounds)
    for row in range(40):
        found = explain_choice(policy, offer, selection, row)
        assert found.exact
        assert found.client == str(row)
        if not offer.available[row]:
            assert (found.standing, found.margin) == ("not available", None)
            assert found.sentence == f"{row} was not available in round {rounds + 1}."
        elif row in selection.clients:
            assert found.standing == "chosen"
            assert found.margin is not None
            assert found.margin >= 0
            assert found.objective == selection.reasons["objective"]
        else:
            assert found.standing == "not chosen"
            check_put_in(policy, offer, row, found.missing_units)


def check_put_in(policy: Any, offer: RoundOffer, row: int, missing: int | None) -> None:
    problem = policy.cohort_problem(offer)
    assert problem is not None
    assert missing is not None
    if (int(problem.values.units.max()) + problem.values.credit + missing) * problem.size < 2**61:
        assert row in with_more(problem, row, missing).solve().rows
        assert row not in with_more(problem, row, missing - 1).solve().rows


def test_the_sentence_that_a_person_understands() -> None:
    policy = make_policy("fair-oracle", 3, cohort_size=1, guaranteed_rate="1/4", speed_weight=20.0)
    policy.queues.advance([0])  # type: ignore[attr-defined]
    offer = RoundOffer(2, np.ones(3, dtype=np.bool_), np.ones((3, 3)), expected_times=np.array([1.0, 9.0, 4.1]))
    selection = policy.ask(offer)
    assert selection.clients.tolist() == [0]
    found = explain_choice(policy, offer, selection, 2, "c{}".format)
    assert found.sentence == (
        "choosing c2 would lengthen the round by 3.1 s (worth 62 turns); it is owed 0.25 turns and would replace c0 "
        "(owed 0): with 62 turns more it would have been chosen. At its guaranteed rate c2 earns that in 248 rounds, "
        "if it is available in each and nothing else changes."
    )
    assert (found.missing_units, found.units_per_turn, found.rounds_until) == (248, 4.0, 248)
    assert found.longer == pytest.approx(3.1)
    assert found.worth == pytest.approx(62.0)
    assert found.instead == ("c0",)
    own = explain_choice(policy, offer, selection, 0, "c{}".format)
    assert own.sentence == (
        "c0 was chosen with a margin of 61.75 turns: the best cohort without it would last 3.1 s longer (worth 62 "
        "turns) and pay 0.25 turns more of the debts."
    )
    assert own.margin == pytest.approx(61.75)
    assert own.instead == ("c2",)


def test_equals_and_slow_ones_and_alone() -> None:
    policy = make_policy("fair-oracle", 4, cohort_size=2, guaranteed_rate="1/4", speed_weight=1.0)
    offer = RoundOffer(1, np.ones(4, dtype=np.bool_), np.ones((4, 3)), expected_times=np.array([2.0, 2.0, 2.0, 3.0]))
    selection = policy.ask(offer)
    assert selection.clients.tolist() == [0, 1]
    found = explain_choice(policy, offer, selection, 2)
    assert found.missing_units == 1
    assert found.sentence.startswith("2 is fast enough, but it is owed 0 turns and would replace 1 (owed 0): with 0.25")
    few = replace(offer, available=np.array([True, False, False, True]))
    alone = explain_choice(policy, few, policy.ask(few), 3)
    assert alone.sentence == "3 was chosen because all available clients were."
    assert (alone.exact, alone.margin, alone.standing) == (True, None, "chosen")


def test_what_grows_differently_or_never_says_so() -> None:
    world = PaperWorld(seed=1)
    for settings, words in (
        ({"horizon": 100}, "How long it has to wait is unknown: with a horizon"),
        ({"max_owed": 1}, "its debt is limited to 1 turn by max_owed"),
        ({"guaranteed_rate": 0.0}, "its guaranteed rate is 0"),
    ):
        policy = make_policy("rbcsf", 40, **settings)
        offer, selection = rounds_of(policy, world, 30)
        left_out = np.setdiff1d(np.flatnonzero(offer.available), selection.clients)
        told = [explain_choice(policy, offer, selection, int(row)) for row in left_out]
        assert any(words in one.sentence and one.rounds_until is None for one in told)


def test_rounds_until_are_those_in_which_the_debt_is_earned() -> None:
    policy = make_policy("rbcsf", 40)
    offer, selection = rounds_of(policy, PaperWorld(seed=2), 25)
    for row in np.setdiff1d(np.flatnonzero(offer.available), selection.clients).tolist():
        found = explain_choice(policy, offer, selection, row)
        assert found.missing_units is not None
        assert found.units_per_turn is not None
        missing = Fraction(found.missing_units) / Fraction(found.units_per_turn)
        assert found.rounds_until == math.ceil(missing / Fraction(3, 20))


def test_other_policies_say_what_is_on_record() -> None:
    for name in ("random", "oort", "fastest"):
        policy = make_policy(name, 40)
        offer, selection = rounds_of(policy, PaperWorld(seed=2), 5)
        for row in (int(selection.clients[0]), *np.setdiff1d(np.flatnonzero(offer.available), selection.clients)[:2]):
            found = explain_choice(policy, offer, selection, int(row))
            assert not found.exact
            assert (found.margin, found.missing_units) == (None, None)
            assert f"an exact explanation is not possible: {name} did not weigh" in found.sentence


def test_a_choice_that_cannot_be_repeated_is_not_explained() -> None:
    policy = make_policy("rbcsf", 40)
    offer, selection = rounds_of(policy, PaperWorld(seed=2), 25)
    row = int(selection.clients[0])
    forged = replace(selection, reasons={**selection.reasons, "objective": np.array(1.0)})
    found = explain_choice(policy, offer, forged, row)
    assert not found.exact
    assert "computing it again gives another selection" in found.sentence
    other = Selection(selection.round, np.delete(np.flatnonzero(offer.available), 0)[:8], {})
    assert not explain_choice(policy, offer, other, row).exact
