"""`turnout runs`: what a store holds."""

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
from turnout.experiments.framework.reproduce import write_text
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.rounds import RoundRecord
from turnout.store import RunInfo, RunStore

runs = typer.Typer(no_args_is_help=True, help="List, show, export and delete the runs of a store.")

StoreArgument = Annotated[Path, typer.Argument(help="The store, such as results/runs.turnout.")]
RunArgument = Annotated[int, typer.Argument(help="The number of the run, as `turnout runs list` shows it.")]


class Format(StrEnum):
    """How rounds are written."""

    csv = "csv"
    jsonl = "jsonl"


@runs.command("list")
def list_runs(store: StoreArgument, json: JsonOption = False) -> None:
    """One line a run."""
    with RunStore(store, read_only=True) as opened:
        found = opened.runs()
    if json:
        print_json([_told(one) for one in found])
        return
    table = Table(title=f"{len(found)} runs in {store}")
    for heading in ("run", "policy", "seed", "rounds", "finished", "started"):
        table.add_column(heading, justify="right" if heading in ("run", "seed", "rounds") else "left")
    for one in found:
        table.add_row(
            str(one.id),
            _name(one),
            str(one.plan.get("seed", "")),
            str(one.rounds),
            "yes" if one.finished else "no",
            one.started,
        )
    Console().print(table)


@runs.command()
def show(store: StoreArgument, run: RunArgument, json: JsonOption = False) -> None:
    """A run's settings and what came of it."""
    with RunStore(store, read_only=True) as opened:
        one = opened.info(run)
        columns = opened.columns(run)
    promise = one.plan.get("settings", {}).get("guaranteed_rate", DEFAULT_RATE)
    told = {**_told(one), "summary": asdict(summarise(columns, guaranteed_rate=promise)) if one.rounds else {}}
    if one.rounds and columns.contexts.shape[1]:
        told["summary"]["prediction_error"] = prediction_error(columns).overall
    if json:
        print_json(told)
        return
    table = Table(title=f"run {run}: {_name(one)}", show_header=False)
    for name, value in {**told, **told.pop("summary")}.items():
        if name != "summary":
            table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


@runs.command()
def export(
    store: StoreArgument,
    run: RunArgument,
    as_: Annotated[
        Format, typer.Option("--format", help="One line a chosen client (csv) or a round (jsonl).")
    ] = Format.csv,
    out: Annotated[Path | None, typer.Option(help="Into this file; by default to standard output.")] = None,
) -> None:
    """Every round, as CSV or JSON lines."""
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove a run from its store."""
    with RunStore(store) as opened:
        one = opened.info(run)
        if not yes:
            typer.confirm(f"Delete run {run} ({_name(one)}, {one.rounds} rounds)?", abort=True)
        opened.delete(run)
    if json:
        print_json({"deleted": run})
    else:
        typer.echo(f"deleted run {run}")


def _name(one: RunInfo) -> str:
    return str(one.plan.get("label") or one.plan.get("policy", one.key))


def _told(one: RunInfo) -> dict[str, Any]:
    return {
        "run": one.id,
        **one.plan,
        "rounds_played": one.rounds,
        "finished": one.finished,
        "started": one.started,
        "code_version": one.code_version,
    }


def _csv(records: Iterator[RoundRecord]) -> Iterator[str]:
    yield "round,client,exchange_time,outcome,optimistic,owed,round_duration"
    for record in records:
        report, reasons = record.report, record.selection.reasons
        for place, client in enumerate(report.clients.tolist()):
            outcome = "arrived" if report.outcomes is None else str(report.outcomes[place])
            optimistic = repr(float(reasons["optimistic"][place])) if "optimistic" in reasons else ""
            owed = repr(float(reasons["owed"][place])) if "owed" in reasons else ""
            time = float(report.exchange_times[place])
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
                "outcomes": None if report.outcomes is None else [str(word) for word in report.outcomes],
                "reasons": {word: values.tolist() for word, values in record.selection.reasons.items()},
                "metrics": dict(report.metrics),
            }
        )
