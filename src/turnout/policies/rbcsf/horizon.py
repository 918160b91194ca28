"""A promise that is kept by a certain round, not only in the long run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, load_array

STEADY = 0.3  # of the horizon: from then on the weight is what was asked for
LIGHTEST = 0.1  # of it: the weight in the first round
SLACK, SLACK_A_ROUND = 0.5, 0.02  # turns behind that do not hurt yet, at the end and for each round that is left
INSISTENCE = 1.0  # mean rounds that a turn beyond the slack is worth


class Horizon:
    """What the debts weigh where a promise must be kept by round `horizon`.

    The paper's rule lets a slow client wait until its debt, over the weight V, is worth the seconds it costs; with a
    large V that takes longer than the whole run. What a turn of each client is worth in seconds, though, debt / V, is
    soon known with a *small* V, at which debts stay small. So V begins at a tenth of speed_weight and grows to it; and
    with it grows each client's `backlog`, the debt that it weighs with, so that backlog / V, its price, stays. The
    backlog is thus the debt that the paper's rule would have built up, without anybody having waited for it.

    Who is behind its promise by more than half a turn and a fiftieth of the rounds that are left, its surplus counted,
    weighs as much more as a mean round lasts, for each turn beyond that: in the end nobody is.
    """

    def __init__(self, clients: int, rounds: int, speed_weight: float) -> None:
        self.rounds = as_count("horizon", rounds, SettingError)
        self.speed_weight = speed_weight
        self.backlog: FloatArray = np.zeros(clients)
        self._lasted = np.zeros(2)  # seconds, and rounds

    @property
    def mean_round(self) -> float:
        """How long a round has lasted so far, in seconds."""
        return float(self._lasted[0] / max(self._lasted[1], 1))

    def weight(self, round: int) -> float:
        """V in this round."""
        missing = max(0.0, 1 - (round - 1) / (STEADY * self.rounds))
        return float(self.speed_weight * LIGHTEST**missing)

    def debts(self, round: int, behind: FloatArray) -> FloatArray:
        """What each client weighs in this round; `behind`: turns promised up to it, less those taken."""
        slack = SLACK + SLACK_A_ROUND * max(self.rounds - round, 0)
        pressing: FloatArray = np.maximum(behind - slack, 0.0)
        return self.backlog + INSISTENCE * self.mean_round * self.weight(round) * pressing

    def advance(self, round: int, paid: IntArray, earned: FloatArray, lasted: float) -> None:
        """Everyone earns, the paid pay, and all grow with the weight; the round lasted so many seconds."""
        self._lasted = self._lasted + np.array([lasted, 1.0])
        self.backlog = self.backlog + earned
        self.backlog[paid] -= 1
        grown = self.weight(round + 1) / self.weight(round) if self.speed_weight else 1.0
        self.backlog = np.maximum(self.backlog, 0.0) * grown

    def add(self, count: int) -> None:
        """New clients have none."""
        self.backlog = np.concatenate([self.backlog, np.zeros(count)])

    def state(self) -> dict[str, Any]:
        """The backlog, and how long rounds lasted."""
        return {"backlog": self.backlog.copy(), "lasted": self._lasted.copy()}

    def checked(self, state: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
        """Those of a saved state."""
        return load_array(state, "backlog", self.backlog), load_array(state, "lasted", self._lasted)

    def restore(self, saved: tuple[FloatArray, FloatArray]) -> None:
        """Take back what `checked` gave."""
        self.backlog, self._lasted = saved
