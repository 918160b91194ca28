"""Tables of runs without rounds, for `turnout simulate` and `turnout compare` with --concurrency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from turnout.analysis.slots import SlotFigures
from turnout.analysis.statistics import UNIT_RANGE, format_interval, mean_confidence_interval
from turnout.cli.options import print_json
from turnout.cli.simulation.judging import Judged, JudgedPromise, status_cell, worst_of
from turnout.simulator.plans import RunPlan

NOTE = (
    "staleness: versions of the model that the server made during a turn, one per update; in parentheses the largest. "
    "least share: turns of the client with the fewest, divided by the decisions with which it earned; a client earns "
    "while it is available or training. shortfall: promised turns minus turns, the largest of any client after any "
    "decision. status: at the worst moment; kept is less than one turn behind, broken is beyond the tolerance."
)


def show_slots(plans: Sequence[RunPlan], judged: Sequence[Judged], promise: JudgedPromise, *, json: bool) -> None:
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
    table = Table(title=f"{_title(plans[0])}, seed {plans[0].seed}; {_promised(promise)}")
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


def compare_slots(
    plans: Sequence[RunPlan],
    judged: Sequence[Sequence[Judged]],
    reference: int,
    promise: JudgedPromise,
    seeds: int,
    *,
    json: bool,
) -> None:
    """Prints one row for each policy, with the mean and the confidence interval over seeds.

    Args:
        plans: One plan of each policy.
        judged: The figures of each policy, one per seed.
        reference: The index of the policy with which the others are compared, seed by seed.
        promise: The promise by which they are judged.
        seeds: The number of seeds.
        json: Print JSON instead of a table.
    """
    rows = [_row(plan, own, judged[reference]) for plan, own in zip(plans, judged, strict=True)]
    baseline = plans[reference].name
    if json:
        known = {"guaranteed_rate": promise.number, "accrual": promise.accrual}
        print_json(
            {"seeds": seeds, "baseline": baseline, "concurrency": plans[0].concurrency, **known, "policies": rows}
        )
        return
    table = Table(title=f"{_title(plans[0])}, {seeds} seeds, mean ± 95 % confidence; {_promised(promise)}")
    for heading in (
        "policy",
        "updates/s",
        f"× {baseline}",
        "staleness",
        "least share",
        "shortfall",
        "status",
        "Jain",
    ):
        table.add_column(heading, justify="left" if heading in ("policy", "status") else "right")
    for row in rows:
        table.add_row(
            row["policy"],
            _cell(row["updates_per_second"], 3),
            _cell(row["speedup"], 2),
            _cell(row["mean_staleness"], 1),
            _cell(row["least_share"], 4, limits=UNIT_RANGE),
            f"{row['largest_shortfall']:.2f}",
            status_cell(row["status"], row["tolerance"]),
            _cell(row["jain"], 3, limits=UNIT_RANGE),
        )
    Console().print(table)
    Console(highlight=False).print(f"{NOTE} Shortfall and status: in the worst of the seeds.")


def _row(plan: RunPlan, own: Sequence[Judged], reference: Sequence[Judged]) -> dict[str, Any]:
    def interval(figure: Callable[[Judged, Judged], float]) -> dict[str, float]:
        values = [figure(judged, other) for judged, other in zip(own, reference, strict=True)]
        mean, half_width = mean_confidence_interval(np.array(values))
        return {"mean": float(mean), "half_width": float(half_width)}

    def rate(judged: Judged) -> float:
        return _slots(judged).updates_per_second

    return {
        "policy": plan.name,
        "updates_per_second": interval(lambda judged, _: rate(judged)),
        "speedup": interval(lambda judged, other: rate(judged) / rate(other)),
        "mean_staleness": interval(lambda judged, _: _slots(judged).mean_staleness),
        "least_share": interval(lambda judged, _: float(judged.summary.least_share)),
        "largest_shortfall": max(float(judged.summary.largest_shortfall) for judged in own),
        "tolerance": own[0].tolerance,
        "status": worst_of([judged.status for judged in own]),
        "jain": interval(lambda judged, _: float(judged.summary.jain)),
    }


def _as_dict(judged: Judged) -> dict[str, Any]:
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


def _slots(judged: Judged) -> SlotFigures:
    assert judged.slots is not None, "runs with --concurrency have no rounds"
    return judged.slots


def _title(plan: RunPlan) -> str:
    return f"{plan.rounds:,} turns, {plan.concurrency} slots"


def _promised(promise: JudgedPromise) -> str:
    return f"promised {promise.number:g} of {'its' if promise.accrual == 'available' else 'all'} decisions"


def _cell(interval: dict[str, float], digits: int, *, limits: tuple[float, float] = (-np.inf, np.inf)) -> str:
    return format_interval(interval["mean"], interval["half_width"], digits, limits=limits)
