"""`turnout study tune`: finds the setting of fair-pace or rbcsf that meets a goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console

from turnout.cli.fleet.recording import read_recording
from turnout.cli.lab.plans import WorldOption, contenders
from turnout.cli.options import JsonOption, SeedOption, SettingOption, make_table, print_json, progress_bar
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.lab.analysis.replay.recording import Recording
from turnout.lab.analysis.replay.replay import fitted_build
from turnout.lab.analysis.tuning import TUNED, Build, GoalFigure, Trial, TuningResult, find_setting
from turnout.lab.drawing.style import save_as
from turnout.lab.drawing.trade_off import draw_trade_off
from turnout.lab.worlds.recorded import ASSUMPTIONS

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


class Environment(NamedTuple):
    """Where values are simulated: the builder of policy and world, its description, and what it assumes."""

    build: Build
    description: str
    assumptions: tuple[str, ...] = ()


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
        str | None,
        typer.Option(
            metavar="SETTING",
            help="Setting to find: tolerance or guaranteed_rate of fair-pace, or speed_weight of rbcsf; by default "
            "tolerance, and speed_weight for a record of rbcsf.",
        ),
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Values to simulate; by default a grid for the setting.")
    ] = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Fit the world to this record: file of a fleet, or store of runs.")
    ] = None,
    run: Annotated[int | None, typer.Option(help="Number of the run in the store of --from.")] = None,
    seed: SeedOption = 0,
    figure: Annotated[Path | None, typer.Option(help="File for a figure of the trade-off (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Find the setting of a policy that meets a goal at the lowest cost, by simulation of several values.

    It finds the smallest tolerance or speed weight that makes rounds short enough, the largest of them that keeps
    clients close enough to their guaranteed rate, or the largest guaranteed rate.

    Pass one goal: --within TURNS, --mean-round SECONDS or --p95-round SECONDS. Exit code: 1 if it cannot be met.

    Example: turnout study tune --mean-round 8.2
    """
    goals = {"shortfall_at_end": within, "mean_round": mean_round, "p95_round": p95_round}
    given = {figure: most for figure, most in goals.items() if most is not None}
    if len(given) != 1:
        problem = "more than one goal was given" if given else "no goal was given"
        raise SettingError(f"{problem}: pass one of --within TURNS, --mean-round SECONDS and --p95-round SECONDS")
    ((goal, most),) = given.items()
    sentence = GOALS[goal].format(most=most, by=by)
    record = None if source is None else read_recording(source, run)
    setting = find or ("speed_weight" if record is not None and record.policy == "rbcsf" else "tolerance")
    environment = _environment(setting, settings, world, record, run, by)
    with progress_bar() as progress:
        task = progress.add_task("Simulating", total=None)
        result = find_setting(
            setting,
            environment.build,
            figure=cast(GoalFigure, goal),
            most=most,
            rounds=by,
            values=None if values is None else _numbers(values),
            seed=seed,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if figure is not None:
        save_as(draw_trade_off(result), figure)
    if json:
        print_json({"goal": sentence, "world": environment.description, **_to_dict(result, environment)})
    else:
        _print(result, sentence, environment)
    if result.answer is None:
        raise typer.Exit(1)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--values must be numbers with commas between them, not {text!r}") from None


def _environment(
    setting: str,
    settings: Sequence[str] | None,
    world: Sequence[str] | None,
    record: Recording | None,
    run: int | None,
    by: int,
) -> Environment:
    """Returns where the values are simulated.

    Args:
        setting: The setting to find.
        settings: Values of --set.
        world: Values of --world.
        record: The record of --from.
        run: Value of --run.
        by: The number of rounds.
    """
    policy = TUNED.get(setting, "fair-pace")
    plan = contenders([policy], None, settings, world, by, ())[0]
    if setting in plan.settings:
        raise SettingError(f"{setting} is the setting that is tuned: omit it from --set")
    if record is None:
        if run is not None:
            raise SettingError("--run needs a store: pass the store with --from")
        clients = plan.build()[1].clients  # reports invalid settings before the simulations

        def build(tuned: Any, seed: int) -> Any:
            return replace(plan, settings={**plan.settings, **tuned}, seed=seed).build()

        return Environment(build, f"the world {plan.world}, {pluralize(clients, 'client')}")
    if world:
        raise SettingError("--from fits a world to a record and --world describes one: pass only one of them")
    fitted, columns = fitted_build(record, plan.settings, policy), record.columns
    scaling = (
        f"times are multiplied by {fitted.scale:.3f}, so that the recorded policy has the recorded mean round of "
        f"{fitted.mean_round:.2f} s"
    )
    description = f"{record.where}: {pluralize(columns.clients, 'client')}, {pluralize(len(columns), 'round')}"
    return Environment(fitted.build, f"a world fitted to {description}", (*ASSUMPTIONS, scaling, *record.notes))


def _to_dict(result: TuningResult, environment: Environment) -> dict[str, Any]:
    def trial_to_dict(trial: Trial) -> dict[str, Any]:
        runs = [asdict(one) for one in trial.runs]
        return {"value": trial.value, "bound": trial.bound(result.figure), "meets": result.meets(trial), "runs": runs}

    return {
        "policy": TUNED[result.setting],
        "setting": result.setting,
        "value": None if result.answer is None else result.answer.value,
        "confirmed": None if result.answer is None else trial_to_dict(result.answer),
        "met": result.runs_meeting,
        "trials": [trial_to_dict(trial) for trial in result.trials],
        "assumptions": environment.assumptions,
    }


def _print(result: TuningResult, goal: str, environment: Environment) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"Goal: {goal}.\nSimulated in {environment.description}.")
    for assumption in environment.assumptions:
        console.print(f"  assumed: {assumption}")
    policy, setting, answer = TUNED[result.setting], result.setting, result.answer
    if answer is None:
        best, unit = result.closest, "turns" if result.figure == "shortfall_at_end" else "s"
        console.print(
            f"\nNo simulated {setting} of {policy} meets the goal. With {setting}={best.value:g}, one run stays within "
            f"{best.bound(result.figure):.2f} {unit}: allow that, or change cohort_size or another setting (--set)."
        )
    else:
        met = f"{result.runs_meeting} of {len(answer.runs)} other runs met the goal"
        console.print(f"\nRecommended: {setting}={answer.value:g} of {policy}; {met}.")
    headings = (setting.replace("_", " "), *(name for name, _ in COLUMNS.values()), "one run within", "meets")
    table = make_table(*(f"{heading}>" for heading in headings))
    table.box = None
    for heading, column in zip(headings, table.columns, strict=True):
        column.min_width = max(map(len, heading.split()))
    for trial in result.trials:
        figures = [f"{trial.values(name).mean():.{digits}f}" for name, (_, digits) in COLUMNS.items()]
        bound, meets = f"{trial.bound(result.figure):.2f}", "yes" if result.meets(trial) else "no"
        table.add_row(f"{trial.value:g}", *figures, bound, meets)
    console.print()
    Console().print(table)
    first = result.trials[0].runs
    console.print(
        f"Means of {len(first)} runs per value. Least share: {first[0].share_of}. Turns behind: of the worst-served "
        "client at any time, and at the end. One run within: what the goal's figure of one more run does not exceed, "
        "with 97.5 % confidence."
    )
