"""`turnout study reproduce`: the paper's figures and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from turnout.cli.lab.plans import AddressOption, BackendOption
from turnout.cli.lab.playing import Machines, played
from turnout.cli.options import DeviceOption, JsonOption, WorkersOption, print_json, say
from turnout.cli.tables import print_table
from turnout.lab.studies.catalogue import EXPERIMENTS, GROUPS, find_experiments
from turnout.lab.studies.framework.reproduce import (
    Result,
    claims_of,
    compute_results,
    plans_of,
    verdict_summary,
    write_results,
)
from turnout.lab.studies.paper.accuracy import TASKS

COLOURS = {"holds": "green", "does not hold": "red", "not decided": "yellow"}


def reproduce(
    name: Annotated[
        str,
        typer.Argument(help=f"Experiment: {', '.join(EXPERIMENTS)}; or a group: {', '.join(GROUPS)}."),
    ],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of seeds: 0, 1, 2, …; by default that of each experiment: 20, or 3 to 5 with training.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=10, help="Number of rounds; by default that of each experiment.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures, data and claims.")] = Path("results"),
    store: Annotated[
        Path | None, typer.Option(help="Store for the runs; by default runs.turnout in the folder.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help=f"Dataset for training: {', '.join(TASKS)}; by default digits. Repeatable."),
    ] = None,
    device: DeviceOption = "cpu",
    backend: BackendOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Reproduce the paper's experiments: figures, data, and a verdict on each claim.

    Runs that the store holds are not repeated, so the same command continues an interrupted one.

    Example: turnout study reproduce queues --seeds 5 --out results
    """
    experiments = find_experiments(name, dataset or ())
    plans = plans_of(experiments, seeds, rounds)
    with played({name: plans}, store, Machines(workers, device, backend, address), out=out) as opened:
        results = compute_results(experiments, opened, seeds=seeds, rounds=rounds)
    written = write_results(results, out)
    if json:
        print_json({"claims": claims_of(results), "files": [str(path) for path in written]})
        return
    _print_claims(results)
    say(f"Claims: {verdict_summary(results)}. Figures, data and claims are in {out}/")


def _print_claims(results: list[Result]) -> None:
    """Prints a table of all claims with their verdicts and numbers."""
    rows = []
    for result in results:
        for claim in result.findings.claims:
            numbers = Text(" · ".join(f"{name}: {value}" for name, value in claim.numbers.items()), style="dim")
            verdict = Text(claim.verdict, style=COLOURS[claim.verdict])
            rows.append((result.experiment.name, verdict, Text(f"{claim.statement}\n").append_text(numbers)))
    print_table(("experiment", "verdict", "claim and its numbers"), rows, show_lines=True)
