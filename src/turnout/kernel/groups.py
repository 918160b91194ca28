"""Turns owed to groups of clients, such as sites, owners or regions: a second set of virtual queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FINEST, FloatArray, IntArray, as_fraction, load_array
from turnout.kernel.certificate import Certificate

NO_GROUP = -1


class GroupQueues:
    """Virtual queues of the turns owed to each group: owed ← max(owed + rate − turns of its members, 0), in integers.

    Args:
        groups: The group of each client, a name or a number; None for a client without a group.
        rates: The turns per round that each group is guaranteed; 1.5 is three turns in two rounds. A group without a
            rate is guaranteed nothing.

    >>> queues = GroupQueues(["north", "north", "south"], {"north": 1, "south": "1/2"})
    >>> queues.advance(np.array([0, 1]))
    >>> queues.owed
    array([0. , 0.5])
    """

    def __init__(self, groups: Sequence[Any], rates: Mapping[str, Any]) -> None:
        self.names = [str(name) for name in rates]
        if not self.names or len(set(self.names)) < len(self.names):
            raise SettingError(
                f"group_rates must map at least one group to its turns per round, and no group twice, got {dict(rates)}"
            )
        index = {name: position for position, name in enumerate(self.names)}
        self.group_of: IntArray = np.array(
            [NO_GROUP if group is None else index.get(str(group), NO_GROUP) for group in groups], dtype=np.int64
        )
        for name, position in index.items():
            if not (self.group_of == position).any():
                raise SettingError(f"group_rates has the group {name!r}, but groups assigns no client to it")
        fractions = [_as_rate(name, rate) for name, rate in rates.items()]
        self.units_per_turn = math.lcm(*(fraction.denominator for fraction in fractions))
        if self.units_per_turn > FINEST:
            raise SettingError(
                f"group_rates must have a common denominator of at most {FINEST}, got {dict(rates)}: pass fractions "
                "such as '3/2'"
            )
        self._rates: IntArray = np.array(
            [int(fraction * self.units_per_turn) for fraction in fractions], dtype=np.int64
        )
        self._owed: IntArray = np.zeros(len(fractions), dtype=np.int64)
        self.turns: IntArray = np.zeros(len(fractions), dtype=np.int64)
        self._rounds = 0

    @property
    def rates(self) -> FloatArray:
        """The turns per round that each group is guaranteed."""
        return self._rates / self.units_per_turn

    @property
    def owed(self) -> FloatArray:
        """The turns owed to each group."""
        return self._owed / self.units_per_turn

    def of_clients(self) -> FloatArray:
        """Returns the turns owed to each client's group, 0 for clients without a group."""
        owed = np.append(self.owed, 0.0)  # NO_GROUP is the last entry
        return owed[self.group_of]

    def require_feasible(self, client_rates: FloatArray, cohort_size: int) -> None:
        """Raises SettingError if the guarantees to groups and clients do not fit into a cohort.

        A group needs the larger one of its own rate and the sum of its members' rates.
        """
        members = np.bincount(self.group_of[self.group_of >= 0], minlength=len(self.names))
        own = np.bincount(self.group_of + 1, weights=client_rates, minlength=len(self.names) + 1)
        for name, rate, count in zip(self.names, self.rates, members, strict=True):
            if rate > min(count, cohort_size):
                raise SettingError(
                    f"group {name!r} is guaranteed {rate:g} turns per round, but it can get at most "
                    f"{min(count, cohort_size)}: it has {count} clients, and cohort_size is {cohort_size}. Lower its "
                    "rate in group_rates"
                )
        needed = float(np.maximum(own[1:], self.rates).sum() + own[0])
        if needed > cohort_size + 1e-9:
            raise SettingError(
                f"groups and clients together are guaranteed {needed:g} turns per round, but cohort_size is "
                f"{cohort_size}: lower group_rates or guaranteed_rate, or raise cohort_size"
            )

    def advance(self, paid: IntArray) -> None:
        """Adds the rate of each group, and subtracts one turn for each paid client that is a member."""
        groups = self.group_of[paid]
        taken = np.bincount(groups[groups >= 0], minlength=len(self.names))
        self.turns = self.turns + taken
        self._owed = np.maximum(self._owed + self._rates - taken * self.units_per_turn, 0)
        self._rounds += 1

    def certificate(self) -> Certificate:
        """Returns what every group was promised and got, in the order of `names`."""
        return Certificate(
            turns=self.turns.copy(),
            units_per_turn=self.units_per_turn,
            promised_units=self._rates * self._rounds,
            owed_units=self._owed.copy(),
            forfeited_units=np.zeros_like(self._owed),
        )

    def state(self) -> dict[str, Any]:
        """Returns the turns owed, the turns taken and the number of rounds."""
        return {"owed": self._owed.copy(), "turns": self.turns.copy(), "rounds": np.array([self._rounds])}

    def checked(self, state: Mapping[str, Any]) -> tuple[IntArray, IntArray, int]:
        """Returns the turns owed, the turns taken and the number of rounds of a saved state, after checking them."""
        rounds = load_array(state, "rounds", np.zeros(1, dtype=np.int64))
        return load_array(state, "owed", self._owed), load_array(state, "turns", self.turns), int(rounds[0])

    def restore(self, saved: tuple[IntArray, IntArray, int]) -> None:
        """Restores what `checked` returned."""
        self._owed, self.turns, self._rounds = saved


def _as_rate(name: str, rate: Any) -> Fraction:
    try:
        fraction = as_fraction(rate).limit_denominator(FINEST)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise SettingError(
            f"group_rates of {name!r} must be a number or a fraction such as '3/2', got {rate!r}"
        ) from None
    if fraction < 0:
        raise SettingError(f"group_rates of {name!r} must not be negative, got {rate}")
    return fraction
