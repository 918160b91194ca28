"""The verdicts about the queues in long runs and about the lemma, on made-up findings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lab.studies.made_up import FAILS, HOLDS, NOISE, OPEN, MadeUpRuns, columns, group
from turnout.kernel.arrays import FloatArray
from turnout.lab.studies.framework.claims import Claim, Group
from turnout.lab.studies.paper.comparison import RBCSF_LABELS
from turnout.lab.studies.paper.stability import (
    HORIZONS,
    UNSTABLE,
    Stability,
    growth_exponent,
    horizons_within,
    stability_claims,
)
from turnout.lab.studies.paper.theory import (
    CONSTANTS,
    DELTA,
    RANDOM,
    SCHEDULED,
    Lemma,
    lemma_claims,
    scheduled_widths,
    smallest_sufficient,
)

CLIENTS, ROUNDS = 40, 20_000
W1, W5, W20, W50 = RBCSF_LABELS
RATES, STABLE = "owed/rounds falls", "mean-rate stable"
PROOF = "queues within the bound of the proof"
PRINTED = "sum of the queues within the printed bound"
CORRECTED = "queues within the corrected bound"


def power(exponent: float, scale: float = 1.0, noise: float = 0.01, rounds: int = ROUNDS) -> FloatArray:
    """Returns queues of four seeds of which every client's grows as scale · T^exponent: (seeds, 3, rounds)."""
    owed = scale * np.arange(1, rounds + 1) ** exponent
    return np.stack([(1 + noise * wave) * np.stack([owed, owed, np.sqrt(CLIENTS) * owed]) for wave in NOISE])


def queues(**changes: FloatArray) -> dict[str, FloatArray]:
    """Returns settled queues of all weights and growing ones of the unstable policy; `changes` replace some."""
    labels = {"w1": W1, "w5": W5, "w20": W20, "w50": W50}
    results = {label: power(0.0, scale) for label, scale in zip(RBCSF_LABELS, (0.02, 0.04, 0.06, 0.08), strict=True)}
    return {**results, UNSTABLE: power(1.0, 0.15), **{labels[name]: curves for name, curves in changes.items()}}


def by_name(claims: list[Claim]) -> dict[str, Claim]:
    assert len({claim.name for claim in claims}) == len(claims)
    return {claim.name: claim for claim in claims}


def verdicts(**changes: FloatArray) -> dict[str, str]:
    return {name: claim.verdict for name, claim in by_name(stability_claims(queues(**changes))).items()}


@pytest.mark.parametrize("weight", ["w1", "w5", "w20", "w50"])
def test_a_queue_that_grows_like_that_of_an_unfair_policy_is_not_stable_at_any_weight(weight: str) -> None:
    outcomes = verdicts(**{weight: power(1.0, 0.15)})
    assert outcomes[STABLE] == FAILS
    assert outcomes[RATES] == OPEN  # owed/rounds is the same at every horizon
    assert outcomes[PROOF] == outcomes[PRINTED] == FAILS
    assert {outcomes[f"flattens within {horizon:,} rounds"] for horizon in HORIZONS} == {FAILS}


def test_owed_over_rounds_has_to_fall_at_every_horizon() -> None:
    late = power(0.0, 0.3)
    late[:, 1, ROUNDS - 1] *= 100  # only the longest queue, only in the last round
    assert verdicts(w20=late)[RATES] == FAILS
    early = power(0.0, 0.3)
    early[:, 1, 999] *= 100  # after 1,000 rounds
    assert verdicts(w20=early)[RATES] == FAILS
    elsewhere = power(0.0, 0.3)
    elsewhere[:, 1, 3000] *= 1.01
    assert verdicts(w20=elsewhere)[RATES] == HOLDS


@pytest.mark.parametrize(
    ("exponent", "verdict"), [(0.0, HOLDS), (0.49, HOLDS), (0.51, FAILS), (0.99, FAILS), (-0.3, HOLDS)]
)
def test_queues_may_grow_with_the_square_root_of_the_rounds(exponent: float, verdict: str) -> None:
    assert verdicts(w5=power(exponent, 0.2))[STABLE] == verdict


def test_the_exponent_is_that_between_two_horizons_and_may_decide_nothing() -> None:
    np.testing.assert_allclose(growth_exponent(power(0.7)[:, 1]), 0.7)
    np.testing.assert_allclose(growth_exponent(power(1.0, rounds=300)[:, 1]), 1.0)
    assert growth_exponent(np.zeros((2, 1000))).tolist() == [0.0, 0.0]
    uncertain = power(0.0, 1.0)
    uncertain[:, 1, -1] *= np.array([1.0, 400.0, 2.0, 300.0])  # exponents from 0 to 1.6
    assert verdicts(w50=uncertain)[STABLE] == OPEN
    outcomes = verdicts()
    assert set(outcomes.values()) == {HOLDS}
    flat = [f"flattens within {horizon:,} rounds" for horizon in HORIZONS]
    assert list(outcomes) == [*flat, RATES, STABLE, PROOF, PRINTED, CORRECTED]


def test_the_unstable_policy_is_shown_and_decides_nothing() -> None:
    claims = by_name(stability_claims({**queues(), UNSTABLE: power(2.0)}))
    assert {claim.verdict for claim in claims.values()} == {HOLDS}
    assert claims[STABLE].numbers[UNSTABLE] == "2 ± 0"
    assert claims[RATES].numbers[f"{W1}, 500 rounds"].startswith("4.00")
    assert not any(UNSTABLE in label for label in claims[PROOF].numbers)


def test_queues_above_the_bound_of_the_proof_are_found_in_any_round() -> None:
    # sqrt(2 Γ T) is 45.2 after 50 rounds, and with the penalty term 319 at weight 50.
    once = power(0.0, 0.1)
    once[:, 2, 49] = 46 + 0.1 * NOISE
    outcomes = verdicts(w50=once)
    assert (outcomes[PROOF], outcomes[PRINTED], outcomes[CORRECTED]) == (FAILS, HOLDS, HOLDS)
    numbers = by_name(stability_claims(queues(w50=once)))[PROOF].numbers
    assert numbers[f"{W50}: rounds above the bound"] == "1 ± 0"
    assert numbers[f"{W20}: rounds above the bound"] == "0 ± 0"
    assert numbers[f"{W50}: at the end"].startswith("0.0006")
    once[:, 2, 49] = 44 + 0.1 * NOISE
    assert verdicts(w50=once)[PROOF] == HOLDS
    once[:, 2, 49] = 45.22 + NOISE
    assert verdicts(w50=once)[PROOF] == OPEN


def test_the_printed_bound_is_about_the_sum_of_the_queues() -> None:
    once = power(0.0, 0.1)
    once[:, 0, 49] = 46 / CLIENTS + 0.001 * NOISE
    outcomes = verdicts(w1=once)
    assert (outcomes[PROOF], outcomes[PRINTED], outcomes[CORRECTED]) == (HOLDS, FAILS, HOLDS)
    once[:, 0, 49] = 44 / CLIENTS + 0.001 * NOISE
    assert verdicts(w1=once)[PRINTED] == HOLDS
    once[:, 0, 49] = 45.22 / CLIENTS + 0.01 * NOISE
    assert verdicts(w1=once)[PRINTED] == OPEN


def test_the_corrected_bound_grows_with_the_weight() -> None:
    once = power(0.0, 0.1)
    once[:, 2, 49] = 300 + NOISE  # sqrt(100 · (20.45 + 19 V)): 314.5 at weight 50, 66 at weight 1
    assert verdicts(w50=once)[CORRECTED] == HOLDS
    assert verdicts(w20=once)[CORRECTED] == FAILS
    once[:, 2, 49] = np.sqrt(100 * (20.45 + 19)) + NOISE
    assert verdicts(w1=once)[CORRECTED] == OPEN


def test_short_runs_have_two_horizons() -> None:
    assert horizons_within(ROUNDS) == [500, 1000, 5000, 20_000]
    assert horizons_within(5000) == [500, 1000, 5000]
    assert horizons_within(501) == [500, 501]
    assert horizons_within(500) == [125, 500]
    assert horizons_within(2) == [1, 2]


def test_the_long_runs_are_those_of_the_papers_weights() -> None:
    plans = Stability().plans(2)
    assert list(plans) == [*RBCSF_LABELS, UNSTABLE]
    assert {plan.rounds for runs in plans.values() for plan in runs} == {ROUNDS}
    assert [runs[0].settings for runs in plans.values()] == [
        {"speed_weight": 1.0},
        {"speed_weight": 5.0},
        {"speed_weight": 20.0},
        {"speed_weight": 50.0},
        {"deadline": 3.0},
    ]


def test_the_queues_of_a_run_are_measured_after_each_round() -> None:
    """Three clients, of which the first trains in all 8 rounds: the others are owed 0.15 turns more after each."""
    runs: Any = MadeUpRuns(dict.fromkeys([*RBCSF_LABELS, UNSTABLE], columns([[0]] * 8, [1.0] * 8, 3)))
    table = Stability().findings(runs).tables["stability-horizons"]
    assert np.asarray(table["rounds"]).tolist()[:2] == [2, 8]
    np.testing.assert_allclose(np.asarray(table["mean_owed"])[:2], [0.2, 0.8])
    np.testing.assert_allclose(np.asarray(table["most_owed"])[:2], [0.3, 1.2])
    np.testing.assert_allclose(np.asarray(table["norm"])[:2], np.sqrt(2) * np.array([0.3, 1.2]))
    np.testing.assert_allclose(np.asarray(table["bound"])[:2], np.sqrt(2 * 20.45 * np.array([2, 8])))


# The lemma


def coverage(scheduled: float = 1.0, sufficient: float = 20.0) -> dict[str, Group]:
    """Returns a coverage of 0.95 for constants of at least `sufficient`, and of 0.5 for smaller ones."""
    results = {label: group(label, 0.95 if width >= sufficient else 0.5) for label, width in CONSTANTS.items()}
    return {**results, SCHEDULED: group(SCHEDULED, scheduled)}


def seconds(scheduled: float, random: float = 15.0) -> dict[str, Group]:
    constants = {label: group(label, 7.0) for label in CONSTANTS}
    return {**constants, SCHEDULED: group(SCHEDULED, scheduled), RANDOM: group(RANDOM, random)}


def lemma_verdicts(
    scheduled: float = 1.0, sufficient: float = 20.0, informative: float = 0.8, time: float = 9.0
) -> list[str]:
    informed = {SCHEDULED: group(SCHEDULED, informative)}
    return [claim.verdict for claim in lemma_claims(coverage(scheduled, sufficient), informed, seconds(time), 500)]


def test_the_claims_about_the_lemma_hold_fail_and_stay_open() -> None:
    assert lemma_verdicts() == [HOLDS, HOLDS, HOLDS, HOLDS]
    assert lemma_verdicts(0.5, 999.0, 0.0, 16.0) == [FAILS, FAILS, FAILS, FAILS]
    assert lemma_verdicts(0.9, 20.0, 0.5, 15.0) == [OPEN, OPEN, HOLDS, OPEN]


@pytest.mark.parametrize(("share", "verdict"), [(0.93, HOLDS), (0.87, FAILS), (0.2, FAILS), (0.11, FAILS), (0.9, OPEN)])
def test_the_lemma_needs_a_coverage_of_one_minus_delta(share: float, verdict: str) -> None:
    assert DELTA == 0.1
    assert lemma_verdicts(scheduled=share)[0] == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.0, FAILS), (0.48, FAILS), (0.5, OPEN), (0.52, HOLDS)])
def test_a_band_is_informative_if_most_optimistic_times_are_above_0(share: float, verdict: str) -> None:
    assert lemma_verdicts(informative=share)[1] == verdict


def test_the_smallest_exploration_is_that_from_which_on_all_are_enough() -> None:
    assert smallest_sufficient(coverage(sufficient=20.0)) == "exploration 20"
    assert smallest_sufficient(coverage(sufficient=0.0)) == "exploration 0.1"
    assert smallest_sufficient(coverage(sufficient=30.0)) == "exploration 30"
    assert smallest_sufficient(coverage(sufficient=31.0)) is None
    lucky = {**coverage(sufficient=20.0), "exploration 1": group("exploration 1", 0.95)}
    assert smallest_sufficient(lucky) == "exploration 20"
    claim = lemma_claims(coverage(), {SCHEDULED: group(SCHEDULED, 0.8)}, seconds(9.0), 500)[2]
    assert claim.numbers["smallest"] == "20"


def test_no_sufficient_exploration_is_undecided_if_one_of_them_may_be_enough() -> None:
    open_one = {**coverage(sufficient=999.0), "exploration 30": group("exploration 30", 0.9)}
    claim = lemma_claims(open_one, {SCHEDULED: group(SCHEDULED, 0.8)}, seconds(9.0), 500)[2]
    assert (claim.verdict, claim.numbers["smallest"]) == (OPEN, "none")


def test_the_schedule_of_the_lemma_is_that_of_the_papers_world() -> None:
    first, last = scheduled_widths(500)
    # R = 19, S = sqrt(18), L = sqrt(105), delta = 0.1, ridge = 1.
    assert first == pytest.approx(19 * np.sqrt(3 * np.log(106 / 0.1)) + np.sqrt(18))
    assert last == pytest.approx(19 * np.sqrt(3 * np.log((1 + 500 * 105) / 0.1)) + np.sqrt(18))
    plans = Lemma().plans(1)
    assert plans[SCHEDULED][0].settings["theory"]["delta"] == DELTA
    assert [plans[label][0].settings for label in CONSTANTS] == [{"exploration": width} for width in CONSTANTS.values()]
