"""The results of tuning: as a dict for JSON, and as a figure of the trade-off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import ConfidenceInterval
from turnout.lab.analysis.tuning import Goal, RunFigures, Trial, TuningResult
from turnout.lab.studies.framework.drawing import figure
from turnout.lab.studies.framework.labels import write_labels
from turnout.lab.studies.framework.palette import GREEN, PURPLE, VERMILLION, policy_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KNEE_RULE = (
    "the value furthest below the straight line between the fairest and the fastest value, with both axes scaled to "
    "the range from 0 to 1"
)
#: The labels of the figures that show what a shorter round costs.
AXES = {
    "shortfall": "shortfall of the worst-served client at the end, turns",
    "largest_shortfall": "largest shortfall of any client at any time, turns",
    "least_share": "least share of rounds of any client, from 0 to 1",
}


def trial_to_dict(trial: Trial, goal: Goal) -> dict[str, Any]:
    """Returns the settings, every measure as mean and half-width, and the number of runs that met the goal."""
    data: dict[str, Any] = {"settings": dict(trial.settings)}
    for name in RunFigures._fields:
        mean, half_width = trial.interval(name)
        data[name] = {"mean": float(mean), "half_width": float(half_width)}
    return {**data, "met": trial.runs_meeting(goal), "of": len(trial.figures)}


def tuning_to_dict(found: TuningResult) -> dict[str, Any]:
    """Returns the result of tuning as a dict for JSON."""
    goal, chosen = found.goal, found.chosen
    return {
        "goal": goal.description,
        "policy": found.parameter.policy,
        "parameter": found.parameter.name,
        "possible": chosen is not None,
        "settings": None if chosen is None else dict(chosen.settings),
        "expected": None if chosen is None else trial_to_dict(chosen, goal),
        "horizon": None if found.horizon is None else trial_to_dict(found.horizon, goal),
        "horizon_is_better": found.horizon_is_better,
        "best_possible": {**trial_to_dict(found.best, goal), "bound": found.best.bound(goal)},
        "remedy": found.remedy,
        "curve": [{**trial_to_dict(trial, goal), "likely_to_meet": trial.meets(goal)} for trial in found.curve],
        "knee": None if found.knee is None else found.value(found.curve[found.knee]),
        "knee_rule": KNEE_RULE,
    }


def draw_trade_off(found: TuningResult) -> Figure:
    """Draws round time against fairness, with the values of the parameter at the points and a ringed knee."""
    goal, parameter = found.goal, found.parameter
    name = parameter.label.split()[-1]
    fairness = parameter.fairness
    time = "p95_round" if goal.figure == "p95_round" else "mean_round"
    with figure(7.5, 4.6) as drawn:
        axes = drawn.subplots()
        _draw_curve(axes, found, time)
        if found.knee is not None:
            knee = found.curve[found.knee]
            axes.plot(
                [knee.mean(fairness)],
                [knee.mean(time)],
                marker="o",
                markersize=13,
                fillstyle="none",
                color=VERMILLION,
                linestyle="none",
                label=f"knee: {name} {found.value(knee):.3g}",
            )
        for trial, marker, colour, label in (
            (found.answer, "*", GREEN, "meets the goal: {} {:g}"),
            (found.horizon, "D", PURPLE, "meets the goal with a horizon: {} {:g}"),
        ):
            if trial is not None:
                axes.plot(
                    [trial.mean(fairness)],
                    [trial.mean(time)],
                    marker=marker,
                    markersize=10 if marker == "*" else 7,
                    color=colour,
                    linestyle="none",
                    label=label.format(name, found.value(trial)),
                )
        if not goal.is_fairness or fairness == goal.figure:
            line = axes.axvline if goal.is_fairness else axes.axhline
            line(goal.most, color="black", linestyle=":", linewidth=1, label="goal")
        axes.set(
            title=f"Round time against fairness after {goal.rounds} rounds ({parameter.label}s at the points)",
            xlabel=AXES[fairness],
            ylabel="95th percentile of round time, seconds" if time == "p95_round" else "mean round time, seconds",
        )
        axes.legend()
        x, y = (np.array([float(trial.mean(measure)) for trial in found.curve]) for measure in (fairness, time))
        write_labels(axes, x, y, [f"{found.value(trial):.3g}" for trial in found.curve])
        return drawn


def _draw_curve(axes: Axes, found: TuningResult, time: str) -> None:
    fairness = found.parameter.fairness
    bands = {name: [trial.interval(name) for trial in found.curve] for name in (fairness, time)}
    means = {name: np.array([float(band.mean) for band in own]) for name, own in bands.items()}
    errors = {name: _errors(own, RunFigures.limits(name)) for name, own in bands.items()}
    rule = "the paper's rule" if found.parameter.policy == "rbcsf" else found.parameter.policy
    axes.errorbar(
        means[fairness],
        means[time],
        xerr=errors[fairness],
        yerr=errors[time],
        color=policy_style(found.parameter.policy).colour,
        marker="o",
        markersize=4,
        elinewidth=0.8,
        label=f"{rule}, mean ± 95 % confidence",
    )


def _errors(intervals: Sequence[ConfidenceInterval], limits: tuple[float, float]) -> FloatArray:
    """Returns the distances of both ends of each interval from its mean, (2, n), within possible values."""
    bounds = [interval.bounds(limits) for interval in intervals]
    return np.array(
        [
            [float(interval.mean - low) for interval, (low, _) in zip(intervals, bounds, strict=True)],
            [float(high - interval.mean) for interval, (_, high) in zip(intervals, bounds, strict=True)],
        ]
    )
