"""`turnout runs`: the runs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.advice import describe
from turnout.cli.lab.comparing import TargetOption, baseline_index, show_comparison
from turnout.cli.lab.grouping import group_runs
from turnout.cli.lab.judging import PromiseOption, ToleranceOption
from turnout.cli.lab.tracking import TrackOption, Tracks
from turnout.cli.options import JsonOption, make_table, print_json
from turnout.counting import pluralize
from turnout.errors import PluginError, SettingError
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.judging import PAPER_PROMISE, JudgedPromise, first_promise, guarantee_of_run
from turnout.lab.analysis.metrics import prediction_error, summarise
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.tables import as_kind, build_table
from turnout.lab.tables import write_text

StoreArgument = Annotated[Path, typer.Argument(help="Store of runs, such as results/runs.turnout.")]
RunArgument = Annotated[int, typer.Argument(help="Number of the run, as `turnout runs show` lists it.")]


class Format(StrEnum):
    """File formats for tables."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


class TableName(StrEnum):
    """Tables of runs."""

    runs = "runs"
    rounds = "rounds"
    clients = "clients"
    turns = "turns"


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
    if info.rounds and columns.contexts.shape[1]:
        shown["summary"]["prediction_error"] = prediction_error(columns)
    if json:
        print_json(shown)
        return
    table = Table(title=f"run {run}: {_name(info)}", show_header=False)
    for name, value in {**shown, **shown.pop("summary")}.items():
        if name != "summary":
            table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _list(store: Path, *, json: bool) -> None:
    with RunStore(store, read_only=True) as opened:
        infos = opened.runs()
    if json:
        print_json([_as_dict(info) for info in infos])
        return
    table = make_table(
        "run>", "policy", "seed>", "rounds>", "finished", "started", title=f"{pluralize(len(infos), 'run')} in {store}"
    )
    for info in infos:
        seed = str(info.plan.get("seed", ""))
        table.add_row(str(info.id), _name(info), seed, str(info.rounds), "yes" if info.finished else "no", info.started)
    Console().print(table)


def export(
    store: StoreArgument,
    chosen: Annotated[
        list[int] | None, typer.Argument(metavar="[RUN]...", help="Numbers of runs; by default all runs of the store.")
    ] = None,
    table: Annotated[
        TableName,
        typer.Option(
            help="What a row is: a run, a round, a client or a turn (a selected client of a round), with the settings "
            "of the run as columns."
        ),
    ] = TableName.rounds,
    as_: Annotated[
        Format | None,
        typer.Option("--format", help="By default that of the file's suffix, or csv. parquet needs pyarrow."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; by default standard output.")] = None,
    track: TrackOption = None,
) -> None:
    """Write runs as one tidy table (times in seconds), or send them to a tracker.

    Example: turnout runs export results/runs.turnout --table rounds --out rounds.parquet
    """
    form = as_ or _format_of(out)
    if form is Format.parquet and out is None:
        raise SettingError("--format parquet needs --out: it is not text")
    with RunStore(store, read_only=True) as opened:
        infos = [opened.info(run) for run in chosen] if chosen else opened.runs()
        if track:
            _track(opened, infos, track)
            if out is None and as_ is None:
                return
        rows = build_table(as_kind(table), ((info, opened.columns(info.id)) for info in infos), _promise_figures)
    if out is None:
        typer.echo(rows.to_csv() if form is Format.csv else rows.to_jsonl(), nl=False)
    elif form is Format.parquet:
        rows.write_parquet(out)
    else:
        write_text(out, rows.to_csv() if form is Format.csv else rows.to_jsonl())


def compare(
    store: StoreArgument,
    chosen: Annotated[
        list[int] | None, typer.Argument(metavar="[RUN]...", help="Numbers of runs; by default all runs of the store.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Policy to compare with; by default random, or the first.")
    ] = None,
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
        entries = group_runs([info for info in infos if info.rounds], tolerance)
        reference = baseline_index([entry.contender for entry in entries], baseline)
        guarantees = [guarantee_of_run(opened.info(entry.runs[0])) for entry in entries]
        judged_by = first_promise(guarantees, promise)
        show_comparison(opened, entries, reference, judged_by, target, out, json=json)


def _format_of(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.removeprefix(".")
    return Format(suffix) if suffix in list(Format) else Format.csv


def _track(store: RunStore, infos: Sequence[RunInfo], specifications: Sequence[str]) -> None:
    tracks = Tracks(specifications)
    for info in infos:
        tracks.record(store, info)
    tracks.warn()
    typer.echo(f"tracked {pluralize(len(infos), 'run')}", err=True)


def _promise_figures(info: RunInfo, columns: RoundColumns) -> dict[str, Any]:
    """Returns how a run kept its promise, or the paper's if it has none, for a table of runs."""
    summary = _summary(columns, guarantee_of_run(info))
    names = ("least_share", "share_of", "largest_shortfall", "shortfall_at_end", "jain", "tolerance", "status")
    return {name: summary[name] for name in names if name in summary}


def delete(
    store: StoreArgument,
    run: RunArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a run from its store.

    Example: turnout runs delete results/runs.turnout 3 --yes
    """
    with RunStore(store) as opened:
        info = opened.info(run)
        if not yes:
            typer.confirm(f"Delete run {run} ({_name(info)}, {pluralize(info.rounds, 'round')})?", abort=True)
        opened.delete(run)
    typer.echo(f"deleted run {run}")


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
