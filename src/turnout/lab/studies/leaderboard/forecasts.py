"""Errors of exchange-time forecasts, for the model of RBCS-F and for variants of it.

The evaluation replays recorded runs: each variant processes the rounds of a run in order and forecasts the time of
every selected client before it learns that time. The selections are those of the recorded run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.rounds import TIMED_OUTCOMES
from turnout.lab.analysis.promise import round_of_each_row, with_outcome
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.columns import RoundColumns
from turnout.lab.tables import Table, as_columns

Features = Callable[[FloatArray], FloatArray]
SHORTEST = 1e-3  # seconds, for logarithms


def as_offered(contexts: FloatArray) -> FloatArray:
    """Returns the features that a policy sees: 1/free CPU, cold start, last known seconds of both transfers."""
    return contexts


def with_constant(contexts: FloatArray) -> FloatArray:
    """Adds a constant feature."""
    return np.column_stack([contexts, np.ones(len(contexts))])


def with_interaction(contexts: FloatArray) -> FloatArray:
    """Adds the feature transfer seconds / free CPU."""
    return np.column_stack([contexts, contexts[:, 0] * contexts[:, 2]])


def logarithms(contexts: FloatArray) -> FloatArray:
    """Returns a constant, the logarithms of 1/free CPU and of the transfer seconds, and the cold-start feature."""
    cpu, transfer = (np.log(np.maximum(contexts[:, column], SHORTEST)) for column in (0, 2))
    return np.column_stack([np.ones(len(contexts)), cpu, contexts[:, 1], transfer])


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the forecast.

    `pooled` regressions shrink towards that of the whole fleet instead of towards 0; `log_time` fits log seconds.
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
    """Returns the forecast in seconds for each selected client, made before its round; one value per row."""
    contexts = variant.features(columns.contexts)
    targets = np.log(np.maximum(columns.exchange_times, SHORTEST)) if variant.log_time else columns.exchange_times
    own = _Regressions(columns.clients, contexts.shape[1], variant.forgetting)
    fleet = _Regressions(1, contexts.shape[1])
    informative = with_outcome(columns, TIMED_OUTCOMES)
    predicted = np.empty(len(columns.chosen))
    starts = columns.starts.tolist()
    for start, end in pairwise(starts):
        rows = columns.chosen[start:end]
        prior = fleet.coefficients(np.zeros(1, dtype=np.int64))[0] if variant.pooled else None
        predicted[start:end] = (contexts[start:end] * own.coefficients(rows, prior)).sum(axis=1)
        observed = start + np.flatnonzero(informative[start:end])
        own.update(columns.chosen[observed], contexts[observed], targets[observed])
        if variant.pooled:
            fleet.update(np.zeros(len(observed), dtype=np.int64), contexts[observed], targets[observed])
    return np.exp(predicted) if variant.log_time else predicted


def relative_errors(columns: RoundColumns, predicted: FloatArray) -> FloatArray:
    """Returns |predicted − time| / time of all observed times in the second half of the run."""
    late = 2 * round_of_each_row(columns) >= len(columns)
    rows = with_outcome(columns, TIMED_OUTCOMES) & late & (columns.exchange_times > 0)
    times = columns.exchange_times[rows]
    errors: FloatArray = np.abs(predicted[rows] - times) / times
    return errors


def forecast_table(
    runs: Iterable[RoundColumns], oracle: Iterable[RoundColumns], variants: Sequence[Variant] = VARIANTS
) -> Table:
    """Returns the mean and median relative errors of each variant and of the true expected times.

    `runs` are those of RBCS-F, `oracle` those of the fair oracle. The column `better_by` is the reduction of the mean
    error compared with the first variant, by seed.
    """
    errors: dict[str, list[tuple[float, float]]] = {variant.label: [] for variant in variants}
    for columns in runs:
        for variant in variants:
            errors[variant.label].append(_mean_and_median(relative_errors(columns, forecasts(columns, variant))))
    errors[TRUTH] = [
        _mean_and_median(relative_errors(columns, columns.client_reasons["optimistic"])) for columns in oracle
    ]
    plain = np.array(errors[variants[0].label])[:, 0]
    rows: list[dict[str, Any]] = []
    for label, pairs in errors.items():
        by_seed = np.array(pairs)
        measured = {"mean_error": by_seed[:, 0], "median_error": by_seed[:, 1]}
        if label != TRUTH:  # measured on other selections, hence not comparable by seed
            measured["better_by"] = plain - by_seed[:, 0]
        rows.append({"forecast": label, **with_bands(measured, digits=6)})
    return as_columns(rows)


def _mean_and_median(errors: FloatArray) -> tuple[float, float]:
    return (float(errors.mean()), float(np.median(errors))) if len(errors) else (np.nan, np.nan)


class _Regressions:
    """One ridge regression per client, for targets of any sign; ExchangeTimeModel accepts only positive times."""

    def __init__(self, clients: int, features: int, forgetting: float = 1.0, ridge: float = 1.0) -> None:
        self._squares = np.zeros((clients, features, features))
        self._sums = np.zeros((clients, features))
        self._forgetting, self._ridge = forgetting, ridge

    def coefficients(self, rows: IntArray, prior: FloatArray | None = None) -> FloatArray:
        """Returns the coefficients of these clients, (rows, features); they shrink towards `prior`, or towards 0."""
        sums = self._sums[rows] if prior is None else self._sums[rows] + self._ridge * prior
        squares = self._squares[rows] + self._ridge * np.eye(self._sums.shape[1])
        return np.asarray(np.linalg.solve(squares, sums[..., None])[..., 0], dtype=np.float64)

    def update(self, rows: IntArray, contexts: FloatArray, targets: FloatArray) -> None:
        """Adds one target per row, after discounting earlier observations of these clients."""
        if self._forgetting < 1:
            self._squares[rows] *= self._forgetting
            self._sums[rows] *= self._forgetting
        np.add.at(self._squares, rows, contexts[:, :, None] * contexts[:, None, :])
        np.add.at(self._sums, rows, contexts * targets[:, None])
