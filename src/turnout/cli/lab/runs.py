"""`turnout runs`: the runs of a store."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.advice import describe
from turnout.cli.options import JsonOption, YesOption, confirm, prepare_file, print_json, say
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.errors import PluginError
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.metrics import JudgedPromise, judged_tolerance, promise_of_runs, summarise
from turnout.lab.analysis.promise import knows_available
from turnout.lab.columns import RoundColumns, write_text
from turnout.lab.runs.plans import policy_of_plan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.tables import KINDS, RunInfo, build_table

StoreArgument = Annotated[Path, typer.Argument(help="Store of runs, such as results/runs.turnout.")]
RunArgument = Annotated[int, typer.Argument(help="Number of the run, as `turnout runs show` lists it.")]
RunsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="[RUN]...", help="Numbers of runs; by default all runs of the store.")
]
#: The formats of a table, by the suffix of the file.
SUFFIXES = (".csv", ".jsonl", ".parquet")
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
        columns, common = opened.columns(run), promise_of_runs(opened.runs())
    shown: dict[str, Any] = _as_dict(info)
    guarantee = None
    try:
        guarantee = policy_of_plan(info.plan, info.clients).guarantee
    except PluginError as error:
        shown["missing"] = describe(error)
    shown["summary"] = _summary(columns, guarantee, common) if info.rounds else {}
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
        ),
    ] = "rounds",
    out: Annotated[
        Path | None, typer.Option(help="File to write: .csv, .jsonl or .parquet; by default standard output, as CSV.")
    ] = None,
) -> None:
    """Write runs as one tidy table (times in seconds).

    Example: turnout runs export results/runs.turnout --table rounds --out rounds.parquet
    """
    with RunStore(store, read_only=True) as opened:
        prepare_file(out, *SUFFIXES)
        infos = [opened.info(run) for run in chosen] if chosen else opened.runs()
        figures = partial(_promise_figures, promise_of_runs(opened.runs()))
        rows = build_table(table, ((info, opened.columns(info.id)) for info in infos), figures)
    if out is None:
        typer.echo(rows.to_csv(), nl=False)
    elif out.suffix == ".parquet":
        rows.write_parquet(out)
    else:
        write_text(out, rows.to_csv() if out.suffix == ".csv" else rows.to_jsonl())


def _promise_figures(common: JudgedPromise, info: RunInfo, columns: RoundColumns) -> dict[str, Any]:
    """Returns how a run kept its promise, or that of its store if it has none, for a table of runs."""
    summary = _summary(columns, policy_of_plan(info.plan, info.clients).guarantee, common)
    names = ("least_share", "share_of", "largest_shortfall", "shortfall_at_end", "jain", "tolerance", "status")
    return {name: summary[name] for name in names if name in summary}


def delete(store: StoreArgument, run: RunArgument, yes: YesOption = False) -> None:
    """Delete a run from its store.

    Example: turnout runs delete results/runs.turnout 3 --yes
    """
    RunStore(store, read_only=True).close()  # a store that is missing is not created
    with RunStore(store) as opened:
        info = opened.info(run)
        confirm(yes, f"Delete run {run} ({_name(info)}, {pluralize(info.rounds, 'round')})?")
        opened.delete(run)
    say(f"deleted run {run}")


def _summary(columns: RoundColumns, guarantee: Guarantee | None, common: JudgedPromise) -> dict[str, Any]:
    """Returns the figures of a run, judged by its own promise or else by that of its store, as everywhere."""
    promise = common
    if guarantee is not None:
        promise = JudgedPromise(guarantee.rate, guarantee.accrual, guarantee.counts)
    if promise.accrual == "available" and not knows_available(columns):
        # Without the recorded availability nobody knows what was promised; the figures are those of all rounds.
        return asdict(summarise(columns, guaranteed_rate=promise.rate, counts=promise.counts))
    judged = promise.judge(columns, judged_tolerance(guarantee, None))
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
