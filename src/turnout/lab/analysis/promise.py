"""What recorded rounds mean for a promise: shares, turns owed, and how far clients fell behind.

A promise has a rate, an accrual and a rule of what pays a turn. The same three determine every figure of this module:

- a client accrues its rate in every round (accrual="always"), or in the rounds for which it is available;
- a turn counts when the client is selected (counts="selected"), or when its update arrives in time ("completed");
- the share of a client is its turns divided by the rounds in which it accrued;
- its shortfall is its promised turns (rate · rounds in which it accrued) minus its turns: negative with a surplus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError
from turnout.kernel import certificate as certificates
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, Rate, exact_rates
from turnout.kernel.certificate import Accrual, Certificate, Tolerance
from turnout.kernel.guarantee import Guarantee, TurnCounting
from turnout.kernel.rounds import OUTCOMES
from turnout.lab.columns import RoundColumns

MAX_BLOCK = 1 << 20  # the number of values of the matrices with one row per round
#: What a share is a share of, for the headings of tables.
SHARE_OF: dict[Accrual, str] = {accrual: f"of {rounds}" for accrual, rounds in certificates.SHARE_OF.items()}
#: The outcomes that count as a turn.
COUNTED_OUTCOMES: dict[TurnCounting, tuple[str, ...]] = {"selected": OUTCOMES, "completed": ("arrived",)}


@dataclass(frozen=True, slots=True, eq=False)
class Shortfall:
    """How far clients fell behind a promise, in exact integer units of 1 / units_per_turn turns.

    Attributes:
        certificate: The promised turns and the turns after the last round, with their statuses.
        largest_units: The largest shortfall of each client at the end of any round; negative if it always had a
            surplus.
    """

    certificate: Certificate
    largest_units: IntArray

    @property
    def largest(self) -> float:
        """The largest shortfall of any client at the end of any round, in turns."""
        return int(self.largest_units.max()) / self.certificate.units_per_turn

    @property
    def at_end(self) -> float:
        """The largest shortfall of any client after the last round, in turns."""
        return int(self.certificate.behind_units.max()) / self.certificate.units_per_turn

    @property
    def ever_broken(self) -> BoolArray:
        """Whether each client was ever further behind than the tolerance, even if it caught up later."""
        tolerance = certificates.exact_tolerance(self.certificate.tolerance)
        return self.largest_units > math.floor(tolerance * self.certificate.units_per_turn)


def shortfalls(
    columns: RoundColumns,
    guaranteed_rate: Rate | npt.ArrayLike,
    *,
    accrual: Accrual = "always",
    counts: TurnCounting = "selected",
    tolerance: Tolerance = certificates.DEFAULT_TOLERANCE,
) -> Shortfall:
    """Returns how far clients fell behind a promise, at any time and at the end.

    Args:
        columns: The recorded rounds.
        guaranteed_rate: The guaranteed rate, one for all clients or one per client.
        accrual: Whether clients accrue turns "always" or only in rounds in which they are "available".
        counts: Whether a turn counts when the client is "selected", or when its update arrived ("completed").
        tolerance: The number of turns that a client may be behind, for the statuses.
    """
    require_rounds(columns)
    rates, units_per_turn = exact_rates(guaranteed_rate, columns.clients)
    limit = math.floor(certificates.exact_tolerance(certificates.as_tolerance(tolerance)) * units_per_turn)
    accruing, paying = accrual_mask(columns, accrual), np.zeros((len(columns), columns.clients), dtype=np.bool_)
    rows = np.flatnonzero(with_outcome(columns, counted_outcomes(counts)))
    paying[np.repeat(np.arange(len(columns)), np.diff(columns.starts))[rows], columns.chosen[rows]] = True
    balance, promised, turns, owed = (np.zeros(columns.clients, dtype=np.int64) for _ in range(4))
    largest = np.full(columns.clients, np.iinfo(np.int64).min)
    broken_since = np.zeros(columns.clients, dtype=np.int64)
    # Rounds are counted in blocks, so that long runs of many clients need little memory.
    step = max(MAX_BLOCK // columns.clients, 1)
    for start, end in pairwise([*range(0, len(columns), step), len(columns)]):
        rounds = columns.rounds[start:end]
        earned: IntArray = np.multiply(accruing[start:end], rates, dtype=np.int64)
        gains = np.cumsum(earned - paying[start:end] * units_per_turn, axis=0)
        behind = balance + gains
        owed = owed + gains[-1] - np.minimum((owed + gains).min(axis=0), 0)
        promised += earned.sum(axis=0)
        turns += paying[start:end].sum(axis=0)
        largest, balance = np.maximum(largest, behind.max(axis=0)), behind[-1]
        broken_since = _broken_since(behind > limit, rounds, broken_since)
    certificate = Certificate(
        turns=turns,
        units_per_turn=units_per_turn,
        promised_units=promised,
        owed_units=owed,
        forfeited_units=np.zeros(columns.clients, dtype=np.int64),
        tolerance=tolerance,
        broken_since=broken_since,
    )
    return Shortfall(certificate, largest)


def _broken_since(broken: BoolArray, rounds: IntArray, before: IntArray) -> IntArray:
    """Returns the round since which each client is beyond the tolerance after these rounds; 0 if it is not.

    Args:
        broken: Whether each client is beyond it after each of the rounds.
        rounds: The numbers of the rounds.
        before: The result for the rounds before them.
    """
    since_last = np.argmin(broken[::-1], axis=0)  # the number of rounds after the last one that was not broken
    changed: IntArray = np.where(since_last > 0, rounds[-since_last], 0)
    return np.where(broken.all(axis=0), np.where(before > 0, before, rounds[0]), changed)


def share_of(accrual: Accrual, slots: int | None = None) -> str:
    """Returns what a share of turns is a share of, in words; `slots` is given if there are no rounds."""
    return SHARE_OF[accrual] if slots is None else f"of {certificates.SHARE_OF_TURNS[accrual]}"


def describe_promise(guarantee: Guarantee, slots: int | None = None) -> str:
    """Returns a promise as a phrase for reports; `slots` is given if there are no rounds.

    >>> describe_promise(Guarantee(0.1, tolerance=3))
    '0.1 of the rounds it was available for, at most 3 turns behind; a turn counts when the update arrives in time'
    """
    rates, units_per_turn = exact_rates(guarantee.rate, None)
    low, high = int(np.min(rates)) / units_per_turn, int(np.max(rates)) / units_per_turn
    rate = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    counts = "the client is selected" if guarantee.counts == "selected" else "the update arrives in time"
    tolerance = float(guarantee.tolerance)
    turns = "turn" if tolerance == 1 else "turns"
    shared = share_of(guarantee.accrual, slots)
    return f"{rate} {shared}, at most {tolerance:g} {turns} behind; a turn counts when {counts}"


def counted_outcomes(counts: TurnCounting) -> tuple[str, ...]:
    """Returns the outcomes that count as a turn.

    >>> counted_outcomes("completed")
    ('arrived',)
    """
    if counts not in COUNTED_OUTCOMES:
        raise SettingError(f"counts must be 'selected' or 'completed', not {counts!r}")
    return COUNTED_OUTCOMES[counts]


def owed_after_each_round(columns: RoundColumns, guaranteed_rate: Rate | npt.ArrayLike) -> FloatArray:
    """Returns the turns owed to each client after each round, (T, N), as the paper's queues count them.

    Every client accrues turns in every round, and a selection pays one.
    """
    units, units_per_turn = exact_rates(guaranteed_rate, columns.clients)
    balance = np.cumsum(units - columns.chosen_mask * units_per_turn, axis=0)
    # The recursion owed ← max(owed + gain, 0) equals the running sum minus its running minimum.
    return (balance - np.minimum(np.minimum.accumulate(balance, axis=0), 0)) / units_per_turn


def turns_behind(columns: RoundColumns, guarantee: Guarantee, owed: IntArray | None = None) -> FloatArray:
    """Returns the turns that the client furthest behind is behind its promise after each round, (T,).

    Args:
        columns: The rounds.
        guarantee: The promise.
        owed: What each client is owed before the first round, in exact units; it is changed to that after the last.
    """
    rates, units_per_turn = exact_rates(guarantee.rate, columns.clients)
    accruing = accrual_mask(columns, guarantee.accrual)
    counts = with_outcome(columns, counted_outcomes(guarantee.counts))
    starts = columns.starts.tolist()
    units = np.zeros(columns.clients, dtype=np.int64) if owed is None else owed
    furthest = np.empty(len(columns), dtype=np.int64)
    for index in range(len(columns)):
        rows = slice(starts[index], starts[index + 1])
        units += accruing[index] * rates
        units[columns.chosen[rows][counts[rows]]] -= units_per_turn
        furthest[index] = units.max()
    return furthest / units_per_turn


def accrual_mask(columns: RoundColumns, accrual: Accrual) -> BoolArray:
    """Returns which clients accrue in each round, (T, N)."""
    if accrual == "always":
        return np.broadcast_to(np.True_, (len(columns.rounds), columns.clients))
    if accrual != "available":
        raise SettingError(f"accrual must be 'always' or 'available', not {accrual!r}")
    if columns.available is None or not knows_available(columns):
        raise ReportError(
            "accrual='available' needs the available clients of every round, but some rounds were recorded without them"
        )
    return columns.available


def knows_available(columns: RoundColumns) -> bool:
    """Returns whether the available clients of every round were recorded."""
    return columns.available is not None and "available" not in columns.absent


def with_outcome(columns: RoundColumns, outcomes: Sequence[str]) -> BoolArray:
    """Returns a mask of the rows with one of these outcomes; without recorded outcomes, all clients arrived."""
    for outcome in outcomes:
        if outcome not in OUTCOMES:
            raise SettingError(f"unknown outcome {outcome!r}: outcomes are {', '.join(OUTCOMES)}")
    is_wanted = np.array([outcome in outcomes for outcome in OUTCOMES])
    if columns.outcomes is None:
        return np.full(len(columns.chosen), is_wanted[OUTCOMES.index("arrived")])
    return is_wanted[columns.outcomes]


def require_rounds(columns: RoundColumns) -> int:
    """Returns the number of rounds; raises SettingError if there is none."""
    if len(columns.rounds) == 0:
        raise SettingError("the columns hold no rounds: at least one round is required")
    return len(columns.rounds)
