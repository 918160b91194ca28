"""All that the pages show of one run or fleet, kept up to date round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.dashboard.sources.growing import Growing, Masks
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import Certificate, FairnessQueues
from turnout.kernel.rounds import RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.rbcsf.change import ChangeDetector
from turnout.scheduler import JUDGED_AFTER, OUTRUN, SURPLUS, ClientHistory

#: How surprising a client's times must be, in its usual errors, before it counts as changed. With times that scatter
#: like an exponential that is said wrongly of one time in 10,000; times that double are found after about ten.
CHANGE_THRESHOLD = 16.0
#: With more clients than this, debts of all of them are not added up after every round.
OFTEN_UP_TO = 100_000
_PER_ROUND = {
    "rounds": np.int64,
    "seconds": np.float64,
    "volunteers": np.int64,
    "threshold": np.float64,
    "objective": np.float64,
    "opened": np.float64,
    "closed": np.float64,
    "between": np.float64,
}
_PER_TURN = {
    "chosen": np.int64,
    "times": np.float64,
    "kinds": np.int8,
    "predicted": np.float64,
    "band": np.float64,
    "optimistic": np.float64,
    "owed": np.float64,
    "losses": np.float64,
}
UNKNOWN = -1
_COURSE = ("rounds", "worst", "mean", "p95", "least_share")
_PER_CLIENT = {
    "turns": 0,
    "volunteered": 0,
    "last_round": 0,
    "joined": 0,
    "changed_in": 0,
    "left_in": UNKNOWN,
}


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A round that is over. `kinds`, `times` and `reasons` have one entry a client of the report, in its order.

    `times`: how long each was waited for; NaN where nobody knows. `opened`, `closed`: when, in seconds since 1970.
    `between`: seconds from the end of the round before to the choice.
    """

    report: RoundReport
    kinds: IntArray
    times: FloatArray
    reasons: Mapping[str, Any]
    opened: float = np.nan
    closed: float = np.nan
    between: float = np.nan

    @property
    def waited(self) -> FloatArray:
        """Times that the round had to wait for: enough others had come before those in surplus."""
        return np.where(self.kinds == SURPLUS, np.nan, self.times)


class Ledger:
    """Columns of rounds and turns, numbers of clients, and the course of the debts.

    `policy` is whoever chose, as it stands after the last round that it was told of: what is owed is its word. Debts
    are known from the round after `debts_from` on.
    """

    def __init__(self, *, debts_from: int = 0) -> None:
        self.policy: SelectionPolicy | None = None
        self.clients = 0
        self.debts_from = debts_from
        self._rounds = {name: Growing(dtype) for name, dtype in _PER_ROUND.items()}
        self._turns = {name: Growing(dtype) for name, dtype in _PER_TURN.items()}
        self._course = {name: Growing(np.float64) for name in _COURSE}
        self._ends = Growing(np.int64)
        self.metrics: dict[str, tuple[Growing, Growing]] = {}
        self.masks = Masks()
        self.knows_available = True
        self.numbers: dict[str, IntArray] = {name: np.empty(0, dtype=np.int64) for name in _PER_CLIENT}
        self.seconds: FloatArray = np.empty(0)
        self.history = ClientHistory()
        self._counts_history = True
        self.start_units: IntArray | None = None
        self._changes: ChangeDetector | None = None
        self._model: ExchangeTimeModel | None = None

    def __len__(self) -> int:
        return len(self._rounds["rounds"])

    def round_column(self, name: str) -> Any:
        """One number a round."""
        return self._rounds[name].all

    def turn_column(self, name: str) -> Any:
        """One number a chosen client, round by round."""
        return self._turns[name].all

    @property
    def course(self) -> dict[str, FloatArray]:
        """Debts of all clients over the rounds: the worst, the mean, the 95th percentile; and the least share."""
        return {name: column.all for name, column in self._course.items()}

    @property
    def last(self) -> int:
        """The newest round."""
        return int(self.round_column("rounds")[-1]) if len(self) else 0

    @property
    def starts(self) -> IntArray:
        """Round i owns the turns starts[i]:starts[i+1]."""
        return np.concatenate([np.zeros(1, dtype=np.int64), self._ends.all])

    @property
    def round_of_each_turn(self) -> IntArray:
        """Its number."""
        return np.repeat(self.round_column("rounds"), np.diff(self.starts))

    def turns_of_round(self, number: int) -> slice | None:
        """Where its turns are; None if there is no such round."""
        place = int(np.searchsorted(self.round_column("rounds"), number))
        if place >= len(self) or self.round_column("rounds")[place] != number:
            return None
        starts = self.starts
        return slice(int(starts[place]), int(starts[place + 1]))

    @property
    def queues(self) -> FairnessQueues | None:
        """What is owed, if anything was promised."""
        return None if self.policy is None else self.policy.debts

    @property
    def paid(self) -> str:
        """What a turn is paid for: "chosen" or "contributed"."""
        guarantee = None if self.policy is None else self.policy.guarantee
        return "chosen" if guarantee is None else guarantee.paid

    @property
    def model(self) -> ExchangeTimeModel | None:
        """The policy's own, or one that learns beside it."""
        own = None if self.policy is None else self.policy.time_model
        return self._model if own is None else own

    @property
    def exploration(self) -> float:
        """How many uncertainties the band is wide to each side."""
        own = None if self.policy is None else self.policy.exploration_at(max(self.last, 1))
        return 0.1 if own is None else own

    @property
    def retired(self) -> BoolArray:
        """Who has left for good."""
        gone: BoolArray = self.numbers["left_in"] != UNKNOWN
        return gone

    def certificate(self) -> Certificate | None:
        """What every client was promised and what it got, if anything was promised."""
        return None if self.policy is None or not self.clients else self.policy.certificate()

    def shares(self) -> FloatArray:
        """The share of turns of each client: of the rounds it is promised a share of; NaN before its first."""
        queues = self.queues
        if queues is not None and queues.accrual == "available" and self.knows_available:
            rounds = self.numbers["volunteered"]
        else:
            rounds = self.last - self.numbers["joined"]
        shares = np.full(self.clients, np.nan)
        np.divide(self.numbers["turns"], rounds, out=shares, where=rounds > 0)
        return shares

    def mean_seconds(self) -> FloatArray:
        """How long each client takes; NaN where no time is known."""
        means = np.full(self.clients, np.nan)
        np.divide(self.seconds, self.history.arrived, out=means, where=self.history.arrived > 0)
        return means

    def doubted(self) -> BoolArray:
        """Whose context explains its times worse than habit would."""
        return self.history.suspects()

    def join(self, count: int) -> None:
        """New clients, after the others."""
        self.clients += count
        for name, start in _PER_CLIENT.items():
            fresh = np.full(count, self.last if name == "joined" else start, dtype=np.int64)
            self.numbers[name] = np.concatenate([self.numbers[name], fresh])
        self.seconds = np.concatenate([self.seconds, np.zeros(count)])
        if self._counts_history:
            self.history.add(count)
        if self._changes is None:
            self._changes = ChangeDetector(self.clients, CHANGE_THRESHOLD)
        else:
            self._changes.add(count)
        if self._model is not None:
            self._model.add(count)

    def share_history(self, history: ClientHistory) -> None:
        """Show what a fleet counts itself, from here on, instead of counting it here."""
        self.history, self._counts_history = history, False

    def leave(self, row: int) -> None:
        """It will not come back."""
        self.numbers["left_in"][row] = self.last

    def add(self, played: Played, tell: Callable[[], None] | None) -> None:
        """Take in a round; `tell` lets the policy take it in. Without it the policy has learned it before."""
        report = played.report
        rows, round_ = report.clients, report.round
        predicted, band = self._foretold(report) if tell is not None else (np.full(len(rows), np.nan),) * 2
        before = self.history.arrived[rows]
        if tell is not None:
            tell()
            if self._model is not None:
                self._model.learn_from(report)
        reasons = {
            name: np.asarray(played.reasons.get(name, np.full(len(rows), np.nan))) for name in ("optimistic", "owed")
        }
        losses = np.full(len(rows), np.nan) if report.losses is None else report.losses
        turns = {"chosen": rows, "times": played.times, "kinds": played.kinds, "losses": losses}
        for name, values in {**turns, "predicted": predicted, "band": band, **reasons}.items():
            self._turns[name].add(values)
        self._ends.add(len(self._turns["chosen"]))
        available = report.available
        of_round = {
            "rounds": round_,
            "seconds": report.duration if np.isnan(waited := played.waited).all() else np.nanmax(waited),
            "volunteers": UNKNOWN if available is None else int(available.sum()),
            "threshold": float(played.reasons.get("threshold", np.nan)),
            "objective": float(played.reasons.get("objective", np.nan)),
            "opened": played.opened,
            "closed": played.closed,
            "between": played.between,
        }
        for name, value in of_round.items():
            self._rounds[name].add(value)
        for name, value in report.metrics.items():
            where, what = self.metrics.setdefault(name, (Growing(np.int64), Growing(np.float64)))
            where.add(round_)
            what.add(value)
        self._count(played, predicted, before)
        if tell is not None and round_ % max(1, self.clients // OFTEN_UP_TO) == 0:
            self._take_course()

    def _foretold(self, report: RoundReport) -> tuple[FloatArray, FloatArray]:
        width = report.contexts.shape[1]
        if self.model is None and width and self.clients:
            self._model = ExchangeTimeModel(self.clients, features=width)
        model = self.model
        if model is None or model.features != width or not len(report.clients):
            nothing = np.full(len(report.clients), np.nan)
            return nothing, nothing
        known = self.history.arrived[report.clients] > 0
        predicted = model.predict(report.contexts, report.clients)
        band = self.exploration * model.uncertainty(report.contexts, report.clients)
        return np.where(known, predicted, np.nan), np.where(known, band, np.nan)

    def _count(self, played: Played, predicted: FloatArray, before: IntArray) -> None:
        """Count a round; `before`: from how many rounds each of its clients had come back before."""
        report, numbers = played.report, self.numbers
        numbers["turns"][report.clients] += 1
        numbers["last_round"][report.clients] = report.round
        if report.available is None:
            self.knows_available = False
        else:
            numbers["volunteered"][: len(report.available)] += report.available
            self.masks.add(report.round, report.available)
        came = played.kinds < OUTRUN
        timed = came & (report.exchange_times > 0)  # the times of forgotten clients are gone
        if self._counts_history:
            known = timed | ~came
            self.history.record(
                report.clients[known], played.kinds[known], report.exchange_times[known], predicted[known]
            )
        self.seconds[report.clients[timed]] += report.exchange_times[timed]
        judged = timed & (before >= JUDGED_AFTER) & np.isfinite(predicted)
        if judged.any() and self._changes is not None:
            rows = report.clients[judged]
            changed = self._changes.changed(rows, predicted[judged], report.exchange_times[judged])
            numbers["changed_in"][rows[changed]] = report.round

    def _take_course(self) -> None:
        owed = np.full(1, np.nan) if self.queues is None else self.queues.owed[~self.retired]
        shares = self.shares()
        known = shares[np.isfinite(shares) & ~self.retired]
        point = (
            self.last,
            owed.max(initial=0),
            owed.mean() if len(owed) else 0.0,
            np.partition(owed, (95 * (len(owed) - 1)) // 100)[(95 * (len(owed) - 1)) // 100] if len(owed) else 0.0,
            known.min() if len(known) else np.nan,
        )
        for name, value in zip(_COURSE, point, strict=True):
            self._course[name].add(float(value))
