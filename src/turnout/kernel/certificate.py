"""The certificate: what every client was promised, what it got, and whether the promise is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.kernel.arrays import FINEST, BoolArray, FloatArray, IntArray, as_number
from turnout.log import printable

Accrual: TypeAlias = Literal["always", "available"]
#: The rounds in which a client earns, in words: a share of turns is a share of these rounds, and headings name them.
SHARE_OF: Mapping[Accrual, str] = {"always": "all rounds", "available": "the rounds it was available for"}
#: The same if there are no rounds.
SHARE_OF_TURNS: Mapping[Accrual, str] = {"always": "all turns", "available": "the turns given while it was there"}

#: How far a client is behind its promise: less than one turn, within the tolerance, or beyond it.
PromiseStatus: TypeAlias = Literal["kept", "behind", "broken"]
#: The statuses from the best to the worst; `Certificate.levels` holds indices into this tuple.
STATUSES: tuple[PromiseStatus, ...] = ("kept", "behind", "broken")
#: The default tolerance, in turns.
DEFAULT_TOLERANCE = 2.0
#: The largest tolerance and the largest debt, in turns: in units of 10⁻⁹ turns they fit into 64 bits.
MAX_TURNS = 1e9

Tolerance: TypeAlias = float | Fraction


class TimeUnit(StrEnum):
    """What the numbers of turns count: rounds or, without rounds, the decisions that each give one client a turn.

    >>> f"{TimeUnit.of(None)} 3, {TimeUnit.of(8).pluralize(2000)}"
    'round 3, 2,000 decisions'
    """

    ROUND = "round"
    DECISION = "decision"

    @classmethod
    def of(cls, slots: int | None) -> TimeUnit:
        """Returns the unit of a fleet or run with this number of slots; None if it has rounds."""
        return cls.ROUND if slots is None else cls.DECISION

    @property
    def plural(self) -> str:
        """The noun in the plural."""
        return f"{self}s"

    @property
    def turn(self) -> str:
        """What lasts as long as the slowest selected client: the round, or one turn."""
        return "round" if self is TimeUnit.ROUND else "turn"

    @property
    def selection(self) -> str:
        """What is selected."""
        return "cohort" if self is TimeUnit.ROUND else "choice"

    def pluralize(self, number: int) -> str:
        """Returns a number of rounds or decisions."""
        return f"{number:,} {self if number == 1 else self.plural}"


@dataclass(frozen=True, slots=True)
class PromiseSummary:
    """The status of a promise in a few numbers; everything that reports on a promise uses these words.

    Attributes:
        status: The worst status of any client.
        clients: The number of clients that are judged; those that have retired are not.
        kept: The number of clients that are less than one turn behind.
        behind: The number of clients that are at least one turn behind, within the tolerance.
        broken: The number of clients that are beyond the tolerance.
        unserved: The number of clients without a turn that were there for too few rounds to be promised one.
        tolerance: The number of turns that a client may be behind.
        worst: The row of the client that is furthest behind; None without clients.
        worst_behind: How many turns that client is behind; negative if all clients have a surplus.
        since: The round since which that client is beyond the tolerance; None if it is not, or not recorded.
        retired: The number of clients that have left for good, which are not judged.
        retired_broken: The number of those that left while they were beyond the tolerance.
        unit: What is counted: rounds, or without rounds decisions.
    """

    status: PromiseStatus
    clients: int
    kept: int
    behind: int
    broken: int
    unserved: int
    tolerance: float
    worst: int | None
    worst_behind: float
    since: int | None
    retired: int = 0
    retired_broken: int = 0
    unit: TimeUnit = TimeUnit.ROUND

    def to_dict(self, name: Callable[[int], str] = str) -> dict[str, Any]:
        """Returns the summary for JSON: its attributes, with the name of the worst client, and the sentence."""
        worst = None if self.worst is None else name(self.worst)
        return {**asdict(self), "worst": worst, "sentence": self.sentence(name)}

    def sentence(self, name: Callable[[int], str] = str) -> str:
        """Returns the summary as one sentence, which begins with the status.

        Args:
            name: Returns the name of a client from its row.
        """
        if self.worst is None:
            text = "kept: all clients have retired" if self.retired else "kept: there are no clients yet"
            return text + self._retired_clause()
        worst = f"{printable(name(self.worst))} is {self.worst_behind:.2f} turns behind"
        if self.status == "broken":
            since = "" if self.since is None else f", since {self.unit} {self.since:,}"
            text = f"broken: {worst}, beyond the tolerance of {self.tolerance:g}{since}"
            text += f"; {pluralize(self.broken, 'client', 'are', of=self.clients)} beyond it"
        elif self.status == "behind":
            text = f"behind: {worst}, within the tolerance of {self.tolerance:g}"
            text += f"; {pluralize(self.behind, 'client', 'are', of=self.clients)} one turn or more behind"
        else:
            everyone = "the only client is" if self.clients == 1 else f"all {self.clients:,} clients are"
            text = f"kept: {everyone} less than one turn behind"
        if self.unserved:
            text += f"; {pluralize(self.unserved, 'client', 'were')} there for too few {self.unit}s to be served"
        return text + self._retired_clause()

    def _retired_clause(self) -> str:
        if not self.retired_broken:
            return ""
        return f"; {pluralize(self.retired_broken, 'client')} retired while beyond the tolerance"


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """The turns that every client was promised and the turns that it got.

    A promise is a rate and a tolerance: a client is promised guaranteed_rate · (rounds in which it accrues) turns, and
    it must never be more than `tolerance` turns behind. The status of a client is

    - "broken" if it is more than `tolerance` turns behind,
    - otherwise "kept" if it is less than one turn behind,
    - otherwise "behind".

    All comparisons are exact, in integer units. A client that has retired keeps its status and what it is behind, but
    earns nothing any more and can no longer be served. So it does not count in `status`, `worst`, `holds` and
    `summary`, which would otherwise stay broken for ever; the summary counts it separately.

    Attributes:
        turns: The turns that each client took.
        units_per_turn: The number of units in a turn.
        promised_units: The turns that each client was promised, in units.
        owed_units: The queue of owed turns, in units. A client with a surplus can have a positive queue: the queue
            never falls below 0, so early extra turns do not count against later rounds.
        forfeited_units: The turns that each client lost because of `max_owed`, in units.
        tolerance: The number of turns that a client may be behind.
        broken_since: The round since which each client has been more than `tolerance` turns behind; 0 where it is not.
            None if this was not recorded.
        retired: Whether each client has left for good; None if no client has.
        backed_off: The rounds in which each client was backed off after misses, and so earned nothing with
            accrual="available"; None if this was not recorded.
        has_queue: Whether the policy selects by the queue of owed turns; of other policies it is only an account.
        unit: What is counted: rounds, or without rounds decisions.

    >>> certificate = Certificate(
    ...     turns=np.array([3, 1, 0]), units_per_turn=20, promised_units=np.array([60, 60, 60]),
    ...     owed_units=np.array([0, 40, 60]), forfeited_units=np.zeros(3, dtype=np.int64),
    ... )
    >>> certificate.behind
    array([0., 2., 3.])
    >>> certificate.statuses.tolist(), certificate.status, certificate.worst
    (['kept', 'behind', 'broken'], 'broken', 2)
    >>> certificate.summary().sentence("client {}".format)
    'broken: client 2 is 3.00 turns behind, beyond the tolerance of 2; 1 of 3 clients is beyond it'
    """

    turns: IntArray
    units_per_turn: int
    promised_units: IntArray
    owed_units: IntArray
    forfeited_units: IntArray
    tolerance: Tolerance = DEFAULT_TOLERANCE
    broken_since: IntArray | None = None
    retired: BoolArray | None = None
    backed_off: IntArray | None = None
    has_queue: bool = True
    unit: TimeUnit = TimeUnit.ROUND

    @property
    def promised(self) -> FloatArray:
        """The turns that each client was promised: guaranteed_rate · rounds."""
        return self.promised_units / self.units_per_turn

    @property
    def owed(self) -> FloatArray:
        """The queue of turns owed to each client; it is not negative, so it can exceed `behind`."""
        return self.owed_units / self.units_per_turn

    @property
    def forfeited(self) -> FloatArray:
        """The turns that each client lost because of `max_owed`."""
        return self.forfeited_units / self.units_per_turn

    @property
    def behind_units(self) -> IntArray:
        """Promised turns minus turns taken, in units; negative for a client with a surplus."""
        return self.promised_units - self.turns * self.units_per_turn

    @property
    def behind(self) -> FloatArray:
        """Promised turns minus turns taken; negative for a client with a surplus."""
        return self.behind_units / self.units_per_turn

    @property
    def broken(self) -> BoolArray:
        """Whether each client is more than `tolerance` turns behind."""
        broken: BoolArray = self.behind_units > math.floor(exact_tolerance(self.tolerance) * self.units_per_turn)
        return broken

    @property
    def levels(self) -> npt.NDArray[np.int8]:
        """The status of each client, as an index into STATUSES."""
        levels = (self.behind_units >= self.units_per_turn).astype(np.int8)
        levels[self.broken] = 2
        return levels

    @property
    def statuses(self) -> npt.NDArray[np.str_]:
        """The status of each client: "kept", "behind" or "broken"."""
        return np.array(STATUSES)[self.levels]

    @property
    def status(self) -> PromiseStatus:
        """The worst status of any client that has not retired; "kept" if there is none."""
        return STATUSES[int(self.levels[self._judged()].max(initial=0))]

    @property
    def worst(self) -> int | None:
        """The row of the client that is furthest behind, the lowest of equals; None if all have retired."""
        rows = np.arange(len(self.turns))[self._judged()]
        return int(rows[np.argmax(self.behind_units[rows])]) if len(rows) else None

    @property
    def unserved(self) -> BoolArray:
        """Whether each client took no turn because it was there for too few rounds to be promised a whole one."""
        unserved: BoolArray = (self.turns == 0) & (self.promised_units < self.units_per_turn)
        return unserved

    @property
    def holds(self) -> bool:
        """Whether no client that is judged is further behind than the tolerance: the status is not "broken"."""
        return self.status != "broken"

    @property
    def balanced(self) -> BoolArray:
        """Whether the books of each client balance: turns ≥ promised − owed − forfeited.

        This is an identity of the queues, which holds for any policy at any time. If it fails, the accounting is
        damaged; if it holds, nothing is said about the promise.
        """
        balanced: BoolArray = self.behind_units <= self.owed_units + self.forfeited_units
        return balanced

    @property
    def books_balance(self) -> bool:
        """Whether the books of all clients balance; see `balanced`."""
        return bool(self.balanced.all())

    def summary(self) -> PromiseSummary:
        """Returns the status of the promise in a few numbers."""
        judged, levels, worst = self._judged(), self.levels, self.worst
        counts = np.bincount(levels[judged], minlength=len(STATUSES)).tolist()
        since = 0 if worst is None or self.broken_since is None else int(self.broken_since[worst])
        return PromiseSummary(
            status=STATUSES[max((level for level, count in enumerate(counts) if count), default=0)],
            clients=sum(counts),
            kept=counts[0],
            behind=counts[1],
            broken=counts[2],
            unserved=int(np.count_nonzero(self.unserved[judged])),
            tolerance=float(self.tolerance),
            worst=worst,
            worst_behind=0.0 if worst is None else float(self.behind_units[worst] / self.units_per_turn),
            since=since or None,
            retired=len(self.turns) - sum(counts),
            retired_broken=int(np.count_nonzero(levels == 2)) - counts[2],
            unit=self.unit,
        )

    def to_dict(self, ids: Sequence[str], rows: Iterable[int] | None = None) -> dict[str, Any]:
        """Returns the certificate for JSON: the promise, and one entry for each client in `rows`.

        Args:
            ids: The ids of the clients, by row.
            rows: The clients, in this order; by default all. `of` is the number of all clients in any case.
        """
        columns = {
            "turns": self.turns,
            "promised": self.promised,
            "behind": self.behind,
            "status": self.statuses,
            "unserved": self.unserved,
            "owed": self.owed if self.has_queue else np.full(len(ids), None),
            "forfeited": self.forfeited,
            "backed_off": np.zeros(len(ids), np.int64) if self.backed_off is None else self.backed_off,
        }
        shown = list(range(len(ids)) if rows is None else rows)
        entries = zip(*(column[shown].tolist() for column in columns.values()), strict=True)
        clients = [
            {"client": ids[row], **dict(zip(columns, entry, strict=True))}
            for row, entry in zip(shown, entries, strict=True)
        ]
        return {"promise": self.summary().to_dict(ids.__getitem__), "clients": clients, "of": len(ids)}

    def judged(self, tolerance: Tolerance) -> Certificate:
        """Returns the same certificate, judged by another tolerance; it does not know since when it is broken."""
        return replace(self, tolerance=as_tolerance(tolerance), broken_since=None)

    def of(self, rows: IntArray) -> Certificate:
        """Returns the certificate of these clients alone, in this order."""
        return replace(
            self,
            turns=self.turns[rows],
            promised_units=self.promised_units[rows],
            owed_units=self.owed_units[rows],
            forfeited_units=self.forfeited_units[rows],
            broken_since=None if self.broken_since is None else self.broken_since[rows],
            retired=None if self.retired is None else self.retired[rows],
            backed_off=None if self.backed_off is None else self.backed_off[rows],
        )

    def _judged(self) -> BoolArray | slice:
        """Selects the clients that have not retired; as a slice if that is all of them, which spares copies."""
        return slice(None) if self.retired is None or not self.retired.any() else ~self.retired


def as_tolerance(tolerance: Tolerance) -> Tolerance:
    """Checks a tolerance, in turns: a positive number, or a fraction.

    >>> as_tolerance(2)
    2.0
    """
    if isinstance(tolerance, Fraction):
        as_tolerance(float(tolerance))
        return tolerance
    number = as_number("tolerance", tolerance, SettingError, above=0, most=MAX_TURNS)
    return as_number("tolerance", number, SettingError, least=1 / FINEST)


def exact_tolerance(tolerance: Tolerance) -> Fraction:
    """Converts a tolerance to a fraction. As with rates, 0.3 is read as 3/10, not as the nearest binary number.

    >>> exact_tolerance(0.3)
    Fraction(3, 10)
    """
    exact = Fraction(tolerance)
    return exact if isinstance(tolerance, Fraction) else exact.limit_denominator(FINEST) or exact


class OwedTurns(NamedTuple):
    """The exact number of turns owed to each client: (units + credit) / units_per_turn."""

    units: IntArray
    credit: int
    units_per_turn: float

    def of(self, rows: IntArray | slice) -> FloatArray:
        """Returns the turns owed to these clients, as floats."""
        turns: FloatArray = (self.units[rows] + self.credit) / self.units_per_turn
        return turns


class Accounts(NamedTuple):
    """What promised turns are computed from, base + rates · rounds units: one value for all clients, or one each.

    Attributes:
        rates: The guaranteed rates, in units per round.
        rounds: The rounds in which clients accrued.
        base: What clients were promised at other rates before an amendment, minus the present rate of those rounds; 0
            if the rates were never amended.
    """

    rates: int | IntArray
    rounds: int | IntArray
    base: int | IntArray = 0
