"""Promises to groups of clients (sites, owners, regions), as a second row of queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, load_array
from turnout.kernel.fairness import FINEST, Certificate

NO_GROUP = -1


class GroupQueues:
    """Turns a round that are owed to groups: owed ← max(owed + rate − turns of its members, 0), in integers.

    `groups`: the group of each client, a name or a number, None for none. `rates`: so many turns a round each group is
    promised together; 1.5 is three turns in two rounds. Groups without a rate are promised nothing.
    """

    def __init__(self, groups: Sequence[Any], rates: Mapping[str, Any]) -> None:
        self.names = [str(name) for name in rates]
        if not self.names or len(set(self.names)) < len(self.names):
            raise SettingError(f"group_rates must be a table of groups and turns a round, not {dict(rates)!r}")
        places = {name: place for place, name in enumerate(self.names)}
        self.group_of: IntArray = np.array(
            [NO_GROUP if one is None else places.get(str(one), NO_GROUP) for one in groups], dtype=np.int64
        )
        for name, place in places.items():
            if not (self.group_of == place).any():
                raise SettingError(f"nobody is in group {name!r}, to which turns are promised")
        fractions = [_rate(name, rate) for name, rate in rates.items()]
        self.units_per_turn = math.lcm(*(one.denominator for one in fractions))
        if self.units_per_turn > FINEST:
            raise SettingError(f"group_rates {dict(rates)!r} have no common unit: give them as fractions such as '3/2'")
        self._rates: IntArray = np.array([int(one * self.units_per_turn) for one in fractions], dtype=np.int64)
        self._owed: IntArray = np.zeros(len(fractions), dtype=np.int64)
        self.turns: IntArray = np.zeros(len(fractions), dtype=np.int64)
        self._rounds = 0

    @property
    def rates(self) -> FloatArray:
        """Turns a round promised to each group."""
        return self._rates / self.units_per_turn

    @property
    def owed(self) -> FloatArray:
        """Turns owed to each group."""
        return self._owed / self.units_per_turn

    def of_clients(self) -> FloatArray:
        """What each client's group is owed; nothing where it has none."""
        owed = np.append(self.owed, 0.0)
        return owed[self.group_of]

    def require_feasible(self, client_rates: FloatArray, cohort_size: int) -> None:
        """Refuse promises that do not fit into a cohort: each group's own, or those to its members if they are more."""
        members = np.bincount(self.group_of[self.group_of >= 0], minlength=len(self.names))
        own = np.bincount(self.group_of + 1, weights=client_rates, minlength=len(self.names) + 1)
        for name, rate, count in zip(self.names, self.rates, members, strict=True):
            if rate > min(count, cohort_size):
                raise SettingError(
                    f"group {name!r} is promised {rate:g} turns a round and can have {min(count, cohort_size)}: it has "
                    f"{count} members, and {cohort_size} clients are chosen. Lower its rate"
                )
        needed = float(np.maximum(own[1:], self.rates).sum() + own[0])
        if needed > cohort_size + 1e-9:
            raise SettingError(
                f"groups and clients are promised {needed:g} turns a round together and can get {cohort_size}: lower "
                "group_rates or guaranteed_rate, or choose more clients a round"
            )

    def advance(self, paid: IntArray) -> None:
        """Every group earns its rate; each turn of a member pays one."""
        groups = self.group_of[paid]
        taken = np.bincount(groups[groups >= 0], minlength=len(self.names))
        self.turns = self.turns + taken
        self._owed = np.maximum(self._owed + self._rates - taken * self.units_per_turn, 0)
        self._rounds += 1

    def certificate(self) -> Certificate:
        """What every group was promised and what it got, in the order of `names`."""
        return Certificate(
            turns=self.turns.copy(),
            units_per_turn=self.units_per_turn,
            promised_units=self._rates * self._rounds,
            owed_units=self._owed.copy(),
            forfeited_units=np.zeros_like(self._owed),
        )

    def state(self) -> dict[str, Any]:
        """Debts, turns and rounds."""
        return {"owed": self._owed.copy(), "turns": self.turns.copy(), "rounds": np.array([self._rounds])}

    def checked(self, state: Mapping[str, Any]) -> tuple[IntArray, IntArray, int]:
        """Those of a saved state."""
        rounds = load_array(state, "rounds", np.zeros(1, dtype=np.int64))
        return load_array(state, "owed", self._owed), load_array(state, "turns", self.turns), int(rounds[0])

    def restore(self, saved: tuple[IntArray, IntArray, int]) -> None:
        """Take back what `checked` gave."""
        self._owed, self.turns, self._rounds = saved


def _rate(name: str, rate: Any) -> Fraction:
    try:
        fraction = Fraction(rate).limit_denominator(FINEST)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise SettingError(f"the rate of group {name!r} must be a number or a fraction, not {rate!r}") from None
    if fraction < 0:
        raise SettingError(f"the rate of group {name!r} must not be negative, as {rate} is")
    return fraction
