"""`turnout simulate` and `turnout compare`: policies in a simulated world."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from turnout.cli.completion import complete_policies, complete_suites
from turnout.cli.interruption import resumable
from turnout.cli.lab.comparing import (
    ContenderRuns,
    CsvOption,
    Output,
    TargetOption,
    baseline_index,
    show_comparison,
)
from turnout.cli.lab.judging import (
    Judgement,
    PromiseOption,
    ToleranceOption,
    promise_of,
    status_cell,
    tolerance_of,
)
from turnout.cli.lab.measuring import Contender
from turnout.cli.lab.slots import show_slots
from turnout.cli.lab.tracking import TrackOption, Tracks
from turnout.cli.learners import play_all
from turnout.cli.naming import parse_policy
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
    WithOption,
    WorkersOption,
    WorldOption,
    contenders,
    print_json,
    progress_bar,
    read_config,
)
from turnout.cli.studies.leaderboard import show_leaderboard
from turnout.cli.studies.slot_board import show_slot_board
from turnout.counting import counted
from turnout.errors import SettingError, suggestion
from turnout.lab.columns import RoundColumns
from turnout.lab.drawing.comparison import draw_overview, overview_tables
from turnout.lab.drawing.style import save_as
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, missing_plans, play_into
from turnout.lab.studies.leaderboard.slots import SLOT_SUITES
from turnout.lab.studies.leaderboard.suites import SUITES
from turnout.lab.training.distributed import check_device
from turnout.lab.worlds.registry import OUR_WORLDS

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
    track: TrackOption = None,
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
    tracks = Tracks(track)
    with resumable(saved=store is not None):
        runs = _simulate(plans, store, tracks)
    tracks.warn()
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
    Console().print(_summary_table(f"{counted(plans[0].rounds, 'round')}, seed {seed}; {judged_by}", plans, judged))
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
    further: WithOption = None,
    target: TargetOption = None,
    csv: CsvOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figures, data and table, and for the store of the runs unless --store is given."),
    ] = None,
    store: StoreOption = None,
    track: TrackOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Compare policies over many seeds, seed by seed, with 95 % confidence intervals.

    By default the policies are fair-pace, rbcsf, random and fedcs. In a world that trains, accuracies are compared too.
    With --suite, the comparison is a leaderboard of all policies that marks the Pareto front of time and fairness.

    --with adds a policy, also one of your own (docs/plugins.md).

    Example: turnout compare fair-pace rbcsf:speed_weight=5 rbcsf:speed_weight=50 random --seeds 20 --out results
    """
    if suite is not None:
        fixed = {"policies": policies, "--config": config, "--set": settings, "--world": world}
        judging = {"--baseline": baseline, "--promise": promise, "--tolerance": tolerance, "--concurrency": concurrency}
        _reject_options("--suite, which defines it", {**fixed, **judging})
        _reject_options("--suite, which has --out and --json", {"--target": target, "--csv": csv})
        suites = [*SUITES, *SLOT_SUITES]
        if suite not in suites:
            raise SettingError(f"unknown suite {suite!r}{suggestion(suite, suites)}; there are {', '.join(suites)}")
        tracks = Tracks(track)
        if suite in SLOT_SUITES:
            show_slot_board(
                suite,
                further=further,
                traces=traces,
                seeds=seeds,
                turns=rounds,
                out=out,
                store=store,
                workers=workers,
                device=device,
                following=tracks.following,
                json=json,
            )
        else:
            show_leaderboard(
                suite,
                further=further,
                traces=traces,
                seeds=seeds,
                rounds=rounds,
                out=out,
                store=store,
                workers=workers,
                device=device,
                following=tracks.following,
                json=json,
            )
        tracks.warn()
        return
    _reject_options("a comparison without --suite", {"--traces": traces})
    usual = COMPARED if concurrency is None else SIMULATED
    plans = contenders(policies, config, settings, world, rounds, usual, concurrency, further)
    if target is not None and plans[0].world in OUR_WORLDS:
        raise SettingError(
            f"--target needs a world that trains, such as --world name=training: {plans[0].world} trains no model"
        )
    check_device(plans, device)
    count = seeds or (read_config(config).get("seeds", 10) if config is not None else 10)
    built = [plan.start().policy for plan in plans]  # reports invalid settings before the first run
    reference = _reference(plans, baseline)
    by_seed = [[replace(plan, seed=seed) for seed in range(count)] for plan in plans]
    judged_by = promise_of(built, promise)
    tolerances = [tolerance_of(policy, tolerance) for policy in built]
    if store is None and out is not None:
        out.mkdir(parents=True, exist_ok=True)
        store = out / "runs.turnout"
    tracks = Tracks(track)
    with resumable(saved=store is not None), _playing(by_seed, store, workers, device, tracks) as (opened, runs):
        entries = [
            ContenderRuns(Contender(plan.name, plan.as_dict(), range(count)), ids, allowed)
            for plan, ids, allowed in zip(plans, runs, tolerances, strict=True)
        ]
        show_comparison(opened, entries, reference, judged_by, target, Output(json, csv, out))
    tracks.warn()


def _reference(plans: Sequence[RunPlan], baseline: str | None) -> int:
    """Returns the index of the policy to compare with, which --baseline names as tables or the command line do."""
    names = [plan.name for plan in plans]
    if baseline is None or baseline in names:
        return baseline_index(names, baseline)
    if len(same := [index for index, plan in enumerate(plans) if plan.policy == baseline]) == 1:
        return same[0]
    if ":" in baseline and (named := parse_policy(baseline)) in (all_named := [_named(plan) for plan in plans]):
        return all_named.index(named)
    return baseline_index(names, baseline)


def _named(plan: RunPlan) -> tuple[str, dict[str, Any]]:
    return plan.policy, dict(plan.settings)


def _reject_options(mode: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None and value != []:
            raise SettingError(f"{name} cannot be used with {mode}: omit it")


def _simulate(plans: Sequence[RunPlan], path: Path | None, tracks: Tracks) -> list[RoundColumns]:
    named = {plan.name: [plan] for plan in plans}
    if path is None:
        with progress_bar() as progress, tracks.following(named, None, plans) as track:
            return [_simulate_in_memory(plan, progress, track) for plan in plans]
    with (
        RunStore(path) as store,
        progress_bar() as progress,
        tracks.following(named, store, missing_plans(plans, store)) as track,
    ):
        task = progress.add_task("Simulating", total=sum(plan.rounds for plan in plans))
        runs = []
        for index, plan in enumerate(plans):
            before = sum(earlier.rounds for earlier in plans[:index])

            def watch(done: int, before: int = before) -> None:
                progress.update(task, completed=before + done)

            runs.append(store.columns(play_into(store, plan, watch=watch, track=track)))
        return runs


def _simulate_in_memory(plan: RunPlan, progress: Progress, track: StoredWatcher | None) -> RoundColumns:
    run = plan.start()
    played = progress.track(run.play(plan.rounds), total=plan.rounds, description=f"Simulating {plan.name}")
    columns = RoundColumns.from_records(played, clients=run.world.clients)
    if track is not None:
        track(plan, columns)
    return columns


@contextmanager
def _playing(
    by_seed: list[list[RunPlan]], path: Path | None, workers: int | None, device: str, tracks: Tracks
) -> Iterator[tuple[RunStore, list[list[int]]]]:
    """Plays the runs that the store lacks, and yields the store and the runs of each policy."""
    with ExitStack() as open_until_done:
        if path is None:
            path = Path(open_until_done.enter_context(tempfile.TemporaryDirectory())) / "runs.turnout"
        store = open_until_done.enter_context(RunStore(path))
        plans = [plan for plans_of_policy in by_seed for plan in plans_of_policy]
        named = {plans_of_policy[0].name: plans_of_policy for plans_of_policy in by_seed}
        with tracks.following(named, store, missing_plans(plans, store)) as track, progress_bar() as progress:
            runs = iter(play_all(plans, store, workers, progress, device=device, track=track))
        yield store, [[next(runs) for _ in plans_of_policy] for plans_of_policy in by_seed]


def _judged_dict(judged: Judgement) -> dict[str, Any]:
    return {**asdict(judged.summary), "tolerance": judged.tolerance, "status": judged.status}


def _summary_table(title: str, plans: Sequence[RunPlan], judged: Sequence[Judgement]) -> Table:
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
