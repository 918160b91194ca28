"""How well exchange times were foreseen, and what would have foreseen them better.

A what-if over recorded runs: each variant is told the rounds of a run in order, and forecasts every chosen client's
time just before it learns it. Who was chosen stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from turnout.analysis.metrics import round_of_each_row
from turnout.analysis.statistics import mean_confidence_interval
from turnout.experiments.framework.experiment import Table
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import OUTCOMES
from turnout.store import RoundColumns

Features = Callable[[FloatArray], FloatArray]
SHORTEST = 1e-3  # seconds, for logarithms


def as_offered(contexts: FloatArray) -> FloatArray:
    """What a policy is told: 1/free CPU, whether it starts cold, seconds of both transfers as last known."""
    return contexts


def with_constant(contexts: FloatArray) -> FloatArray:
    """And a constant: what a client takes however it is."""
    return np.column_stack([contexts, np.ones(len(contexts))])


def with_interaction(contexts: FloatArray) -> FloatArray:
    """And transfer seconds / free CPU."""
    return np.column_stack([contexts, contexts[:, 0] * contexts[:, 2]])


def logarithms(contexts: FloatArray) -> FloatArray:
    """A constant, and the logarithms of 1/free CPU and of the transfer seconds: factors of the time."""
    cpu, transfer = (np.log(np.maximum(contexts[:, place], SHORTEST)) for place in (0, 2))
    return np.column_stack([np.ones(len(contexts)), cpu, contexts[:, 1], transfer])


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to forecast: `pooled` regressions shrink to that of the whole fleet instead of to 0; `log_time` fits log
    seconds.
    """

    label: str
    features: Features = as_offered
    forgetting: float = 1.0
    log_time: bool = False
    pooled: bool = False


PLAIN = Variant("plain, as RBCS-F has it")
VARIANTS = (
    PLAIN,
    Variant("forgetting 0.98", forgetting=0.98),
    Variant("added feature: a constant", with_constant),
    Variant("added feature: transfer × 1/CPU", with_interaction),
    Variant("log-time", logarithms, log_time=True),
    Variant("fleet prior", pooled=True),
    Variant("fleet prior, a constant", with_constant, pooled=True),
    Variant("fleet prior, log-time", logarithms, log_time=True, pooled=True),
)
TRUTH = "the truth (fair oracle's choices)"


def forecasts(columns: RoundColumns, variant: Variant) -> FloatArray:
    """What this variant says of each chosen client just before its round, in seconds, (R,)."""
    contexts = variant.features(columns.contexts)
    targets = np.log(np.maximum(columns.exchange_times, SHORTEST)) if variant.log_time else columns.exchange_times
    own = _Regressions(columns.clients, contexts.shape[1], variant.forgetting)
    fleet = _Regressions(1, contexts.shape[1])
    teaches = taught(columns)
    said = np.empty(len(columns.chosen))
    starts = columns.starts.tolist()
    for start, end in pairwise(starts):
        rows = columns.chosen[start:end]
        prior = fleet.coefficients(np.zeros(1, dtype=np.int64))[0] if variant.pooled else None
        said[start:end] = (contexts[start:end] * own.coefficients(rows, prior)).sum(axis=1)
        told = start + np.flatnonzero(teaches[start:end])
        own.learn(columns.chosen[told], contexts[told], targets[told])
        if variant.pooled:
            fleet.learn(np.zeros(len(told), dtype=np.int64), contexts[told], targets[told])
    return np.exp(said) if variant.log_time else said


def taught(columns: RoundColumns) -> BoolArray:
    """The rows that tell how long a client takes: a failure does not."""
    if columns.outcomes is None:
        return np.ones(len(columns.chosen), dtype=np.bool_)
    told: BoolArray = columns.outcomes != OUTCOMES.index("failed")
    return told


def relative_errors(columns: RoundColumns, said: FloatArray) -> FloatArray:
    """|said − time| / time of who came back in the second half of the run."""
    late = 2 * round_of_each_row(columns) >= len(columns)
    counts = taught(columns) & late & (columns.exchange_times > 0)
    times = columns.exchange_times[counts]
    errors: FloatArray = np.abs(said[counts] - times) / times
    return errors


def forecast_table(
    runs: Iterable[RoundColumns], oracle: Iterable[RoundColumns], variants: Sequence[Variant] = VARIANTS
) -> Table:
    """Mean and median relative error of each variant over the second half of runs, and that of the truth.

    `better_by`: by how much its mean error is smaller than that of the first variant, seed by seed.
    """
    found: dict[str, list[tuple[float, float]]] = {one.label: [] for one in variants}
    for columns in runs:
        for one in variants:
            found[one.label].append(_mean_and_median(relative_errors(columns, forecasts(columns, one))))
    found[TRUTH] = [
        _mean_and_median(relative_errors(columns, columns.client_reasons["optimistic"])) for columns in oracle
    ]
    plain = np.array(found[variants[0].label])[:, 0]
    rows: list[dict[str, Any]] = []
    for label, pairs in found.items():
        each = np.array(pairs)
        measured = {"mean_error": each[:, 0], "median_error": each[:, 1]}
        if label != TRUTH:  # measured on other choices: no difference seed by seed
            measured["better_by"] = plain - each[:, 0]
        rows.append({"forecast": label, **_told(measured)})
    words = list(dict.fromkeys(word for row in rows for word in row))
    return {word: [row.get(word, np.nan) for row in rows] for word in words}


def _told(measured: dict[str, FloatArray]) -> dict[str, float]:
    row = {}
    for word, values in measured.items():
        mean, band = mean_confidence_interval(values)
        row[word], row[f"{word}_band"] = round(float(mean), 6), round(float(band), 6)
    return row


def _mean_and_median(errors: FloatArray) -> tuple[float, float]:
    return (float(errors.mean()), float(np.median(errors))) if len(errors) else (np.nan, np.nan)


class _Regressions:
    """One ridge regression a client, for targets of any sign; ExchangeTimeModel takes times only."""

    def __init__(self, clients: int, features: int, forgetting: float = 1.0, ridge: float = 1.0) -> None:
        self._squares = np.zeros((clients, features, features))
        self._sums = np.zeros((clients, features))
        self._forgetting, self._ridge = forgetting, ridge

    def coefficients(self, rows: IntArray, prior: FloatArray | None = None) -> FloatArray:
        """Those of some clients, (rows, features)."""
        sums = self._sums[rows] if prior is None else self._sums[rows] + self._ridge * prior
        squares = self._squares[rows] + self._ridge * np.eye(self._sums.shape[1])
        return np.asarray(np.linalg.solve(squares, sums[..., None])[..., 0], dtype=np.float64)

    def learn(self, rows: IntArray, contexts: FloatArray, targets: FloatArray) -> None:
        """Take in one target a row; what these clients taught before fades."""
        if self._forgetting < 1:
            self._squares[rows] *= self._forgetting
            self._sums[rows] *= self._forgetting
        np.add.at(self._squares, rows, contexts[:, :, None] * contexts[:, None, :])
        np.add.at(self._sums, rows, contexts * targets[:, None])
