"""A small simulated fleet for checks of policies: the paper's forty clients in four classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from turnout.kernel.arrays import FloatArray, read_only
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection

TRAINING_SECONDS = (1.0, 2.0, 3.0, 4.0)
COLD_START_SECONDS = 1.0
SIGNAL_TO_NOISE = (1000.0, 100.0, 10.0, 1.0)
MODEL_SIZE = 20.0


@lru_cache(maxsize=512)
def _drawn(seed: int, purpose: str, round: int, clients: int, *ranges: tuple[float, float]) -> tuple[FloatArray, ...]:
    """Draws a number per client from each range; kept, because every check plays the same rounds."""
    rng = round_rng(seed, purpose, round)
    return tuple(read_only(rng.uniform(low, high, clients)) for low, high in ranges)


class SmallFleet:
    """Offers and plays rounds. The same seed gives every policy the same availability, contexts and noise.

    A client needs a cold start unless it trained in the previous round.

    Args:
        seed: The seed of the random generator.
        clients: The number of clients.
        availability: The probability that a client is available in a round.
        deadline: The time, in seconds, after which clients are late; None for no deadline.
        failure_rate: The probability that a client fails half-way.
        losses: Whether clients that arrive report a loss, which is larger for slower classes and falls with time.
        signals: The names of the signals that clients that arrive report; they are similar to losses.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        clients: int = 40,
        availability: float = 0.8,
        deadline: float | None = None,
        failure_rate: float = 0.0,
        losses: bool = False,
        signals: Sequence[str] = (),
    ) -> None:
        self.seed = seed
        self.clients = clients
        self.availability = availability
        self.deadline = deadline
        self.failure_rate = failure_rate
        self.losses, self.signals = losses, signals
        speed_class = np.arange(clients) * len(TRAINING_SECONDS) // clients
        efficiency = np.log2(1 + np.array(SIGNAL_TO_NOISE))
        self.theta: FloatArray = np.column_stack(
            [
                np.array(TRAINING_SECONDS)[speed_class],
                np.full(clients, COLD_START_SECONDS),
                (1 / efficiency)[speed_class],
            ]
        )
        self._trained = np.zeros(clients, dtype=np.bool_)

    def offer(self, round: int) -> RoundOffer:
        """Returns the offer of a round."""
        free_cpu, bandwidth = _drawn(self.seed, "contexts", round, self.clients, (0.5, 2.0), (2.0, 4.0))
        contexts = np.column_stack([1 / free_cpu, ~self._trained, MODEL_SIZE / bandwidth])
        (chance,) = _drawn(self.seed, "availability", round, self.clients, (0.0, 1.0))
        available = chance < self.availability
        return RoundOffer(round, available, contexts, expected_times=(contexts * self.theta).sum(axis=1))

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Returns the report of a round in which the selected clients trained."""
        chosen = selection.clients
        means = (offer.contexts * self.theta).sum(axis=1)
        (noise,) = _drawn(self.seed, "noise", offer.round, self.clients, (-1.0, 1.0))
        times = (means + means * noise)[chosen]
        late = np.full(len(chosen), False) if self.deadline is None else times > self.deadline
        (chance,) = _drawn(self.seed, "failures", offer.round, self.clients, (0.0, 1.0))
        failed = chance[chosen] < self.failure_rate
        outcomes = np.where(failed, "failed", np.where(late, "late", "arrived"))
        if self.deadline is not None:
            times = np.minimum(times, self.deadline)
        self._trained = np.zeros(self.clients, dtype=np.bool_)
        self._trained[chosen] = True

        def reported(name: str) -> FloatArray:
            return np.where(outcomes == "arrived", self._values(name, offer.round)[chosen], np.nan)

        return RoundReport(
            offer.round,
            chosen,
            offer.contexts[chosen],
            np.where(failed, times / 2, times),
            available=offer.available,
            outcomes=outcomes,
            losses=reported("losses") if self.losses else None,
            signals={name: reported(name) for name in self.signals},
        )

    def _values(self, name: str, round: int) -> FloatArray:
        level = self.theta[:, 0] / (1 + round / 20)
        (factor,) = _drawn(self.seed, name, round, self.clients, (0.5, 1.5))
        return level * factor
