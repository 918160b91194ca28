"""The verdicts of the numerical study, on made-up findings: each can hold, fail and stay undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lab.studies.made_up import FAILS, HOLDS, NOISE, OPEN, MadeUpRuns, columns, group
from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.theory import regret_bound
from turnout.lab.drawing.figures import overview_tables
from turnout.lab.studies.framework.claims import Claim, Group
from turnout.lab.studies.framework.experiment import plans_of
from turnout.lab.studies.paper.comparison import (
    CONTENDERS,
    FAIR_PACE,
    RBCSF_LABELS,
    PullRecord,
    TrainingTime,
    first_round_at,
    flattening_claim,
    promise_claims,
    pull_record_claims,
    queue_claims,
    training_time_claims,
)
from turnout.lab.studies.paper.theory import ORACLE, Theory, rate_claim, regret_claim, second_half_mean
from turnout.lab.studies.paper.trade_off import FLEET, ZERO, HorizonStudy, TradeOff, horizon_claims, trade_off_claims
from turnout.lab.studies.paper.trade_off import ORACLE as TRADE_OFF_ORACLE
from turnout.lab.studies.paper.trade_off import WEIGHTS as TRADE_OFF_WEIGHTS

RANDOM, FEDCS = "random", "FedCS(3)"
W1, W5, W20, W50 = RBCSF_LABELS


def groups(scale: float = 0.01, **means: float) -> dict[str, Group]:
    """Returns groups by label, in which w1, w5, w20, w50, random and fedcs stand for the contenders."""
    labels = {"w1": W1, "w5": W5, "w20": W20, "w50": W50, "random": RANDOM, "fedcs": FEDCS}
    return {labels[name]: group(labels[name], mean, scale) for name, mean in means.items()}


def verdict_of(claims: Sequence[Claim], name: str) -> str:
    (claim,) = [claim for claim in claims if claim.name == name]
    return claim.verdict


# Queues


def rising(level: float, settles: int, rounds: int = 500) -> FloatArray:
    """Returns four curves that rise linearly to a level, which they reach in round `settles`, and stay there."""
    ramp = np.minimum(np.arange(1, rounds + 1) / settles, 1.0)
    return np.stack([level * (1 + 0.01 * noise) * ramp for noise in NOISE])


def growing(growth: float, spread: float = 0.0) -> FloatArray:
    """Returns four curves that are 1 in the fourth fifth of 100 rounds, and 1 + growth in the last."""
    curves = np.ones((4, 100))
    curves[:, 80:] += growth + spread * np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    return curves


@pytest.mark.parametrize(
    ("growth", "spread", "verdict"),
    [
        (0.0, 0.0, HOLDS),
        (0.04, 0.001, HOLDS),
        (0.06, 0.001, FAILS),
        (0.3, 0.01, FAILS),
        (-0.3, 0.01, HOLDS),
        (0.05, 0.01, OPEN),
        (0.04, 0.02, OPEN),
    ],
)
def test_queues_are_flat_if_they_grow_by_less_than_five_percent(growth: float, spread: float, verdict: str) -> None:
    flat = growing(0.0)
    claim = flattening_claim({W1: flat, W50: growing(growth, spread)}, 100)
    assert claim.verdict == verdict
    assert claim.name == "flattens within 100 rounds"
    assert claim.numbers["at most"] == "0.05"


def test_queues_are_judged_at_the_horizon_that_is_named() -> None:
    curves = {W1: rising(10, 300)}
    assert flattening_claim(curves, 200).verdict == FAILS
    assert flattening_claim(curves, 500).verdict == HOLDS
    assert flattening_claim({W1: np.zeros((4, 100))}, 100).verdict == HOLDS
    assert flattening_claim(curves, 200).statement.startswith("within 200 rounds, ")


def test_queues_with_larger_weights_settle_later_and_higher() -> None:
    owed = {W1: rising(1, 11), W5: rising(3, 44), W20: rising(10, 155), W50: rising(25, 305)}
    assert {claim.verdict for claim in queue_claims(owed)} == {HOLDS}
    assert queue_claims(owed)[2].numbers == {W1: "10 ± 0", W5: "40 ± 0", W20: "140 ± 0", W50: "275 ± 0"}
    curves = np.array([[1.0, 2.0, 3.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
    assert first_round_at(curves, np.array([3.0, 5.0])).tolist() == [3, 1]
    assert first_round_at(curves, np.array([2.5, 4.0])).tolist() == [3, 1]


def test_a_single_pair_of_weights_in_the_wrong_order_refutes_the_claims_about_queues() -> None:
    owed = {W1: rising(1, 10), W5: rising(3, 40), W20: rising(30, 350), W50: rising(25, 300)}
    claims = queue_claims(owed)
    assert (verdict_of(claims, "higher level"), verdict_of(claims, "later")) == (FAILS, FAILS)
    equal = dict.fromkeys((W1, W5, W20, W50), rising(10, 100))
    assert [claim.verdict for claim in queue_claims(equal)] == [HOLDS, OPEN, OPEN]


def test_a_queue_has_settled_at_ninety_percent_of_its_level() -> None:
    """At half of their levels, the weights are in the other order."""
    slow_start = rising(10, 100)
    slow_start[:, :90] *= 0.4
    even = rising(20, 120)
    early = rising(30, 200)
    owed = {W1: rising(1, 10), W5: slow_start, W20: even, W50: early}
    claim = queue_claims(owed)[2]
    assert claim.verdict == HOLDS
    assert claim.numbers[W5].startswith("91 ")
    assert "90% of that level" in claim.statement


# Training time


TIMES = {"w1": 84.0, "w5": 74.0, "w20": 63.0, "w50": 47.0, "random": 128.0, "fedcs": 33.0}
TIME_CLAIMS = ("random slowest", "larger weight, shorter", "FedCS(3) shortest")


def time_verdicts(**changes: float) -> list[str]:
    claims = training_time_claims(groups(**{**TIMES, **changes}))
    assert tuple(claim.name for claim in claims) == TIME_CLAIMS
    return [claim.verdict for claim in claims]


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, [HOLDS, HOLDS, HOLDS]),
        ({"w1": 130.0}, [FAILS, HOLDS, HOLDS]),  # only the slowest weight is slower than random
        ({"w50": 130.0}, [FAILS, FAILS, HOLDS]),
        ({"w50": 20.0}, [HOLDS, HOLDS, FAILS]),  # only the fastest weight is faster than FedCS(3)
        ({"fedcs": 140.0}, [FAILS, HOLDS, FAILS]),
        ({"random": 30.0}, [FAILS, HOLDS, FAILS]),
        ({"w1": 73.0}, [HOLDS, FAILS, HOLDS]),  # the last pair
        ({"w50": 64.0}, [HOLDS, FAILS, HOLDS]),  # the first pair
        ({"w1": 128.0, "fedcs": 47.0, "w5": 63.0}, [OPEN, OPEN, OPEN]),
    ],
)
def test_every_policy_counts_in_the_claims_about_training_time(changes: dict[str, float], verdicts: list[str]) -> None:
    assert time_verdicts(**changes) == verdicts


# Turns


SPREADS = {"w1": 23.0, "w5": 39.0, "w20": 62.0, "w50": 97.0, "random": 9.0, "fedcs": 159.0}


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, [HOLDS, HOLDS]),
        ({"w50": 160.0}, [HOLDS, FAILS]),
        ({"random": 170.0}, [HOLDS, FAILS]),  # not only RBCS-F counts
        ({"w5": 20.0}, [FAILS, HOLDS]),
        ({"w20": 98.0}, [FAILS, HOLDS]),  # the last pair
        ({"w20": 97.0, "fedcs": 97.0}, [OPEN, OPEN]),
    ],
)
def test_the_claims_about_the_spread_of_turns_need_every_contender(
    changes: dict[str, float], verdicts: list[str]
) -> None:
    claims = pull_record_claims(groups(**{**SPREADS, **changes}), groups(0.0001, random=0.99, w1=0.96))
    assert [claim.verdict for claim in claims[:2]] == verdicts


@pytest.mark.parametrize(
    ("random", "w1", "verdict"),
    [
        (0.99, 0.951, HOLDS),
        (0.95, 0.99, OPEN),
        (0.99, 0.949, FAILS),
        (0.949, 0.99, FAILS),
        (0.99, 0.6, FAILS),
        (0.99, 0.95, OPEN),
    ],
)
def test_turns_are_even_above_a_jain_index_of_095(random: float, w1: float, verdict: str) -> None:
    claims = pull_record_claims(groups(**SPREADS), groups(0.001, random=random, w1=w1, w50=0.3))
    assert claims[2].verdict == verdict
    assert claims[2].numbers["at least"] == "0.95"


def test_the_papers_contenders_have_the_papers_settings() -> None:
    assert CONTENDERS == {
        W1: ("rbcsf", {"speed_weight": 1.0}),
        W5: ("rbcsf", {"speed_weight": 5.0}),
        W20: ("rbcsf", {"speed_weight": 20.0}),
        W50: ("rbcsf", {"speed_weight": 50.0}),
        RANDOM: ("random", {}),
        FEDCS: ("fedcs", {"deadline": 3.0}),
    }
    played = {(plan.policy, *plan.settings.items()) for plan in plans_of([PullRecord()], 1)}
    assert played == {(policy, *settings.items()) for policy, settings in CONTENDERS.values()}


# Theory


@pytest.mark.parametrize(
    ("missing", "verdict"),
    [
        ((5.0, 6.0, 7.0, 7.5), HOLDS),  # a rate below the guaranteed one in every window, which tends to it
        ((5.0, 6.0, 7.0, 28.5), OPEN),
        ((5.0, 6.0, 7.0, 60.0), FAILS),
        ((5.0, 12.0, 7.0, 7.0), FAILS),
    ],
)
def test_missing_turns_over_rounds_have_to_fall_at_every_horizon(missing: tuple[float, ...], verdict: str) -> None:
    least = {W5: np.full((4, 20_000), 0.15), W50: np.full((4, 20_000), 0.15)}
    for horizon, turns in zip((500, 1000, 5000, 20_000), missing, strict=True):
        least[W5][:, horizon - 1] -= (4 + NOISE / 10) / horizon
        least[W50][:, horizon - 1] -= (turns + NOISE) / horizon
    claim = rate_claim(least)
    assert claim.verdict == verdict
    assert rate_claim({W5: np.full((4, 2000), 0.2)}).verdict == HOLDS  # nothing is missing at any horizon
    assert float(claim.numbers[f"{W50}: turns missing at the end"].split()[0]) == pytest.approx(missing[-1], abs=0.1)


def regrets(*ends: float, rounds: int = 10, scale: float = 0.1) -> dict[str, FloatArray]:
    """Returns constant regret curves of four seeds around these values."""
    return {
        label: np.stack([np.full(rounds, end + scale * noise) for noise in NOISE])
        for label, end in zip((W5, W20, W50), ends, strict=True)
    }


def bounds(value: float = 5.0) -> dict[str, FloatArray]:
    return dict.fromkeys((W5, W20, W50), np.full(10, value))


REFERENCE = group(ORACLE, 7.9)


def test_the_regret_is_compared_with_its_bound_in_every_round_of_every_weight() -> None:
    assert regret_claim(regrets(0.5, 0.1, 0.02), bounds(), REFERENCE).verdict == HOLDS
    assert regret_claim(regrets(0.5, 0.1, 6.0), bounds(), REFERENCE).verdict == FAILS
    assert regret_claim(regrets(6.0, 0.1, 0.1), bounds(), REFERENCE).verdict == FAILS
    assert regret_claim(regrets(0.5, 5.0, 0.1), bounds(), REFERENCE).verdict == OPEN
    assert regret_claim(regrets(-50.0, -6.0, -9.0), bounds(), REFERENCE).verdict == HOLDS
    once = regrets(0.5, 0.1, 0.02)
    once[W20][:, 3] = 5.5  # a single round in the middle
    assert regret_claim(once, bounds(), REFERENCE).verdict == FAILS
    assert regret_claim(regrets(5.0, 5.0, 5.0, scale=0.0), bounds(), REFERENCE).verdict == HOLDS  # equal is not above
    numbers = regret_claim(regrets(0.5, 0.1, 0.02, scale=0.0), bounds(), REFERENCE).numbers
    assert numbers[f"{W5}: regret at the end"] == "0.5 ± 0 (bound 5)"
    assert numbers["fair oracle, mean round time"] == REFERENCE.summary


def test_the_reference_is_that_of_the_second_half() -> None:
    assert second_half_mean(columns([[0]] * 4, [100.0, 50.0, 3.0, 5.0], 1)) == 4.0
    assert second_half_mean(columns([[0]] * 5, [100.0, 50.0, 3.0, 5.0, 7.0], 1)) == 5.0


def test_the_regret_is_the_own_time_minus_that_of_the_oracle_in_its_second_half() -> None:
    slow = columns([[0], [0], [0], [0]], [10.0, 10.0, 10.0, 10.0], 1)
    oracle = columns([[0], [0], [0], [0]], [90.0, 90.0, 3.0, 5.0], 1)
    runs: Any = MadeUpRuns({W5: slow, W20: slow, W50: slow, ORACLE: oracle})
    numbers = Theory().findings(runs).claims[1].numbers
    assert numbers["fair oracle, mean round time"] == "4 ± 0"
    assert all(numbers[f"{label}: regret at the end"].startswith("6 ± 0 ") for label in (W5, W20, W50))


def test_the_bounds_are_those_of_the_theorem_in_the_papers_world() -> None:
    quick = columns([[0], [0]], [1.0, 1.0], 1)
    runs: Any = MadeUpRuns({W5: quick, W20: quick, W50: quick, ORACLE: quick})
    table = Theory().findings(runs).tables["theory"]
    world = {"R": 19.0, "S": math.sqrt(18), "L": math.sqrt(105), "delta": 0.1}
    for label, weight in ((W5, 5), (W20, 20), (W50, 50)):
        expected = regret_bound([1, 2], clients=40, guaranteed_rate=0.15, speed_weight=weight, **world)
        np.testing.assert_allclose(np.asarray(table[f"{label} bound"]), expected)


def test_a_regret_above_the_theorems_bound_is_found_in_the_runs() -> None:
    hopeless = columns([[0], [0]], [1e6, 1e6], 1)
    quick = columns([[0], [0]], [1.0, 1.0], 1)
    runs: Any = MadeUpRuns({W5: quick, W20: quick, W50: hopeless, ORACLE: quick})
    rate, regret = Theory().findings(runs).claims
    assert (rate.verdict, regret.verdict) == (HOLDS, FAILS)
    swapped: Any = MadeUpRuns({W5: quick, W20: quick, W50: quick, ORACLE: hopeless})
    assert Theory().findings(swapped).claims[1].verdict == HOLDS


def test_the_oracles_are_played_with_large_weights() -> None:
    assert {plan.settings["speed_weight"] for plan in Theory().plans(2)[ORACLE]} == {200.0}
    assert {plan.policy for plan in Theory().plans(2)[ORACLE]} == {"fair-oracle"}
    assert {plan.settings["speed_weight"] for plan in TradeOff().plans(2)[TRADE_OFF_ORACLE]} == {100.0}
    assert [plans[0].settings["speed_weight"] for plans in Theory().plans(1).values()] == [5, 20, 50, 200]


# Trade-off


def points(time: Sequence[float], early: Sequence[float], late: Sequence[float]) -> dict[str, FloatArray]:
    """Returns the points of each weight, smallest weight first; the time after a tenth of the rounds is reversed."""
    results = {}
    for index, weight in enumerate(TRADE_OFF_WEIGHTS):
        rows = [
            [[time[-1 - index] + noise, early[index] + noise], [time[index] + noise, late[index] + noise]]
            for noise in 0.001 * NOISE
        ]
        results[f"RBCS-F, weight {weight:g}"] = np.array(rows)
    return results


FALLING, RISING = [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0], [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
SHARES = [0.15, 0.14, 0.13, 0.12, 0.11, 0.10, 0.05, 0.01]


def test_the_trade_off_holds_fails_and_stays_open() -> None:
    def verdicts(*arguments: Sequence[float]) -> list[str]:
        return [claim.verdict for claim in trade_off_claims(points(*arguments))]

    assert verdicts(FALLING, SHARES, [share + 0.01 for share in SHARES]) == [HOLDS, HOLDS, HOLDS]
    assert verdicts(RISING, SHARES[::-1], [share - 0.01 for share in SHARES[::-1]]) == [FAILS, FAILS, FAILS]
    assert verdicts([5.0] * 8, [0.1] * 8, [0.1] * 8) == [OPEN, OPEN, OPEN]
    last_pair = [*FALLING[:6], FALLING[7], FALLING[6]]
    assert verdicts(last_pair, SHARES, SHARES)[0] == FAILS
    first_pair = [FALLING[1], FALLING[0], *FALLING[2:]]
    assert verdicts(first_pair, SHARES, SHARES)[0] == FAILS


def test_patience_is_judged_at_weight_20_only() -> None:
    late = [share - 0.05 for share in SHARES]
    late[TRADE_OFF_WEIGHTS.index(20)] = SHARES[TRADE_OFF_WEIGHTS.index(20)] + 0.02
    assert verdict_of(trade_off_claims(points(FALLING, SHARES, late)), "patience pays") == HOLDS
    late = [share + 0.05 for share in SHARES]
    late[TRADE_OFF_WEIGHTS.index(20)] = SHARES[TRADE_OFF_WEIGHTS.index(20)] - 0.02
    claim = trade_off_claims(points(FALLING, SHARES, late))[2]
    assert claim.verdict == FAILS
    assert claim.numbers["RBCS-F, weight 20, gain"].startswith("-0.02 ± ")


# Horizon


H_TIMES = {"0.5": 10.8, "1": 10.1, "2": 9.4, "5": 8.8, "20": 7.6}
H_BEHIND = {"0.5": 0.3, "1": 2.1, "2": 4.0, "5": 10.0, "20": 54.0}


def horizon_verdicts(
    fleet: float = 9.0, zero: float = 9.2, behind: float = 0.1, **kept: float
) -> tuple[list[str], list[str]]:
    """Returns the verdicts, and the contenders of the comparison; `kept` changes the turns behind of a weight."""
    time = {f"RBCS-F, weight {weight}": group(weight, seconds) for weight, seconds in H_TIMES.items()}
    short = {f"RBCS-F, weight {weight}": group(weight, turns) for weight, turns in H_BEHIND.items()}
    short |= {f"RBCS-F, weight {weight[1:]}": group(weight, turns) for weight, turns in kept.items()}
    time |= {ZERO: group(ZERO, zero), FLEET: group(FLEET, fleet)}
    short |= {ZERO: group(ZERO, 0.1), FLEET: group(FLEET, behind)}
    claims = horizon_claims(time, short)
    return [claim.verdict for claim in claims], list(claims[2].numbers)[1:]


def test_the_claims_about_the_horizon_compare_what_keeps_the_promise_and_can_fail() -> None:
    assert horizon_verdicts() == ([HOLDS, HOLDS, HOLDS, HOLDS], ["0.5"])
    assert horizon_verdicts(w1=0.9) == ([HOLDS, HOLDS, HOLDS, HOLDS], ["0.5", "1"])
    assert horizon_verdicts(w5=0.5) == ([HOLDS, HOLDS, FAILS, HOLDS], ["0.5", "5"])  # 8.8 s at weight 5
    assert horizon_verdicts(w1=1.0) == ([HOLDS, HOLDS, HOLDS, HOLDS], ["0.5", "1"])  # weight 1 may keep it
    assert horizon_verdicts(**{"w0.5": 3.0}) == ([HOLDS, HOLDS, OPEN, HOLDS], [])  # nobody keeps it
    assert horizon_verdicts(fleet=11.0)[0] == [HOLDS, FAILS, FAILS, FAILS]
    assert horizon_verdicts(fleet=9.2)[0] == [HOLDS, OPEN, HOLDS, OPEN]
    assert horizon_verdicts(fleet=10.8)[0][2] == OPEN
    time = {label: group(label, 9.0) for label in (*(f"RBCS-F, weight {weight}" for weight in H_TIMES), ZERO, FLEET)}
    behind = {label: Group(label, np.ones(4)) for label in time}
    assert horizon_claims(time, behind)[0].verdict == OPEN


@pytest.mark.parametrize(
    ("behind", "verdict"), [(-2.0, HOLDS), (0.9, HOLDS), (0.99, HOLDS), (1.0, OPEN), (1.01, FAILS), (2.5, FAILS)]
)
def test_the_promise_is_kept_if_everybody_is_less_than_one_turn_behind(behind: float, verdict: str) -> None:
    assert horizon_verdicts(behind=behind)[0][0] == verdict


# From runs to findings


def test_the_horizon_is_judged_after_the_last_round() -> None:
    """Client 1 is 1.8 turns behind in between, and 0 after the last round: 0.15 · 20 rounds = 3 turns."""
    cohorts = [[0]] * 12 + [[1]] * 3 + [[0]] * 5
    late = columns(cohorts, [2.0] * 20, 2)
    labels = [*(f"RBCS-F, weight {weight}" for weight in H_TIMES), ZERO, FLEET]
    runs: Any = MadeUpRuns(dict.fromkeys(labels, late))
    findings = HorizonStudy().findings(runs)
    kept = findings.claims[0]
    assert (kept.verdict, kept.numbers[FLEET]) == (HOLDS, "0 ± 0")
    table = findings.tables["horizon"]
    assert np.asarray(table["least_share"]).tolist() == pytest.approx([0.15] * 7)
    assert np.asarray(table["mean_round"]).tolist() == pytest.approx([2.0] * 7)
    behind: Any = MadeUpRuns(dict.fromkeys(labels, columns(cohorts[:15] + [[0]] * 12, [2.0] * 27, 2)))
    assert HorizonStudy().findings(behind).claims[0].verdict == FAILS  # 0.15 · 27 − 3 = 1.05 turns


def test_training_time_is_the_sum_of_the_rounds_in_minutes() -> None:
    runs: Any = MadeUpRuns({label: columns([[0], [0]], [60.0, 120.0], 1) for label in CONTENDERS})
    findings = TrainingTime().findings(runs)
    claims = findings.claims
    assert np.asarray(findings.tables["training-time"][f"{RANDOM} mean"]).tolist() == pytest.approx([1.0, 3.0])
    assert claims[0].numbers[RANDOM] == "3 ± 0"
    assert {claim.verdict for claim in claims} == {OPEN}


def test_the_overview_shows_minutes_and_sorted_shares_of_the_rounds() -> None:
    times, shares = overview_tables({"a": [columns([[0], [0], [0], [1]], [60.0, 30.0, 30.0, 60.0], 2)]})
    assert np.asarray(times["a mean"]).tolist() == pytest.approx([1.0, 1.5, 2.0, 3.0])
    assert np.asarray(shares["a mean"]).tolist() == pytest.approx([0.25, 0.75])


def test_evenness_and_spread_are_those_of_the_turns() -> None:
    uneven = columns([[0], [0], [0], [1]], [1.0] * 4, 2)
    even = columns([[0], [1], [0], [1]], [1.0] * 4, 2)
    runs: Any = MadeUpRuns({label: uneven if label == FEDCS else even for label in CONTENDERS})
    spread, most_uneven, jain = PullRecord().findings(runs).claims
    assert (spread.verdict, most_uneven.verdict, jain.verdict) == (OPEN, HOLDS, HOLDS)
    assert most_uneven.numbers[FEDCS] == "1 ± 0"
    assert jain.numbers[RANDOM] == "1 ± 0"


def test_the_trade_off_compares_a_tenth_of_the_rounds_with_all() -> None:
    run = columns([[0]] * 2 + [[0, 1]] * 18, [8.0] * 2 + [4.0] * 18, 2)
    labels = [f"RBCS-F, weight {weight:g}" for weight in TRADE_OFF_WEIGHTS]
    runs: Any = MadeUpRuns({**dict.fromkeys(labels, run), TRADE_OFF_ORACLE: run})
    findings = TradeOff().findings(runs)
    table = {name: float(np.asarray(values)[0]) for name, values in findings.tables["trade-off"].items()}
    assert (table["short_mean_round"], table["short_least_share"], table["short_rounds"]) == (8.0, 0.0, 2.0)
    assert (table["long_mean_round"], table["long_least_share"], table["long_rounds"]) == (4.4, 0.9, 20.0)
    assert table["fair_optimum"] == 4.0
    assert findings.claims[2].numbers["RBCS-F, weight 20, gain"] == "0.9 ± 0"


# The promise


def promise_verdicts(pace: float, w1: float, random: float, own: Sequence[float], other: float) -> list[str]:
    rounds = {FAIR_PACE: group(FAIR_PACE, pace), W1: group(W1, w1), RANDOM: group(RANDOM, random)}
    largest = {FAIR_PACE: Group(FAIR_PACE, np.array(own)), W1: group(W1, other)}
    return [claim.verdict for claim in promise_claims(rounds, largest)]


def test_the_claims_about_fair_pace_hold_fail_and_stay_open() -> None:
    assert promise_verdicts(8.9, 10.1, 15.4, [1.3, 1.2, 1.1, 1.0], 7.7) == [HOLDS, HOLDS, HOLDS]
    assert promise_verdicts(8.9, 10.1, 9.0, [1.3, 1.2, 1.1, 2.1], 0.5) == [FAILS, FAILS, FAILS]  # one seed, one pair
    assert promise_verdicts(11.0, 10.1, 15.4, [2.0, 2.0, 2.0, 2.0], 2.0) == [HOLDS, FAILS, OPEN]
    assert promise_verdicts(10.1, 10.1, 15.4, [1.0, 9.0, 1.0, 9.0], 5.0) == [FAILS, OPEN, OPEN]
