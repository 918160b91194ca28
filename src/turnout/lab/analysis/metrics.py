"""Metrics of a run (durations, evenness of turns), and the promise by which all runs of a table are judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray, Rate, as_floats, exact_rates
from turnout.kernel.certificate import DEFAULT_TOLERANCE, STATUSES, Accrual, Certificate, PromiseStatus, Tolerance
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.guarantee import Guarantee, TurnCounting
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.promise import SHARE_OF, Shortfall, accrual_mask, require_rounds, share_of, shortfalls
from turnout.lab.analysis.slots import SlotMetrics, slot_metrics
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import policy_of_plan
from turnout.lab.runs.tables import RunInfo


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Figures of a run: round times in seconds, shares of turns, and how far clients are behind a promise, in turns.

    Attributes:
        rounds: The number of rounds.
        mean_round: The mean duration of a round, in seconds.
        p95_round: The 95th percentile of the durations.
        total_time: The sum of the durations.
        mean_cohort: The mean number of selected clients.
        least_share: The smallest share of any client; see `share_of`.
        jain: Jain's index of the turns.
        spread_of_turns: The standard deviation of the turns over the clients.
        worst_debt: The longest queue of owed turns after the last round.
        mean_debt: The mean length of the queues.
        largest_shortfall: The largest number of promised turns minus turns of any client at the end of any round.
        shortfall_at_end: The same after the last round.
        share_of: What shares are shares of: "of all rounds", or "of the rounds it was available for".
    """

    rounds: int
    mean_round: float
    p95_round: float
    total_time: float
    mean_cohort: float
    least_share: float
    jain: float
    spread_of_turns: float
    worst_debt: float
    mean_debt: float
    largest_shortfall: float
    shortfall_at_end: float
    share_of: str


def summarise(
    columns: RoundColumns,
    *,
    guaranteed_rate: Rate | npt.ArrayLike,
    accrual: Accrual = "always",
    counts: TurnCounting = "selected",
) -> RunSummary:
    """Summarises the speed and the fairness of a run.

    By default the promise is that of the paper: every client accrues turns in every round, and a selection pays one
    turn.
    """
    return summarise_shortfall(columns, shortfalls(columns, guaranteed_rate, accrual=accrual, counts=counts), accrual)


def summarise_shortfall(columns: RoundColumns, shortfall: Shortfall, accrual: Accrual) -> RunSummary:
    """Summarises the speed and the fairness of a run whose shortfall was computed with this accrual."""
    rounds, certificate = require_rounds(columns), shortfall.certificate
    durations, turns = columns.durations, columns.turns
    owed, units_per_turn = certificate.owed_units, certificate.units_per_turn
    return RunSummary(
        rounds=rounds,
        mean_round=float(durations.mean()),
        p95_round=float(np.percentile(durations, 95)),
        total_time=float(durations.sum()),
        mean_cohort=len(columns.chosen) / rounds,
        least_share=_least_share(certificate, accrual_mask(columns, accrual).sum(axis=0), accrual),
        jain=jain_index(turns),
        spread_of_turns=spread(turns),
        worst_debt=int(owed.max()) / units_per_turn,
        mean_debt=int(owed.sum()) / (units_per_turn * columns.clients),
        largest_shortfall=shortfall.largest,
        shortfall_at_end=shortfall.at_end,
        share_of=SHARE_OF[accrual],
    )


def _least_share(certificate: Certificate, rounds: IntArray, accrual: Accrual) -> float:
    """Returns the smallest share of any client: its turns divided by the `rounds` in which it accrued.

    With accrual="available", clients that were available for too few rounds to be promised a whole turn do not count,
    unless all were: their share says nothing. Returns NaN if no client was ever available.
    """
    counts = rounds > 0
    servable = certificate.promised_units >= certificate.units_per_turn
    if accrual == "available" and (counts & servable).any():
        counts &= servable
    return float((certificate.turns[counts] / rounds[counts]).min()) if counts.any() else math.nan


def available_rates(columns: RoundColumns, *, least: float = 0.0) -> FloatArray:
    """Returns the share of its available rounds in which each client was selected, (N,).

    The rate is NaN for clients that were available in no round or in less than the share `least` of all rounds, because
    few rounds give no reliable rate.
    """
    rounds = require_rounds(columns)
    available_rounds = accrual_mask(columns, "available").sum(axis=0)
    rates = np.full(columns.clients, np.nan)
    counts = (available_rounds > 0) & (available_rounds >= least * rounds)
    rates[counts] = columns.turns[counts] / available_rounds[counts]
    return rates


def jain_index(turns: npt.ArrayLike) -> float:
    """Returns Jain's fairness index (Σx)²/(N·Σx²) of the turns.

    It ranges from 1/N (one client has all turns) to 1 (all clients have the same number of turns, or none has any).

    >>> jain_index([2, 2, 2, 2]), jain_index([8, 0, 0, 0])
    (1.0, 0.25)
    """
    counts = _as_turns(turns)
    if not counts.any():
        return 1.0
    shares = counts / counts.max()
    return float(np.clip(shares.sum() ** 2 / (len(shares) * (shares**2).sum()), 1 / len(shares), 1.0))


def gini_coefficient(turns: npt.ArrayLike) -> float:
    """Returns twice the area between the Lorenz curve and the diagonal.

    It is 0 if all clients have the same number of turns, and close to 1 if one client has all of them.

    >>> gini_coefficient([2, 2, 2, 2]), gini_coefficient([8, 0, 0, 0])
    (0.0, 0.75)
    """
    counts = np.sort(_as_turns(turns))
    if not counts.any():
        return 0.0
    ranks = np.arange(1, len(counts) + 1)
    return float(2 * (ranks * counts).sum() / (len(counts) * counts.sum()) - (len(counts) + 1) / len(counts))


def lorenz_curve(turns: npt.ArrayLike) -> FloatArray:
    """Returns the Lorenz curve of the turns: points (share of the clients, share of the turns), (N + 1, 2).

    The clients are sorted by their number of turns, least selected first.

    >>> lorenz_curve([3, 0, 1])
    array([[0.        , 0.        ],
           [0.33333333, 0.        ],
           [0.66666667, 0.25      ],
           [1.        , 1.        ]])
    """
    counts = np.sort(_as_turns(turns))
    if not counts.any():
        counts = np.ones_like(counts)
    cumulative = np.concatenate([[0.0], np.cumsum(counts)])
    return np.column_stack([np.arange(len(cumulative)) / len(counts), cumulative / cumulative[-1]])


def spread(turns: npt.ArrayLike) -> float:
    """Returns the standard deviation of the turns over the clients."""
    return float(_as_turns(turns).std())


def _as_turns(turns: npt.ArrayLike) -> FloatArray:
    counts = as_floats("turns", turns, 1, SettingError)
    if len(counts) == 0 or counts.min() < 0:
        raise SettingError("turns must be a non-negative number per client, for at least one client")
    return counts


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


def known_guarantee(info: RunInfo) -> Guarantee | None:
    """Returns what a run guarantees; None if it guarantees nothing, or its policy cannot be built here."""
    try:
        return policy_of_plan(info.plan, info.clients).guarantee
    except (TurnoutError, LookupError, TypeError, ValueError):
        return None


def promise_of_runs(infos: Iterable[RunInfo]) -> JudgedPromise:
    """Returns the promise by which these runs are judged, as `turnout simulate` judges them."""
    return first_promise([known_guarantee(info) for info in infos])


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
