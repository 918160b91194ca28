"""What a scheduler has in memory: the fold of the rounds that were closed, and of who joined and left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.errors import StateError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.arrays import saved_value as saved
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.rounds import LateArrivals, RoundReport
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.scheduler.outcomes import FAILED, LATE, OUTCOME_OF_KIND, OUTRUN, SURPLUS
from turnout.scheduler.records import ClosedRound
from turnout.scheduler.rounds.history import ClientHistory
from turnout.scheduler.rounds.reliability import rest_after_misses

NEVER = -1
#: Only after so many rounds is it said that a client is seldom there.
ENOUGH_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class PendingArrival:
    """What was learned of a client that was late, until its true time is known."""

    context: tuple[float, ...]
    deadline: float
    learned: int


class Fleet:
    """Clients by row and what is known of each; changes only by `join`, `close`, `retire` and `forget`."""

    def __init__(self, build: Callable[[int], SelectionPolicy], *, rest_after: int, late_window: int) -> None:
        self._build = build
        self._rest_after, self._late_window = rest_after, late_window
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self._policy: SelectionPolicy | None = None
        self.round = 0
        self.numbers = {name: np.empty(0, dtype=np.int64) for name in _NUMBERS}
        self.history = ClientHistory()
        self.awaited: dict[tuple[int, int], PendingArrival] = {}

    @property
    def policy(self) -> SelectionPolicy:
        """Who chooses; there is none before the first client."""
        if self._policy is None:
            raise StateError("there is no client yet: choose with the statuses of some, or register them")
        return self._policy

    @property
    def model(self) -> ExchangeTimeModel | None:
        """What the policy has learned of times, if it learns."""
        return None if self._policy is None else self._policy.time_model

    @property
    def queues(self) -> FairnessQueues | None:
        """What the policy owes, if it promises."""
        return None if self._policy is None else self._policy.debts

    @property
    def away(self) -> BoolArray:
        """Who must not be chosen in the next round: retired or resting."""
        gone: BoolArray = (self.numbers["retired"] > 0) | (self.numbers["rest_until"] > self.round)
        return gone

    def rarely_available(self) -> IntArray:
        """Rows of who is promised a share of all rounds, and has volunteered for fewer than that."""
        if self.queues is None or self.queues.accrual == "available":
            return np.empty(0, dtype=np.int64)
        rounds = self.round - self.numbers["joined"]
        short = self.numbers["offered"] < self.queues.guaranteed_rates * rounds
        return np.flatnonzero(short & (rounds >= ENOUGH_ROUNDS) & (self.numbers["retired"] == 0))

    def needs_cold_start(self) -> FloatArray:
        """1 for who did not train in the round before."""
        cold: FloatArray = (self.numbers["trained_in"] != self.round).astype(np.float64)
        cold[self.numbers["trained_in"] == NEVER] = 1.0
        return cold

    def join(self, ids: Sequence[str]) -> None:
        """New clients, in this order."""
        if not ids:
            return
        for client in ids:
            self.rows[client] = len(self.ids)
            self.ids.append(client)
        if self._policy is None:
            self._policy = self._build(len(ids))
        else:
            self._policy.add(len(ids))
        for name, start in _NUMBERS.items():
            fresh = np.full(len(ids), self.round if name == "joined" else start, dtype=np.int64)
            self.numbers[name] = np.concatenate([self.numbers[name], fresh])
        self.history.add(len(ids))

    def report_of(self, closed: ClosedRound) -> RoundReport:
        """What the policy is told of a round; refused here, before anything is written, if it cannot be."""
        report = RoundReport(
            closed.round,
            closed.rows,
            closed.contexts,
            closed.seconds,
            available=closed.available,
            outcomes=OUTCOME_OF_KIND[closed.kinds],
            losses=closed.losses,
            late_arrivals=self._late_arrivals(closed),
        )
        self.policy.check_report(report)
        return report

    def close(self, closed: ClosedRound) -> RoundReport:
        """Take in a round."""
        report = self.report_of(closed)
        predicted = self._predicted(closed)
        self.policy.tell(report)
        self.round = closed.round
        self.history.record(closed.rows, closed.kinds, closed.seconds, predicted)
        self._count(closed)
        return report

    def retire(self, row: int) -> None:
        """It will not come back: it earns no more, and what it is owed stays on record."""
        self.numbers["retired"][row] = 1
        if self.queues is not None:
            self.queues.retire([row])

    def forget(self, row: int, name: str) -> None:
        """Nothing that it told is known any more; turns and debts, which the certificate needs, stay."""
        self.retire(row)
        del self.rows[self.ids[row]]
        self.ids[row] = name
        self.rows[name] = row
        if self._policy is not None:
            self._policy.forget([row])
        for word in ("offered", "learned", "misses", "rest_until"):
            self.numbers[word][row] = _NUMBERS[word]
        self.history.forget(row)
        self.awaited = {key: value for key, value in self.awaited.items() if key[1] != row}

    def state(self) -> dict[str, Any]:
        """Everything but the ids, as plain arrays and numbers."""
        waiting = sorted(self.awaited)
        contexts = [self.awaited[key].context for key in waiting]
        counters = {**self.numbers, **self.history.counters()}
        return {
            "clients": len(self.ids),
            "round": self.round,
            **prefixed("numbers", {name: counters[name].copy() for name in _STORED_COUNTERS}),
            **prefixed("ways", self.history.errors()),
            "awaited.rounds": np.array([key[0] for key in waiting], dtype=np.int64),
            "awaited.rows": np.array([key[1] for key in waiting], dtype=np.int64),
            "awaited.contexts": np.array(contexts, dtype=np.float64).reshape(len(waiting), -1 if waiting else 0),
            "awaited.deadlines": np.array([self.awaited[key].deadline for key in waiting], dtype=np.float64),
            "awaited.learned": np.array([self.awaited[key].learned for key in waiting], dtype=np.int64),
            **({} if self._policy is None else prefixed("policy", self._policy.state())),
        }

    def restore(self, state: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Take back what `state` gave, of these clients."""
        if int(saved(state, "clients")) != len(ids):
            raise StateError(f"the saved state is of {state['clients']} clients, the file names {len(ids)}")
        self.ids = list(ids)
        self.rows = {client: row for row, client in enumerate(self.ids)}
        self.round = int(saved(state, "round"))
        self.numbers = {name: np.array(saved(state, f"numbers.{name}"), dtype=np.int64) for name in _NUMBERS}
        self.history = ClientHistory.restored(subset(state, "numbers"), subset(state, "ways"))
        keys = zip(saved(state, "awaited.rounds").tolist(), saved(state, "awaited.rows").tolist(), strict=True)
        values = zip(
            saved(state, "awaited.contexts").tolist(),
            saved(state, "awaited.deadlines").tolist(),
            saved(state, "awaited.learned").tolist(),
            strict=True,
        )
        self.awaited = {
            key: PendingArrival(tuple(context), deadline, learned)
            for key, (context, deadline, learned) in zip(keys, values, strict=True)
        }
        self._policy = None
        if ids:
            self._policy = self._build(len(ids))
            self._policy.restore(subset(state, "policy"))

    def _late_arrivals(self, closed: ClosedRound) -> LateArrivals | None:
        if not len(closed.late_rows):
            return None
        keys = list(zip(closed.late_rounds.tolist(), closed.late_rows.tolist(), strict=True))
        waited = [self.awaited[key] for key in keys]
        return LateArrivals(
            rounds=closed.late_rounds,
            clients=closed.late_rows,
            contexts=np.array([one.context for one in waited]),
            deadlines=np.array([one.deadline for one in waited]),
            exchange_times=closed.late_seconds,
            learned_since=np.array(
                [int(self.numbers["learned"][row]) - one.learned for (_, row), one in zip(keys, waited, strict=True)]
            ),
        )

    def _predicted(self, closed: ClosedRound) -> FloatArray | None:
        """The time that was predicted for each client that came back, before the policy learns from the round."""
        if self.model is None:
            return None
        predicted, came = np.full(len(closed.rows), np.nan), closed.kinds <= SURPLUS
        if came.any():
            predicted[came] = self.model.predict(closed.contexts[came], closed.rows[came])
        return predicted

    def _count(self, closed: ClosedRound) -> None:
        numbers, rows = self.numbers, closed.rows
        came = closed.kinds <= SURPLUS
        awaited = (closed.kinds == OUTRUN) | (closed.kinds == LATE)
        missed = closed.kinds >= LATE
        numbers["offered"] += closed.available
        numbers["trained_in"][rows[came]] = closed.round
        numbers["learned"][rows[closed.kinds != FAILED]] += 1
        numbers["misses"][rows[came]] = 0
        numbers["misses"][rows[missed]] += 1
        numbers["misses"][closed.late_rows] = 0
        for row in rows[missed].tolist():
            rest = rest_after_misses(int(numbers["misses"][row]), self._rest_after)
            numbers["rest_until"][row] = closed.round + rest if rest else 0
        numbers["rest_until"][rows[came]] = 0
        numbers["rest_until"][closed.late_rows] = 0
        for key in zip(closed.late_rounds.tolist(), closed.late_rows.tolist(), strict=True):
            del self.awaited[key]
        for place in np.flatnonzero(awaited).tolist():
            row = int(rows[place])
            self.awaited[closed.round, row] = PendingArrival(
                tuple(closed.contexts[place].tolist()), float(closed.seconds[place]), int(numbers["learned"][row])
            )
        oldest = closed.round - self._late_window
        self.awaited = {key: value for key, value in self.awaited.items() if key[0] > oldest}


#: What is counted of each client, and where it begins.
_NUMBERS = {
    "joined": 0,
    "offered": 0,
    "trained_in": NEVER,
    "learned": 0,
    "misses": 0,
    "rest_until": 0,
    "retired": 0,
}
#: The order in which a snapshot holds the counters, those of the history among them.
_STORED_COUNTERS = (
    *("joined", "offered", "trained_in", "arrived", "lost"),
    *("learned", "misses", "rest_until", "retired"),
)
