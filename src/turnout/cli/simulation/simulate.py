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

from turnout.analysis.metrics import Summary, mean_and_band, summarise
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
from turnout.simulator.plans import RunPlan
from turnout.simulator.play import play
from turnout.simulator.sweep import missing_plans, play_into, sweep
from turnout.store import RoundColumns, RunStore

SaveOption = Annotated[Path | None, typer.Option("--save", help="Keep the runs in this store; a stopped run goes on.")]
StoreOption = Annotated[
    Path | None,
    typer.Option("--save", "--store", help="Keep the runs in this store; what it holds is not played again."),
]
PromiseOption = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="The share of rounds that debts are counted against; by default what is promised."),
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
    figure: Annotated[Path | None, typer.Option(help="Also draw it into this file (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Play one or more policies in the same world and show what each gives.

    By default rbcsf and random in the paper's world.
    """
    plans = [
        replace(plan, seed=seed) for plan in contenders(policies, config, settings, world, rounds, ("rbcsf", "random"))
    ]
    for plan in plans:
        plan.build()  # what cannot be played is refused before anything is
    promised = _promised(plans) if promise is None else promise
    played = _played(plans, save)
    summaries = [summarise(columns, guaranteed_rate=promised) for columns in played]
    if figure is not None:
        names = [plan.name for plan in plans]
        tables = overview_tables({name: [columns] for name, columns in zip(names, played, strict=True)})
        save_as(draw_overview(names, *tables, promised), figure)
    if json:
        print_json([{"policy": plan.name, **asdict(one)} for plan, one in zip(plans, summaries, strict=True)])
        return
    title = f"{plans[0].rounds} rounds, seed {seed}, debts against a promised {promised:g} of the rounds"
    Console().print(_summary_table(title, plans, summaries))


def compare(
    policies: PoliciesArgument = None,
    suite: Annotated[
        str | None, typer.Option(help=f"Every policy on the same worlds: {', '.join(SUITES)}; see docs/leaderboard.md.")
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded clients for --suite traces; may be repeated. By default they are generated."),
    ] = None,
    config: ConfigOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: RoundsOption = None,
    seeds: Annotated[int | None, typer.Option(min=2, help="Seeds 0, 1, …; by default 10, or the suite's own.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Compare with this one; by default random, or the first.")
    ] = None,
    promise: PromiseOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for the figures and data of a suite; the store too, if none is named."),
    ] = None,
    save: StoreOption = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Play policies over many seeds and compare them seed by seed, with 95 % confidence intervals.

    With --suite: the leaderboard, of every policy, with the Pareto front of time and fairness marked.
    """
    if suite is not None:
        said = {"policies": policies, "--config": config, "--set": settings, "--world": world}
        _refuse_beside("--suite, which says it itself", {**said, "--baseline": baseline, "--promise": promise})
        show_leaderboard(
            suite, traces=traces, seeds=seeds, rounds=rounds, out=out, store=save, workers=workers, json=json
        )
        return
    _refuse_beside("a comparison without --suite", {"--traces": traces, "--out": out})
    plans = contenders(policies, config, settings, world, rounds, ("rbcsf", "random", "fedcs"))
    count = seeds or (read_config(config).get("seeds", 10) if config is not None else 10)
    for plan in plans:
        plan.build()
    names = [plan.name for plan in plans]
    if baseline is not None and baseline not in names:
        raise SettingError(
            f"there is no {baseline!r} to compare with{suggestion(baseline, names)}; there are {', '.join(names)}"
        )
    reference = names.index(baseline or ("random" if "random" in names else names[0]))
    by_seed = [[replace(plan, seed=one) for one in range(count)] for plan in plans]
    figures = _swept(by_seed, _promised(plans) if promise is None else promise, save, workers)
    rows = [_compared(plan, own, figures[reference]) for plan, own in zip(plans, figures, strict=True)]
    if json:
        print_json({"seeds": count, "baseline": names[reference], "policies": rows})
        return
    Console().print(_comparison_table(rows, plans[0].rounds, count, names[reference]))


def _refuse_beside(what: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None and value != []:
            raise SettingError(f"{name} cannot be used with {what}: leave it out")


def _played(plans: Sequence[RunPlan], save: Path | None) -> list[RoundColumns]:
    if save is None:
        with progress_bar() as progress:
            return [_played_here(plan, progress) for plan in plans]
    with resumable(), RunStore(save) as store, progress_bar() as progress:
        task = progress.add_task("Playing", total=sum(plan.rounds for plan in plans))
        kept = []
        for place, plan in enumerate(plans):
            before = sum(one.rounds for one in plans[:place])

            def watch(done: int, before: int = before) -> None:
                progress.update(task, completed=before + done)

            kept.append(store.columns(play_into(store, plan, watch=watch)))
        return kept


def _played_here(plan: RunPlan, progress: Progress) -> RoundColumns:
    policy, world = plan.build()
    records = progress.track(play(policy, world, plan.rounds), total=plan.rounds, description=f"Playing {plan.name}")
    return RoundColumns.from_records(records, clients=world.clients)


def _promised(plans: Sequence[RunPlan]) -> float:
    """What the first policy that promises something promises to all alike; the paper's rate if none does."""
    rates = [plan.settings["guaranteed_rate"] for plan in plans if "guaranteed_rate" in plan.settings]
    return next((float(exact_rate(rate)) for rate in rates if isinstance(rate, float | int | str)), DEFAULT_RATE)


def _swept(by_seed: list[list[RunPlan]], promise: float, save: Path | None, workers: int | None) -> list[list[Summary]]:
    with ExitStack() as open_until_done:
        if save is None:
            folder = open_until_done.enter_context(tempfile.TemporaryDirectory())
        else:
            open_until_done.enter_context(resumable())
        store = open_until_done.enter_context(RunStore(save or Path(folder) / "runs.turnout"))
        plans = [plan for own in by_seed for plan in own]
        with progress_bar() as progress:
            task = progress.add_task("Playing", total=len(missing_plans(plans, store)))
            runs = iter(sweep(plans, store, workers=workers, watch=lambda _: progress.advance(task)))
        return [[summarise(store.columns(next(runs)), guaranteed_rate=promise) for _ in own] for own in by_seed]


def _compared(plan: RunPlan, own: list[Summary], reference: list[Summary]) -> dict[str, Any]:
    """Each figure as mean and half-width over seeds; the time saved is taken seed by seed."""

    def told(values: list[float]) -> dict[str, float]:
        mean, half_width = mean_and_band(np.array(values))
        return {"mean": float(mean), "half_width": float(half_width)}

    return {
        "policy": plan.name,
        "mean_round": told([one.mean_round for one in own]),
        "time_saved": told([1 - a.total_time / b.total_time for a, b in zip(own, reference, strict=True)]),
        "least_share": told([one.least_share for one in own]),
        "worst_debt": told([one.worst_debt for one in own]),
        "jain": told([one.jain for one in own]),
    }


def _summary_table(title: str, plans: Sequence[RunPlan], summaries: Sequence[Summary]) -> Table:
    table = Table(title=title)
    for heading in ("policy", "mean round", "95 % of rounds", "total", "chosen", "least chosen", "worst debt", "Jain"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for plan, one in zip(plans, summaries, strict=True):
        table.add_row(
            plan.name,
            f"{one.mean_round:.2f} s",
            f"{one.p95_round:.2f} s",
            f"{one.total_time / 60:.1f} min",
            f"{one.mean_cohort:.1f}",
            f"{one.least_share:.3f}",
            f"{one.worst_debt:.1f}",
            f"{one.jain:.3f}",
        )
    return table


def _comparison_table(rows: list[dict[str, Any]], rounds: int, seeds: int, baseline: str) -> Table:
    table = Table(title=f"{rounds} rounds, {seeds} seeds, mean ± 95 % confidence; time saved against {baseline}")
    for heading in ("policy", "mean round, s", "time saved, %", "least chosen", "worst debt", "Jain"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        cells = [row["policy"]]
        for word, scale, digits in (
            ("mean_round", 1, 2),
            ("time_saved", 100, 1),
            ("least_share", 1, 3),
            ("worst_debt", 1, 1),
            ("jain", 1, 3),
        ):
            one = row[word]
            cells.append(f"{one['mean'] * scale:.{digits}f} ± {one['half_width'] * scale:.{digits}f}")
        table.add_row(*cells)
    return table
