"""A guarantee that is met by a given round, not only in the long run."""

from __future__ import annotations

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.policies.base import Memory

STEADY = 0.3  # share of the horizon after which the weight is the one that was set
LIGHTEST = 0.1  # weight in the first round, as a share of the one that was set
SLACK, SLACK_PER_ROUND = 0.5, 0.02  # turns behind that are tolerated at the end, and more for each round left
URGENCY = 1.0  # mean rounds that each turn beyond the slack is worth


class Horizon(Memory):
    """What a turn of each client is worth if the guarantee must be met by round `horizon`.

    Under the paper's rule a slow client waits until its debt divided by the speed weight V exceeds the seconds that it
    costs; with a large V this takes longer than the whole run. The price of a client in seconds, debt / V, is found
    quickly with a *small* V, under which debts stay small. V therefore starts at a tenth of speed_weight and grows to
    it, and each client's `backlog`, the debt with which it is weighed, grows by the same factor, so that its price
    backlog / V does not change. The backlog equals the debt that the paper's rule would have built up without the
    client having waited for it.

    A client that is behind by more than half a turn plus a fiftieth of the rounds left, net of its surplus, is worth
    one mean round more for each turn beyond that, so that no client is behind at the end.
    """

    backlog: FloatArray
    lasted: FloatArray  # total seconds, number of rounds

    def __init__(self, clients: int, rounds: int, speed_weight: float) -> None:
        super().__init__(clients)
        self.rounds = as_count("horizon", rounds, SettingError)
        self.speed_weight = speed_weight
        self._remember(backlog=0.0, lasting=True)
        self._remember_shared(lasted=np.zeros(2))

    @property
    def mean_round(self) -> float:
        """The mean duration of a round so far, in seconds."""
        return float(self.lasted[0] / max(self.lasted[1], 1))

    def weight(self, round: int) -> float:
        """Returns V in this round."""
        missing = max(0.0, 1 - (round - 1) / (STEADY * self.rounds))
        return float(self.speed_weight * LIGHTEST**missing)

    def debts(self, round: int, behind: FloatArray) -> FloatArray:
        """Returns what a turn of each client is worth in this round.

        Args:
            round: The number of the round.
            behind: The turns promised up to this round, minus the turns taken.
        """
        slack = SLACK + SLACK_PER_ROUND * max(self.rounds - round, 0)
        pressing: FloatArray = np.maximum(behind - slack, 0.0)
        return self.backlog + URGENCY * self.mean_round * self.weight(round) * pressing

    def advance(self, round: int, paid: IntArray, earned: FloatArray, duration: float) -> None:
        """Adds this round's accrual, subtracts one turn per paid client, and rescales to the next round's weight.

        Args:
            round: The number of the round.
            paid: The rows of the clients whose turn counts.
            earned: The turns that each client earned in this round.
            duration: The duration of the round, in seconds.
        """
        self.lasted = self.lasted + np.array([duration, 1.0])
        self.backlog = self.backlog + earned
        self.backlog[paid] -= 1
        growth = self.weight(round + 1) / self.weight(round) if self.speed_weight else 1.0
        self.backlog = np.maximum(self.backlog, 0.0) * growth
