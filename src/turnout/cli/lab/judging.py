"""The promise by which simulated runs are judged: the same rate for every policy of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from turnout.kernel.certificate import DEFAULT_TOLERANCE, STATUSES, PromiseStatus, Tolerance
from turnout.kernel.fairness import DEFAULT_RATE, Accrual, Rate, exact_rates
from turnout.kernel.guarantee import Guarantee, Paid
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.metrics import Summary, shortfalls, summarise
from turnout.lab.analysis.promise import SHARE_OF, Shortfall
from turnout.lab.analysis.slots import SlotFigures, slot_figures
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import slot_defaults
from turnout.plugins import naming_packages
from turnout.policies.registry import guarantee_of, with_defaults

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


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures of a run, and the status of its promise at its worst moment; `slots` if the run has no rounds."""

    summary: Summary
    status: PromiseStatus
    tolerance: float
    slots: SlotFigures | None = None


@dataclass(frozen=True, slots=True)
class JudgedPromise:
    """A rate and what it is a share of, by which every policy of a table is judged."""

    rate: Rate | npt.ArrayLike
    accrual: Accrual
    paid: Paid

    def __str__(self) -> str:
        return f"promised {self.number:g} {SHARE_OF[self.accrual]}"

    @property
    def number(self) -> float:
        """The rate, if it is the same for all clients."""
        units, units_per_turn = exact_rates(self.rate, None)
        assert isinstance(units, int), "tables are judged by one rate"
        return units / units_per_turn

    def summarise(self, columns: RoundColumns) -> Summary:
        """Returns the figures of a run without a judgement."""
        return summarise(columns, guaranteed_rate=self.rate, accrual=self.accrual, paid=self.paid)

    def judge(self, columns: RoundColumns, tolerance: Tolerance) -> Judged:
        """Returns the figures of a run."""
        found = shortfalls(columns, self.rate, accrual=self.accrual, paid=self.paid, tolerance=tolerance)
        slots = slot_figures(columns) if STARTED in columns.metrics else None
        return Judged(self.summarise(columns), worst_status(found), float(tolerance), slots)


#: The promise of the paper, by which policies without a promise are judged.
PAPER_PROMISE = JudgedPromise(DEFAULT_RATE, "always", "chosen")


def first_promise(guarantees: Sequence[Guarantee | None], rate: float | None) -> JudgedPromise:
    """Returns the first guarantee with one rate for all clients, else the paper's promise; `rate` replaces it."""
    first = next((guarantee for guarantee in guarantees if guarantee is not None and _is_one(guarantee)), None)
    found = PAPER_PROMISE if first is None else JudgedPromise(first.rate, first.accrual, first.paid)
    return found if rate is None else replace(found, rate=rate)


def judged_tolerance(guarantee: Guarantee | None, tolerance: float | None) -> Tolerance:
    """Returns the tolerance of a guarantee, the default without one; `tolerance` replaces both."""
    if tolerance is not None:
        return tolerance
    return DEFAULT_TOLERANCE if guarantee is None else guarantee.tolerance


def guarantee_of_run(info: RunInfo) -> Guarantee | None:
    """Returns what the policy of a stored run guarantees; None if it guarantees nothing.

    Raises:
        PluginError: If the package of the policy is missing.
    """
    name, settings = str(info.plan.get("policy")), info.plan.get("settings") or {}
    if info.plan.get("concurrency") is not None:
        settings = with_defaults(name, settings, slot_defaults(info.clients))
    with naming_packages(info.plan.get("packages")):
        return guarantee_of(name, info.clients, settings)


def worst_status(found: Shortfall) -> PromiseStatus:
    """Returns the status of the promise in the worst round: a promise that was ever broken is not kept."""
    if found.ever_broken.any():
        return "broken"
    return "behind" if found.largest >= 1 else "kept"


def worst_of(statuses: Sequence[PromiseStatus]) -> PromiseStatus:
    """Returns the worst of several statuses.

    >>> worst_of(["kept", "broken", "behind"])
    'broken'
    """
    return max(statuses, key=STATUSES.index)


def status_cell(status: PromiseStatus, tolerance: float) -> str:
    """Returns a status for a table; "behind" says that it is within the tolerance.

    >>> status_cell("behind", 2.0), status_cell("broken", 2.0)
    ('behind ≤ 2', 'broken')
    """
    return f"behind ≤ {tolerance:g}" if status == "behind" else status


def _is_one(guarantee: Guarantee) -> bool:
    rate: Any = guarantee.rate
    return np.ndim(rate) == 0
