"""`turnout demo`: FairPace beside the paper's policies, as a table and as an HTML report."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from turnout.cli.lab.judging import status_cell
from turnout.cli.lab.playing import Machines, played
from turnout.cli.options import JsonOption, SeedsOption, WorkersOption, make_table, print_json
from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.lab.analysis.judging import JudgedPromise, Judgement, worst_of
from turnout.lab.analysis.statistics import UNIT_RANGE, format_interval, mean_confidence_interval
from turnout.lab.studies.framework.conclusion import Contender, conclude
from turnout.lab.studies.framework.experiment import Runs
from turnout.lab.studies.framework.reproduce import compute_results, plans_of
from turnout.lab.studies.paper.comparison import RATE, PullRecord, Queues, TrainingTime
from turnout.lab.studies.promise_comparison import LABELS, PromiseComparison
from turnout.lab.tables import write_text

HEADINGS = ("policy", "mean round", "saved", "least share of all rounds", "largest shortfall", "status")
#: Every policy of the demo is judged by the promise of the paper: a share of all rounds.
PROMISE = JudgedPromise(RATE, "always", "selected")
EXPLANATION = (
    f"A turn is one participation of a client in a round. The promise: every client gets a turn in {RATE:.0%} of all "
    f"rounds, and is never more than {DEFAULT_TOLERANCE:g} turns behind.\n"
    "[b]FairPace[/b] is the default of turnout: a turn of a client has a price in seconds, which grows as the client "
    "approaches the tolerance. [b]RBCS-F[/b] weighs seconds against owed turns: the larger its speed weight, the "
    "shorter the rounds, and the longer slow clients wait. [b]random[/b] draws the clients of a round. [b]FedCS(3)[/b] "
    "selects every client that it expects to finish within 3 s, and promises nothing.\n"
    "[b]mean round[/b]: time until the last selected client of a round has finished. [b]saved[/b]: time, compared with "
    "random.\n"
    "[b]least share of all rounds[/b]: the turns of the client with the fewest, divided by the number of rounds.\n"
    "[b]largest shortfall[/b]: promised turns minus turns, in turns, the largest of any client in any round of any "
    "seed. [b]status[/b]: of that moment; kept is less than one turn behind, broken is beyond the tolerance."
)


def demo(
    seeds: SeedsOption = 20,
    rounds: Annotated[int, typer.Option(min=10, help="Number of rounds.")] = 500,
    report: Annotated[Path, typer.Option(help="File for the HTML report.")] = Path("report.html"),
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Compare FairPace with the paper's policies, print a table, and write an HTML report.

    Example: turnout demo --seeds 5 --report report.html
    """
    experiments = [PromiseComparison(), TrainingTime(), Queues(), PullRecord()]
    with played({"demo": plans_of(experiments, seeds, rounds)}, None, Machines(workers)) as store:
        compared = experiments[0].plans(seeds, rounds)
        runs = Runs(compared, store)
        judged = {label: [PROMISE.judge(columns, DEFAULT_TOLERANCE) for columns in runs.of(label)] for label in LABELS}
        rows = _rows(judged)
        drawn = importlib.util.find_spec("matplotlib") is not None
        if drawn:
            results = compute_results(experiments, store, seeds=seeds, rounds=rounds)
            oracles = {label for label in LABELS if compared[label][0].build()[0].requires_expected_times}
            _write_report(report, results, judged, oracles, rounds)
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


def _rows(judged: Mapping[str, Sequence[Judgement]]) -> list[dict[str, Any]]:
    totals = {label: np.mean([run.summary.total_time for run in runs]) for label, runs in judged.items()}
    return [
        {
            "policy": label,
            "mean_round_seconds": float(np.mean([run.summary.mean_round for run in runs])),
            "time_saved": float(1 - totals[label] / totals["random"]),
            "least_chosen_share": float(np.mean([run.summary.least_share for run in runs])),
            "promised_share": RATE,
            "worst_debt_turns": float(np.mean([run.summary.worst_debt for run in runs])),
            "largest_shortfall_turns": max(run.summary.largest_shortfall for run in runs),
            "tolerance": DEFAULT_TOLERANCE,
            "status": worst_of([run.status for run in runs]),
        }
        for label, runs in judged.items()
    ]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["policy"],
        f"{row['mean_round_seconds']:.2f} s",
        f"{row['time_saved']:.0%}" if row["time_saved"] else "",
        f"{row['least_chosen_share']:.3f}",
        f"{row['largest_shortfall_turns']:.2f}",
        status_cell(row["status"], row["tolerance"]),
    ]


def _print_table(rows: list[dict[str, Any]], seeds: int, rounds: int) -> None:
    headings = [heading if heading in ("policy", "status") else f"{heading}>" for heading in HEADINGS]
    table = make_table(*headings, title=f"{rounds} rounds (simulated), 40 clients, 8 per round, mean of {seeds} seeds")
    for heading, column in zip(headings, table.columns, strict=True):
        column.no_wrap, column.min_width = not heading.endswith(">"), max(map(len, heading.strip(">").split()))
    for row in rows:
        table.add_row(*_cells(row))
    console = Console()
    console.print(table)
    console.print(EXPLANATION, highlight=False)


def _with_intervals(judged: Mapping[str, Sequence[Judgement]]) -> list[list[str]]:
    """Returns the rows of the report: means with their confidence intervals over seeds."""
    totals = {label: np.array([run.summary.total_time for run in runs]) for label, runs in judged.items()}
    return [
        [
            row["policy"],
            _interval([run.summary.mean_round for run in runs], 2, unit=" s"),
            _interval(100 * (1 - totals[row["policy"]] / totals["random"]), 1, unit=" %") if row["time_saved"] else "",
            _interval([run.summary.least_share for run in runs], 3, limits=UNIT_RANGE),
            *_cells(row)[-2:],
        ]
        for row, runs in zip(_rows(judged), judged.values(), strict=True)
    ]


def _interval(values: Any, digits: int, **options: Any) -> str:
    return format_interval(*mean_confidence_interval(values), digits, **options)


def _contenders(judged: Mapping[str, Sequence[Judgement]], oracles: Set[str]) -> list[Contender]:
    return [
        Contender(
            label,
            np.array([run.summary.mean_round for run in runs]),
            max(run.summary.largest_shortfall for run in runs),
            worst_of([run.status for run in runs]),
            label in oracles,
        )
        for label, runs in judged.items()
    ]


def _write_report(
    path: Path, results: Any, judged: Mapping[str, Sequence[Judgement]], oracles: Set[str], rounds: int
) -> None:
    from turnout.lab.studies.framework.report import render_report

    seeds = len(judged["random"])
    page = render_report(
        results,
        title="Short rounds, and a guaranteed share of the rounds for every client",
        lead=(
            "FairPace learns the exchange time of each client, gives a turn of each client a price in seconds that "
            "grows as the client approaches the tolerance of its promise, and selects the cohort with the shortest "
            "round after these prices. This report compares it, on the paper's 40 clients in four speed classes, with "
            "RBCS-F, the algorithm of the paper, which weighs seconds against owed turns, with random selection, and "
            "with FedCS, which knows the expected times and considers only speed."
        ),
        headings=HEADINGS,
        rows=_with_intervals(judged),
        settings={
            "clients": 40,
            "clients per round": 8,
            "guaranteed rate": f"{RATE:g} of all rounds",
            "tolerance": f"{DEFAULT_TOLERANCE:g} turns",
            "availability": 0.8,
            "rounds": rounds,
            "seeds": f"0 to {seeds - 1}; availability, contexts and noise are the same for every policy",
        },
        command=f"turnout demo --seeds {seeds} --rounds {rounds}",
        conclusion=conclude(_contenders(judged, oracles), tolerance=DEFAULT_TOLERANCE, reference="random"),
    )
    write_text(path, page)
