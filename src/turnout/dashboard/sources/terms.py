"""The terms of a guarantee, which amendments change."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from turnout.kernel.arrays import IntArray
from turnout.kernel.fairness import FairnessQueues


class Terms(NamedTuple):
    """The terms of a guarantee up to a round, after which they were amended.

    Attributes:
        until: The last round with these terms.
        rates: The guaranteed rates, in units per round.
        units_per_turn: The number of units in a turn.
        max_owed: The largest debt, in turns; None means no limit.
    """

    until: int
    rates: int | IntArray
    units_per_turn: int
    max_owed: float | Fraction | None

    @classmethod
    def of(cls, queues: FairnessQueues, until: int) -> Terms:
        """Returns the present terms of these queues."""
        return cls(until, queues.accounts().rates, queues.units_per_turn, queues.max_owed)

    @property
    def cap(self) -> int | None:
        """The largest debt, in units; None means no limit."""
        return None if self.max_owed is None else math.floor(Fraction(self.max_owed) * self.units_per_turn)
