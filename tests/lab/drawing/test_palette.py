"""The colours, line styles and markers of contenders."""

from __future__ import annotations

from itertools import combinations

import pytest

from turnout.lab.drawing.palette import NAMED, OTHERS, POLICIES, TRUE_TIMES, policy_style, style_of, styles_of
from turnout.lab.studies.leaderboard.suites import SUITES
from turnout.lab.studies.promise_comparison import LABELS
from turnout.policies import POLICIES as KNOWN


def test_every_policy_has_a_style_that_differs_in_more_than_colour() -> None:
    assert set(KNOWN) | {"with-guarantee"} == set(POLICIES)
    assert len(set(POLICIES.values())) == len(POLICIES)
    for styles in (NAMED.values(), OTHERS):
        for one, other in combinations(styles, 2):
            assert (one.line, one.marker) != (other.line, other.marker)
    assert [style_of("mine", index) for index in range(len(OTHERS) + 1)] == [*OTHERS, OTHERS[0]]


@pytest.mark.parametrize(
    ("label", "policy"),
    [
        ("random", "random"),
        ("random (FedBuff)", "random"),
        ("FairPace, tolerance 5", "fair-pace"),
        ("RBCS-F 0.5, 75 %", "rbcsf"),
        ("rbcsf:speed_weight=5", "rbcsf"),
        ("CS-UCB-Q", "cs-ucb-q"),
        ("guard only, 75 %", "with-guarantee"),
    ],
)
def test_a_label_has_the_style_of_its_policy_in_every_figure(label: str, policy: str) -> None:
    assert style_of(label, 3) == style_of(label) == POLICIES[policy]


def test_variants_of_a_policy_differ_in_line_or_marker() -> None:
    labels = [f"RBCS-F, weight {weight}" for weight in range(60, 90)]
    styles = styles_of(labels)
    assert list(styles) == labels
    assert len(set(styles.values())) == len(labels)
    assert {style.colour for style in styles.values()} == {POLICIES["rbcsf"].colour}
    assert len(set(styles_of(LABELS).values())) == len(LABELS)


def test_contenders_are_known_policies_and_those_given_the_true_times_share_a_hue() -> None:
    assert policy_style("fair-pace", true_times=True).colour == TRUE_TIMES == style_of("FedCS(3)").colour
    assert policy_style("fair-pace").colour != TRUE_TIMES
    assert policy_style("no such policy") == OTHERS[0]
    assert {OTHERS[0].colour, OTHERS[1].colour}.isdisjoint(style.colour for style in POLICIES.values())
    compared = {contender.policy for suite in SUITES.values() for contender in suite.contenders}
    assert compared <= set(POLICIES)
