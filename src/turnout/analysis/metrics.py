"""What a run shows: shares, debts, times and predictions, as numbers and arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_floats, as_number, same_length
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import Accrual, Rate, exact_rates
from turnout.kernel.rounds import OUTCOMES, TIMED_OUTCOMES
from turnout.store.columns import RoundColumns


class Estimates(NamedTuple):
    """What was predicted for each chosen client before its round, in seconds, and how little was known."""

    predicted: FloatArray
    uncertainty: FloatArray


class PredictionError(NamedTuple):
    """Mean absolute error in seconds: of all rounds, and of each; NaN where nobody gave a time."""

    overall: float
    by_round: FloatArray


class ConfidenceInterval(NamedTuple):
    """A mean, and half the width of its confidence interval."""

    mean: FloatArray
    half_width: FloatArray


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in ten numbers: seconds of rounds, shares of turns, and turns owed after the last round."""

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


def summarise(columns: RoundColumns, *, guaranteed_rate: Rate | npt.ArrayLike) -> Summary:
    """How fast the run was, and how fair.

    `least_share`: the share of rounds of the least chosen client. Debts are counted as the paper does: everyone
    earns always, and who is chosen is paid.
    """
    rounds = _some_rounds(columns)
    durations, turns = columns.durations, columns.turns
    units, units_per_turn = owed_units(columns, guaranteed_rate)
    return Summary(
        rounds=rounds,
        mean_round=float(durations.mean()),
        p95_round=float(np.percentile(durations, 95)),
        total_time=float(durations.sum()),
        mean_cohort=len(columns.chosen) / rounds,
        least_share=int(turns.min()) / rounds,
        jain=jain_index(turns),
        spread_of_turns=spread(turns),
        worst_debt=int(units[-1].max()) / units_per_turn,
        mean_debt=int(units[-1].sum()) / (units_per_turn * columns.clients),
    )


def selection_rates(columns: RoundColumns) -> FloatArray:
    """The share of rounds that each client was chosen for, (N,)."""
    rates: FloatArray = columns.turns / _some_rounds(columns)
    return rates


def available_rates(columns: RoundColumns, *, least: float = 0.0) -> FloatArray:
    """The share of the rounds it was available for that each client was chosen for, (N,).

    NaN where it was available for none, or for less than the share `least` of all rounds: a few rounds tell nothing.
    """
    rounds = _some_rounds(columns)
    there = _who_earned(columns, "available").sum(axis=0)
    rates = np.full(columns.clients, np.nan)
    counts = (there > 0) & (there >= least * rounds)
    rates[counts] = columns.turns[counts] / there[counts]
    return rates


def sliding_rates(columns: RoundColumns, window: int) -> FloatArray:
    """The share of the last `window` rounds that each client was chosen for, (T − window + 1, N).

    Row 0 is of rounds 1 to `window`.
    """
    window = as_count("window", window, SettingError)
    rounds = _some_rounds(columns)
    if window > rounds:
        raise SettingError(f"window must be at most the number of rounds, {rounds}, not {window}")
    turns_before = np.zeros((rounds + 1, columns.clients), dtype=np.int64)
    np.cumsum(columns.chosen_mask, axis=0, out=turns_before[1:])
    rates: FloatArray = (turns_before[window:] - turns_before[:-window]) / window
    return rates


def owed_after_each_round(
    columns: RoundColumns,
    guaranteed_rate: Rate | npt.ArrayLike,
    *,
    accrual: Accrual = "always",
    max_owed: float | Fraction | None = None,
    outcomes_paid: Sequence[str] = OUTCOMES,
) -> FloatArray:
    """Turns owed to each client after each round, (T, N): the numbers that FairnessQueues would have given.

    `outcomes_paid`: the outcomes that pay a turn; all of them where a turn is paid when chosen, ("arrived",) where
    only a contribution pays.
    """
    units, units_per_turn = owed_units(
        columns, guaranteed_rate, accrual=accrual, max_owed=max_owed, outcomes_paid=outcomes_paid
    )
    return units / units_per_turn


def owed_units(
    columns: RoundColumns,
    guaranteed_rate: Rate | npt.ArrayLike,
    *,
    accrual: Accrual = "always",
    max_owed: float | Fraction | None = None,
    outcomes_paid: Sequence[str] = OUTCOMES,
) -> tuple[IntArray, int]:
    """What owed_after_each_round gives, as whole units, and the number of units in a turn."""
    rates, units_per_turn = exact_rates(guaranteed_rate, columns.clients)
    gains: IntArray = np.multiply(_who_earned(columns, accrual), rates, dtype=np.int64)
    gains[_who_was_paid(columns, outcomes_paid)] -= units_per_turn
    if max_owed is None:
        # owed ← max(owed + gain, 0) all the way is the running sum less its lowest point so far.
        balance = np.cumsum(gains, axis=0)
        return balance - np.minimum(np.minimum.accumulate(balance, axis=0), 0), units_per_turn
    as_number("max_owed", float(max_owed), SettingError, least=0)
    cap = math.floor(Fraction(max_owed) * units_per_turn)
    owed = np.zeros(columns.clients, dtype=np.int64)
    after = np.empty_like(gains)
    for round_, gain in enumerate(gains):
        owed = np.minimum(np.maximum(owed + gain, 0), cap)
        after[round_] = owed
    return after, units_per_turn


def jain_index(turns: npt.ArrayLike) -> float:
    """How even the turns are: (Σx)²/(N·Σx²), from 1/N (one has all) to 1 (all alike, or nobody has any).

    >>> jain_index([2, 2, 2, 2]), jain_index([8, 0, 0, 0])
    (1.0, 0.25)
    """
    counts = _as_turns(turns)
    if not counts.any():
        return 1.0
    shares = counts / counts.max()
    return float(np.clip(shares.sum() ** 2 / (len(shares) * (shares**2).sum()), 1 / len(shares), 1.0))


def gini_coefficient(turns: npt.ArrayLike) -> float:
    """Twice the area between the Lorenz curve and the diagonal: 0 where all are alike, near 1 where one has all.

    >>> gini_coefficient([2, 2, 2, 2]), gini_coefficient([8, 0, 0, 0])
    (0.0, 0.75)
    """
    counts = np.sort(_as_turns(turns))
    if not counts.any():
        return 0.0
    places = np.arange(1, len(counts) + 1)
    return float(2 * (places * counts).sum() / (len(counts) * counts.sum()) - (len(counts) + 1) / len(counts))


def lorenz_curve(turns: npt.ArrayLike) -> FloatArray:
    """Which share of the turns the least chosen share of the clients has: points (clients, turns), (N + 1, 2).

    >>> lorenz_curve([3, 0, 1])
    array([[0.        , 0.        ],
           [0.33333333, 0.        ],
           [0.66666667, 0.25      ],
           [1.        , 1.        ]])
    """
    counts = np.sort(_as_turns(turns))
    if not counts.any():
        counts = np.ones_like(counts)
    had = np.concatenate([[0.0], np.cumsum(counts)])
    return np.column_stack([np.arange(len(had)) / len(counts), had / had[-1]])


def spread(turns: npt.ArrayLike) -> float:
    """The standard deviation of the turns over the clients."""
    return float(_as_turns(turns).std())


def time_saved(columns: RoundColumns, baseline: RoundColumns) -> float:
    """The share of the baseline's total time that was saved over as many rounds; negative where it took longer."""
    if _some_rounds(columns) != _some_rounds(baseline):
        raise SettingError(
            f"time_saved compares runs of equal length: here are {len(columns.rounds)} rounds, "
            f"in the baseline {len(baseline.rounds)}"
        )
    total = float(baseline.durations.sum())
    if total == 0:
        raise SettingError("the baseline took no time at all: there is nothing to save")
    return 1 - float(columns.durations.sum()) / total


def replayed_estimates(
    columns: RoundColumns, *, features: int | None = None, ridge: float = 1.0, forgetting: float = 1.0
) -> Estimates:
    """What a model that was told the same rounds predicted for each chosen client BEFORE its round, (R,).

    It learns as ExchangeTimeModel does: from who arrived or was late, not from failures, and takes corrections of late
    arrivals in the round that told them. `features`: by default as many as the contexts have.
    """
    predicted, uncertainty = np.empty(len(columns.chosen)), np.empty(len(columns.chosen))
    if len(columns.chosen) == 0:
        return Estimates(predicted, uncertainty)
    width = columns.contexts.shape[1] if features is None else features
    model = ExchangeTimeModel(columns.clients, features=width, ridge=ridge, forgetting=forgetting)
    teaches = _with_outcome(columns, TIMED_OUTCOMES)
    starts = columns.starts.tolist()
    for round_, start, end in zip(columns.rounds.tolist(), starts, starts[1:], strict=False):
        clients, contexts = columns.chosen[start:end], columns.contexts[start:end]
        predicted[start:end] = model.predict(contexts, clients)
        uncertainty[start:end] = model.uncertainty(contexts, clients)
        if (late := columns.late.get(round_)) is not None:
            model.correct(
                late.clients, late.contexts, late.deadlines, late.exchange_times, learned_since=late.learned_since
            )
        taught = teaches[start:end]
        model.learn(clients[taught], contexts[taught], columns.exchange_times[start:end][taught])
    return Estimates(predicted, uncertainty)


def prediction_error(
    columns: RoundColumns, *, features: int | None = None, ridge: float = 1.0, forgetting: float = 1.0
) -> PredictionError:
    """How far the replayed predictions were from the observed times; failed clients do not count."""
    predicted, _ = replayed_estimates(columns, features=features, ridge=ridge, forgetting=forgetting)
    counts = _with_outcome(columns, TIMED_OUTCOMES)
    wrong = np.abs(predicted - columns.exchange_times)[counts]
    rounds = len(columns.rounds)
    of_round = round_of_each_row(columns)[counts]
    sums, clients = np.bincount(of_round, wrong, rounds), np.bincount(of_round, minlength=rounds)
    by_round = np.divide(sums, clients, out=np.full(rounds, np.nan), where=clients > 0)
    return PredictionError(mean_or_nan(wrong), by_round)


def band_coverage(
    columns: RoundColumns,
    expected: npt.ArrayLike,
    exploration: float,
    *,
    features: int | None = None,
    ridge: float = 1.0,
    forgetting: float = 1.0,
) -> float:
    """The share of chosen clients whose true expected time, (R,), lay within predicted ± exploration·uncertainty."""
    exploration = as_number("exploration", exploration, SettingError, least=0)
    means = as_true_means(expected, columns)
    predicted, uncertainty = replayed_estimates(columns, features=features, ridge=ridge, forgetting=forgetting)
    return mean_or_nan(np.abs(means - predicted) <= exploration * uncertainty)


def mean_and_band(values: npt.ArrayLike, axis: int = 0, confidence: float = 0.95) -> ConfidenceInterval:
    """The mean over seeds, and half the width of its confidence interval after Student; NaN of a single seed.

    >>> mean_and_band([1.0, 2.0, 3.0])
    ConfidenceInterval(mean=array(2.), half_width=array(2.48413771))
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim == 0 or numbers.shape[axis] == 0:
        raise SettingError("values must hold one number a seed, and at least one seed")
    seeds = numbers.shape[axis]
    mean = np.asarray(numbers.mean(axis=axis))
    if seeds == 1:
        return ConfidenceInterval(mean, np.full_like(mean, np.nan))
    standard_error = numbers.std(axis=axis, ddof=1) / math.sqrt(seeds)
    return ConfidenceInterval(mean, np.asarray(student_t(confidence, seeds - 1) * standard_error))


@lru_cache(maxsize=256)
def student_t(confidence: float, freedom: int) -> float:
    """Within ± this lies Student's t with probability `confidence`.

    Found by bisection of the finite series for whole degrees of freedom in the angle arctan(t/√freedom)
    (Abramowitz and Stegun 26.7.3 and 26.7.4).

    >>> round(student_t(0.95, 19), 3)
    2.093
    """
    freedom = as_count("freedom", freedom, SettingError)
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie between 0 and 1, not {confidence}")
    odd = freedom % 2
    steps = 2 * np.arange(1, freedom // 2) + odd
    weights = np.concatenate([[1.0], np.cumprod((steps - 1) / steps)])
    powers = 2 * np.arange(len(weights))

    def within(angle: float) -> float:
        series = math.sin(angle) * float(weights @ math.cos(angle) ** powers)
        if not odd:
            return series
        return 2 / math.pi * (angle + (math.cos(angle) * series if freedom > 1 else 0.0))

    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(high)


def round_of_each_row(columns: RoundColumns) -> IntArray:
    """The position, from 0, of the round that each row of the columns belongs to, (R,)."""
    return np.repeat(np.arange(len(columns.rounds)), np.diff(columns.starts))


def as_true_means(expected: npt.ArrayLike, columns: RoundColumns) -> FloatArray:
    """True expected times, one for each chosen client of each round."""
    means = as_floats("expected", expected, 1, SettingError)
    same_length("expected", means, len(columns.chosen), "chosen clients in all rounds", SettingError)
    return means


def mean_or_nan(values: npt.NDArray[np.float64 | np.bool_]) -> float:
    """The mean; NaN where there is nothing to take it of."""
    return float(values.mean()) if values.size else math.nan


def _some_rounds(columns: RoundColumns) -> int:
    if len(columns.rounds) == 0:
        raise SettingError("the columns hold no rounds: at least one is needed")
    return len(columns.rounds)


def _as_turns(turns: npt.ArrayLike) -> FloatArray:
    counts = as_floats("turns", turns, 1, SettingError)
    if len(counts) == 0 or counts.min() < 0:
        raise SettingError("turns must be one number a client, none of them negative, and at least one client")
    return counts


def _who_earned(columns: RoundColumns, accrual: Accrual) -> BoolArray:
    if accrual == "always":
        return np.ones((len(columns.rounds), columns.clients), dtype=np.bool_)
    if accrual != "available":
        raise SettingError(f"accrual must be 'always' or 'available', not {accrual!r}")
    if columns.available is None or "available" in columns.absent:
        raise ReportError("accrual='available' needs to know who was available: some rounds were recorded without it")
    return columns.available


def _who_was_paid(columns: RoundColumns, outcomes_paid: Sequence[str]) -> BoolArray:
    paying = _with_outcome(columns, outcomes_paid)
    paid = np.zeros((len(columns.rounds), columns.clients), dtype=np.bool_)
    paid[round_of_each_row(columns)[paying], columns.chosen[paying]] = True
    return paid


def _with_outcome(columns: RoundColumns, outcomes: Sequence[str]) -> BoolArray:
    """A mask of the rows whose outcome is one of these; without outcomes all arrived."""
    for word in outcomes:
        if word not in OUTCOMES:
            raise SettingError(f"outcomes are {', '.join(OUTCOMES)}: {word!r} is none of them")
    wanted = np.array([word in outcomes for word in OUTCOMES])
    if columns.outcomes is None:
        return np.full(len(columns.chosen), wanted[OUTCOMES.index("arrived")])
    mask: BoolArray = wanted[columns.outcomes]
    return mask
