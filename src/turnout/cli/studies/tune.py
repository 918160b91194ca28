"""`turnout tune`: from a goal in plain words to a speed weight."""

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
from turnout.analysis.tuning import Build, Goal, Trial, Tuned, tuned
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
from turnout.experiments.tuning_figure import KNEE_RULE, draw_trade_off, told_tuned
from turnout.simulator.recorded import ASSUMPTIONS

UNITS = {"mean_round": " s", "p95_round": " s", "least_share": "", "shortfall": "", "worst_debt": ""}
DIGITS = {"mean_round": 2, "p95_round": 2, "least_share": 3, "shortfall": 1, "worst_debt": 1}


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is played: in words, how it is built, what else is set, and what is assumed.

    `live`: it was fitted to a live fleet. `clients`: of a fitted world, which has no name to simulate it by.
    """

    words: str
    build: Build
    given: dict[str, Any]
    live: bool = False
    clients: int | None = None
    assumptions: tuple[str, ...] = ()

    def line(self, settings: dict[str, Any], rounds: int, world: Sequence[str]) -> str:
        """To paste."""
        every = {**self.given, **settings}
        if self.live:
            return f"Scheduler.open(…, settings={every!r})"
        if self.clients is not None:
            return f"make_policy('rbcsf', {self.clients}, **{every!r})"
        words = ["turnout", "simulate", "rbcsf", "--rounds", str(rounds)]
        for one in world:
            words += ["--world", one]
        for name, value in every.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else json_module.dumps(value)}"]
        return shlex.join(words)


def tune(
    within: Annotated[
        float | None, typer.Option(help="Nobody is more than so many turns short of what it was promised.")
    ] = None,
    by: Annotated[
        int, typer.Option(min=2, help="After this round; the goals on time are for the rounds up to it.")
    ] = 500,
    mean_round: Annotated[float | None, typer.Option(help="The mean round lasts at most so many seconds.")] = None,
    p95_round: Annotated[float | None, typer.Option(help="95 % of the rounds last at most so many seconds.")] = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A world fitted to this record: the file of a fleet, or a store.")
    ] = None,
    run: Annotated[int | None, typer.Option(help="Which run of the store.")] = None,
    seed: SeedOption = 0,
    figure: Annotated[Path | None, typer.Option(help="Also draw the trade-off into this file (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Find the speed weight of rbcsf that meets a goal at the lowest price, by playing what would happen.

    Say one goal: --within TURNS, --mean-round SECONDS or --p95-round SECONDS. Exit code 1 if it cannot be met.
    """
    goal = _goal(within, mean_round, p95_round, by)
    place = _place(settings, world, source, run, by)
    with progress_bar() as progress:
        task = progress.add_task("Playing what would happen", total=None)
        found = tuned(
            goal,
            place.build,
            seed=seed,
            try_horizon="horizon" not in place.given,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if figure is not None:
        save_as(draw_trade_off(found), figure)
    if json:
        chosen = found.chosen
        line = None if chosen is None else place.line(dict(chosen.settings), by, world or [])
        print_json({**told_tuned(found), "world": place.words, "assumptions": place.assumptions, "line": line})
    else:
        _print(found, place, world or [])
    if found.chosen is None:
        raise typer.Exit(1)


def _goal(within: float | None, mean_round: float | None, p95_round: float | None, by: int) -> Goal:
    asked = {"shortfall": within, "mean_round": mean_round, "p95_round": p95_round}
    said = {name: value for name, value in asked.items() if value is not None}
    if len(said) != 1:
        what = "more than one goal was given" if said else "no goal was given"
        raise SettingError(
            f"{what}: say one of --within TURNS, --mean-round SECONDS and --p95-round SECONDS, such as "
            "turnout tune --within 3 --by 500"
        )
    ((name, value),) = said.items()
    return Goal(name, value, by)  # type: ignore[arg-type]  # the names are those of Goal


def _place(
    settings: Sequence[str] | None, world: Sequence[str] | None, source: Path | None, run: int | None, by: int
) -> Place:
    plan = contenders(["rbcsf"], None, settings, world, by, ())[0]
    if "speed_weight" in plan.settings:
        raise SettingError("speed_weight is what is looked for: leave it out of --set")
    given = dict(plan.settings)
    if source is None:
        if run is not None:
            raise SettingError("--run names a run of a store: give the store with --from")
        clients = plan.build()[1].clients  # what cannot be played is refused before anything is

        def build(own: Any, seed: int) -> Any:
            return replace(plan, settings={**given, **own}, seed=seed).build()

        return Place(f"the world {plan.world}, {clients} clients", build, given)
    if world:
        raise SettingError("--from fits a world to the record, --world states one: give one of them")
    record = recorded(source, run)
    fitted, scale = fitted_build(record, given)
    columns = record.past.columns
    words = f"a world fitted to {record.where}: {columns.clients} clients, {len(columns)} rounds"
    lasts = f"times are multiplied by {scale:.3f}, with which the recorded policy has the recorded mean round"
    kept = {name: value for name, value in record.settings_for("rbcsf", given).items() if name != "speed_weight"}
    return Place(words, fitted, kept, record.live is not None, columns.clients, (*ASSUMPTIONS, lasts, *record.notes))


def _print(found: Tuned, place: Place, world: Sequence[str]) -> None:
    goal = found.goal
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"Goal: {goal.words}.\nPlayed in {place.words}.")
    for one in place.assumptions:
        console.print(f"  assumed: {one}")
    console.print()
    if found.chosen is None:
        _print_impossible(console, found)
    else:
        if found.answer is None:
            console.print("No speed weight of the paper's rule meets the goal; a horizon does.")
        _print_answer(console, "Recommended", found.chosen, goal, place, world)
        if found.answer is not None and found.horizon is not None and found.horizon_is_better:
            console.print(f"\n{'Faster' if goal.is_fairness else 'Fairer'}, and beyond the paper, with a horizon:")
            _print_answer(console, "Or", found.horizon, goal, place, world)
    console.print()
    Console().print(_curve_table(found))
    if found.knee is not None:
        console.print(f"Knee at weight {found.curve[found.knee].weight:.3g}: {KNEE_RULE}.")
    console.print(
        "It meets the goal if one more run would, with 97.5 % confidence. Who is short by less than 0 is ahead."
    )


def _print_answer(console: Console, word: str, trial: Trial, goal: Goal, place: Place, world: Sequence[str]) -> None:
    told = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
    console.print(f"{word}: {told}")
    console.print(f"  {place.line(dict(trial.settings), goal.rounds, world)}")
    figures = [f"{word} {_shown(trial, name)}" for name, word in _WORDS.items()]
    console.print(f"  expected: {', '.join(figures)}")
    met = f"{trial.met(goal)} of {len(trial.figures)} runs"
    console.print(f"  {met} met the goal: the search stops where all do, so this is no measurement.")


_WORDS = {
    "mean_round": "mean round",
    "p95_round": "95 % of rounds within",
    "least_share": "least chosen in a share of",
    "shortfall": "worst-off short of its promise by",
    "worst_debt": "worst debt",
}


def _print_impossible(console: Console, found: Tuned) -> None:
    goal, best = found.goal, found.best
    unit = "turns" if goal.is_fairness else "s"
    console.print("No speed weight meets this goal, and a horizon does not either.")
    console.print(
        f"  best possible: {best.mean(goal.figure):.1f} {unit} on average, with speed_weight={best.weight:.3g}; a "
        f"single run stays within {best.bound(goal):.1f} {unit} with 97.5 % confidence"
    )
    option = {"shortfall": "--within", "mean_round": "--mean-round", "p95_round": "--p95-round"}[goal.figure]
    rounds = ", --by ROUNDS" if goal.is_fairness else ""
    console.print(f"  to do: {found.remedy} ({option} {found.attainable:g}{rounds}, --set NAME=VALUE)")


def _curve_table(found: Tuned) -> Table:
    seeds = len(found.curve[0].figures)
    table = Table(title=f"What each speed weight gives, mean ± 95 % confidence of {seeds} seeds")
    headings = (
        "speed weight",
        "mean round",
        "95 % of rounds",
        "least chosen",
        "turns short",
        "worst debt",
        "meets the goal",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "meets the goal" else "right")
    for place, trial in enumerate(found.curve):
        mark = "yes" if trial.meets(found.goal) else "no"
        cells = [_shown(trial, name) for name in UNITS]
        table.add_row(f"{trial.weight:.3g}", *cells, f"{mark}, knee" if place == found.knee else mark)
    return table


def _shown(trial: Trial, name: str) -> str:
    mean, half_width = trial.band(name)
    return f"{float(mean):.{DIGITS[name]}f} ± {float(half_width):.{DIGITS[name]}f}{UNITS[name]}"
