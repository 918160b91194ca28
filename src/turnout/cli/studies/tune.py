"""`turnout study tune`: finds the setting of fair-pace that meets a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from turnout.cli.lab.plans import WorldOption, contenders
from turnout.cli.options import (
    JsonOption,
    SeedOption,
    SettingOption,
    prepare_file,
    print_json,
    require_packages,
    say,
    showing_progress,
)
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import SettingError
from turnout.lab.analysis.replay.replay import fitted_build
from turnout.lab.analysis.tuning import TUNED, Build, GoalFigure, TuningResult, find_setting
from turnout.lab.drawing.figures import draw_trade_off
from turnout.lab.drawing.style import save_as
from turnout.lab.runs.plans import RunPlan
from turnout.lab.worlds.base import World
from turnout.lab.worlds.recorded import ASSUMPTIONS
from turnout.policies.base import SelectionPolicy

#: The goals, by the figure that they bound.
GOALS = {
    "shortfall_at_end": "every client within {most} turns of its guarantee by round {by}",
    "mean_round": "a mean round of at most {most} s over {by} rounds",
    "p95_round": "95 % of {by} rounds within {most} s",
}
#: The headings of the figures, and their decimal places.
COLUMNS = {
    "mean_round": ("mean round, s", 2),
    "p95_round": ("95 % of rounds", 2),
    "least_share": ("least share", 3),
    "largest_shortfall": ("turns behind", 1),
    "shortfall_at_end": ("at the end", 1),
}


def tune(
    within: Annotated[
        float | None, typer.Option(help="Goal: no client is more than this many turns behind its guaranteed rate.")
    ] = None,
    by: Annotated[
        int, typer.Option(min=2, help="Round in which --within must hold, and number of rounds for goals on time.")
    ] = 500,
    mean_round: Annotated[float | None, typer.Option(help="Goal: the mean duration of a round, in seconds.")] = None,
    p95_round: Annotated[
        float | None, typer.Option(help="Goal: the duration of 95 % of the rounds, in seconds.")
    ] = None,
    find: Annotated[
        str, typer.Option(metavar="SETTING", help=f"Setting of fair-pace to find: {' or '.join(TUNED)}.")
    ] = "tolerance",
    values: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Values to simulate; by default a grid for the setting.")
    ] = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Fit the world to this record: file of a fleet, or store with one run."),
    ] = None,
    seed: SeedOption = 0,
    figure: Annotated[Path | None, typer.Option(help="File for a figure of the trade-off (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Find the setting of fair-pace that meets a goal at the lowest cost, by simulation of several values.

    It finds the smallest tolerance that makes rounds short enough, the largest one that keeps clients close enough to
    their guaranteed rate, or the largest guaranteed rate.

    Pass one goal: --within TURNS, --mean-round SECONDS or --p95-round SECONDS. Exit code: 1 if it cannot be met.

    Example: turnout study tune --mean-round 8.2
    """
    goals = {"shortfall_at_end": within, "mean_round": mean_round, "p95_round": p95_round}
    given = {figure: most for figure, most in goals.items() if most is not None}
    if len(given) != 1:
        problem = "more than one goal was given" if given else "no goal was given"
        raise SettingError(f"{problem}: pass one of --within TURNS, --mean-round SECONDS and --p95-round SECONDS")
    ((goal, most),) = given.items()
    plan = contenders(["fair-pace"], None, settings, world, by, ())[0]
    if find in plan.settings:
        raise SettingError(f"{find} is the setting that is tuned: omit it from --set")
    if source is not None and world:
        raise SettingError("--from fits a world to a record and --world describes one: pass only one of them")
    build, description, assumptions = _simulated(plan) if source is None else _fitted(plan, source)
    prepare_file(figure, ".svg", ".png")
    if figure is not None:
        require_packages("--figure", "plots", "matplotlib")
    with showing_progress("Simulating") as watch:
        result = find_setting(
            find,
            build,
            figure=cast(GoalFigure, goal),
            most=most,
            rounds=by,
            values=None if values is None else _numbers(values),
            seed=seed,
            watch=watch,
        )
    if figure is not None:
        save_as(draw_trade_off(result), figure)
    about = {"goal": GOALS[goal].format(most=most, by=by), "world": description, "assumptions": assumptions}
    if json:
        value = None if result.answer is None else result.answer.value
        print_json({**about, "value": value, "met": result.runs_meeting, **asdict(result)})
    else:
        say(
            f"Goal: {about['goal']}.", f"Simulated in {description}.", *(f"  assumed: {one}" for one in assumptions), ""
        )
        _print(result)
    if result.answer is None:
        raise typer.Exit(1)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--values must be numbers with commas between them, not {text!r}") from None


def _simulated(plan: RunPlan) -> tuple[Build, str, tuple[str, ...]]:
    """Returns the builder of policy and world, what the world is, and what it assumes."""
    clients = plan.build()[1].clients  # reports invalid settings before the simulations

    def build(tuned: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        return replace(plan, settings={**plan.settings, **tuned}, seed=seed).build()

    return build, f"the world {plan.world}, {pluralize(clients, 'client')}", ()


def _fitted(plan: RunPlan, source: Path) -> tuple[Build, str, tuple[str, ...]]:
    """Returns the same for worlds that are fitted to a record."""
    record = read_recording(source, None)
    fitted, columns = fitted_build(record, plan.settings, plan.policy), record.columns
    scaling = (
        f"times are multiplied by {fitted.scale:.3f}, so that the recorded policy has the recorded mean round of "
        f"{fitted.mean_round:.2f} s"
    )
    description = f"{record.where}: {pluralize(columns.clients, 'client')}, {pluralize(len(columns), 'round')}"
    return fitted.build, f"a world fitted to {description}", (*ASSUMPTIONS, scaling, *record.notes)


def _print(result: TuningResult) -> None:
    setting, answer = result.setting, result.answer
    if answer is None:
        best, unit = result.closest, "turns" if result.figure == "shortfall_at_end" else "s"
        say(
            f"No simulated {setting} of fair-pace meets the goal. With {setting}={best.value:g}, one run stays within "
            f"{best.bound:.2f} {unit}: allow that, or change cohort_size or another setting (--set)."
        )
    else:
        met = f"{result.runs_meeting} of {len(answer.runs)} other runs met the goal"
        say(f"Recommended: {setting}={answer.value:g} of fair-pace; {met}.")
    headings = (setting.replace("_", " "), *(name for name, _ in COLUMNS.values()), "one run within", "meets")
    rows = (
        (
            f"{trial.value:g}",
            *(f"{trial.values(name).mean():.{digits}f}" for name, (_, digits) in COLUMNS.items()),
            f"{trial.bound:.2f}",
            "yes" if trial.meets else "no",
        )
        for trial in result.trials
    )
    say("")
    print_table([f"{heading}>" for heading in headings], rows)
    first = result.trials[0].runs
    say(
        f"Means of {len(first)} runs per value. Least share: {first[0].share_of}. Turns behind: of the worst-served "
        "client at any time, and at the end. One run within: what the goal's figure of one more run does not exceed, "
        "with 97.5 % confidence."
    )
