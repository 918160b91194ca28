"""`turnout reproduce`: the paper's figures and claims."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.completion import complete_datasets, complete_experiments
from turnout.cli.interruption import resumable
from turnout.cli.options import (
    AddressOption,
    BackendOption,
    DeviceOption,
    JsonOption,
    WorkersOption,
    print_json,
    progress_bar,
)
from turnout.counting import counted
from turnout.lab.clusters import connect
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import missing_plans
from turnout.lab.studies.catalogue import EXPERIMENTS, GROUPS, find_experiments
from turnout.lab.studies.framework.experiment import Experiment
from turnout.lab.studies.framework.reproduce import Result, claims_of, plans_of, verdict_counts, write_results
from turnout.lab.studies.framework.reproduce import reproduce as reproduced
from turnout.lab.studies.paper.accuracy import TASKS
from turnout.lab.training.distributed import check_device

COLOURS = {"holds": "green", "does not hold": "red", "not decided": "yellow"}


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help=f"Experiment: {', '.join(EXPERIMENTS)}; or a group: {', '.join(GROUPS)}.",
            autocompletion=complete_experiments,
        ),
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
        typer.Option(
            help=f"Dataset for training: {', '.join(TASKS)}; by default digits. Repeatable.",
            autocompletion=complete_datasets,
        ),
    ] = None,
    device: DeviceOption = "cpu",
    backend: BackendOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Reproduce the paper's experiments: figures, data, and a verdict on each claim.

    Runs that the store holds are not repeated, so the same command continues an interrupted one.

    Example: turnout reproduce queues --seeds 5 --out results
    """
    experiments = find_experiments(name, dataset or ())
    check_device(plans_of(experiments, 1, rounds), device)
    results = run_experiments(
        experiments,
        store or out / "runs.turnout",
        seeds=seeds,
        rounds=rounds,
        workers=workers,
        device=device,
        connection=connect(backend, address, workers=workers),
    )
    written = write_results(results, out)
    if json:
        print_json({"claims": claims_of(results), "files": [str(path) for path in written]})
        return
    console = Console()
    console.print(claims_table(results))
    counts = verdict_counts(claim for result in results for claim in result.findings.claims)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    console.print(f"Claims: {summary}. Figures, data and claims are in {out}/", highlight=False)


def run_experiments(
    experiments: list[Experiment],
    path: Path,
    *,
    seeds: int | None,
    rounds: int | None,
    workers: int | None,
    device: str = "cpu",
    connection: AbstractContextManager[Executor | None] | None = None,
) -> list[Result]:
    """Runs the missing simulations with a progress bar, and computes the findings.

    Args:
        experiments: The experiments.
        path: Store for the runs.
        seeds: Number of seeds; None for that of each experiment.
        rounds: Number of rounds; None for that of each experiment.
        workers: Number of worker processes; None for one per CPU core.
        device: Device that trains the models.
        connection: Opens the executor that plays the runs; by default, processes of this machine do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(resumable())
        store = stack.enter_context(RunStore(path))
        missing = missing_plans(plans_of(experiments, seeds, rounds), store)
        executor = stack.enter_context(connection) if connection is not None and missing else None
        progress = stack.enter_context(progress_bar())
        task = progress.add_task(
            f"Simulating {counted(len(missing), 'run')}", total=sum(plan.rounds for plan in missing)
        )
        return reproduced(
            experiments,
            store,
            seeds=seeds,
            rounds=rounds,
            workers=workers,
            device=device,
            backend=executor,
            watch=lambda rounds: progress.advance(task, rounds),
        )


def claims_table(results: list[Result]) -> Table:
    """Returns a table of all claims with their verdicts and numbers."""
    table = Table(show_lines=True)
    for heading in ("experiment", "verdict", "claim and its numbers"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for result in results:
        for claim in result.findings.claims:
            numbers = " · ".join(f"{name}: {value}" for name, value in claim.numbers.items())
            verdict = f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]"
            table.add_row(result.experiment.name, verdict, f"{claim.statement}\n[dim]{numbers}[/]")
    return table
