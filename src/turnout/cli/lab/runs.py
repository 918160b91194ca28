"""`turnout runs`: the runs of a store."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.advice import describe
from turnout.cli.completion import completing
from turnout.cli.lab.comparing import (
    BaselineOption,
    PromiseOption,
    TargetOption,
    ToleranceOption,
    baseline_index,
    show_comparison,
)
from turnout.cli.lab.measuring import Contender
from turnout.cli.lab.tracking import TrackOption, Tracks
from turnout.cli.options import JsonOption, OutOption, YesOption, confirm, print_json, print_table, say
from turnout.counting import pluralize
from turnout.errors import PluginError, SettingError, suggestion
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.judging import (
    PAPER_PROMISE,
    JudgedPromise,
    first_promise,
    guarantee_of_run,
    judged_tolerance,
)
from turnout.lab.analysis.metrics import summarise
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.tables import KINDS, build_table
from turnout.lab.tables import write_text

StoreArgument = Annotated[Path, typer.Argument(help="Store of runs, such as results/runs.turnout.")]
RunArgument = Annotated[int, typer.Argument(help="Number of the run, as `turnout runs show` lists it.")]
RunsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="[RUN]...", help="Numbers of runs; by default all runs of the store.")
]
FORMATS = ("csv", "jsonl", "parquet")
YES = {True: "yes", False: "no"}


def show(
    store: StoreArgument,
    run: Annotated[int | None, typer.Argument(help="Number of the run; by default all runs are listed.")] = None,
    json: JsonOption = False,
) -> None:
    """List the runs of a store, or show the settings of one and a summary of its rounds (times in seconds).

    Example: turnout runs show results/runs.turnout 3
    """
    if run is None:
        _list(store, json=json)
        return
    with RunStore(store, read_only=True) as opened:
        info = opened.info(run)
        columns = opened.columns(run)
    shown: dict[str, Any] = _as_dict(info)
    guarantee = None
    try:
        guarantee = guarantee_of_run(info)
    except PluginError as error:
        shown["missing"] = describe(error)
    shown["summary"] = _summary(columns, guarantee) if info.rounds else {}
    if json:
        print_json(shown)
        return
    values = shown | shown.pop("summary")
    rows = (
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in values.items()
    )
    print_table((), rows, title=f"run {run}: {_name(info)}")


def _list(store: Path, *, json: bool) -> None:
    with RunStore(store, read_only=True) as opened:
        infos = opened.runs()
    if json:
        print_json([_as_dict(info) for info in infos])
        return
    rows = (
        map(str, (info.id, _name(info), info.plan.get("seed", ""), info.rounds, YES[info.finished], info.started))
        for info in infos
    )
    headings = ("run>", "policy", "seed>", "rounds>", "finished", "started")
    print_table(headings, rows, title=f"{pluralize(len(infos), 'run')} in {store}")


def export(
    store: StoreArgument,
    chosen: RunsArgument = None,
    table: Annotated[
        str,
        typer.Option(
            metavar="|".join(KINDS),
            help="What a row is: a run, a round, a client or a turn (a selected client of a round), with the settings "
            "of the run as columns.",
            autocompletion=completing("lab.runs.tables:KINDS"),
        ),
    ] = "rounds",
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="By default that of the file's suffix, or csv. parquet needs pyarrow.",
        ),
    ] = None,
    out: OutOption = None,
    track: TrackOption = None,
) -> None:
    """Write runs as one tidy table (times in seconds), or send them to a tracker.

    Example: turnout runs export results/runs.turnout --table rounds --out rounds.parquet
    """
    suffix = "" if out is None else out.suffix.removeprefix(".")
    form = format_ or (suffix if suffix in FORMATS else "csv")
    if form not in FORMATS:
        raise SettingError(f"--format must be one of {', '.join(FORMATS)}, not {form!r}{suggestion(form, FORMATS)}")
    if form == "parquet" and out is None:
        raise SettingError("--format parquet needs --out: it is not text")
    with RunStore(store, read_only=True) as opened:
        infos = [opened.info(run) for run in chosen] if chosen else opened.runs()
        if track:
            _track(opened, infos, track)
            if out is None and format_ is None:
                return
        rows = build_table(table, ((info, opened.columns(info.id)) for info in infos), _promise_figures)
    if out is not None and form == "parquet":
        rows.write_parquet(out)
        return
    text = rows.to_csv() if form == "csv" else rows.to_jsonl()
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)


def compare(
    store: StoreArgument,
    chosen: RunsArgument = None,
    baseline: BaselineOption = None,
    promise: PromiseOption = None,
    tolerance: ToleranceOption = None,
    target: TargetOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for figures, data and table.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare runs that a store holds, without playing any; runs that differ only in their seed belong together.

    Only rounds and seeds that all policies have are compared.

    Example: turnout runs compare results/runs.turnout --out comparison
    """
    with RunStore(store, read_only=True) as opened:
        infos = [opened.info(run) for run in chosen] if chosen else opened.runs()
        entries = _group_runs([info for info in infos if info.rounds], tolerance)
        reference = baseline_index(entries, baseline)
        guarantees = [guarantee_of_run(opened.info(entry.runs[0])) for entry in entries]
        judged_by = first_promise(guarantees, promise)
        show_comparison(opened, entries, reference, judged_by, target, out, json=json)


def _track(store: RunStore, infos: Sequence[RunInfo], specifications: Sequence[str]) -> None:
    tracks = Tracks(specifications)
    for info in infos:
        tracks.record(store, info)
    tracks.warn()
    say(f"tracked {pluralize(len(infos), 'run')}", err=True)


def _promise_figures(info: RunInfo, columns: RoundColumns) -> dict[str, Any]:
    """Returns how a run kept its promise, or the paper's if it has none, for a table of runs."""
    summary = _summary(columns, guarantee_of_run(info))
    names = ("least_share", "share_of", "largest_shortfall", "shortfall_at_end", "jain", "tolerance", "status")
    return {name: summary[name] for name in names if name in summary}


def delete(
    store: StoreArgument,
    run: RunArgument,
    yes: YesOption = False,
) -> None:
    """Delete a run from its store.

    Example: turnout runs delete results/runs.turnout 3 --yes
    """
    with RunStore(store) as opened:
        info = opened.info(run)
        confirm(yes, f"Delete run {run} ({_name(info)}, {pluralize(info.rounds, 'round')})?")
        opened.delete(run)
    say(f"deleted run {run}")


def _summary(columns: RoundColumns, guarantee: Guarantee | None) -> dict[str, Any]:
    """Returns the figures of a run, and the status of its promise if it has one that can be judged."""
    if guarantee is None:
        return asdict(PAPER_PROMISE.summarise(columns))
    if guarantee.accrual == "available" and (columns.available is None or "available" in columns.absent):
        # Without the recorded availability nobody knows what was promised; the figures are those of all rounds.
        return asdict(summarise(columns, guaranteed_rate=guarantee.rate, counts=guarantee.counts))
    promise = JudgedPromise(guarantee.rate, guarantee.accrual, guarantee.counts)
    judged = promise.judge(columns, guarantee.tolerance)
    return {**asdict(judged.summary), "tolerance": judged.tolerance, "status": judged.status}


def _name(info: RunInfo) -> str:
    return str(info.plan.get("label") or info.plan.get("policy", info.key))


def _as_dict(info: RunInfo) -> dict[str, Any]:
    return {
        "run": info.id,
        **info.plan,
        "rounds_played": info.rounds,
        "finished": info.finished,
        "started": info.started,
        "code_version": info.code_version,
    }


def _group_runs(infos: Sequence[RunInfo], tolerance: float | None) -> list[Contender]:
    """Returns one contender per policy, with the seeds that all of them have; says if some are left out.

    Args:
        infos: The runs.
        tolerance: The tolerance by which all are judged; None for that of each policy.

    Raises:
        SettingError: If the runs cannot be compared: different worlds, two runs of one seed, or no common seed.
    """
    groups: dict[str, dict[int, RunInfo]] = {}
    for info in infos:
        by_seed = groups.setdefault(_key(info, ("policy", "settings", "label")), {})
        seed = int(info.plan.get("seed", 0))
        if seed in by_seed:
            raise SettingError(
                f"run {by_seed[seed].id} and run {info.id} are of the same policy and seed: name the runs to compare"
            )
        by_seed[seed] = info
    if not groups:
        raise SettingError("there is no run with rounds to compare: play one first")
    if len({_key(info, ("world", "world_settings", "concurrency")) for info in infos}) > 1:
        raise SettingError(
            "these runs belong to different worlds, so their times cannot be compared: name runs of one world"
        )
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in groups.values())))
    if not seeds:
        raise SettingError("these policies have no seed in common: name other runs")
    left_out = sum(len(by_seed) for by_seed in groups.values()) - len(seeds) * len(groups)
    if left_out:
        common = f"only seeds that all policies have are compared, {', '.join(map(str, seeds))}"
        say(f"{pluralize(left_out, 'run', 'are')} left out: {common}", err=True)
    contenders = []
    for by_seed in groups.values():
        first = by_seed[seeds[0]]
        allowed, runs = judged_tolerance(guarantee_of_run(first), tolerance), [by_seed[seed].id for seed in seeds]
        contenders.append(Contender(RunPlan.from_dict(first.plan).name, first.plan, seeds, allowed, runs))
    return contenders


def _key(info: RunInfo, names: Sequence[str]) -> str:
    return json_module.dumps([info.plan.get(name) for name in names], sort_keys=True)
