"""`turnout demo`: FairPace beside the paper's policies, as a table and as an HTML report."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from turnout.cli.lab.measuring import Comparison, MeasuredPolicy, Measurement, measure
from turnout.cli.lab.playing import Machines, played
from turnout.cli.lab.simulate import format_mean, status_cell
from turnout.cli.options import JsonOption, SeedsOption, WorkersOption, prepare_file, print_json, say
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.lab.analysis.metrics import JudgedPromise
from turnout.lab.analysis.statistics import UNIT_RANGE
from turnout.lab.columns import write_text
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import run_id
from turnout.lab.studies.framework.experiment import compute_results, plans_of
from turnout.lab.studies.paper.comparison import LABELS, RATE, PromiseComparison, PullRecord, Queues, TrainingTime

HEADINGS = ("policy", "mean round", "saved", "least share of all rounds", "largest shortfall", "status")
#: Every policy of the demo is judged by the promise of the paper: a share of all rounds.
PROMISE = JudgedPromise(RATE, "always", "selected")
EXPLANATION = (
    f"A turn is one participation of a client in a round. The promise: every client gets a turn in {RATE:.0%} of all "
    f"rounds, and should never be more than {DEFAULT_TOLERANCE:g} turns behind.\n"
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
    prepare_file(report, ".html", ".htm")
    experiments = [PromiseComparison(), TrainingTime(), Queues(), PullRecord()]
    with played({"demo": plans_of(experiments, seeds, rounds)}, None, Machines(workers)) as store:
        compared = experiments[0].plans(seeds, rounds)
        comparison = Comparison(
            [_measure(store, label, compared[label]) for label in LABELS],
            reference=LABELS.index("random"),
            promise=PROMISE,
            rounds=rounds,
        )
        drawn = importlib.util.find_spec("matplotlib") is not None
        if drawn:
            results = compute_results(experiments, store, seeds=seeds, rounds=rounds)
            oracles = {label for label in LABELS if compared[label][0].build()[0].requires_expected_times}
            _write_report(report, results, comparison, oracles)
    if json:
        print_json({**comparison.as_dict(), "report": str(report) if drawn else None})
        return
    _print_table(comparison)
    say(
        f"The figures and the paper's claims are in {report}: open it in a web browser."
        if drawn
        else "For a report with figures and the paper's claims: pip install 'turnout[plots]'"
    )


def _measure(store: RunStore, label: str, plans: Sequence[RunPlan]) -> Measurement:
    contender = MeasuredPolicy(label, plans[0].as_dict(), [plan.seed for plan in plans], DEFAULT_TOLERANCE)
    return measure(contender, [store.columns(run_id(store, plan)) for plan in plans], PROMISE, None)


def _print_table(comparison: Comparison) -> None:
    seeds = pluralize(comparison.seeds, "seed")
    title = f"{comparison.rounds} rounds (simulated), 40 clients, 8 per round, mean of {seeds}"
    headings = [heading if heading in ("policy", "status") else f"{heading}>" for heading in HEADINGS]
    rows = (
        (
            row["policy"],
            f"{row['mean_round']['mean']:.2f} s",
            f"{row['time_saved']['mean']:.0%}" if row["time_saved"]["mean"] else "",
            f"{row['least_share']['mean']:.3f}",
            *_worst(row),
        )
        for row in comparison.as_dict()["policies"]
    )
    print_table(headings, rows, title=title)
    Console().print(EXPLANATION, highlight=False)


def _worst(row: dict[str, Any]) -> list[str]:
    return [f"{row['largest_shortfall']:.2f}", status_cell(row["status"], row["tolerance"])]


def _with_intervals(comparison: Comparison) -> list[list[str]]:
    """Returns the rows of the report: means with their confidence intervals over seeds."""
    return [
        [
            row["policy"],
            format_mean(row["mean_round"], 2, unit=" s"),
            format_mean(row["time_saved"], 1, scale=100, unit=" %") if row["time_saved"]["mean"] else "",
            format_mean(row["least_share"], 3, limits=UNIT_RANGE),
            *_worst(row),
        ]
        for row in comparison.as_dict()["policies"]
    ]


def _write_report(path: Path, results: Any, comparison: Comparison, oracles: Set[str]) -> None:
    from turnout.lab.studies.framework.experiment import JudgedPolicy, conclude, render_report

    seeds, rounds = comparison.seeds, comparison.rounds
    figures = [
        JudgedPolicy(
            row["policy"],
            np.array(measured.values["mean_round"]),
            row["largest_shortfall"],
            row["status"],
            row["policy"] in oracles,
        )
        for measured, row in zip(comparison.measured, comparison.as_dict()["policies"], strict=True)
    ]
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
        rows=_with_intervals(comparison),
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
        conclusion=conclude(figures, tolerance=DEFAULT_TOLERANCE, reference="random"),
    )
    write_text(path, page)
