"""Claims and their verdicts, and the conclusion of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from turnout.kernel.certificate import PromiseStatus
from turnout.lab.studies.framework.claims import (
    Claim,
    Group,
    about,
    above,
    all_above,
    ascending,
    below,
    highest,
    lowest,
)
from turnout.lab.studies.framework.experiment import JudgedPolicy, conclude


def group(label: str, *values: float) -> Group:
    return Group(label, np.array(values))


def compare(claim: Callable[..., Claim], one: Group, others: Sequence[Group]) -> Claim:
    return claim("name", "statement", {group.label: group for group in (*others, one)}, one.label)


def test_an_increase_is_judged_in_pairs_by_seed() -> None:
    claim = ascending("a", "a < b < c", [group("a", 1, 2, 3), group("b", 2, 3.1, 4), group("c", 5, 6, 7)])
    assert claim.verdict == "holds"
    assert list(claim.numbers) == ["a", "b", "c"]
    assert claim.numbers["a"].startswith("2 ± ")
    assert (
        ascending("", "", [group("a", 1, 1.1, 1), group("b", 0, 0.1, 0.1), group("c", 5, 5, 5.1)]).verdict
        == "does not hold"
    )
    assert ascending("", "", [group("a", 1, 2, 3), group("b", 2, 1, 3.5)]).verdict == "not decided"
    assert all_above([np.ones(5)], 1.0) == "holds"


def test_groups_are_compared_in_pairs_by_seed() -> None:
    """The seeds differ by far more than the contenders: only paired differences decide."""
    low, high = np.arange(10.0) * 100, np.arange(10.0) * 100 + 1 + 0.1 * np.sin(np.arange(10))
    assert ascending("", "", [Group("low", low), Group("high", high)]).verdict == "holds"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.97, 0.971, 0.97), "holds"), ((0.90, 0.91, 0.9), "does not hold"), ((0.94, 0.96, 0.95), "not decided")],
)
def test_a_threshold_is_compared_with_the_confidence_interval(values: tuple[float, ...], verdict: str) -> None:
    assert above("", "", [group("a", *values)], 0.95).verdict == verdict
    assert below("", "", [group("a", *(-value for value in values))], -0.95).verdict == verdict


def test_equal_values_on_every_seed_are_not_decided() -> None:
    same, other = group("a", 1, 2, 3), group("b", 1, 2, 3)
    assert ascending("", "", [same, same]).verdict == "not decided"
    assert compare(highest, same, [other]).verdict == "not decided"
    assert compare(lowest, same, [other]).verdict == "not decided"
    assert all_above([np.zeros(3)], 0.0, strictly=True) == "not decided"
    assert above("", "", [group("a", 0, 0, 0)], 0.0, strictly=True).verdict == "not decided"
    assert above("", "", [group("a", 0, 0, 0)], 0.0).verdict == "holds"


def test_the_highest_and_the_lowest_are_compared_with_every_other_group() -> None:
    top, middle, bottom = group("top", 9, 10, 11), group("middle", 5, 6.1, 7), group("bottom", 1, 2, 3.1)
    (claim,) = about("left", [compare(highest, top, [middle, bottom])])
    assert (claim.verdict, claim.panel, claim.statement) == ("holds", "left", "left: statement")
    assert list(claim.numbers) == ["top", "middle", "bottom"]
    assert claim.numbers["middle"].startswith("6.033 ± ")
    assert "(difference 3.967 ± " in claim.numbers["middle"]
    assert compare(lowest, bottom, [middle, top]).verdict == "holds"
    assert compare(highest, middle, [bottom, top]).verdict == "does not hold"
    assert compare(lowest, middle, [bottom, top]).verdict == "does not hold"
    assert compare(highest, group("even", 9, 2, 8), [middle, bottom]).verdict == "not decided"


def test_a_run_that_never_reached_the_target_cannot_make_a_claim_hold() -> None:
    """Otherwise a short run that failed would look faster than a long run that succeeded."""
    slow, failed = group("slow", 50, 51, 52), Group("failed", np.array([20.0, 20.5, 21.0]), never=1)
    claim = compare(highest, slow, [failed])
    assert claim.verdict == "not decided"
    assert "20.5 ± 1.2; 1 of 3 runs never (difference " in claim.numbers["failed"]
    assert compare(lowest, failed, [slow]).verdict == "not decided"
    assert compare(highest, failed, [slow]).verdict == "not decided"
    assert compare(highest, group("fast", 1, 2, 3), [failed]).verdict == "does not hold"
    late = Group("late", np.array([60.0, 61.0, 62.5]), never=3)
    assert compare(highest, late, [slow]).verdict == "holds"
    assert compare(highest, slow, [failed, group("slower", 70, 71, 72)]).verdict == "does not hold"


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [(1.60, "holds"), (1.58, "not decided"), (1.18, "not decided"), (0.5, "not decided"), (-1.6, "does not hold")],
)
def test_a_difference_is_confident_at_95_percent_and_not_below(mean: float, verdict: str) -> None:
    """Four seeds with a standard deviation of 1: half-widths are 1.591 at 95 %, 1.177 at 90 % and 0.382 at 50 %."""
    deviations = np.array([1.0, -1.0, 1.0, -1.0]) * np.sqrt(3) / 2
    assert deviations.std(ddof=1) == pytest.approx(1.0)
    assert all_above([mean + deviations], 0.0) == verdict
    assert ascending("", "", [group("a", 0, 0, 0, 0), Group("b", mean + deviations)]).verdict == verdict
    assert below("", "", [Group("b", 7 - mean - deviations)], 7.0).verdict == verdict


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_every_pair_of_an_order_counts(wrong: int) -> None:
    means = [1.0, 2.0, 3.0, 4.0]
    means[wrong + 1] = means[wrong] - 0.5
    groups = [group(str(mean), mean, mean + 0.01, mean - 0.01) for mean in means]
    assert ascending("", "", groups).verdict == "does not hold"
    undecided = [*groups[: wrong + 1], groups[wrong], *groups[wrong + 2 :]]
    assert ascending("", "", undecided).verdict == "not decided"


def test_an_order_of_times_treats_runs_that_never_arrived_as_lower_bounds() -> None:
    early, late = group("early", 10, 11, 12), Group("late", np.array([50.0, 51.0, 52.0]), never=2)
    assert ascending("", "", [early, late]).verdict == "holds"
    assert ascending("", "", [late, group("later", 60, 61, 62)]).verdict == "not decided"
    assert ascending("", "", [late, early]).verdict == "does not hold"  # the lower bound is already too late
    assert ascending("", "", [group("latest", 90, 91, 92), late]).verdict == "not decided"


def test_nothing_is_decided_without_a_comparison() -> None:
    assert all_above([], 0.0) == "not decided"
    assert compare(lowest, group("a", 1, 2, 3), []).verdict == "not decided"
    assert ascending("", "", [group("a", 1, 2, 3)]).verdict == "not decided"
    assert ascending("", "", [group("a", 1), group("b", 2)]).verdict == "not decided"
    assert all_above([np.array([np.nan, 1.0, 2.0])], 0.0) == "not decided"
    assert all_above([np.array([5.0, 5.1, 5.2]), np.full(3, np.nan)], 0.0) == "not decided"
    assert Group("one", np.array([2.5])).summary == "2.5"
    assert Group("two", np.array([2.0, 3.0])).summary.startswith("2.5 ± ")
    assert Group("never", np.array([7.0]), never=1).summary == "7; 1 of 1 runs never"


def test_every_group_has_to_pass_a_threshold() -> None:
    good, bad = group("good", 2.0, 2.1, 2.0), group("bad", 0.5, 0.6, 0.5)
    for groups in ([good, bad], [bad, good]):
        assert above("", "", groups, 1.0).verdict == "does not hold"
        assert below("", "", groups, 1.0).verdict == "does not hold"
    assert above("", "", [good, group("open", 0.0, 2.0, 1.0)], 1.0).verdict == "not decided"
    equal = group("a", 1, 1, 1)
    assert below("", "", [equal], 1.0).verdict == "holds"
    claim = below("", "", [equal], 1.0, strictly=True)
    assert (claim.verdict, claim.numbers["less than"]) == ("not decided", "1")
    assert below("", "", [group("a", 0.9, 0.91, 0.9)], 1.0, strictly=True).verdict == "holds"
    assert below("", "", [group("a", 1.1, 1.11, 1.1)], 1.0, strictly=True).verdict == "does not hold"


def contender(
    label: str, seconds: list[float], shortfall: float, status: PromiseStatus, *, true_times: bool = False
) -> JudgedPolicy:
    return JudgedPolicy(label, np.array(seconds), shortfall, status, true_times)


RANDOM = contender("random", [15.0, 15.2, 15.1], 5.0, "broken")
FAIR = contender("fair", [9.0, 9.2, 9.1], 1.5, "behind")
EVEN = contender("even", [12.0, 12.1, 12.2], 0.5, "kept")
QUICK = contender("quick", [5.0, 5.1, 5.2], 30.0, "broken")
ORACLE = contender("oracle", [4.0, 4.1, 4.2], 0.9, "kept", true_times=True)


def test_the_quickest_policy_that_keeps_the_promise_is_recommended_with_reasons() -> None:
    first, saved, *objections = conclude([RANDOM, EVEN, QUICK, ORACLE, FAIR], tolerance=2.0, reference="random")
    assert first == (
        "Use fair: it is the one with the shortest rounds of the 2 policies that left no client more than 2 turns "
        "behind. Its mean round takes 9.10 ± 0.25 s, and no client was ever more than 1.50 turns behind."
    )
    assert saved == "It needs 40% less time than random (15.10 ± 0.25 s)."
    assert objections == [
        "oracle has shorter rounds (4.10 ± 0.25 s), but is given the true times, which nobody knows of real clients.",
        "quick has shorter rounds (5.10 ± 0.25 s), but left a client 30.0 turns behind.",
    ]


def test_the_conclusion_changes_with_the_data() -> None:
    slower = contender("fair", [13.0, 13.1, 13.3], 1.5, "behind")
    assert conclude([slower, EVEN], tolerance=2.0, reference="random")[0].startswith("Use even:")
    only = conclude([FAIR, QUICK], tolerance=2.0, reference="random")
    assert "it is the only policy that left" in only[0]
    assert len(only) == 2


def test_if_every_promise_is_broken_no_policy_is_recommended() -> None:
    assert conclude([RANDOM, QUICK, ORACLE], tolerance=2.0, reference="random") == [
        "No policy of this comparison kept every client within 2 turns of its promise.",
        "The nearest was random: a client was 5.00 turns behind.",
    ]


def test_differences_that_the_seeds_do_not_show_are_named() -> None:
    like_fair = contender("alike", [9.2, 9.0, 9.2], 1.0, "behind")
    doubt = conclude([FAIR, like_fair], tolerance=2.0, reference="random")
    assert doubt[-1] == "alike (9.13 ± 0.29 s) cannot be distinguished from it by these seeds: run more of them."
    one_seed = conclude(
        [contender("fair", [9.0], 1.0, "behind"), contender("random", [15.0], 5.0, "broken")],
        tolerance=2.0,
        reference="random",
    )
    assert one_seed[1] == "Its rounds are not significantly shorter than those of random (15.00 s)."
