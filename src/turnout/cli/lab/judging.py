"""The promise by which simulated runs are judged, on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from turnout.kernel.certificate import DEFAULT_TOLERANCE, PromiseStatus, Tolerance
from turnout.lab.analysis.judging import PAPER_PROMISE as PAPER_PROMISE
from turnout.lab.analysis.judging import JudgedPromise as JudgedPromise
from turnout.lab.analysis.judging import Judgement as Judgement
from turnout.lab.analysis.judging import first_promise as first_promise
from turnout.lab.analysis.judging import guarantee_of_plan as guarantee_of_plan
from turnout.lab.analysis.judging import guarantee_of_run as guarantee_of_run
from turnout.lab.analysis.judging import judged_tolerance as judged_tolerance
from turnout.lab.analysis.judging import worst_of as worst_of
from turnout.policies.base import SelectionPolicy

PromiseOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Guaranteed rate by which all policies are judged; by default that of the first with one."
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        help="Tolerance in turns by which all policies are judged; by default that of each policy, or "
        f"{DEFAULT_TOLERANCE:g}."
    ),
]


def promise_of(policies: Sequence[SelectionPolicy], rate: float | None) -> JudgedPromise:
    """Returns the promise of the first policy with one rate for all clients, else the paper's; `rate` replaces it."""
    return first_promise([policy.guarantee for policy in policies], rate)


def tolerance_of(policy: SelectionPolicy, tolerance: float | None) -> Tolerance:
    """Returns the tolerance of a policy, the default if it has none; `tolerance` replaces both."""
    return judged_tolerance(policy.guarantee, tolerance)


def status_cell(status: PromiseStatus, tolerance: float) -> str:
    """Returns a status for a table; "behind" says that it is within the tolerance.

    >>> status_cell("behind", 2.0), status_cell("broken", 2.0)
    ('behind ≤ 2', 'broken')
    """
    return f"behind ≤ {tolerance:g}" if status == "behind" else status
