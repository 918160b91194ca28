"""`turnout simulate` and `turnout compare`: policies in a simulated world."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from turnout.analysis.metrics import Summary, summarise
from turnout.analysis.statistics import mean_confidence_interval
from turnout.cli.options import (
    ConfigOption,
    JsonOption,
    PoliciesArgument,
    RoundsOption,
    SeedOption,
    SettingOption,
    WorkersOption,
    WorldOption,
    contenders,
    print_json,
    progress_bar,
    read_config,
    resumable,
)
from turnout.cli.studies.leaderboard import show_leaderboard
from turnout.errors import SettingError, suggestion
from turnout.experiments.framework.drawing import save_as
from turnout.experiments.leaderboard.suites import SUITES
from turnout.experiments.paper.comparison import draw_overview, overview_tables
from turnout.kernel.fairness import DEFAULT_RATE, exact_rate
from turnout.policies.base import SelectionPolicy
from turnout.simulator.plans import RunPlan
from turnout.simulator.play import play
from turnout.simulator.sweep import missing_plans, play_into, sweep
from turnout.store import RoundColumns, RunStore

SaveOption = Annotated[Path | None, typer.Option("--save", help="Store for the runs; an interrupted run continues.")]
StoreOption = Annotated[
    Path | None,
    typer.Option("--save", "--store", help="Store for the runs; runs that it holds are not repeated."),
]
PromiseOption = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Guaranteed rate for the column of turns owed; by default that of the policies."),
]


def simulate(
    policies: PoliciesArgument = None,
    config: ConfigOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = 0,
    promise: PromiseOption = None,
    save: SaveOption = None,
    figure: Annotated[Path | None, typer.Option(help="File for a figure (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Simulate policies in the same world and summarise their rounds (by default rbcsf and random).

    Example: turnout simulate rbcsf random --rounds 200 --set cohort_size=5 --world clients=50
    """
    plans = [
        replace(plan, seed=seed) for plan in contenders(policies, config, settings, world, rounds, ("rbcsf", "random"))
    ]
    built = [plan.build()[0] for plan in plans]  # reports invalid settings before the first round
    promised = _promised(built) if promise is None else promise
    runs = _simulate(plans, save)
    summaries = [summarise(columns, guaranteed_rate=promised) for columns in runs]
    if figure is not None:
        names = [plan.name for plan in plans]
        tables = overview_tables({name: [columns] for name, columns in zip(names, runs, strict=True)})
        save_as(draw_overview(names, *tables, promised), figure)
    if json:
        print_json([{"policy": plan.name, **asdict(row)} for plan, row in zip(plans, summaries, strict=True)])
        return
    title = f"{plans[0].rounds} rounds, seed {seed}, turns owed at a guaranteed rate of {promised:g}"
    Console().print(_summary_table(title, plans, summaries))


def compare(
    policies: PoliciesArgument = None,
    suite: Annotated[
        str | None, typer.Option(help=f"Leaderboard of all policies: {', '.join(SUITES)}; see docs/leaderboard.md.")
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="Trace file for --suite traces; by default clients are generated. Repeatable."),
    ] = None,
    config: ConfigOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: RoundsOption = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Number of seeds; by default 10, or that of the suite.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Policy to compare with; by default random, or the first.")
    ] = None,
    promise: PromiseOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures and data of a suite, and for its store unless --store is given."),
    ] = None,
    save: StoreOption = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Compare policies over many seeds, seed by seed, with 95 % confidence intervals.

    With --suite, the comparison is a leaderboard of all policies that marks the Pareto front of time and fairness.

    Example: turnout compare rbcsf random fedcs --seeds 20
    """
    if suite is not None:
        fixed = {"policies": policies, "--config": config, "--set": settings, "--world": world}
        _reject_options("--suite, which defines it", {**fixed, "--baseline": baseline, "--promise": promise})
        show_leaderboard(
            suite, traces=traces, seeds=seeds, rounds=rounds, out=out, store=save, workers=workers, json=json
        )
        return
    _reject_options("a comparison without --suite", {"--traces": traces, "--out": out})
    plans = contenders(policies, config, settings, world, rounds, ("rbcsf", "random", "fedcs"))
    count = seeds or (read_config(config).get("seeds", 10) if config is not None else 10)
    built = [plan.build()[0] for plan in plans]  # reports invalid settings before the first run
    names = [plan.name for plan in plans]
    if baseline is not None and baseline not in names:
        raise SettingError(
            f"there is no {baseline!r} to compare with{suggestion(baseline, names)}; there are {', '.join(names)}"
        )
    reference = names.index(baseline or ("random" if "random" in names else names[0]))
    by_seed = [[replace(plan, seed=seed) for seed in range(count)] for plan in plans]
    figures = _sweep(by_seed, _promised(built) if promise is None else promise, save, workers)
    rows = [_compare(plan, summaries, figures[reference]) for plan, summaries in zip(plans, figures, strict=True)]
    if json:
        print_json({"seeds": count, "baseline": names[reference], "policies": rows})
        return
    Console().print(_comparison_table(rows, plans[0].rounds, count, names[reference]))


def _reject_options(mode: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None and value != []:
            raise SettingError(f"{name} cannot be used with {mode}: omit it")


def _simulate(plans: Sequence[RunPlan], save: Path | None) -> list[RoundColumns]:
    if save is None:
        with progress_bar() as progress:
            return [_simulate_in_memory(plan, progress) for plan in plans]
    with resumable(), RunStore(save) as store, progress_bar() as progress:
        task = progress.add_task("Simulating", total=sum(plan.rounds for plan in plans))
        runs = []
        for index, plan in enumerate(plans):
            before = sum(earlier.rounds for earlier in plans[:index])

            def watch(done: int, before: int = before) -> None:
                progress.update(task, completed=before + done)

            runs.append(store.columns(play_into(store, plan, watch=watch)))
        return runs


def _simulate_in_memory(plan: RunPlan, progress: Progress) -> RoundColumns:
    policy, world = plan.build()
    records = progress.track(play(policy, world, plan.rounds), total=plan.rounds, description=f"Simulating {plan.name}")
    return RoundColumns.from_records(records, clients=world.clients)


def _promised(policies: Sequence[SelectionPolicy]) -> float:
    """Returns the guaranteed rate of the first policy that has one rate for all clients, else the paper's rate."""
    rates = [policy.guarantee.rate for policy in policies if policy.guarantee is not None]
    return next((float(exact_rate(rate)) for rate in rates if isinstance(rate, float | int | str)), DEFAULT_RATE)


def _sweep(by_seed: list[list[RunPlan]], promise: float, save: Path | None, workers: int | None) -> list[list[Summary]]:
    with ExitStack() as open_until_done:
        if save is None:
            folder = open_until_done.enter_context(tempfile.TemporaryDirectory())
        else:
            open_until_done.enter_context(resumable())
        store = open_until_done.enter_context(RunStore(save or Path(folder) / "runs.turnout"))
        plans = [plan for plans_of_policy in by_seed for plan in plans_of_policy]
        with progress_bar() as progress:
            task = progress.add_task("Simulating", total=len(missing_plans(plans, store)))
            runs = iter(sweep(plans, store, workers=workers, watch=lambda _: progress.advance(task)))
        return [[summarise(store.columns(next(runs)), guaranteed_rate=promise) for _ in plans] for plans in by_seed]


def _compare(plan: RunPlan, own: list[Summary], reference: list[Summary]) -> dict[str, Any]:
    """Returns mean and half-width over seeds of each figure; the time saved is a mean of differences per seed."""

    def interval(values: list[float]) -> dict[str, float]:
        mean, half_width = mean_confidence_interval(np.array(values))
        return {"mean": float(mean), "half_width": float(half_width)}

    return {
        "policy": plan.name,
        "mean_round": interval([summary.mean_round for summary in own]),
        "time_saved": interval([1 - a.total_time / b.total_time for a, b in zip(own, reference, strict=True)]),
        "least_share": interval([summary.least_share for summary in own]),
        "worst_debt": interval([summary.worst_debt for summary in own]),
        "jain": interval([summary.jain for summary in own]),
    }


def _summary_table(title: str, plans: Sequence[RunPlan], summaries: Sequence[Summary]) -> Table:
    table = Table(title=title)
    for heading in ("policy", "mean round", "95 % of rounds", "total", "cohort", "least selected", "most owed", "Jain"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for plan, summary in zip(plans, summaries, strict=True):
        table.add_row(
            plan.name,
            f"{summary.mean_round:.2f} s",
            f"{summary.p95_round:.2f} s",
            f"{summary.total_time / 60:.1f} min",
            f"{summary.mean_cohort:.1f}",
            f"{summary.least_share:.3f}",
            f"{summary.worst_debt:.1f} turns",
            f"{summary.jain:.3f}",
        )
    return table


def _comparison_table(rows: list[dict[str, Any]], rounds: int, seeds: int, baseline: str) -> Table:
    table = Table(title=f"{rounds} rounds, {seeds} seeds, mean ± 95 % confidence; time saved against {baseline}")
    for heading in ("policy", "mean round, s", "time saved, %", "least selected", "most owed, turns", "Jain"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        cells = [row["policy"]]
        for name, scale, digits in (
            ("mean_round", 1, 2),
            ("time_saved", 100, 1),
            ("least_share", 1, 3),
            ("worst_debt", 1, 1),
            ("jain", 1, 3),
        ):
            interval = row[name]
            cells.append(f"{interval['mean'] * scale:.{digits}f} ± {interval['half_width'] * scale:.{digits}f}")
        table.add_row(*cells)
    return table
