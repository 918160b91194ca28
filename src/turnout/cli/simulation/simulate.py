"""`turnout simulate` and `turnout compare`: policies in a simulated world."""

from __future__ import annotations

import math
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

from turnout.analysis.statistics import UNIT_RANGE, format_interval, mean_confidence_interval
from turnout.cli.completion import complete_policies, complete_suites
from turnout.cli.interruption import resumable
from turnout.cli.learners import play_all
from turnout.cli.options import (
    ConcurrencyOption,
    ConfigOption,
    DeviceOption,
    JsonOption,
    PoliciesArgument,
    RoundsOption,
    SeedOption,
    SettingOption,
    StoreOption,
    WorkersOption,
    WorldOption,
    contenders,
    print_json,
    progress_bar,
    read_config,
)
from turnout.cli.simulation.judging import (
    Judged,
    JudgedPromise,
    PromiseOption,
    ToleranceOption,
    promise_of,
    status_cell,
    tolerance_of,
    worst_of,
)
from turnout.cli.simulation.slots import compare_slots, show_slots
from turnout.cli.studies.leaderboard import show_leaderboard
from turnout.cli.studies.slot_board import show_slot_board
from turnout.errors import SettingError, suggestion
from turnout.experiments.framework.drawing import save_as
from turnout.experiments.leaderboard.slots import SLOT_SUITES
from turnout.experiments.leaderboard.suites import SUITES
from turnout.experiments.paper.comparison import draw_overview, overview_tables
from turnout.kernel.certificate import Tolerance
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import play_into
from turnout.store import RoundColumns, RunStore

ANY = (-math.inf, math.inf)
SIMULATED = ("fair-pace", "random")
COMPARED = ("fair-pace", "rbcsf", "random", "fedcs")
NOTE = (
    "largest shortfall: promised turns minus turns, of any client after any round. status: at the worst moment; kept "
    "is less than one turn behind, broken is beyond the tolerance."
)


def simulate(
    policies: PoliciesArgument = None,
    config: ConfigOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = 0,
    promise: PromiseOption = None,
    tolerance: ToleranceOption = None,
    concurrency: ConcurrencyOption = None,
    store: StoreOption = None,
    figure: Annotated[Path | None, typer.Option(help="File for a figure (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Simulate policies in the same world and summarise their rounds (by default fair-pace and random).

    With --concurrency there are no rounds: a client is given a turn whenever a slot is free (docs/asynchronous.md).

    Example: turnout simulate fair-pace random --rounds 200 --set cohort_size=5 --world clients=50
    """
    if concurrency is not None:
        _reject_options("--concurrency", {"--figure": figure})
    found = contenders(policies, config, settings, world, rounds, SIMULATED, concurrency)
    plans = [replace(plan, seed=seed) for plan in found]
    built = [plan.start().policy for plan in plans]  # reports invalid settings before the first round
    judged_by = promise_of(built, promise)
    tolerances = [tolerance_of(policy, tolerance) for policy in built]
    with resumable(saved=store is not None):
        runs = _simulate(plans, store)
    judged = [judged_by.judge(columns, allowed) for columns, allowed in zip(runs, tolerances, strict=True)]
    if concurrency is not None:
        show_slots(plans, judged, judged_by, json=json)
        return
    if figure is not None:
        names = [plan.name for plan in plans]
        tables = overview_tables({name: [columns] for name, columns in zip(names, runs, strict=True)})
        save_as(draw_overview(names, *tables, judged_by.number), figure)
    if json:
        print_json([{"policy": plan.name, **_judged_dict(row)} for plan, row in zip(plans, judged, strict=True)])
        return
    Console().print(_summary_table(f"{plans[0].rounds} rounds, seed {seed}; {judged_by}", plans, judged))
    Console(highlight=False).print(NOTE)


def compare(
    policies: PoliciesArgument = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help=f"Leaderboard of all policies: {', '.join(SUITES)}; without rounds: {', '.join(SLOT_SUITES)}.",
            autocompletion=complete_suites,
        ),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="Trace file for the suites with traces; by default clients are generated. Repeatable."),
    ] = None,
    config: ConfigOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: RoundsOption = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Number of seeds; by default 10, or that of the suite.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Policy to compare with; by default random, or the first.", autocompletion=complete_policies),
    ] = None,
    promise: PromiseOption = None,
    tolerance: ToleranceOption = None,
    concurrency: ConcurrencyOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures and data of a suite, and for its store unless --store is given."),
    ] = None,
    store: StoreOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Compare policies over many seeds, seed by seed, with 95 % confidence intervals.

    By default the policies are fair-pace, rbcsf, random and fedcs. With --suite, the comparison is a leaderboard of all
    policies that marks the Pareto front of time and fairness.

    Example: turnout compare fair-pace rbcsf random --seeds 20
    """
    if suite is not None:
        fixed = {"policies": policies, "--config": config, "--set": settings, "--world": world}
        judging = {"--baseline": baseline, "--promise": promise, "--tolerance": tolerance, "--concurrency": concurrency}
        _reject_options("--suite, which defines it", {**fixed, **judging})
        suites = [*SUITES, *SLOT_SUITES]
        if suite not in suites:
            raise SettingError(f"unknown suite {suite!r}{suggestion(suite, suites)}; there are {', '.join(suites)}")
        if suite in SLOT_SUITES:
            show_slot_board(
                suite,
                traces=traces,
                seeds=seeds,
                turns=rounds,
                out=out,
                store=store,
                workers=workers,
                device=device,
                json=json,
            )
            return
        _reject_options(f"the suite {suite}", {"--device": None if device == "cpu" else device})
        show_leaderboard(
            suite, traces=traces, seeds=seeds, rounds=rounds, out=out, store=store, workers=workers, json=json
        )
        return
    only_suites = {"--traces": traces, "--out": out, "--device": None if device == "cpu" else device}
    _reject_options("a comparison without --suite", only_suites)
    usual = COMPARED if concurrency is None else SIMULATED
    plans = contenders(policies, config, settings, world, rounds, usual, concurrency)
    count = seeds or (read_config(config).get("seeds", 10) if config is not None else 10)
    built = [plan.start().policy for plan in plans]  # reports invalid settings before the first run
    names = [plan.name for plan in plans]
    if baseline is not None and baseline not in names:
        raise SettingError(
            f"there is no {baseline!r} to compare with{suggestion(baseline, names)}; there are {', '.join(names)}"
        )
    reference = names.index(baseline or ("random" if "random" in names else names[0]))
    by_seed = [[replace(plan, seed=seed) for seed in range(count)] for plan in plans]
    judged_by = promise_of(built, promise)
    with resumable(saved=store is not None):
        figures = _sweep(by_seed, judged_by, [tolerance_of(policy, tolerance) for policy in built], store, workers)
    if concurrency is not None:
        compare_slots(plans, figures, reference, judged_by, count, json=json)
        return
    rows = [_compare(plan, judged, figures[reference]) for plan, judged in zip(plans, figures, strict=True)]
    if json:
        known = {"guaranteed_rate": judged_by.number, "accrual": judged_by.accrual}
        print_json({"seeds": count, "baseline": names[reference], **known, "policies": rows})
        return
    title = f"{plans[0].rounds} rounds, {count} seeds, mean ± 95 % confidence; {judged_by}"
    Console().print(_comparison_table(title, rows, names[reference]))
    Console(highlight=False).print(f"{NOTE} Both in the worst of the seeds.")


def _reject_options(mode: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None and value != []:
            raise SettingError(f"{name} cannot be used with {mode}: omit it")


def _simulate(plans: Sequence[RunPlan], path: Path | None) -> list[RoundColumns]:
    if path is None:
        with progress_bar() as progress:
            return [_simulate_in_memory(plan, progress) for plan in plans]
    with RunStore(path) as store, progress_bar() as progress:
        task = progress.add_task("Simulating", total=sum(plan.rounds for plan in plans))
        runs = []
        for index, plan in enumerate(plans):
            before = sum(earlier.rounds for earlier in plans[:index])

            def watch(done: int, before: int = before) -> None:
                progress.update(task, completed=before + done)

            runs.append(store.columns(play_into(store, plan, watch=watch)))
        return runs


def _simulate_in_memory(plan: RunPlan, progress: Progress) -> RoundColumns:
    run = plan.start()
    records = progress.track(run.play(plan.rounds), total=plan.rounds, description=f"Simulating {plan.name}")
    return RoundColumns.from_records(records, clients=run.world.clients)


def _sweep(
    by_seed: list[list[RunPlan]],
    promise: JudgedPromise,
    tolerances: Sequence[Tolerance],
    path: Path | None,
    workers: int | None,
) -> list[list[Judged]]:
    with ExitStack() as open_until_done:
        if path is None:
            path = Path(open_until_done.enter_context(tempfile.TemporaryDirectory())) / "runs.turnout"
        store = open_until_done.enter_context(RunStore(path))
        plans = [plan for plans_of_policy in by_seed for plan in plans_of_policy]
        with progress_bar() as progress:
            runs = iter(play_all(plans, store, workers, progress))
        return [
            [promise.judge(store.columns(next(runs)), tolerance) for _ in plans_of_policy]
            for plans_of_policy, tolerance in zip(by_seed, tolerances, strict=True)
        ]


def _compare(plan: RunPlan, own: list[Judged], reference: list[Judged]) -> dict[str, Any]:
    """Returns mean and half-width over seeds of each figure; the time saved is a mean of differences per seed."""

    def interval(values: list[float]) -> dict[str, float]:
        mean, half_width = mean_confidence_interval(np.array(values))
        return {"mean": float(mean), "half_width": float(half_width)}

    def figure(name: str) -> list[float]:
        return [float(getattr(judged.summary, name)) for judged in own]

    totals = zip(own, reference, strict=True)
    return {
        "policy": plan.name,
        "mean_round": interval(figure("mean_round")),
        "time_saved": interval([1 - a.summary.total_time / b.summary.total_time for a, b in totals]),
        "least_share": interval(figure("least_share")),
        "share_of": own[0].summary.share_of,
        "worst_debt": interval(figure("worst_debt")),
        "largest_shortfall": max(figure("largest_shortfall")),
        "shortfall_at_end": max(figure("shortfall_at_end")),
        "tolerance": own[0].tolerance,
        "status": worst_of([judged.status for judged in own]),
        "jain": interval(figure("jain")),
    }


def _judged_dict(judged: Judged) -> dict[str, Any]:
    return {**asdict(judged.summary), "tolerance": judged.tolerance, "status": judged.status}


def _summary_table(title: str, plans: Sequence[RunPlan], judged: Sequence[Judged]) -> Table:
    table = Table(title=title)
    share = f"least share {judged[0].summary.share_of}"
    headings = (
        "policy",
        "mean round",
        "95 % of rounds",
        "total",
        "cohort",
        share,
        "largest shortfall",
        "status",
        "Jain",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("policy", "status") else "right")
    for plan, row in zip(plans, judged, strict=True):
        summary = row.summary
        table.add_row(
            plan.name,
            f"{summary.mean_round:.2f} s",
            f"{summary.p95_round:.2f} s",
            f"{summary.total_time / 60:.1f} min",
            f"{summary.mean_cohort:.1f}",
            f"{summary.least_share:.3f}",
            f"{summary.largest_shortfall:.2f} turns",
            status_cell(row.status, row.tolerance),
            f"{summary.jain:.3f}",
        )
    return table


def _comparison_table(title: str, rows: list[dict[str, Any]], baseline: str) -> Table:
    table = Table(title=title)
    share = f"least share {rows[0]['share_of']}"
    saved = f"% saved against {baseline}"
    for heading in ("policy", "mean round, s", saved, share, "largest shortfall, turns", "status", "Jain"):
        table.add_column(heading, justify="left" if heading in ("policy", "status") else "right")

    def cell(interval: dict[str, float], digits: int, scale: float = 1.0, limits: tuple[float, float] = ANY) -> str:
        return format_interval(interval["mean"] * scale, interval["half_width"] * scale, digits, limits=limits)

    for row in rows:
        table.add_row(
            row["policy"],
            cell(row["mean_round"], 2),
            cell(row["time_saved"], 1, 100),
            cell(row["least_share"], 3, limits=UNIT_RANGE),
            f"{row['largest_shortfall']:.2f}",
            status_cell(row["status"], row["tolerance"]),
            cell(row["jain"], 3, limits=UNIT_RANGE),
        )
    return table
