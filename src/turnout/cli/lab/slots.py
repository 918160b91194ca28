"""The table of runs without rounds, for `turnout simulate` with --concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from turnout.cli.lab.judging import JudgedPromise, Judgement, status_cell
from turnout.cli.options import print_json
from turnout.counting import counted
from turnout.lab.analysis.slots import SlotFigures
from turnout.lab.runs.plans import RunPlan

NOTE = (
    "staleness: versions of the model that the server made during a turn, one per update; in parentheses the largest. "
    "least share: turns of the client with the fewest, divided by the decisions with which it earned; a client earns "
    "while it is available or training. shortfall: promised turns minus turns, the largest of any client after any "
    "decision. status: at the worst moment; kept is less than one turn behind, broken is beyond the tolerance."
)


def show_slots(plans: Sequence[RunPlan], judged: Sequence[Judgement], promise: JudgedPromise, *, json: bool) -> None:
    """Prints one row for each run.

    Args:
        plans: The plans of the runs.
        judged: The figures of each run.
        promise: The promise by which they are judged.
        json: Print JSON instead of a table.
    """
    if json:
        print_json([{"policy": plan.name, **_as_dict(row)} for plan, row in zip(plans, judged, strict=True)])
        return
    table = Table(title=f"{_title(plans[0])}, seed {plans[0].seed}; {promised_phrase(promise)}")
    headings = ("policy", "updates/s", "turn, s", "staleness", "least share", "shortfall", "status", "Jain")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("policy", "status") else "right")
    for plan, row in zip(plans, judged, strict=True):
        slots = _slots(row)
        table.add_row(
            plan.name,
            f"{slots.updates_per_second:.3f}",
            f"{slots.mean_turn:.2f}",
            f"{slots.mean_staleness:.1f} ({slots.largest_staleness})",
            f"{row.summary.least_share:.4f}",
            f"{row.summary.largest_shortfall:.2f}",
            status_cell(row.status, row.tolerance),
            f"{row.summary.jain:.3f}",
        )
    Console().print(table)
    Console(highlight=False).print(NOTE)


def _as_dict(judged: Judgement) -> dict[str, Any]:
    slots, summary = _slots(judged), judged.summary
    return {
        "updates_per_second": slots.updates_per_second,
        **asdict(slots),
        "least_share": summary.least_share,
        "share_of": summary.share_of,
        "largest_shortfall": summary.largest_shortfall,
        "shortfall_at_end": summary.shortfall_at_end,
        "jain": summary.jain,
        "tolerance": judged.tolerance,
        "status": judged.status,
    }


def _slots(judged: Judgement) -> SlotFigures:
    assert judged.slots is not None, "runs with --concurrency have no rounds"
    return judged.slots


def _title(plan: RunPlan) -> str:
    return f"{counted(plan.rounds, 'turn')}, {counted(plan.concurrency or 0, 'slot')}"


def promised_phrase(promise: JudgedPromise) -> str:
    """Returns the promise in words, for runs without rounds."""
    return f"promised {promise.number:g} of {'its' if promise.accrual == 'available' else 'all'} decisions"
