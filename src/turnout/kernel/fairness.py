"""What each client is owed: virtual queues in exact integers, and the certificate they give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError, StateError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    as_count,
    as_mask,
    as_number,
    as_rows,
    read_only,
    same_length,
    saved,
)

Rate: TypeAlias = float | str | Fraction
Accrual: TypeAlias = Literal["always", "available"]

#: The guaranteed rate where none is given: the one of the paper's experiments.
DEFAULT_RATE = 0.15
# Units of a turn are at most this fine: then billions of rounds of debt fit into 64 bits.
FINEST = 10**9


class OwedTurns(NamedTuple):
    """Turns owed to each client, exactly: (units + credit) / units_per_turn."""

    units: IntArray
    credit: int
    units_per_turn: float

    def of(self, rows: IntArray) -> FloatArray:
        """Turns owed to some clients, as floats."""
        turns: FloatArray = (self.units[rows] + self.credit) / self.units_per_turn
        return turns


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """What every client was promised and what it got, in turns, and whether the promise holds.

    The promise: turns taken ≥ promised − owed − forfeited, checked in integers. It holds for any policy
    at any time as long as the queues were kept honestly, because max(a, 0) ≥ a; what a policy adds is
    that `owed` stays small.
    """

    turns: IntArray
    units_per_turn: int
    promised_units: IntArray
    owed_units: IntArray
    forfeited_units: IntArray

    @property
    def promised(self) -> FloatArray:
        """guaranteed_rate · rounds."""
        return self.promised_units / self.units_per_turn

    @property
    def owed(self) -> FloatArray:
        """What is still due."""
        return self.owed_units / self.units_per_turn

    @property
    def forfeited(self) -> FloatArray:
        """What the cap took away."""
        return self.forfeited_units / self.units_per_turn

    @property
    def kept(self) -> BoolArray:
        """For each client: has it had what it was promised, but for what is owed and forfeited?"""
        had = self.turns * self.units_per_turn
        due: BoolArray = had >= self.promised_units - self.owed_units - self.forfeited_units
        return due

    @property
    def holds(self) -> bool:
        """Is the promise kept to everyone?"""
        return bool(self.kept.all())


class FairnessQueues:
    """Turns owed (Z in the paper): everyone earns its guaranteed rate, who takes a turn is paid one.

    owed ← max(owed + guaranteed_rate − chosen, 0), in integers: a rate is a fraction p/q and debts are
    counted in units of 1/q turn, so that resumed, replayed and compiled runs agree to the bit. A float is
    read as the nearest fraction with a denominator of at most 10⁹: 0.15 is 3/20.

    Lazily: what a client is owed is its stored `balance` plus its rate times the rounds it has earned
    in, so a round touches only the chosen. `accrual="available"`: a client earns only in rounds it
    volunteers for. `max_owed`: a debt does not grow beyond so many turns; what the cap takes is counted
    as forfeited.

    >>> queues = FairnessQueues(3, "1/4")
    >>> for chosen in ([0], [1], [0]):
    ...     queues.advance(chosen)
    >>> queues.owed
    array([0.  , 0.25, 0.75])
    >>> queues.certificate(turns=[2, 1, 0], rounds=3).holds
    True
    """

    def __init__(
        self,
        clients: int,
        guaranteed_rate: Rate | npt.ArrayLike,
        *,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
    ) -> None:
        self._clients = as_count("clients", clients, SettingError)
        if accrual not in ("always", "available"):
            raise SettingError(f"accrual must be 'always' or 'available', not {accrual!r}")
        self.accrual = accrual
        self._rates, self.units_per_turn = exact_rates(guaranteed_rate, clients)
        self.max_owed = max_owed
        self._cap: int | None = None
        if max_owed is not None:
            as_number("max_owed", float(max_owed), SettingError, least=0)
            self._cap = math.floor(Fraction(max_owed) * self.units_per_turn)
        # Rounds a client has earned in: one number as long as it is the same for all.
        self._rounds: int | IntArray = 0
        self._balance: IntArray = np.zeros(clients, dtype=np.int64)
        self._forfeited: IntArray | None = None
        self._retired: BoolArray | None = None

    @property
    def clients(self) -> int:
        """How many clients there are, retired ones included."""
        return self._clients

    @property
    def guaranteed_rates(self) -> FloatArray:
        """The share of rounds each client is promised (beta of the paper)."""
        return np.broadcast_to(np.asarray(self._rates) / self.units_per_turn, self._clients)

    @property
    def rounds(self) -> IntArray:
        """In how many rounds each client has earned."""
        return np.array(np.broadcast_to(np.asarray(self._rounds, dtype=np.int64), self._clients))

    @property
    def owed(self) -> FloatArray:
        """Turns owed to each client."""
        exactly = self.owed_exactly()
        turns: FloatArray = (exactly.units + exactly.credit) / exactly.units_per_turn
        return turns

    @property
    def forfeited(self) -> FloatArray:
        """Turns the cap took from each client."""
        return self._forfeited_units() / self.units_per_turn

    def owed_exactly(self) -> OwedTurns:
        """Turns owed, as integers; without a copy where everyone earns alike."""
        credit = self._credit()
        if isinstance(credit, int) and self._cap is None:
            return OwedTurns(read_only(self._balance), credit, self.units_per_turn)
        units = self._balance + credit
        if self._cap is not None:
            np.minimum(units, self._cap, out=units)
        return OwedTurns(units, 0, self.units_per_turn)

    def advance(self, chosen: npt.ArrayLike, available: npt.ArrayLike | None = None) -> None:
        """Everyone earns the guaranteed rate; the chosen are paid one turn."""
        self.advance_rows(self._as_rows(chosen), available)

    def advance_rows(self, rows: IntArray, available: npt.ArrayLike | None = None) -> None:
        """The same, for rows that are known to be distinct clients of these queues."""
        earning = self._who_earns(rows, available)
        before = self._settled(rows)
        if earning is None:
            self._rounds = self._rounds + 1
        else:
            counted = self._counted_rounds()
            counted += earning
            self._rounds = counted
        earned = _of(self._rates, rows) * (1 if earning is None else earning[rows])
        owed = np.maximum(before + earned - self.units_per_turn, 0)
        self._balance[rows] = owed - _of(self._credit(), rows)

    def certificate(self, turns: npt.ArrayLike, rounds: npt.ArrayLike | None = None) -> Certificate:
        """Hold the promise against `turns` taken, one number a client, as someone else counted them.

        `rounds`: of how many rounds each client was promised its share; one number, or one a client.
        By default those the queues have counted.
        """
        taken = np.asarray(turns)
        if taken.shape != (self._clients,) or taken.dtype.kind not in "iu":
            raise ReportError(
                f"turns must be {self._clients} whole numbers, one a client, not {taken.dtype} {taken.shape}"
            )
        counted = np.asarray(self._rounds if rounds is None else rounds, dtype=np.int64)
        owed = self.owed_exactly()
        return Certificate(
            turns=taken.astype(np.int64),
            units_per_turn=self.units_per_turn,
            promised_units=np.array(np.broadcast_to(counted * self._rates, self._clients)),
            owed_units=owed.units + owed.credit,
            forfeited_units=self._forfeited_units(),
        )

    def add(self, count: int, guaranteed_rate: Rate | None = None) -> None:
        """Append `count` clients that are owed nothing; their rate is the common one unless given."""
        count = as_count("count", count, SettingError, least=0)
        rates, unit = self._rates_with(count, guaranteed_rate)
        rounds = np.concatenate([self.rounds, np.zeros(count, dtype=np.int64)])
        finer = unit // self.units_per_turn
        self._balance = np.concatenate([self._balance * finer, np.zeros(count, dtype=np.int64)])
        if self._forfeited is not None:
            self._forfeited = np.concatenate([self._forfeited * finer, np.zeros(count, dtype=np.int64)])
        if self._retired is not None:
            self._retired = np.concatenate([self._retired, np.zeros(count, dtype=np.bool_)])
        if self._cap is not None:
            self._cap *= finer
        self._rates, self.units_per_turn, self._rounds = rates, unit, rounds
        self._clients += count

    def retire(self, rows: npt.ArrayLike) -> None:
        """These clients have left: they earn no more, and what they are owed stays on record."""
        gone = self._as_rows(rows)
        if self._retired is None:
            self._retired = np.zeros(self._clients, dtype=np.bool_)
        self._retired[gone] = True
        self._rounds = self._counted_rounds()

    def state(self) -> dict[str, Any]:
        """All that changes, as plain arrays and numbers, and the rates it is counted in."""
        saved: dict[str, Any] = {
            "balance": self._balance.copy(),
            "rounds": self._rounds if isinstance(self._rounds, int) else self._rounds.copy(),
            "rates": self._rates if isinstance(self._rates, int) else self._rates.copy(),
            "units_per_turn": self.units_per_turn,
        }
        if self._forfeited is not None:
            saved["forfeited"] = self._forfeited.copy()
        if self._retired is not None:
            saved["retired"] = self._retired.copy()
        return saved

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; the promise must be the same."""
        balance = np.array(saved(state, "balance"), dtype=np.int64)
        rates, unit = _int_or_array(saved(state, "rates")), int(saved(state, "units_per_turn"))
        if len(balance) != self._clients or unit != self.units_per_turn or not np.array_equal(rates, self._rates):
            raise StateError(
                "the saved queues were kept for another promise: saved are "
                f"{len(balance)} clients at {_told(rates, unit)}, here are "
                f"{self._clients} at {_told(self._rates, self.units_per_turn)}"
            )
        self._balance, self._rounds = balance, _int_or_array(saved(state, "rounds"))
        self._forfeited = _array_or_none(state.get("forfeited"), np.int64)
        self._retired = _array_or_none(state.get("retired"), np.bool_)

    def _credit(self) -> int | IntArray:
        return self._rates * self._rounds

    def _counted_rounds(self) -> IntArray:
        return self.rounds if isinstance(self._rounds, int) else self._rounds

    def _settled(self, rows: IntArray) -> IntArray:
        """Units owed to these before the round; what the cap took so far is booked."""
        owed: IntArray = self._balance[rows] + _of(self._credit(), rows)
        if self._cap is None:
            return owed
        if self._forfeited is None:
            self._forfeited = np.zeros(self._clients, dtype=np.int64)
        self._forfeited[rows] += np.maximum(owed - self._cap, 0)
        return np.minimum(owed, self._cap)

    def _forfeited_units(self) -> IntArray:
        booked = np.zeros(self._clients, dtype=np.int64) if self._forfeited is None else self._forfeited
        if self._cap is None:
            return booked
        forfeited: IntArray = booked + np.maximum(self._balance + self._credit() - self._cap, 0)
        return forfeited

    def _who_earns(self, chosen: IntArray, available: npt.ArrayLike | None) -> BoolArray | None:
        """A mask, or None where everyone does."""
        if self._retired is not None and self._retired[chosen].any():
            raise ReportError(f"client {chosen[self._retired[chosen]][0]} has retired and cannot be chosen")
        active = None if self._retired is None else ~self._retired
        if self.accrual == "always":
            return active
        if available is None:
            raise ReportError("accrual='available' needs to know who was available: give the round's mask")
        mask = as_mask("available", available, ReportError)
        same_length("available", mask, self._clients, "clients", ReportError)
        if not mask[chosen].all():
            raise ReportError(f"client {chosen[~mask[chosen]][0]} was chosen but not available")
        return mask if active is None else mask & active

    def _as_rows(self, chosen: npt.ArrayLike) -> IntArray:
        rows = np.asarray(chosen)
        if rows.dtype == np.bool_:
            same_length("chosen", rows, self._clients, "clients", ReportError)
            rows = np.flatnonzero(rows)
        return as_rows("chosen", rows, ReportError, clients=self._clients)

    def _rates_with(self, count: int, guaranteed_rate: Rate | None) -> tuple[int | IntArray, int]:
        if isinstance(self._rates, int):
            common = Fraction(self._rates, self.units_per_turn)
            fresh = common if guaranteed_rate is None else exact_rate(guaranteed_rate)
            if fresh == common:
                return self._rates, self.units_per_turn
        elif guaranteed_rate is None:
            raise SettingError("clients have different rates here: give guaranteed_rate for the new ones")
        else:
            fresh = exact_rate(guaranteed_rate)
        unit = math.lcm(self.units_per_turn, fresh.denominator)
        if unit > FINEST:
            raise SettingError(f"guaranteed_rate {fresh} has no common unit with the present rates")
        old = np.broadcast_to(np.asarray(self._rates), self._clients) * (unit // self.units_per_turn)
        return np.concatenate([old, np.full(count, int(fresh * unit), dtype=np.int64)]), unit


def exact_rate(rate: Rate) -> Fraction:
    """A share of rounds as a fraction: 0.15, "3/20" and Fraction(3, 20) are the same.

    >>> exact_rate(0.15)
    Fraction(3, 20)
    """
    try:
        fraction = Fraction(rate).limit_denominator(FINEST)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise SettingError(f"guaranteed_rate must be a number or a fraction such as '3/20', not {rate!r}") from None
    if not 0 <= fraction <= 1:
        raise SettingError(f"guaranteed_rate must lie in [0, 1], not {rate}")
    return fraction


def exact_rates(rates: Rate | npt.ArrayLike, clients: int) -> tuple[int | IntArray, int]:
    """One rate for all or one a client, as whole units and the number of units in a turn.

    Different rates share a unit. Where no unit of at least 10⁻⁹ turn suits them all, they are rounded
    up to the next 10⁻⁹: nobody is promised less than was asked for.
    """
    if isinstance(rates, float | str | Fraction | int | np.floating | np.integer):
        rate = exact_rate(float(rates) if isinstance(rates, np.number) else rates)
        return rate.numerator, rate.denominator
    given = np.asarray(rates)
    if given.shape != (clients,):
        raise SettingError(f"guaranteed_rate must be one rate or {clients}, one a client: its shape is {given.shape}")
    distinct, which = np.unique(given, return_inverse=True)
    fractions = [exact_rate(rate) for rate in distinct.tolist()]
    unit = 1
    for fraction in fractions:
        unit = math.lcm(unit, fraction.denominator)
        if unit > FINEST:
            unit = FINEST
            break
    numerators = np.array([math.ceil(fraction * unit) for fraction in fractions], dtype=np.int64)
    return numerators[which], unit


def _of(value: int | IntArray, rows: IntArray) -> Any:
    return value if isinstance(value, int) else value[rows]


def _int_or_array(value: Any) -> int | IntArray:
    array = np.array(value, dtype=np.int64)
    return int(array) if array.ndim == 0 else array


def _array_or_none(value: Any, dtype: Any) -> Any:
    return None if value is None else np.array(value, dtype=dtype)


def _told(rates: int | IntArray, unit: int) -> str:
    return f"rate {Fraction(rates, unit)}" if isinstance(rates, int) else f"{len(np.unique(rates))} rates"
