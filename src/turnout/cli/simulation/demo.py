"""`turnout demo`: the paper's comparison, as a table and as one page to show to a colleague."""

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

HEADINGS = ("policy", "mean round", "saved", "least chosen", "worst debt")


def demo(
    seeds: SeedsOption = 20,
    rounds: Annotated[int, typer.Option(min=10, help="How many rounds to play.")] = 500,
    report: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Play the paper's comparison, print what each policy gives, and write it up as one page."""
    experiments = [TrainingTime(), Queues(), PullRecord()]
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        plans = plans_of(experiments, seeds, rounds)
        with progress_bar() as progress:
            task = progress.add_task("Playing", total=len(plans))
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
        f"The figures and the paper's claims are in {report}: open it in a browser."
        if drawn
        else "For the figures and the paper's claims: pip install 'turnout\\[plots]'",
        highlight=False,
        soft_wrap=True,
    )


def _rows(store: RunStore, plans: Any) -> list[dict[str, Any]]:
    means: dict[str, dict[str, float]] = {}
    for label in ("random", *(name for name in CONTENDERS if name != "random")):
        summaries = [_summary(store, plan.key) for plan in plans[label]]
        means[label] = {
            word: float(np.mean([getattr(one, word) for one in summaries]))
            for word in ("mean_round", "total_time", "least_share", "worst_debt")
        }
    return [
        {
            "policy": label,
            "mean_round_seconds": one["mean_round"],
            "time_saved": 1 - one["total_time"] / means["random"]["total_time"],
            "least_chosen_share": one["least_share"],
            "promised_share": RATE,
            "worst_debt_turns": one["worst_debt"],
        }
        for label, one in means.items()
    ]


def _summary(store: RunStore, key: str) -> Summary:
    found = store.find(key)
    assert found is not None, "the sweep has just written it"
    return summarise(store.columns(found.id), guaranteed_rate=RATE)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["policy"],
        f"{row['mean_round_seconds']:.2f} s",
        f"{row['time_saved']:.0%}" if row["time_saved"] else "",
        f"{row['least_chosen_share']:.3f} of {row['promised_share']:g}",
        f"{row['worst_debt_turns']:.1f} turns",
    ]


def _print_table(rows: list[dict[str, Any]], seeds: int, rounds: int) -> None:
    table = Table(title=f"{rounds} rounds, 40 clients, 8 a round, mean of {seeds} seeds")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console = Console()
    console.print(table)
    console.print(
        "[b]least chosen[/b]: the share of rounds of the client chosen least, of the share promised.\n"
        "A larger weight gives shorter rounds, and pays its debts later.",
        highlight=False,
    )


def _write_report(path: Path, results: Any, rows: list[dict[str, Any]], seeds: int, rounds: int) -> None:
    from turnout.experiments.framework.report import render_report

    page = render_report(
        results,
        title="Short rounds, and a share of them for every client",
        lead=(
            "RBCS-F learns how long each client takes, keeps what each is owed, and chooses the cohort with the best "
            "trade between the slowest member and the turns owed. Here it plays the paper's forty clients in four "
            "classes of speed, against random selection and against FedCS, which knows the true expected times and "
            "cares for speed alone."
        ),
        headings=HEADINGS,
        rows=[_cells(row) for row in rows],
        settings={
            "clients": 40,
            "chosen in a round": 8,
            "promised share of rounds": RATE,
            "availability": 0.8,
            "rounds": rounds,
            "seeds": f"0 to {seeds - 1}: every policy meets the same availability, contexts and noise",
        },
        command=f"turnout demo --seeds {seeds} --rounds {rounds}",
    )
    write_text(path, page)
