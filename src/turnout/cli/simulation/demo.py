"""`turnout demo`: the paper's comparison, as a table and as an HTML report."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from turnout.analysis.metrics import Summary, summarise
from turnout.cli.options import JsonOption, SeedsOption, WorkersOption, print_json, progress_bar
from turnout.experiments.framework.reproduce import plans_of, reproduce, write_text
from turnout.experiments.paper.comparison import CONTENDERS, RATE, PullRecord, Queues, TrainingTime
from turnout.simulator.sweep import sweep
from turnout.store import RunStore

HEADINGS = ("policy", "mean round", "time saved", "least selected", "most owed")
EXPLANATION = (
    "A turn is one participation of a client in a round. The guaranteed rate is "
    f"{RATE:g}: every client should get a turn in {RATE:.0%} of the rounds.\n"
    "[b]random[/b] draws the clients of a round at random. [b]RBCS-F[/b] weighs seconds against owed turns: the larger "
    "its speed weight, the shorter the rounds, and the longer slow clients wait for their turns. [b]FedCS(3)[/b] "
    "selects every client that it expects to finish within 3 s, and guarantees nothing.\n"
    "[b]mean round[/b]: time until the last selected client of a round has finished. [b]time saved[/b]: compared with "
    "random.\n"
    f"[b]least selected[/b]: the share of the rounds of the client with the fewest turns. Below {RATE:g}, the "
    "guarantee is not kept yet.\n"
    "[b]most owed[/b]: the turns owed to the client that is furthest behind its guarantee."
)


def demo(
    seeds: SeedsOption = 20,
    rounds: Annotated[int, typer.Option(min=10, help="Number of rounds.")] = 500,
    report: Annotated[Path, typer.Option(help="File for the HTML report.")] = Path("report.html"),
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Run the paper's comparison, print a table of all policies, and write an HTML report.

    Example: turnout demo --seeds 5 --report report.html
    """
    experiments = [TrainingTime(), Queues(), PullRecord()]
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        plans = plans_of(experiments, seeds, rounds)
        with progress_bar() as progress:
            task = progress.add_task("Running", total=len(plans))
            sweep(plans, store, workers=workers, watch=lambda _: progress.advance(task))
        rows = _rows(store, experiments[0].plans(seeds, rounds))
        drawn = importlib.util.find_spec("matplotlib") is not None
        if drawn:
            _write_report(report, reproduce(experiments, store, seeds=seeds, rounds=rounds), rows, seeds, rounds)
    if json:
        print_json({"rows": rows, "report": str(report) if drawn else None})
        return
    _print_table(rows, seeds, rounds)
    Console().print(
        f"The figures and the paper's claims are in {report}: open it in a web browser."
        if drawn
        else "For a report with figures and the paper's claims: pip install 'turnout\\[plots]'",
        highlight=False,
        soft_wrap=True,
    )


def _rows(store: RunStore, plans: Any) -> list[dict[str, Any]]:
    means: dict[str, dict[str, float]] = {}
    for label in ("random", *(name for name in CONTENDERS if name != "random")):
        summaries = [_summary(store, plan.key) for plan in plans[label]]
        means[label] = {
            name: float(np.mean([getattr(summary, name) for summary in summaries]))
            for name in ("mean_round", "total_time", "least_share", "worst_debt")
        }
    return [
        {
            "policy": label,
            "mean_round_seconds": mean["mean_round"],
            "time_saved": 1 - mean["total_time"] / means["random"]["total_time"],
            "least_chosen_share": mean["least_share"],
            "promised_share": RATE,
            "worst_debt_turns": mean["worst_debt"],
        }
        for label, mean in means.items()
    ]


def _summary(store: RunStore, key: str) -> Summary:
    info = store.find(key)
    assert info is not None, "the sweep has written every plan"
    return summarise(store.columns(info.id), guaranteed_rate=RATE)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["policy"],
        f"{row['mean_round_seconds']:.2f} s",
        f"{row['time_saved']:.0%}" if row["time_saved"] else "",
        f"{row['least_chosen_share']:.3f}",
        f"{row['worst_debt_turns']:.1f} turns",
    ]


def _print_table(rows: list[dict[str, Any]], seeds: int, rounds: int) -> None:
    table = Table(title=f"{rounds} rounds (simulated), 40 clients, 8 per round, mean of {seeds} seeds")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console = Console()
    console.print(table)
    console.print(EXPLANATION, highlight=False)


def _write_report(path: Path, results: Any, rows: list[dict[str, Any]], seeds: int, rounds: int) -> None:
    from turnout.experiments.framework.report import render_report

    page = render_report(
        results,
        title="Short rounds, and a guaranteed share of the rounds for every client",
        lead=(
            "RBCS-F learns the exchange time of each client, tracks the turns that each client is owed, and selects "
            "the cohort with the best trade-off between its slowest client and the turns owed. This report compares "
            "it, on the paper's 40 clients in four speed classes, with random selection and with FedCS, which knows "
            "the expected times and considers only speed."
        ),
        headings=HEADINGS,
        rows=[_cells(row) for row in rows],
        settings={
            "clients": 40,
            "clients per round": 8,
            "guaranteed rate": RATE,
            "availability": 0.8,
            "rounds": rounds,
            "seeds": f"0 to {seeds - 1}; availability, contexts and noise are the same for every policy",
        },
        command=f"turnout demo --seeds {seeds} --rounds {rounds}",
    )
    write_text(path, page)
