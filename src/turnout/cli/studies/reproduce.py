"""`turnout reproduce`: the paper's figures and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.options import DeviceOption, JsonOption, WorkersOption, print_json, progress_bar, resumable
from turnout.experiments.framework.experiment import Experiment
from turnout.experiments.framework.reproduce import (
    Result,
    check_device,
    claims_of,
    plans_of,
    verdict_counts,
    write_results,
)
from turnout.experiments.framework.reproduce import reproduce as reproduced
from turnout.experiments.paper.accuracy import TASKS
from turnout.experiments.paper.catalogue import EXPERIMENTS, GROUPS, find_experiments
from turnout.simulator.sweep import missing_plans
from turnout.store import RunStore

COLOURS = {"holds": "green", "does not hold": "red", "not decided": "yellow"}


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENTS)}; or all of them: {', '.join(GROUPS)}.")],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Play with seeds 0, 1, … this many; by default as many as each experiment has: 20, or 3 to 5 where "
            "models are trained.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=10, help="Fewer rounds than the experiment's own, for a look.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for figures, data and claims.")] = Path("results"),
    store: Annotated[
        Path | None, typer.Option(help="The store of the runs; by default runs.turnout in that folder.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(TASKS)}: what models are trained on, by default digits; may be repeated."),
    ] = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Play the paper's experiments, draw their figures, and say which claims hold.

    What the store holds is not played again: a sweep that was stopped goes on with the same command.
    """
    experiments = find_experiments(name, dataset or ())
    check_device(plans_of(experiments, 1, rounds), device)
    results = run_experiments(
        experiments, store or out / "runs.turnout", seeds=seeds, rounds=rounds, workers=workers, device=device
    )
    written = write_results(results, out)
    if json:
        print_json({"claims": claims_of(results), "files": [str(path) for path in written]})
        return
    console = Console()
    console.print(claims_table(results))
    counts = verdict_counts(claim for result in results for claim in result.findings.claims)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    console.print(f"Claims: {told}. Figures, data and claims are in {out}/", highlight=False)


def run_experiments(
    experiments: list[Experiment],
    path: Path,
    *,
    seeds: int | None,
    rounds: int | None,
    workers: int | None,
    device: str = "cpu",
) -> list[Result]:
    """Play what is missing, with a bar, and compute the findings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with resumable(), RunStore(path) as store, progress_bar() as progress:
        missing = missing_plans(plans_of(experiments, seeds, rounds), store)
        task = progress.add_task(f"Playing {len(missing)} runs", total=sum(plan.rounds for plan in missing))
        return reproduced(
            experiments,
            store,
            seeds=seeds,
            rounds=rounds,
            workers=workers,
            device=device,
            watch=lambda played: progress.advance(task, played),
        )


def claims_table(results: list[Result]) -> Table:
    """Every claim with its verdict and numbers."""
    table = Table(show_lines=True)
    for heading in ("experiment", "verdict", "claim, and what it was computed from"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for result in results:
        for claim in result.findings.claims:
            numbers = " · ".join(f"{name}: {value}" for name, value in claim.numbers.items())
            verdict = f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]"
            table.add_row(result.experiment.name, verdict, f"{claim.statement}\n[dim]{numbers}[/]")
    return table
