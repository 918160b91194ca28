"""Turns owed to each client: virtual queues in exact integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError, StateError
from turnout.kernel.arrays import (
    FINEST,
    BoolArray,
    FloatArray,
    IntArray,
    Rate,
    as_count,
    as_mask,
    as_rows,
    at_rows,
    exact_rates,
    read_only,
    require_length,
    save_array,
    saved_value,
)
from turnout.kernel.backend import count_flags
from turnout.kernel.certificate import DEFAULT_TOLERANCE, Accounts, Accrual, Certificate, OwedTurns, Tolerance

#: The default guaranteed rate, in turns per round: that of the paper's experiments.
DEFAULT_RATE = 0.15
#: With how many decisions a client without a guaranteed rate earns a turn: it never does.
UNLIMITED = 2**62


class FairnessQueues:
    """Virtual queues of owed turns (Z in the paper): each round adds the guaranteed rate, each turn subtracts 1.

    owed ← max(owed + guaranteed_rate − chosen, 0), in integers: a rate is a fraction p/q and owed turns are counted
    in units of 1/q turn, so that resumed, replayed and compiled runs agree bit for bit. A float is read as the
    nearest fraction with a denominator of at most 10⁹: 0.15 is 3/20.

    The update is lazy: the turns owed to a client are its stored balance plus its rate times the number of rounds in
    which it accrued, so a round changes only the entries of the chosen clients.

    Rates can be amended: `amended_state` converts the state of queues with other rates, so that earlier rounds count at
    the old rates and later ones at the new. Owed turns are then counted in a common unit of all rates.

    Args:
        clients: The number of clients.
        guaranteed_rate: The share of rounds that is promised: one rate for all clients, or one per client.
        accrual: "always": a client accrues in every round. "available": only in rounds in which it is available.
        max_owed: The largest number of turns that a client can be owed; what exceeds it is counted as forfeited.

    >>> queues = FairnessQueues(3, "1/4")
    >>> for chosen in ([0], [1], [0]):
    ...     queues.advance(chosen)
    >>> queues.owed
    array([0.  , 0.25, 0.75])
    >>> queues.certificate(turns=[2, 1, 0]).behind
    array([-1.25, -0.25,  0.75])
    """

    def __init__(
        self,
        clients: int,
        guaranteed_rate: Rate | npt.ArrayLike,
        *,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
    ) -> None:
        #: The number of clients, including retired ones.
        self.clients = as_count("clients", clients, SettingError)
        self.accrual = accrual
        self._rates, self.units_per_turn = exact_rates(guaranteed_rate, clients)
        self.max_owed = max_owed
        self._cap: int | None = None
        if max_owed is not None:
            self._cap = math.floor(Fraction(max_owed) * self.units_per_turn)
        # The number of rounds in which each client accrued: an int as long as it is the same for all clients.
        self._rounds: int | IntArray = 0
        self._balance: IntArray = np.zeros(clients, dtype=np.int64)
        self._forfeited: IntArray | None = None
        self._retired: BoolArray | None = None
        # Promised units are base + rate · rounds; None if the rates were never amended.
        self._base: int | IntArray | None = None

    @property
    def guaranteed_rates(self) -> FloatArray:
        """The share of rounds that each client is promised (beta in the paper)."""
        return np.broadcast_to(np.asarray(self._rates) / self.units_per_turn, self.clients)

    @property
    def rounds(self) -> IntArray:
        """The number of rounds in which each client accrued."""
        return np.array(np.broadcast_to(np.asarray(self._rounds, dtype=np.int64), self.clients))

    @property
    def owed(self) -> FloatArray:
        """The turns owed to each client."""
        return self.owed_exactly().of(slice(None))

    @property
    def forfeited(self) -> FloatArray:
        """The turns that each client lost because of `max_owed`."""
        return self._forfeited_units() / self.units_per_turn

    def owed_exactly(self) -> OwedTurns:
        """Returns the turns owed as integers; without a copy if all clients accrue equally."""
        credit = self._credit()
        if isinstance(credit, int) and self._cap is None:
            return OwedTurns(read_only(self._balance), credit, self.units_per_turn)
        units = self._balance + credit
        if self._cap is not None:
            np.minimum(units, self._cap, out=units)
        return OwedTurns(units, 0, self.units_per_turn)

    def accounts(self) -> Accounts:
        """Returns the rates and rounds from which promised turns are computed, without a copy."""
        values = (self._rates, self._rounds, 0 if self._base is None else self._base)
        return Accounts(*(value if isinstance(value, int) else read_only(value) for value in values))

    def advance(self, chosen: npt.ArrayLike, available: npt.ArrayLike | None = None) -> None:
        """Adds the guaranteed rate of each accruing client and subtracts one turn for each chosen client."""
        self.advance_rows(self._as_rows(chosen), available)

    def advance_rows(self, rows: IntArray, available: npt.ArrayLike | None = None) -> None:
        """Does the same as `advance`, for rows that are known to be distinct clients of these queues."""
        self._advance(rows, self._accruing(rows, available))

    def advance_decision(self, rows: IntArray, present: BoolArray, capped: IntArray) -> None:
        """Does the same as `advance_rows` for a decision about one slot.

        Args:
            rows: The client that gets its turn now; empty if a turn counts only when the client comes back.
            present: One boolean per client: whether it is available or training.
            capped: The training clients that earn nothing with this decision.
        """
        accruing = self._accruing(rows, present)
        if len(capped):
            accruing = np.ones(self.clients, dtype=np.bool_) if accruing is None else accruing.copy()
            accruing[capped] = False
        self._advance(rows, accruing)

    def pay(self, rows: IntArray) -> None:
        """Subtracts one turn from what these clients are owed; nobody accrues."""
        self._balance[rows] = np.maximum(self._settle(rows) - self.units_per_turn, 0) - self._credit_of(rows)

    def decisions_per_turn(self) -> int | IntArray:
        """Returns with how many decisions a client earns at most one turn: one number, or one per client."""
        if isinstance(self._rates, int):
            return self.units_per_turn // self._rates if self._rates else UNLIMITED
        limits = np.full(self.clients, UNLIMITED, dtype=np.int64)
        return np.floor_divide(self.units_per_turn, self._rates, out=limits, where=self._rates > 0)

    def _advance(self, rows: IntArray, accruing: BoolArray | None) -> None:
        before = self._settle(rows)
        if accruing is None:
            self._rounds = self._rounds + 1
        else:
            rounds = self._rounds_per_client()
            count_flags(rounds, accruing)
            self._rounds = rounds
        accrued = at_rows(self._rates, rows) * (1 if accruing is None else accruing[rows])
        owed = np.maximum(before + accrued - self.units_per_turn, 0)
        self._balance[rows] = owed - self._credit_of(rows)

    def certificate(self, turns: npt.ArrayLike, *, tolerance: Tolerance = DEFAULT_TOLERANCE) -> Certificate:
        """Compares the promised turns with the turns taken.

        Args:
            turns: The number of turns that each client took, counted independently of the queues.
            tolerance: The number of turns that a client may be behind.
        """
        taken = np.asarray(turns)
        if taken.shape != (self.clients,) or taken.dtype.kind not in "iu":
            raise ReportError(
                f"turns must be {self.clients} whole numbers, one per client, not {taken.dtype} of shape {taken.shape}"
            )
        owed = self.owed_exactly()
        return Certificate(
            turns=taken.astype(np.int64),
            units_per_turn=self.units_per_turn,
            promised_units=np.array(np.broadcast_to(np.asarray(self._credit(), dtype=np.int64), self.clients)),
            owed_units=owed.units + owed.credit,
            forfeited_units=self._forfeited_units(),
            tolerance=tolerance,
        )

    def add(self, count: int) -> None:
        """Appends `count` clients that are owed nothing and get the common rate."""
        count = as_count("count", count, SettingError, least=0)
        if not isinstance(self._rates, int):
            raise SettingError(
                f"the clients have different rates, so {count} more cannot join: build a new policy with all rates"
            )
        if not isinstance(self._rounds, int) or self._rounds:  # before the first round, 0 for everybody
            self._rounds = np.concatenate([self.rounds, np.zeros(count, dtype=np.int64)])
        self._balance = np.concatenate([self._balance, np.zeros(count, dtype=np.int64)])
        if self._forfeited is not None:
            self._forfeited = np.concatenate([self._forfeited, np.zeros(count, dtype=np.int64)])
        if self._retired is not None:
            self._retired = np.concatenate([self._retired, np.zeros(count, dtype=np.bool_)])
        if self._base is not None:
            base = np.broadcast_to(np.asarray(self._base), self.clients)
            self._base = np.concatenate([base, np.zeros(count, dtype=np.int64)])
        self.clients += count

    def retire(self, rows: npt.ArrayLike) -> None:
        """Stops the accrual of clients that have left; the turns that they are owed stay recorded."""
        retired_rows = self._as_rows(rows)
        if self._retired is None:
            self._retired = np.zeros(self.clients, dtype=np.bool_)
        self._retired[retired_rows] = True
        self._rounds = self._rounds_per_client()

    def state(self) -> dict[str, Any]:
        """Returns the variable state and the rates, as plain arrays and numbers."""
        values = {
            "balance": self._balance,
            "rounds": self._rounds,
            "rates": self._rates,
            "units_per_turn": self.units_per_turn,
            "forfeited": self._forfeited,
            "retired": self._retired,
            "base": self._base,
        }
        given = {key: value for key, value in values.items() if value is not None}
        return {key: value if isinstance(value, int) else save_array(value) for key, value in given.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` or `amended_state` returned; the number of clients and the rates must be the same."""
        is_amended = "base" in state
        balance = np.array(saved_value(state, "balance"), dtype=np.int64)
        rates, unit = _int_or_array(saved_value(state, "rates")), int(saved_value(state, "units_per_turn"))
        # Amended queues count in a finer unit than their rates need; these may have been restored to such a state.
        coarsest = self.units_per_turn // int(np.gcd.reduce(np.append(self._rates, self.units_per_turn)))
        is_same_rate = np.array_equal(np.asarray(rates) * self.units_per_turn, np.asarray(self._rates) * unit)
        is_same_unit = unit in (coarsest, self.units_per_turn) or (is_amended and unit % coarsest == 0)
        if len(balance) != self.clients or not is_same_unit or not is_same_rate:
            raise StateError(
                f"the saved queues are for {len(balance)} clients with {_describe_rates(rates, unit)}, expected "
                f"{self.clients} clients with {_describe_rates(self._rates, self.units_per_turn)}"
            )
        rounds, base = _int_or_array(saved_value(state, "rounds")), _int_or_array(state["base"]) if is_amended else None
        forfeited = _array_or_none(state.get("forfeited"), np.int64)
        retired = _array_or_none(state.get("retired"), np.bool_)
        for name, value in {"rounds": rounds, "base": base, "forfeited": forfeited, "retired": retired}.items():
            if isinstance(value, np.ndarray) and value.shape != balance.shape:
                raise StateError(f"the saved {name!r} has shape {value.shape}, expected {balance.shape}")
        self._balance, self._rounds, self._base = balance, rounds, base
        self._forfeited, self._retired = forfeited, retired
        if unit != self.units_per_turn:
            self._rates, self.units_per_turn = rates, unit
            self._cap = None if self.max_owed is None else math.floor(Fraction(self.max_owed) * unit)

    def settle(self) -> None:
        """Records what every client has forfeited so far, so that the state does not depend on the cap."""
        if self._cap is None:
            return
        rows = np.arange(self.clients)
        self._balance = self._settle(rows) - self._credit_of(rows)

    def amended_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the state of queues with other rates, which are settled, to a state that these queues can restore.

        Turns, debts and promises so far stay exactly as they are; the rates of these queues count from now on.

        Raises:
            SettingError: If the old and the new rates have no common denominator of at most 10⁹.
        """
        old_rates, old_unit = _int_or_array(saved_value(state, "rates")), int(saved_value(state, "units_per_turn"))
        rounds, old_base = _int_or_array(saved_value(state, "rounds")), _int_or_array(state.get("base", 0))
        if np.array_equal(np.asarray(old_rates) * self.units_per_turn, np.asarray(self._rates) * old_unit):
            return dict(state)
        unit = math.lcm(old_unit, self.units_per_turn)
        if unit > FINEST:
            new = _describe_rates(self._rates, self.units_per_turn)
            raise SettingError(
                f"the new guaranteed_rate ({new}) and the rates before it have a common denominator of {unit}, more "
                f"than {FINEST}: round it to a fraction with a smaller denominator"
            )
        finer, rates = unit // old_unit, self._rates * (unit // self.units_per_turn)
        amended = {
            **state,
            "balance": saved_value(state, "balance") * finer,
            "rates": rates,
            "units_per_turn": unit,
            "base": (old_base + old_rates * rounds) * finer - rates * rounds,
        }
        if "forfeited" in state:
            amended["forfeited"] = state["forfeited"] * finer
        return amended

    def _credit(self) -> int | IntArray:
        return self._rates * self._rounds if self._base is None else self._base + self._rates * self._rounds

    def _credit_of(self, rows: IntArray) -> Any:
        """Returns the credit of these clients only, which is faster than that of all."""
        earned = at_rows(self._rates, rows) * at_rows(self._rounds, rows)
        return earned if self._base is None else at_rows(self._base, rows) + earned

    def _rounds_per_client(self) -> IntArray:
        return self.rounds if isinstance(self._rounds, int) else self._rounds

    def _settle(self, rows: IntArray) -> IntArray:
        """Returns the units owed to these clients before the round, and records what they forfeited so far."""
        owed: IntArray = self._balance[rows] + self._credit_of(rows)
        if self._cap is None:
            return owed
        if self._forfeited is None:
            self._forfeited = np.zeros(self.clients, dtype=np.int64)
        self._forfeited[rows] += np.maximum(owed - self._cap, 0)
        return np.minimum(owed, self._cap)

    def _forfeited_units(self) -> IntArray:
        recorded = np.zeros(self.clients, dtype=np.int64) if self._forfeited is None else self._forfeited
        if self._cap is None:
            return recorded
        forfeited: IntArray = recorded + np.maximum(self._balance + self._credit() - self._cap, 0)
        return forfeited

    def _accruing(self, chosen: IntArray, available: npt.ArrayLike | None) -> BoolArray | None:
        """Returns a mask of the clients that accrue in this round, or None if all of them do."""
        if self._retired is not None and self._retired[chosen].any():
            raise ReportError(f"client {chosen[self._retired[chosen]][0]} has retired and cannot be chosen")
        active = None if self._retired is None else ~self._retired
        if self.accrual == "always":
            return active
        if available is None:
            raise ReportError("accrual='available' needs the availability of every client: pass the mask `available`")
        mask = as_mask("available", available, ReportError)
        require_length("available", mask, self.clients, "clients", ReportError)
        if not mask[chosen].all():
            raise ReportError(f"client {chosen[~mask[chosen]][0]} was chosen but not available")
        return mask if active is None else mask & active

    def _as_rows(self, chosen: npt.ArrayLike) -> IntArray:
        rows = np.asarray(chosen)
        if rows.dtype == np.bool_:
            require_length("chosen", rows, self.clients, "clients", ReportError)
            rows = np.flatnonzero(rows)
        return as_rows("chosen", rows, ReportError, clients=self.clients)


def _int_or_array(value: Any) -> int | IntArray:
    array = np.array(value, dtype=np.int64)
    return int(array) if array.ndim == 0 else array


def _array_or_none(value: Any, dtype: Any) -> Any:
    return None if value is None else np.array(value, dtype=dtype)


def _describe_rates(rates: int | IntArray, unit: int) -> str:
    return f"rate {Fraction(rates, unit)}" if isinstance(rates, int) else f"{len(np.unique(rates))} different rates"
