"""The promise by which runs are judged: the same rate for every policy of a table, on a page or in a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from turnout.errors import TurnoutError
from turnout.kernel.arrays import Rate, exact_rates
from turnout.kernel.certificate import DEFAULT_TOLERANCE, STATUSES, Accrual, PromiseStatus, Tolerance
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.guarantee import Guarantee, TurnCounting
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.metrics import RunSummary, summarise, summarise_shortfall
from turnout.lab.analysis.promise import Shortfall, share_of, shortfalls
from turnout.lab.analysis.slots import SlotMetrics, slot_metrics
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import slot_defaults
from turnout.plugins import naming_packages
from turnout.policies.registry import guarantee_of, with_defaults


@dataclass(frozen=True, slots=True)
class Judgement:
    """The figures of a run, and the status of its promise at its worst moment; `slots` if the run has no rounds."""

    summary: RunSummary
    status: PromiseStatus
    tolerance: float
    slots: SlotMetrics | None = None


@dataclass(frozen=True, slots=True)
class JudgedPromise:
    """A rate and what it is a share of, by which every policy of a table is judged."""

    rate: Rate | npt.ArrayLike
    accrual: Accrual
    counts: TurnCounting

    def __str__(self) -> str:
        return f"promised {self.number:g} {share_of(self.accrual)}"

    @property
    def number(self) -> float:
        """The rate, if it is the same for all clients."""
        units, units_per_turn = exact_rates(self.rate, None)
        assert isinstance(units, int), "tables are judged by one rate"
        return units / units_per_turn

    def summarise(self, columns: RoundColumns) -> RunSummary:
        """Returns the figures of a run without a judgement."""
        return summarise(columns, guaranteed_rate=self.rate, accrual=self.accrual, counts=self.counts)

    def judge(self, columns: RoundColumns, tolerance: Tolerance) -> Judgement:
        """Returns the figures of a run."""
        shortfall = shortfalls(columns, self.rate, accrual=self.accrual, counts=self.counts, tolerance=tolerance)
        slots = slot_metrics(columns) if STARTED in columns.metrics else None
        summary = summarise_shortfall(columns, shortfall, self.accrual)
        return Judgement(summary, worst_status(shortfall), float(tolerance), slots)


#: The promise of the paper, by which policies without a promise are judged.
PAPER_PROMISE = JudgedPromise(DEFAULT_RATE, "always", "selected")


def first_promise(guarantees: Sequence[Guarantee | None], rate: float | None = None) -> JudgedPromise:
    """Returns the first guarantee with one rate for all clients, else the paper's promise; `rate` replaces its rate."""
    common = (each for each in guarantees if each is not None and isinstance(exact_rates(each.rate, None)[0], int))
    first = next(common, None)
    promise = PAPER_PROMISE if first is None else JudgedPromise(first.rate, first.accrual, first.counts)
    return promise if rate is None else replace(promise, rate=rate)


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
    return guarantee_of_plan(info.plan, info.clients)


def known_guarantee(info: RunInfo) -> Guarantee | None:
    """Returns what a run guarantees; None if it guarantees nothing, or its policy cannot be built here."""
    try:
        return guarantee_of_run(info)
    except (TurnoutError, LookupError, TypeError, ValueError):
        return None


def promise_of_runs(infos: Iterable[RunInfo]) -> JudgedPromise:
    """Returns the promise by which these runs are judged, as `turnout simulate` judges them."""
    return first_promise([known_guarantee(info) for info in infos])


def guarantee_of_plan(plan: Mapping[str, Any], clients: int) -> Guarantee | None:
    """Returns what the policy of a plan guarantees to this number of clients; None if it guarantees nothing."""
    name, settings = str(plan.get("policy")), plan.get("settings") or {}
    if plan.get("concurrency") is not None:
        settings = with_defaults(name, settings, slot_defaults(clients))
    with naming_packages(plan.get("packages")):
        return guarantee_of(name, clients, settings)


def worst_status(shortfall: Shortfall) -> PromiseStatus:
    """Returns the status of the promise in the worst round: a promise that was ever broken is not kept."""
    if shortfall.ever_broken.any():
        return "broken"
    return "behind" if shortfall.largest >= 1 else "kept"


def worst_of(statuses: Sequence[PromiseStatus]) -> PromiseStatus:
    """Returns the worst of several statuses.

    >>> worst_of(["kept", "broken", "behind"])
    'broken'
    """
    return max(statuses, key=STATUSES.index)
