"""`turnout simulate`: policies in a simulated world, over one or many seeds, compared in a table and in figures."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.lab.measuring import Comparison, MeasuredPolicy, measure
from turnout.cli.lab.plans import WorldOption, contenders, read_config
from turnout.cli.lab.playing import Machines, TrackOption, Tracks, played
from turnout.cli.options import DeviceOption, JsonOption, SettingOption, StoreOption, WorkersOption, print_json, say
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.errors import SettingError, suggestion
from turnout.kernel.certificate import DEFAULT_TOLERANCE, PromiseStatus, TimeUnit
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.metrics import JudgedPromise, first_promise, judged_tolerance
from turnout.lab.analysis.promise import turns_behind
from turnout.lab.analysis.statistics import UNIT_RANGE, LearningCurve, format_interval
from turnout.lab.columns import RoundColumns, as_csv, write_text
from turnout.lab.drawing import figures
from turnout.lab.drawing.style import save
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import run_id
from turnout.lab.worlds.registry import OUR_WORLDS

ANY = (-math.inf, math.inf)


def status_cell(status: PromiseStatus, tolerance: float) -> str:
    """Returns a status for a table; "behind" says that it is within the tolerance.

    >>> status_cell("behind", 2.0), status_cell("broken", 2.0)
    ('behind ≤ 2', 'broken')
    """
    return f"behind ≤ {tolerance:g}" if status == "behind" else status


def format_mean(
    interval: Mapping[str, float | None],
    digits: int,
    *,
    scale: float = 1.0,
    unit: str = "",
    limits: tuple[float, float] = ANY,
) -> str:
    """Returns a mean with its confidence interval, as `Comparison.as_dict` has it, for a table."""
    mean, half_width = (math.nan if value is None else value * scale for value in interval.values())
    return format_interval(mean, half_width, digits, unit=unit, limits=limits)


def baseline_index(contenders: Sequence[MeasuredPolicy], baseline: str | None) -> int:
    """Returns the index of the policy to compare with: by default random, or the first.

    It is named as tables name it, or by its policy if only one contender has this.
    """
    wanted = "random" if baseline is None else baseline
    names = [contender.name for contender in contenders]
    policies = [contender.plan.get("policy") for contender in contenders]
    if wanted in names:
        return names.index(wanted)
    if policies.count(wanted) == 1:
        return policies.index(wanted)
    if baseline is None:
        return 0
    raise SettingError(
        f"there is no {baseline!r} to compare with{suggestion(baseline, names)}; there are {', '.join(names)}"
    )


def show_comparison(
    store: RunStore,
    contenders: Sequence[MeasuredPolicy],
    reference: int,
    promise: JudgedPromise,
    target: float | None,
    folder: Path | None,
    *,
    json: bool,
) -> None:
    """Measures stored runs of equal length, prints the result, and writes it to a folder.

    Args:
        store: The store of the runs.
        contenders: The policies and their runs.
        reference: The index of the policy with which the others are compared, seed by seed.
        promise: The promise by which all are judged.
        target: The accuracy whose time is measured, or None.
        folder: The folder for figures, data and table, or None.
        json: Print JSON instead of a table.
    """
    runs = [[store.columns(run) for run in contender.runs] for contender in contenders]
    comparison = Comparison(
        measured=[measure(*pair, promise, target) for pair in zip(contenders, runs, strict=True)],
        reference=reference,
        promise=promise,
        rounds=len(runs[0][0]),
        target=target,
    )
    if folder is not None:
        names = (contender.name for contender in contenders)
        write_comparison(comparison, dict(zip(names, runs, strict=True)), folder)
    if json:
        print_json(comparison.as_dict())
        return
    rows = (_cells(comparison, row) for row in comparison.as_dict()["policies"])
    print_table(_headings(comparison), rows, title=_title(comparison))
    Console(highlight=False).print(_explanation(comparison), markup=False)
    if folder is not None:
        say(f"Written: {folder}")


def write_comparison(comparison: Comparison, runs: dict[str, list[RoundColumns]], folder: Path) -> None:
    """Writes the data of a comparison as CSV and JSON, and its figures as SVG and PNG.

    Args:
        comparison: The comparison.
        runs: The compared rounds of each contender, one run per seed.
        folder: The folder, which is created.
    """
    text = json_module.dumps(comparison.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(folder / "comparison.json", text)
    write_text(folder / "seeds.csv", comparison.seeds_table().to_csv())
    names = list(runs)
    if comparison.concurrency is None:
        times, shares = figures.overview_tables(runs)
        write_text(folder / "training-time.csv", as_csv(times))
        write_text(folder / "shares.csv", as_csv(shares))
        save(figures.draw_overview(names, times, shares, comparison.promise.number), folder, "overview")
    promise = comparison.promise
    guarantee = Guarantee(promise.number, accrual=promise.accrual, counts=promise.counts, allow_infeasible=True)
    behind = figures.behind_table({name: [turns_behind(run, guarantee) for run in own] for name, own in runs.items()})
    write_text(folder / "behind.csv", as_csv(behind))
    tolerances = {measured.contender.name: measured.tolerance for measured in comparison.measured}
    save(figures.draw_behind(behind, tolerances, TimeUnit.of(comparison.concurrency)), folder, "behind")
    if comparison.trains:
        curves = figures.accuracy_table({name: [LearningCurve.of(run) for run in own] for name, own in runs.items()})
        write_text(folder / "accuracy.csv", as_csv(curves))
        save(figures.draw_accuracy(names, curves, comparison.target), folder, "accuracy")


def _title(comparison: Comparison) -> str:
    seeds = f"{comparison.seeds} seeds, mean ± 95 % confidence"
    if comparison.seeds == 1:
        seeds = f"seed {comparison.measured[0].contender.seeds[0]}"
    promise = comparison.promise
    if comparison.concurrency is None:
        return f"{pluralize(comparison.rounds, 'round')}, {seeds}; {promise}"
    promised = f"promised {promise.number:g} of {'its' if promise.accrual == 'available' else 'all'} decisions"
    turns, slots = pluralize(comparison.rounds, "turn"), pluralize(comparison.concurrency, "slot")
    return f"{turns}, {slots}, {seeds}; {promised}"


def _headings(comparison: Comparison) -> list[str]:
    if comparison.concurrency is None:
        speed = ["mean round, s", "saved, %"]
    else:
        speed = ["updates/s", f"× {comparison.baseline}", "staleness"]
    training = ["accuracy"] if comparison.trains else []
    if comparison.target is not None:
        training.append(f"min to {comparison.target:g}")
    numbers = (f"{heading}>" for heading in (*speed, *training, "least share", "shortfall"))
    return ["policy", *numbers, "status", *([] if training else ["Jain>"])]


def _explanation(comparison: Comparison) -> str:
    """Returns what the columns mean."""
    has_rounds = comparison.concurrency is None
    training = ["accuracy: mean over the last tenth of a run."] if comparison.trains else []
    if comparison.target is not None:
        training.append(
            f"min to {comparison.target:g}: simulated minutes until the accuracy is reached; a run that never does "
            "counts with its whole duration."
        )
    training += [
        f"{one.contender.name}: {pluralize(one.diverged, 'model')} diverged and were not averaged; use a smaller rate."
        for one in comparison.measured
        if one.diverged
    ]
    if has_rounds:
        speed = [f"saved: time of all rounds against {comparison.baseline}, seed by seed.", *training]
        share = f"as a share {comparison.measured[0].share_of}."
    else:
        speed = [*training, "staleness: versions of the model that the server made during a turn, one per update."]
        share = "divided by the decisions with which it earned; a client earns while it is available or training."
    sentences = [
        *speed,
        f"least share: turns of the client with the fewest, {share}",
        f"shortfall: promised turns minus turns, the largest of any client after any "
        f"{'round' if has_rounds else 'decision'}.",
        "status: at the worst moment; kept is less than one turn behind, broken is beyond the tolerance.",
        *(["Shortfall and status: in the worst of the seeds."] if comparison.seeds > 1 else []),
    ]
    return " ".join(sentences)


def _cells(comparison: Comparison, row: dict[str, Any]) -> list[str]:
    if comparison.concurrency is None:
        cells = [row["policy"], format_mean(row["mean_round"], 2), format_mean(row["time_saved"], 1, scale=100)]
    else:
        cells = [row["policy"], format_mean(row["updates_per_second"], 3), format_mean(row["speedup"], 2)]
        cells.append(format_mean(row["mean_staleness"], 1))
    if comparison.trains:
        cells.append(format_mean(row["final_accuracy"], 3, limits=UNIT_RANGE))
    if comparison.target is not None:
        never = row["never_reached_target"]
        text = format_mean(row["minutes_to_target"], 1)
        cells.append(f"≥ {text} ({never} never)" if never else text)
    cells.append(format_mean(row["least_share"], 3 if comparison.concurrency is None else 4, limits=UNIT_RANGE))
    cells += [f"{row['largest_shortfall']:.2f}", status_cell(row["status"], row["tolerance"])]
    return cells if comparison.trains else [*cells, format_mean(row["jain"], 3, limits=UNIT_RANGE)]


POLICIES = ("fair-pace", "random")


def simulate(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of policies, such as fair-pace random; with settings, rbcsf:speed_weight=5,prior=fleet; of "
            "your own, my.module:MyPolicy. turnout policies lists them."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with rounds, world and policies; see docs/simulating.md.")
    ] = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds; by default 500.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; by default 1, or that of the configuration file.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of slots: instead of rounds, one client is given a turn whenever a slot is free. --rounds is "
            "the number of turns.",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Policy to compare with; by default random, or the first.")
    ] = None,
    promise: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Guaranteed rate by which all policies are judged; by default that of the first with one.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Tolerance in turns by which all policies are judged; by default that of each policy, or "
            f"{DEFAULT_TOLERANCE:g}."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Accuracy, such as 0.9: the time to reach it is compared, in a world that trains."
        ),
    ] = None,
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
    """Simulate policies in the same world and compare them (by default fair-pace and random).

    With --seeds, the comparison is made seed by seed, with 95 % confidence intervals. In a world that trains, it has
    accuracies too. With --concurrency there are no rounds: a client is given a turn whenever a slot is free
    (docs/asynchronous.md).

    With --store, runs that the store holds are not repeated, so the same command continues an interrupted one. Every
    run is the same with any number of workers, byte for byte (docs/simulating.md).

    Example: turnout simulate fair-pace rbcsf:speed_weight=5 random --seeds 5 --rounds 200 --world clients=50
    """
    plans = contenders(policies, config, settings, world, rounds, POLICIES, concurrency)
    if target is not None and plans[0].world in OUR_WORLDS:
        raise SettingError(
            f"--target needs a world that trains, such as --world name=training: {plans[0].world} trains no model"
        )
    count = seeds or (1 if config is None else read_config(config).get("seeds", 1))
    guarantees = [plan.start().policy.guarantee for plan in plans]  # reports invalid settings before the first round
    judged_by = first_promise(guarantees, promise)
    entries = [
        MeasuredPolicy(plan.name, plan.as_dict(), range(seed, seed + count), judged_tolerance(guarantee, tolerance))
        for plan, guarantee in zip(plans, guarantees, strict=True)
    ]
    reference = baseline_index(entries, baseline)
    by_policy = [[replace(plan, seed=each) for each in range(seed, seed + count)] for plan in plans]
    named: dict[str, list[RunPlan]] = {}
    for plan, runs in zip(plans, by_policy, strict=True):
        named.setdefault(plan.name, []).extend(runs)  # labels of a configuration file may be equal
    with played(named, store, Machines(workers, device), Tracks(track), out=out) as opened:
        entries = [
            replace(entry, runs=[run_id(opened, plan) for plan in runs])
            for entry, runs in zip(entries, by_policy, strict=True)
        ]
        show_comparison(opened, entries, reference, judged_by, target, out, json=json)
