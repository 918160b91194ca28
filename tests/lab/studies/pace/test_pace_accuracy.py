"""The study of training with FairPace: its claims can fail, and its tables are those of a plain recount."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.studies.made_up import reproduce
from turnout.lab import RunStore
from turnout.lab.analysis.learning_curves import LearningCurve
from turnout.lab.studies.catalogue import GROUPS, find_experiments
from turnout.lab.studies.framework.experiment import Runs
from turnout.lab.studies.leaderboard.leaderboard import rows_of
from turnout.lab.studies.pace.accuracy import FAST, PACE, SLOW, PaceExperiment, PaceRounds, PaceTime

SEEDS = 4
PANEL = PaceTime().panels[0]


def curves(shapes: dict[str, tuple[float, float]]) -> dict[str, list[LearningCurve]]:
    """Returns curves by contender from (final accuracy, seconds per round)."""
    when = np.arange(5, 201, 5)
    return {
        label: [
            LearningCurve(
                when, when * seconds / 60, (end + 0.001 * seed) * (1 - np.exp(-when / 20)), 200, 200 * seconds
            )
            for seed in range(SEEDS)
        ]
        for label, (end, seconds) in shapes.items()
    }


def verdicts(experiment: PaceExperiment, shapes: dict[str, tuple[float, float]]) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in experiment.panel_claims(PANEL, curves(shapes))}


BETTER = {PACE: (0.8, 9.0), SLOW: (0.8, 10.0), FAST: (0.7, 7.0), "random": (0.85, 15.0), "FedCS(3)": (0.6, 4.0)}
FASTER = {PACE: (0.8, 4.0), SLOW: (0.8, 10.0), FAST: (0.8, 7.0), "random": (0.8, 15.0), "FedCS(3)": (0.8, 20.0)}


@pytest.mark.parametrize(
    ("experiment", "shapes", "worse"),
    [
        (PaceRounds(), BETTER, {PACE: (0.5, 9.0), "random": (0.4, 15.0)}),
        (PaceTime(), FASTER, {PACE: (0.8, 30.0)}),
    ],
)
def test_the_claims_hold_fail_or_stay_open(experiment: PaceExperiment, shapes: Any, worse: Any) -> None:
    assert set(verdicts(experiment, shapes).values()) == {"holds"}
    assert set(verdicts(experiment, {**shapes, **worse}).values()) == {"does not hold"}
    assert set(verdicts(experiment, dict.fromkeys(shapes, (0.8, 9.0))).values()) == {"not decided"}


@pytest.mark.parametrize("better", [FAST, "FedCS(3)"])
def test_one_contender_with_a_higher_accuracy_refutes_the_claim(better: str) -> None:
    shapes = {PACE: (0.8, 9.0), SLOW: (0.9, 9.0), FAST: (0.7, 9.0), "random": (0.85, 9.0), "FedCS(3)": (0.7, 9.0)}
    name = "FairPace above RBCS-F 20 and FedCS"
    assert verdicts(PaceRounds(), shapes)[name] == "holds"
    assert verdicts(PaceRounds(), {**shapes, better: (0.81, 9.0)})[name] == "does not hold"
    assert verdicts(PaceRounds(), {**shapes, better: (0.8, 9.0)})[name] == "not decided"


def test_each_claim_about_time_depends_on_its_own_contender() -> None:
    whole = "shorter than random and RBCS-F 1"
    for contender, failing in (
        ("random", {"FairPace ahead of random", whole}),
        (SLOW, {"FairPace ahead of RBCS-F 1", whole}),
        (FAST, {"FairPace ahead of RBCS-F 20"}),
        ("FedCS(3)", set()),
    ):
        outcomes = verdicts(PaceTime(), {**FASTER, contender: (0.8, 3.0)})
        assert {name for name, verdict in outcomes.items() if verdict == "does not hold"} == failing
        assert {name for name, verdict in outcomes.items() if verdict == "holds"} == outcomes.keys() - failing


def test_all_contenders_are_promised_the_same_and_meet_the_same_clients() -> None:
    plans = PaceRounds().plans(1, 10)
    assert [experiment.name for experiment in find_experiments("fair-pace")] == list(GROUPS["fair-pace"])
    assert plans.keys() == PaceTime().plans(1, 10).keys()
    settings = next(runs[0].settings for label, runs in plans.items() if PACE in label)
    assert (settings["guaranteed_rate"], settings["accrual"]) == (0.15, "always")
    for panel in PaceRounds().panels:
        worlds = {str(runs[0].world_settings) for label, runs in plans.items() if label.startswith(panel.name)}
        assert len(worlds) == 1


def test_the_tables_hold_the_shares_and_shortfalls_of_the_runs(tmp_path: Path) -> None:
    experiment = PaceRounds()
    with RunStore(tmp_path / "runs.turnout") as store:
        (result,) = reproduce([experiment], store, seeds=2, rounds=16, workers=1)
        runs = Runs(experiment.plans(2, 16), store)
        stored = {label: list(runs.of(label)) for label in runs.labels}
    rows = rows_of(result.findings.tables["pace-fairness"])
    assert len(rows) == len(experiment.panels) * len(experiment.contenders)
    for row in rows:
        split = "iid" if row["gamma"] == "iid" else f"gamma {row['gamma']}"
        largest, shares = Fraction(0), []
        for columns in stored[f"{row['dataset']}, {split}, {row['contender']}"]:
            turns = [0] * columns.clients
            for number, (start, end) in enumerate(zip(columns.starts[:-1], columns.starts[1:], strict=True), start=1):
                for client in columns.chosen[start:end].tolist():
                    turns[client] += 1
                largest = max(largest, number * Fraction(3, 20) - min(turns))
            shares.append(min(turns) / 16)
        assert float(row["largest_shortfall_in_turns"]) == pytest.approx(float(largest), abs=1e-6)
        assert float(row["least_share_of_all_rounds"]) == pytest.approx(np.mean(shares), abs=1e-6)
    pace = [float(row["largest_shortfall_in_turns"]) for row in rows if row["contender"] == PACE]
    assert max(pace) <= 2

    # Its label names its tolerance.
    policy, settings = PaceExperiment.contenders[PACE]
    assert (policy, f"FairPace, tolerance {settings['tolerance']:g}") == ("fair-pace", PACE)
