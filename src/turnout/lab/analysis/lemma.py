"""The confidence band of the paper's lemma, measured for all clients in all rounds, selected or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import Selection
from turnout.lab.columns import RoundColumns
from turnout.lab.worlds.base import World


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
        band: FloatArray = widths[:, None] * self.uncertainty
        return band


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
