"""Time to accuracy in Flower: random and fair selection of clients with uneven data."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import Result, announce, silenced
from turnout.counting import pluralize
from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import format_interval, mean_confidence_interval

#: Accuracies whose time is measured, by the mean of so many rounds; and the number of rounds at the end that count.
LEVELS, SMOOTHED, LAST = (0.7, 0.8, 0.85), 5, 20
#: The compared selections: the policy and its settings.
SELECTIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {"cohort_size": 8}),
    "FairPace, rate 0.1": ("fair-pace", {"cohort_size": 8, "guaranteed_rate": 0.1}),
    "FairPace, rate 0.15": ("fair-pace", {"cohort_size": 8, "guaranteed_rate": 0.15}),
    "FairPace, rate 0.2": ("fair-pace", {"cohort_size": 8, "guaranteed_rate": 0.2}),
    "FairPace, rate 0.1, tolerance 1": ("fair-pace", {"cohort_size": 8, "guaranteed_rate": 0.1, "tolerance": 1.0}),
    "FairPace, rate 0.1, value of losses": ("fair-pace", {"cohort_size": 8, "guaranteed_rate": 0.1, "value": "loss"}),
    "FairPace, rate 0.1, cohorts of 12": ("fair-pace", {"cohort_size": 12, "guaranteed_rate": 0.1}),
}


def flower_accuracy(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 8,
    rounds: Annotated[int, typer.Option(min=LAST, help="Number of rounds that are compared.")] = 120,
    out: Annotated[Path | None, typer.Option(help="File for the measures of every run, as CSV.")] = None,
) -> Result:
    """Measure the time to an accuracy of FedAvg in Flower with random and with fair selection (minutes).

    The clients hold two or three digits each, and their times are simulated. "Same rounds" is the mean accuracy of the
    last 20 rounds, and "same time" that of the last 20 rounds in the time that random selection takes for its rounds.

    Example: python -m benchmarks flower-accuracy --seeds 2 --rounds 60
    """
    from benchmarks.flower_training import train

    measures: list[dict[str, Any]] = []
    with silenced("flwr"):
        for seed in range(seeds):
            announce(f"seed {seed}")
            horizon = None
            for name, (policy, settings) in SELECTIONS.items():
                seeded = {**settings, "seed": seed} if policy == "random" else settings
                # Fair rounds are shorter: twice as many of them take at least as long.
                seconds, accuracy = train(policy, seeded, seed, rounds if horizon is None else 2 * rounds)
                curve = TrainingCurve(np.cumsum(seconds), np.array(accuracy))
                horizon = float(curve.clock[-1]) if horizon is None else horizon
                measures.append({"selection": name, "seed": seed, **curve.measures(rounds, horizon)})
    if out is not None:
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(measures[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(measures)
    runs = f"{rounds} rounds, {pluralize(seeds, 'seed')}"
    return Result(f"FedAvg in Flower, uneven data: {runs}, means and 95 % confidence intervals", summarize(measures))


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """The simulated seconds until the end of each round, and the accuracy of the model then."""

    clock: FloatArray
    accuracy: FloatArray

    def minutes_to(self, level: float) -> float:
        """Returns the minutes until the mean accuracy of five rounds in a row reaches a level, or infinity."""
        smoothed = np.convolve(self.accuracy, np.full(SMOOTHED, 1 / SMOOTHED), "valid")
        reached = np.flatnonzero(smoothed >= level)
        return float(self.clock[reached[0] + SMOOTHED - 1] / 60) if len(reached) else float("inf")

    def measures(self, rounds: int, horizon: float) -> dict[str, float]:
        """Returns all measures, with the accuracy after so many rounds, and after so many seconds."""
        last, played = self.accuracy[rounds - LAST : rounds], int(np.searchsorted(self.clock, horizon, side="right"))
        return {
            "round, s": round(float(self.clock[rounds - 1] / rounds), 3),
            **{f"min to {level:g}": round(self.minutes_to(level), 3) for level in LEVELS},
            "same rounds": round(float(last.mean()), 4),
            "swing": round(float(last.std()), 4),
            "same time": round(float(self.accuracy[played - LAST : played].mean()), 4),
        }


def summarize(measures: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns for each selection the mean of each measure over the seeds, with its 95 % confidence interval."""
    rows = []
    for selection in dict.fromkeys(run["selection"] for run in measures):
        runs = [run for run in measures if run["selection"] == selection]
        row = {"selection": str(selection)}
        for name in list(runs[0])[2:]:
            values = [float(run[name]) for run in runs]
            digits = 1 if "min" in name or "," in name else 3
            is_finite = np.isfinite(values).all()  # otherwise some run did not reach the accuracy
            row[name] = format_interval(*mean_confidence_interval(values), digits) if is_finite else "not reached"
        rows.append(row)
    return rows
