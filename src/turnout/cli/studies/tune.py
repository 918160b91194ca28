"""`turnout study tune`: finds the setting of fair-pace or rbcsf that meets a goal."""

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

from turnout.cli.lab.plans import WorldOption, contenders
from turnout.cli.options import JsonOption, SeedOption, SettingOption, print_json, progress_bar
from turnout.counting import counted
from turnout.errors import SettingError, suggestion
from turnout.lab.analysis.promise import SHARE_OF
from turnout.lab.analysis.replay.records import Recorded, recorded
from turnout.lab.analysis.replay.replay import fitted_build
from turnout.lab.analysis.statistics import format_interval
from turnout.lab.analysis.tuning import (
    PARAMETERS,
    Build,
    Goal,
    Parameter,
    RunFigures,
    Trial,
    TuningResult,
    Watch,
    find_guaranteed_rate,
    find_speed_weight,
    find_tolerance,
)
from turnout.lab.studies.framework.drawing import save_as
from turnout.lab.studies.tuning_figure import KNEE_RULE, draw_trade_off, tuning_to_dict
from turnout.lab.worlds.recorded import ASSUMPTIONS
from turnout.policies.base import SelectionPolicy

UNITS = {"mean_round": " s", "p95_round": " s"}
DIGITS = {
    "mean_round": 2,
    "p95_round": 2,
    "least_share": 3,
    "largest_shortfall": 1,
    "shortfall": 1,
    "worst_debt": 1,
}
#: The columns of the curve.
COLUMNS = {
    "mean_round": "mean round",
    "p95_round": "95 % of rounds",
    "least_share": "least share",
    "largest_shortfall": "behind at any time",
    "shortfall": "behind at the end",
}
#: The policies that can be tuned, with the parameter that is tuned unless --find names another.
TUNED = {"rbcsf": "speed_weight", "fair-pace": "tolerance"}


@dataclass(frozen=True, slots=True)
class Environment:
    """The world in which candidates are simulated.

    Attributes:
        description: Short description of the world, for the output.
        policy: The policy that is tuned.
        build: Builds policy and world for given settings and seed.
        settings: The settings that are not tuned.
        share_of: What a share is a share of.
        live: Whether the world is fitted to a live fleet.
        clients: The number of clients of a fitted world, which `turnout simulate` cannot name; otherwise None.
        assumptions: The assumptions of a fitted world.
    """

    description: str
    policy: str
    build: Build
    settings: dict[str, Any]
    share_of: str
    live: bool = False
    clients: int | None = None
    assumptions: tuple[str, ...] = ()

    def line(self, settings: dict[str, Any], rounds: int, world: Sequence[str]) -> str:
        """Returns the line of code or the command that uses these settings."""
        every = {**self.settings, **settings}
        if self.live:
            return f"Scheduler.open(…, policy={self.policy!r}, settings={every!r})"
        if self.clients is not None:
            return f"make_policy({self.policy!r}, {self.clients}, **{every!r})"
        command = ["turnout", "simulate", self.policy, "--rounds", str(rounds)]
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
    policy: Annotated[
        str | None,
        typer.Option(help="Policy to tune: rbcsf or fair-pace; by default that of --from, otherwise rbcsf."),
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="Setting to find: tolerance or guaranteed_rate of fair-pace (by default tolerance), or speed_weight "
            "of rbcsf.",
        ),
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
    """Find the setting of a policy that meets a goal at the lowest cost, by simulation.

    For rbcsf it finds the speed weight. For fair-pace it finds the smallest tolerance that makes rounds short enough,
    or with --find guaranteed_rate the largest rate.

    Pass one goal: --within TURNS, --mean-round SECONDS or --p95-round SECONDS. Exit code: 1 if it cannot be met.

    Example: turnout study tune --policy fair-pace --mean-round 8.2
    """
    goal = _goal(within, mean_round, p95_round, by)
    record = None if source is None else recorded(source, run)
    parameter = _parameter(policy, find, record)
    environment = _environment(parameter, settings, world, record, run, by)
    with progress_bar() as progress:
        task = progress.add_task("Simulating", total=None)
        found = _search(
            goal, parameter, environment, seed, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if figure is not None:
        save_as(draw_trade_off(found), figure)
    if json:
        chosen = found.chosen
        line = None if chosen is None else environment.line(dict(chosen.settings), by, world or [])
        context = {
            "world": environment.description,
            "share_of": environment.share_of,
            "assumptions": environment.assumptions,
            "line": line,
        }
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
            "turnout study tune --within 3 --by 500"
        )
    ((name, value),) = given.items()
    return Goal(name, value, by)  # type: ignore[arg-type]  # the keys are the names of the figures of Goal


def _parameter(policy: str | None, find: str | None, record: Recorded | None) -> Parameter:
    """Returns the parameter to tune, from --policy, --find and the record."""
    if find is not None:
        if find not in PARAMETERS:
            raise SettingError(f"cannot find {find!r}{suggestion(find, PARAMETERS)}; --find is {', '.join(PARAMETERS)}")
        parameter = PARAMETERS[find]
        if policy is not None and policy != parameter.policy:
            raise SettingError(f"{find} is found for {parameter.policy}: omit --policy, or pass {parameter.policy}")
        return parameter
    if policy is None:
        policy = record.policy if record is not None and record.policy in TUNED else "rbcsf"
    if policy not in TUNED:
        raise SettingError(f"cannot tune {policy!r}{suggestion(policy, TUNED)}; --policy is {' or '.join(TUNED)}")
    return PARAMETERS[TUNED[policy]]


def _search(goal: Goal, parameter: Parameter, environment: Environment, seed: int, watch: Watch) -> TuningResult:
    """Searches the value of the parameter.

    Args:
        goal: The goal.
        parameter: The setting to find.
        environment: The world of the simulations.
        seed: The first seed.
        watch: A progress callback.
    """
    if parameter.name == "speed_weight":
        try_horizon = "horizon" not in environment.settings
        return find_speed_weight(goal, environment.build, seed=seed, try_horizon=try_horizon, watch=watch)
    find = find_tolerance if parameter.name == "tolerance" else find_guaranteed_rate
    return find(goal, environment.build, seed=seed, watch=watch)


def _environment(
    parameter: Parameter,
    settings: Sequence[str] | None,
    world: Sequence[str] | None,
    record: Recorded | None,
    run: int | None,
    by: int,
) -> Environment:
    """Returns the world in which the parameter is tuned.

    Args:
        parameter: The setting to find.
        settings: Values of --set.
        world: Values of --world.
        record: The record of --from.
        run: Value of --run.
        by: The number of rounds.
    """
    policy = parameter.policy
    plan = contenders([policy], None, settings, world, by, ())[0]
    if parameter.name in plan.settings:
        raise SettingError(f"{parameter.name} is the setting that is tuned: omit it from --set")
    given = dict(plan.settings)
    if record is None:
        if run is not None:
            raise SettingError("--run needs a store: pass the store with --from")
        example, built = plan.build()  # reports invalid settings before the search

        def build(tuned_settings: Any, seed: int) -> Any:
            return replace(plan, settings={**given, **tuned_settings}, seed=seed).build()

        description = f"the world {plan.world}, {counted(built.clients, 'client')}"
        return Environment(description, policy, build, given, _share_of(example))
    if world:
        raise SettingError("--from fits a world to a record and --world describes one: pass only one of them")
    fitted = fitted_build(record, given, policy)
    kept = {name: value for name, value in record.settings_for(policy, given).items() if name != parameter.name}
    columns = record.columns
    scaling = (
        f"times are multiplied by {fitted.scale:.3f}, so that the recorded policy has the recorded mean round of "
        f"{fitted.mean_round:.2f} s"
    )
    return Environment(
        f"a world fitted to {record.where}: {counted(columns.clients, 'client')}, {counted(len(columns), 'round')}",
        policy,
        fitted.build,
        kept,
        _share_of(record.build(policy, kept)),
        record.live is not None,
        columns.clients,
        (*ASSUMPTIONS, scaling, *record.notes),
    )


def _share_of(policy: SelectionPolicy) -> str:
    return SHARE_OF["always" if policy.guarantee is None else policy.guarantee.accrual]


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
    Console().print(_curve_table(found, environment.share_of))
    label = found.parameter.label
    if found.knee is not None:
        console.print(f"Knee at {label.split()[-1]} {found.value(found.curve[found.knee]):.3g}: {KNEE_RULE}.")
    console.print(
        f"A {label} meets the goal if another run would meet it with 97.5 % confidence. Behind: promised turns minus "
        "turns of the worst-served client; less than 0 if all are ahead."
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
    headings = {**_HEADINGS, "least_share": f"least share {environment.share_of}"}
    if environment.policy == "rbcsf":
        headings["worst_debt"] = "most turns owed"  # the queues by which rbcsf selects
    figures = [f"{heading} {_format(trial, name)}" for name, heading in headings.items()]
    console.print(f"  expected: {', '.join(figures)}")
    met = f"{trial.runs_meeting(goal)} of {len(trial.figures)} runs"
    console.print(f"  {met} met the goal; the search stops when all do, so this share is biased.")


_HEADINGS = {
    "mean_round": "mean round",
    "p95_round": "95 % of rounds within",
    "least_share": "least share",
    "largest_shortfall": "turns that the worst client is behind at any time",
    "shortfall": "at the end",
}


def _print_impossible(console: Console, found: TuningResult) -> None:
    goal, best = found.goal, found.best
    unit = "turns" if goal.is_fairness else "s"
    parameter = found.parameter
    horizon = ", with or without a horizon" if parameter.name == "speed_weight" else ""
    console.print(f"No {parameter.label} meets this goal{horizon}.")
    console.print(
        f"  best possible: {best.mean(goal.figure):.1f} {unit} on average, with "
        f"{parameter.name}={found.value(best):.3g}; a single run stays within {best.bound(goal):.1f} {unit} with "
        "97.5 % confidence"
    )
    option = {"shortfall": "--within", "mean_round": "--mean-round", "p95_round": "--p95-round"}[goal.figure]
    rounds = ", --by ROUNDS" if goal.is_fairness else ""
    console.print(f"  to do: {found.remedy} ({option} {found.attainable:g}{rounds}, --set NAME=VALUE)")


def _curve_table(found: TuningResult, share_of: str) -> Table:
    seeds, label = len(found.curve[0].figures), found.parameter.label
    table = Table(title=f"Figures per {label}, mean ± 95 % confidence over {seeds} seeds; shares {share_of}")
    for heading in (label, *COLUMNS.values()):
        table.add_column(heading, justify="right")
    table.add_column("meets the goal")
    for index, trial in enumerate(found.curve):
        mark = "yes" if trial.meets(found.goal) else "no"
        cells = [_format(trial, name) for name in COLUMNS]
        table.add_row(f"{found.value(trial):.3g}", *cells, f"{mark}, knee" if index == found.knee else mark)
    return table


def _format(trial: Trial, name: str) -> str:
    mean, half_width = trial.interval(name)
    return format_interval(mean, half_width, DIGITS[name], unit=UNITS.get(name, ""), limits=RunFigures.limits(name))
