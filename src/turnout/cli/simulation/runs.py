"""`turnout runs`: the runs of a store."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.analysis.metrics import prediction_error, summarise
from turnout.cli.options import JsonOption, print_json
from turnout.cli.simulation.judging import PAPER_PROMISE, JudgedPromise
from turnout.experiments.framework.reproduce import write_text
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.rounds import RoundRecord
from turnout.policies.registry import guarantee_of
from turnout.store import RoundColumns, RunInfo, RunStore

runs = typer.Typer(
    no_args_is_help=True,
    help="List, show, export and delete the runs of a store.\n\nExample: turnout runs list results/runs.turnout",
)

StoreArgument = Annotated[Path, typer.Argument(help="Store of runs, such as results/runs.turnout.")]
RunArgument = Annotated[int, typer.Argument(help="Number of the run, as `turnout runs list` shows it.")]


class Format(StrEnum):
    """File formats for rounds."""

    csv = "csv"
    jsonl = "jsonl"


@runs.command("list")
def list_runs(store: StoreArgument, json: JsonOption = False) -> None:
    """List the runs of a store.

    Example: turnout runs list results/runs.turnout
    """
    with RunStore(store, read_only=True) as opened:
        infos = opened.runs()
    if json:
        print_json([_as_dict(info) for info in infos])
        return
    table = Table(title=f"{len(infos)} runs in {store}")
    for heading in ("run", "policy", "seed", "rounds", "finished", "started"):
        table.add_column(heading, justify="right" if heading in ("run", "seed", "rounds") else "left")
    for info in infos:
        table.add_row(
            str(info.id),
            _name(info),
            str(info.plan.get("seed", "")),
            str(info.rounds),
            "yes" if info.finished else "no",
            info.started,
        )
    Console().print(table)


@runs.command()
def show(store: StoreArgument, run: RunArgument, json: JsonOption = False) -> None:
    """Show the settings of a run and a summary of its rounds (times in seconds).

    Example: turnout runs show results/runs.turnout 3
    """
    with RunStore(store, read_only=True) as opened:
        info = opened.info(run)
        columns = opened.columns(run)
    guarantee = guarantee_of(str(info.plan.get("policy")), info.clients, info.plan.get("settings") or {})
    shown = {**_as_dict(info), "summary": _summary(columns, guarantee) if info.rounds else {}}
    if info.rounds and columns.contexts.shape[1]:
        shown["summary"]["prediction_error"] = prediction_error(columns).overall
    if json:
        print_json(shown)
        return
    table = Table(title=f"run {run}: {_name(info)}", show_header=False)
    for name, value in {**shown, **shown.pop("summary")}.items():
        if name != "summary":
            table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


@runs.command()
def export(
    store: StoreArgument,
    run: RunArgument,
    as_: Annotated[
        Format, typer.Option("--format", help="One line per selected client (csv) or per round (jsonl).")
    ] = Format.csv,
    out: Annotated[Path | None, typer.Option(help="File to write; by default standard output.")] = None,
) -> None:
    """Write every round of a run as CSV or JSON lines (times in seconds).

    Example: turnout runs export results/runs.turnout 3 --format jsonl --out rounds.jsonl
    """
    with RunStore(store, read_only=True) as opened:
        opened.info(run)
        lines = _csv(opened.records(run)) if as_ is Format.csv else _jsonl(opened.records(run))
        text = "".join(f"{line}\n" for line in lines)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)


@runs.command()
def delete(
    store: StoreArgument,
    run: RunArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete a run from its store.

    Example: turnout runs delete results/runs.turnout 3 --yes
    """
    with RunStore(store) as opened:
        info = opened.info(run)
        if not yes:
            typer.confirm(f"Delete run {run} ({_name(info)}, {info.rounds} rounds)?", abort=True)
        opened.delete(run)
    if json:
        print_json({"deleted": run})
    else:
        typer.echo(f"deleted run {run}")


def _summary(columns: RoundColumns, guarantee: Guarantee | None) -> dict[str, Any]:
    """Returns the figures of a run, and the status of its promise if it has one that can be judged."""
    if guarantee is None:
        return asdict(PAPER_PROMISE.summarise(columns))
    if guarantee.accrual == "available" and (columns.available is None or "available" in columns.absent):
        # Without the recorded availability nobody knows what was promised; the figures are those of all rounds.
        return asdict(summarise(columns, guaranteed_rate=guarantee.rate, paid=guarantee.paid))
    promise = JudgedPromise(guarantee.rate, guarantee.accrual, guarantee.paid)
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


def _csv(records: Iterator[RoundRecord]) -> Iterator[str]:
    yield "round,client,exchange_time,outcome,optimistic,owed,round_duration"
    for record in records:
        report, reasons = record.report, record.selection.reasons
        for index, client in enumerate(report.clients.tolist()):
            outcome = "arrived" if report.outcomes is None else str(report.outcomes[index])
            optimistic = repr(float(reasons["optimistic"][index])) if "optimistic" in reasons else ""
            owed = repr(float(reasons["owed"][index])) if "owed" in reasons else ""
            time = float(report.exchange_times[index])
            yield f"{record.round},{client},{time!r},{outcome},{optimistic},{owed},{report.duration!r}"


def _jsonl(records: Iterator[RoundRecord]) -> Iterator[str]:
    for record in records:
        report = record.report
        yield json_module.dumps(
            {
                "round": record.round,
                "duration": report.duration,
                "clients": report.clients.tolist(),
                "exchange_times": report.exchange_times.tolist(),
                "contexts": report.contexts.tolist(),
                "outcomes": None if report.outcomes is None else [str(outcome) for outcome in report.outcomes],
                "reasons": {name: values.tolist() for name, values in record.selection.reasons.items()},
                "metrics": dict(report.metrics),
            }
        )
