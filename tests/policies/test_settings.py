"""Settings that a policy or wrapper refuses, with what it says about them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from turnout import make_policy
from turnout.errors import InfeasiblePromise, SettingError

RATES = [0.1] * 39 + [0.3]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "fair-pace",
        {"tolerance": 0.15},
        "tolerance must exceed the guaranteed rate, got tolerance 0.15 for a rate of 0.15",
    ),
    ("fair-pace", {"tolerance": Fraction(3, 20)}, "tolerance must exceed the guaranteed rate"),
    ("fair-pace", {"tolerance": 0.2, "guaranteed_rate": RATES}, "got tolerance 0.2 for a rate of 0.3"),
    ("fair-pace", {"tolerance": 0}, "tolerance must be above 0"),
    ("fair-pace", {"times": "known"}, "times must be 'learned' or 'expected', got 'known'"),
    ("fair-pace", {"exploration": -0.1}, "exploration must be at least 0"),
    ("fair-pace", {"ridge": 0.0}, "ridge must be above 0"),
    ("fair-pace", {"cohort_size": 0}, "cohort_size must be at least 1"),
    ("rbcsf", {"cohort_size": 0}, "cohort_size must be at least 1"),
    ("rbcsf", {"guaranteed_rate": 1.5}, r"guaranteed_rate must lie in \[0, 1\], not 1.5"),
    ("rbcsf", {"speed_weight": -1}, "speed_weight must be at least 0"),
    ("rbcsf", {"ridge": 0}, "ridge must be above 0"),
    ("rbcsf", {"accrual": "never"}, "accrual must be"),
    ("rbcsf", {"counts": "never"}, "counts must be"),
    ("rbcsf", {"exploration": "much"}, "exploration must be"),
    ("rbcsf", {"prior": "mean"}, "prior must be 'zero' or 'fleet'"),
    ("rbcsf", {"max_owed": "many"}, "max_owed must be a number, not 'many'"),
    ("rbcsf", {"availability": [0.5, 0.5]}, "availability has 2 rows, but there are 40 clients"),
    ("rbcsf", {"horizon": 0}, "horizon must be at least 1, not 0"),
    *(("skewed", {"concentration": wrong}, "must be at least 1e-06") for wrong in (0, -1, 1e-310, math.nan)),
    ("fedcs", {"estimates": "known"}, "estimates must be 'truth' or 'learned', got 'known'"),
    ("data-size", {"replacement": 1}, "replacement must be True or False, got 1"),
    ("active-fl", {"dropped": 2.0}, "dropped must be at most 1, not 2"),
    ("active-fl", {"uniform": 2.0}, "uniform must be at most 1, not 2"),
    ("cs-ucb-q", {"fairness_weight": 0}, "fairness_weight must be above 0"),
    ("cs-ucb", {"longest": 0}, "longest must be above 0"),
    *(
        ("e3cs", {"quota": wrong}, "quota must")
        for wrong in (1.5, "half", [], [(2, 0.5)], [(1, 0.5), (1, 0.6)], [(1, 0.2), (9, 2.0)], [1, 0.5])
    ),
    ("oort", {"sizes": [-1.0] * 40}, r"sizes\[0\] = -1.0 must not be negative"),
    ("oort", {"speeds": ["fast"] * 40}, "speeds must hold numbers"),
    ("oort", {"exploration": 1.5}, "exploration must be at most 1"),
    ("oort", {"clip": -0.1}, "clip must be at least 0"),
    ("oort", {"pacer_unit": "hours"}, "pacer_unit must be 'share' or 'seconds', got 'hours'"),
    ("oort", {"pacer_window": 0}, "pacer_window must be at least 1"),
    ("oort", {"max_turns": 0}, "max_turns must be at least 1"),
    ("oort", {"penalty": -1}, "penalty must be at least 0"),
    ("power-of-choice", {"candidates": 7}, r"candidates must be at least cohort_size \(8\), got 7"),
    ("refl", {"window": 0}, "window must be at least 1, not 0"),
    *(("tifl", {"credits": wrong}, "credits must be") for wrong in ([1, 2], [0] * 5, [1, 1, 1, 1, -1], 0)),
    ("ucb-cs", {"forgetting": 0.0}, "forgetting must be above 0"),
    ("ucb-cs", {"spread": -1.0}, "spread must be at least 0"),
    ("with-guarantee", {"guaranteed_rate": 1.5}, r"guaranteed_rate must lie in \[0, 1\], not 1.5"),
    ("with-guarantee", {"urgency": 0}, "urgency must be above 0, not 0"),
    ("with-guarantee", {"urgency": "much"}, "urgency must be a number, not 'much'"),
    ("with-guarantee", {"urgency": math.nan}, "urgency must be finite"),
    ("with-guarantee", {"accrual": "never"}, "accrual must be"),
    ("with-guarantee", {"counts": "never"}, "counts must be"),
    ("with-guarantee", {"max_owed": -1}, "max_owed must be at least 0"),
    ("exclude-busy", {"rounds": 0}, "rounds must be at least 1, not 0"),
    ("eligible", {"allowed": []}, "allowed contains no client: pass a mask, rows, or a mapping"),
    ("eligible", {"allowed": [False] * 9}, "allowed contains no client"),
    ("eligible", {"allowed": [1, 1]}, r"allowed\[1\] = 1 is a duplicate"),
    ("eligible", {"allowed": [-1]}, r"allowed\[0\] = -1 must be a row"),
    ("eligible", {"allowed": ["a"]}, "allowed must hold rows"),
    ("eligible", {"allowed": [[1], [1, 2]]}, "allowed must"),
    ("eligible", {"allowed": {"groups": ["a"]}}, "a mapping with groups and names, got the keys groups"),
    ("eligible", {"allowed": {"groups": ["a"], "names": "a"}}, "names must be a list of names, got 'a'"),
    ("eligible", {"allowed": {"groups": 3, "names": ["a"]}}, "groups must be a list of names, got 3"),
    ("eligible", {"allowed": {"groups": ["a"], "names": ["b"]}}, "no client is in 'b': names must"),
    ("quota", {"policy": "fedcs", "least": 1, "groups": ["a"]}, "quota needs a policy with a cohort_size, and fedcs"),
    ("quota", {"least": 1, "groups": "ab"}, "groups must be a list of names, got 'ab'"),
    ("quota", {"least": 1, "groups": [None]}, "least has no group"),
    ("quota", {"least": {"a": -1}, "groups": ["a"]}, "least of a must be at least 0, not -1"),
    ("quota", {"least": 5, "groups": ["a", "b"]}, "least reserves 10 places, but cohort_size is 8"),
    ("warm-up", {"rounds": -1}, "rounds must be at least 0, not -1"),
    ("warm-up", {"policy": "fedcs"}, "fedcs has no fixed cohort size: pass cohort_size"),
    ("warm-up", {"cohort_size": 3}, "cohort_size must be that of the policy inside, 8, got 3"),
]
WRAPPERS = ("with-guarantee", "exclude-busy", "eligible", "quota", "warm-up")


@pytest.mark.parametrize(("name", "settings", "complaint"), REFUSED)
def test_invalid_settings_are_refused(name: str, settings: dict[str, Any], complaint: str) -> None:
    inner = {"policy": "random"} if name in WRAPPERS else {}
    with pytest.raises(SettingError, match=complaint):
        make_policy(name, 40, **{**inner, **settings})


def test_a_rate_that_no_policy_can_keep_is_refused() -> None:
    with pytest.raises(InfeasiblePromise):
        make_policy("cs-ucb-q", 100)
