"""Metrics of a run: selection rates, turns owed, round times and prediction errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.analysis.statistics import mean_or_nan
from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_floats, as_number, require_length
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import Accrual, Rate, exact_rates
from turnout.kernel.rounds import OUTCOMES, TIMED_OUTCOMES
from turnout.store.columns import RoundColumns


class Estimates(NamedTuple):
    """The predicted seconds of each selected client before its round, and their uncertainty."""

    predicted: FloatArray
    uncertainty: FloatArray


class PredictionError(NamedTuple):
    """The mean absolute error in seconds, overall and per round; NaN without observed times."""

    overall: float
    by_round: FloatArray


@dataclass(frozen=True, slots=True)
class Summary:
    """Ten figures of a run: round times in seconds, shares of turns, and turns owed after the last round."""

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
    """Summarises the speed and the fairness of a run.

    `least_share` is the share of rounds of the least selected client. Debts follow the paper: every client accrues
    turns in every round, and a selection pays one turn.
    """
    rounds = _count_rounds(columns)
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
    """Returns the share of rounds in which each client was selected, (N,)."""
    rates: FloatArray = columns.turns / _count_rounds(columns)
    return rates


def available_rates(columns: RoundColumns, *, least: float = 0.0) -> FloatArray:
    """Returns the share of its available rounds in which each client was selected, (N,).

    The rate is NaN for clients that were available in no round or in less than the share `least` of all rounds, because
    few rounds give no reliable rate.
    """
    rounds = _count_rounds(columns)
    available_rounds = _accrual_mask(columns, "available").sum(axis=0)
    rates = np.full(columns.clients, np.nan)
    counts = (available_rounds > 0) & (available_rounds >= least * rounds)
    rates[counts] = columns.turns[counts] / available_rounds[counts]
    return rates


def sliding_rates(columns: RoundColumns, window: int) -> FloatArray:
    """Returns the share of the last `window` rounds in which each client was selected, (T − window + 1, N).

    Row 0 covers rounds 1 to `window`.
    """
    window = as_count("window", window, SettingError)
    rounds = _count_rounds(columns)
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
    """Returns the turns owed to each client after each round, (T, N), as FairnessQueues computes them.

    Args:
        columns: The recorded rounds.
        guaranteed_rate: The guaranteed rate, one for all clients or one per client.
        accrual: Whether clients accrue turns "always" or only in rounds in which they are "available".
        max_owed: The largest number of turns owed to a client; None for no limit.
        outcomes_paid: The outcomes that pay a turn: all outcomes if a selection pays, ("arrived",) if only a
            contribution pays.
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
    """Returns the result of owed_after_each_round in integer units, and the number of units per turn.

    Args:
        columns: The recorded rounds.
        guaranteed_rate: The guaranteed rate, one for all clients or one per client.
        accrual: Whether clients accrue turns "always" or only in rounds in which they are "available".
        max_owed: The largest number of turns owed to a client; None for no limit.
        outcomes_paid: The outcomes that pay a turn.
    """
    rates, units_per_turn = exact_rates(guaranteed_rate, columns.clients)
    gains: IntArray = np.multiply(_accrual_mask(columns, accrual), rates, dtype=np.int64)
    gains[_paid_mask(columns, outcomes_paid)] -= units_per_turn
    if max_owed is None:
        # The recursion owed ← max(owed + gain, 0) equals the running sum minus its running minimum.
        balance = np.cumsum(gains, axis=0)
        return balance - np.minimum(np.minimum.accumulate(balance, axis=0), 0), units_per_turn
    as_number("max_owed", float(max_owed), SettingError, least=0)
    cap = math.floor(Fraction(max_owed) * units_per_turn)
    owed = np.zeros(columns.clients, dtype=np.int64)
    owed_after = np.empty_like(gains)
    for round_, gain in enumerate(gains):
        owed = np.minimum(np.maximum(owed + gain, 0), cap)
        owed_after[round_] = owed
    return owed_after, units_per_turn


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


def time_saved(columns: RoundColumns, baseline: RoundColumns) -> float:
    """Returns the saved share of the baseline's total time over the same number of rounds; negative if slower."""
    if _count_rounds(columns) != _count_rounds(baseline):
        raise SettingError(
            f"time_saved compares runs of equal length, but the run has {len(columns.rounds)} rounds and the baseline "
            f"{len(baseline.rounds)}"
        )
    total = float(baseline.durations.sum())
    if total == 0:
        raise SettingError(
            "the baseline took no time, so the saved share is undefined: use a baseline with selected clients"
        )
    return 1 - float(columns.durations.sum()) / total


def replayed_estimates(
    columns: RoundColumns, *, features: int | None = None, ridge: float = 1.0, forgetting: float = 1.0
) -> Estimates:
    """Returns the predictions of a model for each turn, (R,), made before it learns from the round of that turn.

    The model learns as ExchangeTimeModel does: from clients that arrived or were late, but not from failures.
    Corrections of late arrivals are applied in the round that reported them. `features` is by default the number of
    features of the contexts.
    """
    predicted, uncertainty = np.empty(len(columns.chosen)), np.empty(len(columns.chosen))
    if len(columns.chosen) == 0:
        return Estimates(predicted, uncertainty)
    width = columns.contexts.shape[1] if features is None else features
    model = ExchangeTimeModel(columns.clients, features=width, ridge=ridge, forgetting=forgetting)
    usable = _with_outcome(columns, TIMED_OUTCOMES)
    starts = columns.starts.tolist()
    for round_, start, end in zip(columns.rounds.tolist(), starts, starts[1:], strict=False):
        clients, contexts = columns.chosen[start:end], columns.contexts[start:end]
        predicted[start:end] = model.predict(contexts, clients)
        uncertainty[start:end] = model.uncertainty(contexts, clients)
        if (late := columns.late.get(round_)) is not None:
            model.correct(
                late.clients, late.contexts, late.deadlines, late.exchange_times, learned_since=late.learned_since
            )
        usable_rows = usable[start:end]
        model.learn(clients[usable_rows], contexts[usable_rows], columns.exchange_times[start:end][usable_rows])
    return Estimates(predicted, uncertainty)


def prediction_error(
    columns: RoundColumns, *, features: int | None = None, ridge: float = 1.0, forgetting: float = 1.0
) -> PredictionError:
    """Returns the difference of the replayed predictions from the observed times, without failed clients."""
    predicted, _ = replayed_estimates(columns, features=features, ridge=ridge, forgetting=forgetting)
    counts = _with_outcome(columns, TIMED_OUTCOMES)
    errors = np.abs(predicted - columns.exchange_times)[counts]
    rounds = len(columns.rounds)
    of_round = round_of_each_row(columns)[counts]
    sums, clients = np.bincount(of_round, errors, rounds), np.bincount(of_round, minlength=rounds)
    by_round = np.divide(sums, clients, out=np.full(rounds, np.nan), where=clients > 0)
    return PredictionError(mean_or_nan(errors), by_round)


def band_coverage(
    columns: RoundColumns,
    expected: npt.ArrayLike,
    exploration: float,
    *,
    features: int | None = None,
    ridge: float = 1.0,
    forgetting: float = 1.0,
) -> float:
    """Returns the share of turns whose true expected time lies within predicted ± exploration·uncertainty.

    Args:
        columns: The recorded rounds.
        expected: The true expected time of each turn, (R,).
        exploration: The factor on the uncertainty.
        features: The number of features of the model; by default that of the contexts.
        ridge: The ridge parameter of the model.
        forgetting: The forgetting factor of the model.
    """
    exploration = as_number("exploration", exploration, SettingError, least=0)
    means = as_true_means(expected, columns)
    predicted, uncertainty = replayed_estimates(columns, features=features, ridge=ridge, forgetting=forgetting)
    return mean_or_nan(np.abs(means - predicted) <= exploration * uncertainty)


def round_of_each_row(columns: RoundColumns) -> IntArray:
    """Returns the index, from 0, of the round to which each row of the columns belongs, (R,)."""
    return np.repeat(np.arange(len(columns.rounds)), np.diff(columns.starts))


def as_true_means(expected: npt.ArrayLike, columns: RoundColumns) -> FloatArray:
    """Validates true expected times: one per selected client of each round."""
    means = as_floats("expected", expected, 1, SettingError)
    require_length("expected", means, len(columns.chosen), "chosen clients in all rounds", SettingError)
    return means


def _count_rounds(columns: RoundColumns) -> int:
    if len(columns.rounds) == 0:
        raise SettingError("the columns hold no rounds: at least one round is required")
    return len(columns.rounds)


def _as_turns(turns: npt.ArrayLike) -> FloatArray:
    counts = as_floats("turns", turns, 1, SettingError)
    if len(counts) == 0 or counts.min() < 0:
        raise SettingError("turns must be a non-negative number per client, for at least one client")
    return counts


def _accrual_mask(columns: RoundColumns, accrual: Accrual) -> BoolArray:
    if accrual == "always":
        return np.ones((len(columns.rounds), columns.clients), dtype=np.bool_)
    if accrual != "available":
        raise SettingError(f"accrual must be 'always' or 'available', not {accrual!r}")
    if columns.available is None or "available" in columns.absent:
        raise ReportError(
            "accrual='available' needs the available clients of every round, but some rounds were recorded without them"
        )
    return columns.available


def _paid_mask(columns: RoundColumns, outcomes_paid: Sequence[str]) -> BoolArray:
    paying = _with_outcome(columns, outcomes_paid)
    paid = np.zeros((len(columns.rounds), columns.clients), dtype=np.bool_)
    paid[round_of_each_row(columns)[paying], columns.chosen[paying]] = True
    return paid


def _with_outcome(columns: RoundColumns, outcomes: Sequence[str]) -> BoolArray:
    """Returns a mask of the rows with one of these outcomes; without recorded outcomes, all clients arrived."""
    for outcome in outcomes:
        if outcome not in OUTCOMES:
            raise SettingError(f"unknown outcome {outcome!r}: outcomes are {', '.join(OUTCOMES)}")
    is_wanted = np.array([outcome in outcomes for outcome in OUTCOMES])
    if columns.outcomes is None:
        return np.full(len(columns.chosen), is_wanted[OUTCOMES.index("arrived")])
    mask: BoolArray = is_wanted[columns.outcomes]
    return mask
