from __future__ import annotations

import numpy as np
import pytest

from turnout.experiments.framework.claims import Group, above, all_above, ascending, below, highest, lowest


def group(label: str, *values: float) -> Group:
    return Group(label, np.array(values))


def test_a_clear_increase_holds() -> None:
    claim = ascending("a", "a < b < c", [group("a", 1, 2, 3), group("b", 2, 3.1, 4), group("c", 5, 6, 7)])
    assert claim.verdict == "holds"
    assert list(claim.numbers) == ["a", "b", "c"]
    assert claim.numbers["a"].startswith("2 ± ")


def test_groups_are_compared_in_pairs_by_seed() -> None:
    """The seeds differ by far more than the contenders: only paired differences decide."""
    low, high = np.arange(10.0) * 100, np.arange(10.0) * 100 + 1 + 0.1 * np.sin(np.arange(10))
    assert ascending("", "", [Group("low", low), Group("high", high)]).verdict == "holds"


def test_a_claim_with_one_clear_decrease_does_not_hold() -> None:
    assert (
        ascending("", "", [group("a", 1, 1.1, 1), group("b", 0, 0.1, 0.1), group("c", 5, 5, 5.1)]).verdict
        == "does not hold"
    )


def test_an_increase_within_the_noise_is_not_decided() -> None:
    assert ascending("", "", [group("a", 1, 2, 3), group("b", 2, 1, 3.5)]).verdict == "not decided"


def test_a_single_seed_decides_nothing() -> None:
    assert ascending("", "", [group("a", 1), group("b", 2)]).verdict == "not decided"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.97, 0.971, 0.97), "holds"), ((0.90, 0.91, 0.9), "does not hold"), ((0.94, 0.96, 0.95), "not decided")],
)
def test_a_threshold_is_compared_with_the_confidence_interval(values: tuple[float, ...], verdict: str) -> None:
    assert above("", "", [group("a", *values)], 0.95).verdict == verdict
    assert below("", "", [group("a", *(-value for value in values))], -0.95).verdict == verdict


def test_constant_values_are_compared_directly() -> None:
    assert all_above([np.ones(5)], 1.0) == "holds"
    assert all_above([np.full(5, 0.5)], 1.0) == "does not hold"


def test_equal_values_on_every_seed_are_not_decided() -> None:
    same = group("a", 1, 2, 3)
    assert ascending("", "", [same, same]).verdict == "not decided"
    assert highest("", "", same, [same]).verdict == "not decided"
    assert lowest("", "", same, [same]).verdict == "not decided"
    assert all_above([np.zeros(3)], 0.0, strictly=True) == "not decided"
    assert above("", "", [group("a", 0, 0, 0)], 0.0, strictly=True).verdict == "not decided"
    assert above("", "", [group("a", 0, 0, 0)], 0.0).verdict == "holds"


def test_the_highest_and_the_lowest_are_compared_with_every_other_group() -> None:
    top, middle, bottom = group("top", 9, 10, 11), group("middle", 5, 6.1, 7), group("bottom", 1, 2, 3.1)
    claim = highest("best", "top is best", top, [middle, bottom], panel="left")
    assert (claim.verdict, claim.panel) == ("holds", "left")
    assert list(claim.numbers) == ["top", "middle", "bottom"]
    assert claim.numbers["middle"].startswith("6.033 ± ")
    assert "(difference 3.967 ± " in claim.numbers["middle"]
    assert lowest("", "", bottom, [middle, top]).verdict == "holds"
    assert highest("", "", middle, [bottom, top]).verdict == "does not hold"
    assert lowest("", "", middle, [bottom, top]).verdict == "does not hold"
    assert highest("", "", group("even", 9, 2, 8), [middle, bottom]).verdict == "not decided"


def test_a_run_that_never_reached_the_target_cannot_make_a_claim_hold() -> None:
    """Otherwise a short run that failed would look faster than a long run that succeeded."""
    slow, failed = group("slow", 50, 51, 52), Group("failed", np.array([20.0, 20.5, 21.0]), never=1)
    claim = highest("", "", slow, [failed])
    assert claim.verdict == "not decided"
    assert "20.5 ± 1.2; 1 of 3 runs never (difference " in claim.numbers["failed"]
    assert lowest("", "", failed, [slow]).verdict == "not decided"
    assert highest("", "", failed, [slow]).verdict == "not decided"
    assert highest("", "", group("fast", 1, 2, 3), [failed]).verdict == "does not hold"
    late = Group("late", np.array([60.0, 61.0, 62.5]), never=3)
    assert highest("", "", late, [slow]).verdict == "holds"
    assert highest("", "", slow, [failed, group("slower", 70, 71, 72)]).verdict == "does not hold"


def test_a_single_seed_is_summarised_without_an_interval() -> None:
    assert Group("one", np.array([2.5])).summary == "2.5"
    assert Group("two", np.array([2.0, 3.0])).summary.startswith("2.5 ± ")
    assert Group("never", np.array([7.0]), never=1).summary == "7; 1 of 1 runs never"
