"""The bounds that the paper proves, and the measurements of a run: regret, queues, and the lemma's band."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, Rate, exact_rate
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import Selection
from turnout.lab.columns import RoundColumns
from turnout.lab.worlds.base import World


def regret(durations: npt.ArrayLike, best_durations: npt.ArrayLike) -> FloatArray:
    """Returns the running mean of the duration minus that of the reference, (T,) in seconds: R(T) of the paper.

    The best fair policy has no closed form. In a long run FairOracle is at least as slow, so the regret against
    FairOracle is an underestimate.

    >>> regret([3.0, 5.0], [2.0, 2.0])
    array([1., 2.])
    """
    ours, best = np.asarray(durations, dtype=np.float64), np.asarray(best_durations, dtype=np.float64)
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
    """Returns the paper's bound on the regret after each number of rounds, for three features.

    N·(1 + beta²)/(2V) + zeta_T·sqrt(6·log(1 + T·L²/(3·ridge))/T), where zeta_T = max(K, 1)·max(2R·sqrt(3·log((1 +
    T·L²/ridge)/delta)) + sqrt(ridge)·S, 1).

    The formula follows the printed theorem. Its zeta_T doubles only the first term of alpha_T; the proof has 2·alpha_T,
    hence 2·sqrt(ridge)·S. The theorem has probability (1 − delta)², and needs ridge ≥ 1. Its proof replaces the
    expected longest time of a cohort by the longest expected time, so it is not true in general; see docs/theory.md.

    Args:
        rounds: The numbers of rounds T.
        clients: The number of clients N.
        guaranteed_rate: The guaranteed rate beta.
        speed_weight: The speed weight V.
        R: The noise is R-sub-Gaussian.
        S: The bound on ‖theta‖.
        L: The bound on the norm of the contexts.
        delta: The probability that the confidence band fails.
        ridge: The ridge parameter.
        K: The bound on the true expected exchange time of any selected client, in seconds. The theorem calls it "a
            constant value"; its proof needs tau* ≤ K, so that no optimistic time, which is at least 0, is off by more
            than K. By default K = S·L, which tau* = c·theta cannot exceed.
    """
    after = np.asarray(rounds, dtype=np.float64)
    slowest = S * L if K is None else K
    cost_of_fairness = clients * (1 + float(exact_rate(guaranteed_rate)) ** 2) / (2 * speed_weight)
    width = 2 * R * np.sqrt(3 * np.log((1 + after * L**2 / ridge) / delta)) + np.sqrt(ridge) * S
    zeta = max(slowest, 1.0) * np.maximum(width, 1.0)
    return np.asarray(cost_of_fairness + zeta * np.sqrt(6 * np.log(1 + after * L**2 / (3 * ridge)) / after))


def drift_constant(clients: int, guaranteed_rate: Rate) -> float:
    """Returns Γ = N·(1 + beta²)/2, the paper's bound on what one round adds to the Lyapunov function ½·Σ owed².

    >>> drift_constant(40, 0.15)
    20.45
    """
    return float(clients * (1 + exact_rate(guaranteed_rate) ** 2) / 2)


def queue_bound(
    rounds: npt.ArrayLike, *, clients: int, guaranteed_rate: Rate, speed_weight: float = 0.0, slowest: float = 0.0
) -> FloatArray:
    """Returns sqrt(2T·(Γ + V·slowest)), a bound on sqrt(Σ owed²) in expectation after each number of rounds T.

    With the default speed weight it is the bound sqrt(2ΓT) of the paper's proof that the queues are mean-rate stable.
    That proof omits the term V·(round time of the best fair policy − own round time), which is positive as long as
    RBCS-F leaves slow clients waiting; `slowest` bounds it.

    Args:
        rounds: The numbers of rounds T.
        clients: The number of clients N.
        guaranteed_rate: The guaranteed rate beta.
        speed_weight: The speed weight V.
        slowest: A bound on the optimistic round time of the best fair policy, in seconds.

    >>> queue_bound([500, 20_000], clients=40, guaranteed_rate=0.15).round(1).tolist()
    [143.0, 904.4]
    """
    after = np.asarray(rounds, dtype=np.float64)
    return np.sqrt(2 * after * (drift_constant(clients, guaranteed_rate) + speed_weight * slowest))


class AllEstimates(NamedTuple):
    """The estimates for all clients before each round, each (T, N), and the numbers of the rounds, (T,).

    predicted: the predicted times in seconds; uncertainty: the uncertainty sqrt(cᵀ H⁻¹ c) of each prediction;
    expected: the true expected times in seconds.
    """

    rounds: FloatArray
    predicted: FloatArray
    uncertainty: FloatArray
    expected: FloatArray

    def optimistic(self, schedule: Callable[[int], float]) -> FloatArray:
        """Returns the optimistic times max(predicted − exploration·uncertainty, 0), (T, N)."""
        return np.maximum(self.predicted - self._band(schedule), 0.0)

    def covered(self, schedule: Callable[[int], float]) -> float:
        """Returns the share of clients for which 0 ≤ expected − optimistic ≤ 2·exploration·uncertainty in all rounds.

        The lemma is about one client and all rounds, so this share should be at least 1 − delta.
        """
        missing = self.expected - self.optimistic(schedule)
        held = (missing >= 0) & (missing <= 2 * self._band(schedule))
        return float(held.all(axis=0).mean())

    def _band(self, schedule: Callable[[int], float]) -> FloatArray:
        widths = np.array([schedule(int(round_)) for round_ in self.rounds], dtype=np.float64)
        return widths[:, None] * self.uncertainty


def estimate_all(columns: RoundColumns, world: World) -> AllEstimates:
    """Plays the recorded selections again in their world, and returns the estimates for all clients before each round.

    The model learns from the recorded rounds as the policy did, without forgetting and without a prior.

    Args:
        columns: The recorded rounds of a run in which all clients arrived.
        world: A new world with the settings and the seed of the run; its offers must state the expected times.

    Raises:
        SettingError: If the world does not know expected times, or its exchange times are not those of the run.
    """
    shape = (len(columns.rounds), columns.clients)
    predicted, uncertainty, expected = np.empty(shape), np.empty(shape), np.empty(shape)
    model: ExchangeTimeModel | None = None
    for index, (round_, start, end) in enumerate(
        zip(columns.rounds.tolist(), columns.starts[:-1], columns.starts[1:], strict=True)
    ):
        offer = world.offer(round_)
        if offer.expected_times is None:
            raise SettingError("the world does not state expected times: the lemma can be measured only where it does")
        if model is None:
            model = ExchangeTimeModel(columns.clients, features=offer.contexts.shape[1])
        predicted[index], uncertainty[index] = model.predict(offer.contexts), model.uncertainty(offer.contexts)
        expected[index] = offer.expected_times
        report = world.play(offer, Selection(round_, columns.chosen[start:end]))
        if not np.array_equal(report.exchange_times, columns.exchange_times[start:end]):
            raise SettingError(f"round {round_} was not played in this world: its exchange times differ")
        model.learn(report.clients, report.contexts, report.exchange_times)
    return AllEstimates(columns.rounds.astype(np.float64), predicted, uncertainty, expected)


def required_exploration(estimates: AllEstimates, delta: float = 0.0) -> float:
    """Returns the smallest constant exploration for which the lemma's band holds for 1 − delta of the clients.

    A client needs |expected − predicted| / uncertainty in each round. If the expected time is more than twice the
    predicted one, half of expected / uncertainty is enough, because the optimistic time is then 0.
    """
    predicted, expected = estimates.predicted, estimates.expected
    needed = np.where(expected <= 2 * predicted, np.abs(expected - predicted), expected / 2) / estimates.uncertainty
    by_client = np.sort(needed.max(axis=0))
    covered = max(int(np.ceil((1 - delta) * len(by_client) - 1e-9)), 1)
    return float(by_client[covered - 1])
