"""What the paper proves, computed beside what a run measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.analysis.metrics import as_true_means, owed_units, replayed_estimates, round_of_each_row
from turnout.analysis.statistics import mean_or_nan
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_floats, as_number, same_length
from turnout.kernel.fairness import Rate, exact_rate, exact_rates
from turnout.store.columns import RoundColumns


class LemmaCoverage(NamedTuple):
    """How often the lemma's band held: of all (round, chosen client) pairs, and of clients for all their turns.

    The lemma is about one client and all rounds: of the second at least 1 − delta is to be expected. Clients that never
    had a turn do not count; NaN where nobody had one.
    """

    pairs: float
    clients: float


def regret(durations: npt.ArrayLike, best_durations: npt.ArrayLike) -> FloatArray:
    """The mean, up to each round, of its duration less the reference's, (T,) in seconds: R(T) of the paper.

    The best fair policy has no closed form. In a long run FairOracle approaches its durations from above, so against
    it the regret comes out too small rather than too large.

    >>> regret([3.0, 5.0], [2.0, 2.0])
    array([1., 2.])
    """
    ours = as_floats("durations", durations, 1, SettingError)
    best = as_floats("best_durations", best_durations, 1, SettingError)
    same_length("best_durations", best, len(ours), "rounds in durations", SettingError)
    return np.cumsum(ours - best) / np.arange(1, len(ours) + 1)


def regret_bound(
    rounds: npt.ArrayLike,
    *,
    clients: int,
    guaranteed_rate: Rate,
    speed_weight: float,
    R: float,  # noqa: N803
    S: float,  # noqa: N803
    L: float,  # noqa: N803
    delta: float,
    ridge: float = 1.0,
    K: float | None = None,  # noqa: N803
) -> FloatArray:
    """The paper's bound on the regret after so many rounds, with three features, as its theorem is printed.

    N·(1 + beta²)/(2V) + zeta_T·sqrt(6·log(1 + T·L²/(3·ridge))/T), where
    zeta_T = max(K, 1)·max(2R·sqrt(3·log((1 + T·L²/ridge)/delta)) + sqrt(ridge)·S, 1).

    The noise is R-sub-Gaussian, ‖theta‖ ≤ S, ‖c‖ ≤ L. K bounds the true expected exchange time of any chosen client,
    in seconds: the theorem calls it "a constant value", its proof takes tau* ≤ K, so that no optimistic time, being
    at least 0, is off by more than K. By default K = S·L, which tau* = c·theta cannot exceed.

    The printed zeta_T doubles only the first part of alpha_T; its proof has 2·alpha_T, hence 2·sqrt(ridge)·S.
    """
    after = np.asarray(rounds, dtype=np.float64)
    if not (after >= 1).all():
        raise SettingError(f"rounds must be at least 1, not {after.min()}")
    clients = as_count("clients", clients, SettingError)
    weight = as_number("speed_weight", speed_weight, SettingError, above=0)
    ridge = as_number("ridge", ridge, SettingError, above=0)
    as_number("delta", delta, SettingError, above=0, most=1)
    for name, value in (("R", R), ("S", S), ("L", L)):
        as_number(name, value, SettingError, least=0)
    slowest = S * L if K is None else as_number("K", K, SettingError, least=0)
    cost_of_fairness = clients * (1 + float(exact_rate(guaranteed_rate)) ** 2) / (2 * weight)
    width = 2 * R * np.sqrt(3 * np.log((1 + after * L**2 / ridge) / delta)) + np.sqrt(ridge) * S
    zeta = max(slowest, 1.0) * np.maximum(width, 1.0)
    return np.asarray(cost_of_fairness + zeta * np.sqrt(6 * np.log(1 + after * L**2 / (3 * ridge)) / after))


def lemma_coverage(
    columns: RoundColumns,
    expected: npt.ArrayLike,
    schedule: Callable[[int], float],
    *,
    features: int | None = None,
    ridge: float = 1.0,
) -> LemmaCoverage:
    """How often 0 ≤ mean − optimistic ≤ 2·exploration·uncertainty held for the chosen.

    `expected`: the true mean exchange times, (R,). `schedule` gives the exploration of a round, as
    TheoreticalExploration does; its ridge and features should be those given here. optimistic =
    max(predicted − exploration·uncertainty, 0), predicted by a model that saw the same rounds.
    """
    means = as_true_means(expected, columns)
    predicted, uncertainty = replayed_estimates(columns, features=features, ridge=ridge)
    explorations = np.array([schedule(round_) for round_ in columns.rounds.tolist()], dtype=np.float64)
    band = explorations[round_of_each_row(columns)] * uncertainty
    missing = means - np.maximum(predicted - band, 0.0)
    held = (missing >= 0) & (missing <= 2 * band)
    failures = np.bincount(columns.chosen, ~held, columns.clients)
    return LemmaCoverage(mean_or_nan(held), mean_or_nan(failures[columns.turns > 0] == 0))


def long_run_margin(columns: RoundColumns, guaranteed_rate: Rate | npt.ArrayLike) -> float:
    """By how much the worst-served client's share of rounds exceeds guaranteed_rate − owed/rounds.

    The certificate says that it is never negative, whatever the policy. Counted in integers; only the result is
    rounded. Turns are earned always and paid when chosen.
    """
    owed, units_per_turn = owed_units(columns, guaranteed_rate)
    rounds = len(owed)
    if rounds == 0:
        raise SettingError("the columns hold no rounds: at least one is needed")
    rates, _ = exact_rates(guaranteed_rate, columns.clients)
    margins = columns.turns * units_per_turn - np.asarray(rates) * rounds + owed[-1]
    return int(margins.min()) / (units_per_turn * rounds)
