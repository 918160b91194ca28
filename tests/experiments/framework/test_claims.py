from __future__ import annotations

import numpy as np
import pytest

from turnout.experiments.framework.claims import Group, above, all_above, ascending, below, highest, lowest


def group(label: str, *values: float) -> Group:
    return Group(label, np.array(values))


def test_steps_that_are_clear_in_every_seed_hold() -> None:
    claim = ascending("a", "a < b < c", [group("a", 1, 2, 3), group("b", 2, 3.1, 4), group("c", 5, 6, 7)])
    assert claim.verdict == "holds"
    assert list(claim.numbers) == ["a", "b", "c"]
    assert claim.numbers["a"].startswith("2 ± ")


def test_seeds_are_compared_pair_by_pair_not_on_the_whole() -> None:
    """The seeds differ by far more than the contenders: only the pairs tell."""
    low, high = np.arange(10.0) * 100, np.arange(10.0) * 100 + 1 + 0.1 * np.sin(np.arange(10))
    assert ascending("", "", [Group("low", low), Group("high", high)]).verdict == "holds"


def test_one_clear_step_down_does_not_hold() -> None:
    assert (
        ascending("", "", [group("a", 1, 1.1, 1), group("b", 0, 0.1, 0.1), group("c", 5, 5, 5.1)]).verdict
        == "does not hold"
    )


def test_a_step_within_the_noise_is_not_decided() -> None:
    assert ascending("", "", [group("a", 1, 2, 3), group("b", 2, 1, 3.5)]).verdict == "not decided"


def test_a_single_seed_decides_nothing() -> None:
    assert ascending("", "", [group("a", 1), group("b", 2)]).verdict == "not decided"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.97, 0.971, 0.97), "holds"), ((0.90, 0.91, 0.9), "does not hold"), ((0.94, 0.96, 0.95), "not decided")],
)
def test_a_threshold_is_judged_with_its_band(values: tuple[float, ...], verdict: str) -> None:
    assert above("", "", [group("a", *values)], 0.95).verdict == verdict
    assert below("", "", [group("a", *(-value for value in values))], -0.95).verdict == verdict


def test_values_that_never_vary_are_judged_as_they_are() -> None:
    assert all_above([np.ones(5)], 1.0) == "holds"
    assert all_above([np.full(5, 0.5)], 1.0) == "does not hold"


def test_what_is_equal_on_every_seed_is_no_step_up() -> None:
    same = group("a", 1, 2, 3)
    assert ascending("", "", [same, same]).verdict == "not decided"
    assert highest("", "", same, [same]).verdict == "not decided"
    assert lowest("", "", same, [same]).verdict == "not decided"
    assert all_above([np.zeros(3)], 0.0, strictly=True) == "not decided"
    assert above("", "", [group("a", 0, 0, 0)], 0.0, strictly=True).verdict == "not decided"
    assert above("", "", [group("a", 0, 0, 0)], 0.0).verdict == "holds"


def test_the_highest_and_the_lowest_are_compared_with_each_other_one() -> None:
    top, middle, bottom = group("top", 9, 10, 11), group("middle", 5, 6.1, 7), group("bottom", 1, 2, 3.1)
    claim = highest("best", "top is best", top, [middle, bottom], panel="left")
    assert (claim.verdict, claim.panel) == ("holds", "left")
    assert list(claim.numbers) == ["top", "middle", "bottom"]
    assert claim.numbers["middle"].startswith("6.033 ± ")
    assert "(apart 3.967 ± " in claim.numbers["middle"]
    assert lowest("", "", bottom, [middle, top]).verdict == "holds"
    assert highest("", "", middle, [bottom, top]).verdict == "does not hold"
    assert lowest("", "", middle, [bottom, top]).verdict == "does not hold"
    assert highest("", "", group("even", 9, 2, 8), [middle, bottom]).verdict == "not decided"


def test_a_run_that_never_came_there_cannot_make_a_claim_hold() -> None:
    """A short run that failed would else look faster than a long one that did not."""
    slow, failed = group("slow", 50, 51, 52), Group("failed", np.array([20.0, 20.5, 21.0]), never=1)
    claim = highest("", "", slow, [failed])
    assert claim.verdict == "not decided"
    assert "20.5 ± 1.2; 1 of 3 runs never (apart " in claim.numbers["failed"]
    assert lowest("", "", failed, [slow]).verdict == "not decided"
    assert highest("", "", failed, [slow]).verdict == "not decided"
    assert highest("", "", group("fast", 1, 2, 3), [failed]).verdict == "does not hold"
    late = Group("late", np.array([60.0, 61.0, 62.5]), never=3)
    assert highest("", "", late, [slow]).verdict == "holds"
    assert highest("", "", slow, [failed, group("slower", 70, 71, 72)]).verdict == "does not hold"
