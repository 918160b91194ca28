"""The conclusion of a report follows from its data."""

from __future__ import annotations

import numpy as np

from turnout.kernel.certificate import PromiseStatus
from turnout.lab.studies.framework.report import JudgedPolicy, conclude


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
