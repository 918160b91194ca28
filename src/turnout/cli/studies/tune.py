"""`turnout tune`: finds the speed weight that meets a goal."""

from __future__ import annotations

import json as json_module
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.analysis.replay import fitted_build, recorded
from turnout.analysis.tuning import Build, Goal, Trial, TuningResult, find_speed_weight
from turnout.cli.options import (
    JsonOption,
    SeedOption,
    SettingOption,
    WorldOption,
    contenders,
    print_json,
    progress_bar,
)
from turnout.errors import SettingError
from turnout.experiments.framework.drawing import save_as
from turnout.experiments.tuning_figure import KNEE_RULE, draw_trade_off, tuning_to_dict
from turnout.simulator.recorded import ASSUMPTIONS

UNITS = {"mean_round": " s", "p95_round": " s", "least_share": "", "shortfall": "", "worst_debt": ""}
DIGITS = {"mean_round": 2, "p95_round": 2, "least_share": 3, "shortfall": 1, "worst_debt": 1}


@dataclass(frozen=True, slots=True)
class Environment:
    """The world in which candidates are simulated.

    Attributes:
        description: Short description of the world, for the output.
        build: Builds policy and world for given settings and seed.
        settings: The settings that are not tuned.
        live: Whether the world is fitted to a live fleet.
        clients: The number of clients of a fitted world, which `turnout simulate` cannot name; otherwise None.
        assumptions: The assumptions of a fitted world.
    """

    description: str
    build: Build
    settings: dict[str, Any]
    live: bool = False
    clients: int | None = None
    assumptions: tuple[str, ...] = ()

    def line(self, settings: dict[str, Any], rounds: int, world: Sequence[str]) -> str:
        """Returns the line of code or the command that uses these settings."""
        every = {**self.settings, **settings}
        if self.live:
            return f"Scheduler.open(…, settings={every!r})"
        if self.clients is not None:
            return f"make_policy('rbcsf', {self.clients}, **{every!r})"
        command = ["turnout", "simulate", "rbcsf", "--rounds", str(rounds)]
        for setting in world:
            command += ["--world", setting]
        for name, value in every.items():
            command += ["--set", f"{name}={value if isinstance(value, str) else json_module.dumps(value)}"]
        return shlex.join(command)


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
    """Find the speed weight of rbcsf that meets a goal at the lowest cost, by simulation.

    Pass one goal: --within TURNS, --mean-round SECONDS or --p95-round SECONDS. Exit code: 1 if it cannot be met.

    Example: turnout tune --within 3 --by 500
    """
    goal = _goal(within, mean_round, p95_round, by)
    environment = _environment(settings, world, source, run, by)
    with progress_bar() as progress:
        task = progress.add_task("Simulating", total=None)
        found = find_speed_weight(
            goal,
            environment.build,
            seed=seed,
            try_horizon="horizon" not in environment.settings,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if figure is not None:
        save_as(draw_trade_off(found), figure)
    if json:
        chosen = found.chosen
        line = None if chosen is None else environment.line(dict(chosen.settings), by, world or [])
        context = {"world": environment.description, "assumptions": environment.assumptions, "line": line}
        print_json({**tuning_to_dict(found), **context})
    else:
        _print(found, environment, world or [])
    if found.chosen is None:
        raise typer.Exit(1)


def _goal(within: float | None, mean_round: float | None, p95_round: float | None, by: int) -> Goal:
    options = {"shortfall": within, "mean_round": mean_round, "p95_round": p95_round}
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) != 1:
        problem = "more than one goal was given" if given else "no goal was given"
        raise SettingError(
            f"{problem}: pass one of --within TURNS, --mean-round SECONDS and --p95-round SECONDS, such as "
            "turnout tune --within 3 --by 500"
        )
    ((name, value),) = given.items()
    return Goal(name, value, by)  # type: ignore[arg-type]  # the keys are the names of the figures of Goal


def _environment(
    settings: Sequence[str] | None, world: Sequence[str] | None, source: Path | None, run: int | None, by: int
) -> Environment:
    plan = contenders(["rbcsf"], None, settings, world, by, ())[0]
    if "speed_weight" in plan.settings:
        raise SettingError("speed_weight is the setting that is tuned: omit it from --set")
    given = dict(plan.settings)
    if source is None:
        if run is not None:
            raise SettingError("--run needs a store: pass the store with --from")
        clients = plan.build()[1].clients  # reports invalid settings before the search

        def build(tuned_settings: Any, seed: int) -> Any:
            return replace(plan, settings={**given, **tuned_settings}, seed=seed).build()

        return Environment(f"the world {plan.world}, {clients} clients", build, given)
    if world:
        raise SettingError("--from fits a world to a record and --world describes one: pass only one of them")
    record = recorded(source, run)
    fitted, scale = fitted_build(record, given)
    columns = record.past.columns
    description = f"a world fitted to {record.where}: {columns.clients} clients, {len(columns)} rounds"
    scaling = f"times are multiplied by {scale:.3f}, so that the recorded policy has the recorded mean round"
    settings_kept = {
        name: value for name, value in record.settings_for("rbcsf", given).items() if name != "speed_weight"
    }
    assumptions = (*ASSUMPTIONS, scaling, *record.notes)
    return Environment(description, fitted, settings_kept, record.live is not None, columns.clients, assumptions)


def _print(found: TuningResult, environment: Environment, world: Sequence[str]) -> None:
    goal = found.goal
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"Goal: {goal.description}.\nSimulated in {environment.description}.")
    for assumption in environment.assumptions:
        console.print(f"  assumed: {assumption}")
    console.print()
    if found.chosen is None:
        _print_impossible(console, found)
    else:
        if found.answer is None:
            console.print("No speed weight meets the goal with the paper's rule; a horizon does.")
        _print_answer(console, "Recommended", found.chosen, goal, environment, world)
        if found.answer is not None and found.horizon is not None and found.horizon_is_better:
            console.print(
                f"\n{'Faster' if goal.is_fairness else 'Fairer'} with a horizon, which extends the paper's rule:"
            )
            _print_answer(console, "Or", found.horizon, goal, environment, world)
    console.print()
    Console().print(_curve_table(found))
    if found.knee is not None:
        console.print(f"Knee at weight {found.curve[found.knee].weight:.3g}: {KNEE_RULE}.")
    console.print(
        "A speed weight meets the goal if another run would meet it with 97.5 % confidence. A client that is behind by "
        "less than 0 turns is ahead."
    )


def _print_answer(
    console: Console, label: str, trial: Trial, goal: Goal, environment: Environment, world: Sequence[str]
) -> None:
    """Prints a recommended setting, the line that uses it, and the figures to expect.

    Args:
        console: Where to print.
        label: Text before the settings.
        trial: The recommended settings and their simulated figures.
        goal: The goal.
        environment: The world of the simulations.
        world: Values of --world.
    """
    settings = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
    console.print(f"{label}: {settings}")
    console.print(f"  {environment.line(dict(trial.settings), goal.rounds, world)}")
    figures = [f"{heading} {_format(trial, name)}" for name, heading in _HEADINGS.items()]
    console.print(f"  expected: {', '.join(figures)}")
    met = f"{trial.runs_meeting(goal)} of {len(trial.figures)} runs"
    console.print(f"  {met} met the goal; the search stops when all do, so this share is biased.")


_HEADINGS = {
    "mean_round": "mean round",
    "p95_round": "95 % of rounds within",
    "least_share": "share of rounds of the least selected client",
    "shortfall": "turns that the worst client is behind",
    "worst_debt": "most turns owed",
}


def _print_impossible(console: Console, found: TuningResult) -> None:
    goal, best = found.goal, found.best
    unit = "turns" if goal.is_fairness else "s"
    console.print("No speed weight meets this goal, with or without a horizon.")
    console.print(
        f"  best possible: {best.mean(goal.figure):.1f} {unit} on average, with speed_weight={best.weight:.3g}; a "
        f"single run stays within {best.bound(goal):.1f} {unit} with 97.5 % confidence"
    )
    option = {"shortfall": "--within", "mean_round": "--mean-round", "p95_round": "--p95-round"}[goal.figure]
    rounds = ", --by ROUNDS" if goal.is_fairness else ""
    console.print(f"  to do: {found.remedy} ({option} {found.attainable:g}{rounds}, --set NAME=VALUE)")


def _curve_table(found: TuningResult) -> Table:
    seeds = len(found.curve[0].figures)
    table = Table(title=f"Figures per speed weight, mean ± 95 % confidence over {seeds} seeds")
    headings = (
        "speed weight",
        "mean round",
        "95 % of rounds",
        "least selected",
        "turns behind",
        "most owed",
        "meets the goal",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "meets the goal" else "right")
    for index, trial in enumerate(found.curve):
        mark = "yes" if trial.meets(found.goal) else "no"
        cells = [_format(trial, name) for name in UNITS]
        table.add_row(f"{trial.weight:.3g}", *cells, f"{mark}, knee" if index == found.knee else mark)
    return table


def _format(trial: Trial, name: str) -> str:
    mean, half_width = trial.interval(name)
    return f"{float(mean):.{DIGITS[name]}f} ± {float(half_width):.{DIGITS[name]}f}{UNITS[name]}"
