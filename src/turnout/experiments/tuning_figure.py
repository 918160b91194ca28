"""The results of tuning: as a dict for JSON, and as a figure of the trade-off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.analysis.tuning import Goal, RunFigures, Trial, TuningResult
from turnout.experiments.framework.drawing import OTHERS, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KNEE_RULE = (
    "the weight furthest below the straight line between the fairest and the fastest weight, with both axes scaled to "
    "the range from 0 to 1"
)


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
        "possible": chosen is not None,
        "settings": None if chosen is None else dict(chosen.settings),
        "expected": None if chosen is None else trial_to_dict(chosen, goal),
        "horizon": None if found.horizon is None else trial_to_dict(found.horizon, goal),
        "horizon_is_better": found.horizon_is_better,
        "best_possible": {**trial_to_dict(found.best, goal), "bound": found.best.bound(goal)},
        "remedy": found.remedy,
        "curve": [{**trial_to_dict(trial, goal), "likely_to_meet": trial.meets(goal)} for trial in found.curve],
        "knee": None if found.knee is None else found.curve[found.knee].weight,
        "knee_rule": KNEE_RULE,
    }


def draw_trade_off(found: TuningResult) -> Figure:
    """Draws round time against the shortfall of the worst-off client, with weights at the points and a ringed knee."""
    goal = found.goal
    time = "p95_round" if goal.figure == "p95_round" else "mean_round"
    with figure(7.5, 4.6) as drawn:
        axes = drawn.subplots()
        _draw_curve(axes, found, time)
        if found.knee is not None:
            knee = found.curve[found.knee]
            axes.plot(
                [knee.mean("shortfall")],
                [knee.mean(time)],
                marker="o",
                markersize=13,
                fillstyle="none",
                color=OTHERS[2],
                linestyle="none",
                label=f"knee: weight {knee.weight:.3g}",
            )
        for trial, marker, colour, label in (
            (found.answer, "*", OTHERS[3], "meets the goal: weight {:g}"),
            (found.horizon, "D", OTHERS[4], "meets the goal with a horizon: weight {:g}"),
        ):
            if trial is not None:
                axes.plot(
                    [trial.mean("shortfall")],
                    [trial.mean(time)],
                    marker=marker,
                    markersize=10 if marker == "*" else 7,
                    color=colour,
                    linestyle="none",
                    label=label.format(trial.weight),
                )
        line = axes.axvline if goal.is_fairness else axes.axhline
        line(goal.most, color="black", linestyle=":", linewidth=1, label="goal")
        axes.set(
            title=f"Round time against fairness after {goal.rounds} rounds (speed weights at the points)",
            xlabel="turns missing to the worst-off client",
            ylabel="95th percentile of round time, seconds" if time == "p95_round" else "mean round time, seconds",
        )
        axes.legend()
        return drawn


def _draw_curve(axes: Axes, found: TuningResult, time: str) -> None:
    bands = {name: [trial.interval(name) for trial in found.curve] for name in ("shortfall", time)}
    means = {name: np.array([float(band.mean) for band in own]) for name, own in bands.items()}
    widths = {name: np.array([float(band.half_width) for band in own]) for name, own in bands.items()}
    axes.errorbar(
        means["shortfall"],
        means[time],
        xerr=widths["shortfall"],
        yerr=widths[time],
        color=OTHERS[1],
        marker="o",
        markersize=4,
        elinewidth=0.8,
        label="the paper's rule, mean ± 95 % confidence",
    )
    for trial, x, y in zip(found.curve, means["shortfall"], means[time], strict=True):
        axes.annotate(f"{trial.weight:.3g}", (x, y), xytext=(4, 5), textcoords="offset points", fontsize=8)
