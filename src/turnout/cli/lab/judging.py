"""The options for the promise by which simulated runs are judged, and how a status is shown."""

from __future__ import annotations

from typing import Annotated

import typer

from turnout.kernel.certificate import DEFAULT_TOLERANCE, PromiseStatus

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


def status_cell(status: PromiseStatus, tolerance: float) -> str:
    """Returns a status for a table; "behind" says that it is within the tolerance.

    >>> status_cell("behind", 2.0), status_cell("broken", 2.0)
    ('behind ≤ 2', 'broken')
    """
    return f"behind ≤ {tolerance:g}" if status == "behind" else status
