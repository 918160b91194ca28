"""The state of a fleet without rounds: what its decisions, and the turns that have ended, amount to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from turnout.errors import ReportError, StateError, StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, save_array, saved_value
from turnout.kernel.backend import count_flags
from turnout.kernel.certificate import TimeUnit
from turnout.kernel.rounds import RoundReport
from turnout.kernel.slots.turns import RunningTurns, TurnStart
from turnout.live.clock import wall_seconds
from turnout.live.turns.records import OUTCOME_OF_KIND
from turnout.live.turns.slots.records import FILL, EndedTurns, FilledSlots, unpack_fill
from turnout.live.turns.state import Fleet
from turnout.policies.base import SelectionPolicy, prefixed, subset

if TYPE_CHECKING:
    from turnout.policies.explain.explanation import SelectionOutcome


class SlotFleet(Fleet):
    """The clients by row, what is known about each, and which of them train.

    Decisions take the place of rounds: `round` is the number of the last decision. Only `fill`, `join`, `retire`,
    `forget` and `amend` change it.

    Args:
        build: Builds the policy for a number of clients.
        backoff_after: The number of consecutive misses after which a client is backed off.
        late_window: The number of decisions in which the true time of a late client is still learned.
        slots: The number of slots.
        min_turn_interval: The seconds in which a client is given at most one turn; None for no limit.
    """

    unit: ClassVar[TimeUnit] = TimeUnit.DECISION
    slots: int

    def __init__(
        self,
        build: Callable[[int], SelectionPolicy],
        *,
        backoff_after: int | Literal["auto"],
        late_window: int,
        slots: int,
        min_turn_interval: float | None = None,
    ) -> None:
        self.slots: int = slots
        super().__init__(build, backoff_after=backoff_after, late_window=late_window)
        self.min_turn_interval = min_turn_interval
        self.given: FloatArray = np.empty(0)  # when each client was given its last turn, since 1970; NaN before
        self.called = math.nan  # when the slots were filled last, since 1970; not part of the saved state
        self.running = RunningTurns(0)
        self.contexts: dict[int, tuple[int, FloatArray]] = {}  # the client and the context of each running turn

    @property
    def free_slots(self) -> int:
        """The number of slots in which no client trains."""
        return max(self.slots - len(self.running), 0)

    def apply(self, kind: str, data: bytes, availability: bytes | None) -> None:
        """Applies the stored event of a call of `fill`."""
        if kind != FILL:
            raise StoreError("the fleet has no rounds, but its journal closes one: restore a backup")
        if availability is None:
            raise StoreError("the presence of clients at a decision is not stored any more: restore a backup")
        self.fill(unpack_fill(data, availability))

    def apply_before(self, number: int, kind: str, data: bytes, availability: bytes | None) -> bool:
        """Applies a call of `fill` up to a decision, if it made this decision."""
        filled = unpack_fill(data, availability) if kind == FILL else None
        if filled is None or not filled.first <= number <= filled.last:
            return False
        self.fill(filled.until(number - 1))
        return True

    def join(self, ids: Sequence[str]) -> None:
        """Adds new clients, in this order."""
        if not ids:
            return
        super().join(ids)
        self.running.add(len(ids))
        self.given = np.concatenate([self.given, np.full(len(ids), np.nan)])

    def erase(self, row: int, name: str) -> None:
        """Forgets the id and everything that a client reported, without retiring it."""
        super().erase(row, name)
        self.given[row] = np.nan
        for decision, (own, context) in self.contexts.items():
            if own == row:
                self.contexts[decision] = (row, np.full_like(context, np.nan))

    def rest_left(self, at: float) -> FloatArray:
        """Returns for how many seconds each client is given no turn because it rests; 0 for those that do not.

        A client also rests if its last turn seems to lie in the future, because the clock was set back, but not if it
        lies further away than a rest: then the clock is not believed.

        Args:
            at: The time, in seconds since 1970.
        """
        if self.min_turn_interval is None:
            return np.zeros(len(self.ids))
        elapsed = at - self.given
        left: FloatArray = np.where(np.abs(elapsed) < self.min_turn_interval, self.min_turn_interval - elapsed, 0.0)
        return left

    def exclusion(self, row: int, number: int, *, was_available: bool) -> tuple[SelectionOutcome, str] | None:
        """Returns why a client could not be given a turn: it was retired, training, resting or backed off."""
        is_retired = bool(self.counters.retired[row])
        if not is_retired and (since := self.running.decision_of(row)):
            return "training", f"was training, in its turn of {self.unit} {since}"
        if is_retired or was_available or not self.rest_left(self.called)[row]:
            return super().exclusion(row, number, was_available=was_available)
        ago = self.called - float(self.given[row])
        why = f"its last turn began {ago:.3g} s before, and it is given at most one in {self.min_turn_interval:g} s"
        return "resting", f"rested in {self.unit} {number}: {why}"

    def training(self) -> dict[int, int]:
        """Returns the rows of the clients that train, by the decisions that gave them their turns."""
        return {decision: row for decision, (row, _) in self.contexts.items()}

    def fill(self, filled: FilledSlots) -> None:
        """Applies a call of `fill`: learns from the turns that have ended, then counts the turns that are given."""
        self.end_turns(filled)
        for index, row in enumerate(filled.rows.tolist()):
            self.give_turn(row, filled.present, filled.contexts[index])

    def end_turns(self, filled: FilledSlots) -> None:
        """Learns from the turns that have ended, and from the actual times of late clients."""
        if filled.first != self.round + 1:
            raise StateError(f"decision {filled.first} follows decision {self.round}: one is missing or was doubled")
        self.called = wall_seconds(filled.at)
        self._learn_late_times(filled)
        ended = filled.ended
        for index in range(len(ended)):
            decision, row, kind = int(ended.decisions[index]), int(ended.rows[index]), int(ended.kinds[index])
            known, context = self.contexts.pop(decision, (None, np.empty(0)))
            if known != row:
                raise ReportError(f"client {row} has no turn of decision {decision}")
            self._end_turn(decision, row, kind, context, ended, slice(index, index + 1))

    def give_turn(self, row: int, present: BoolArray, context: FloatArray) -> None:
        """Counts the turn that the next decision gives.

        Args:
            row: The client.
            present: Which clients are available or training, by row.
            context: The context of the client.
        """
        decision = self.round + 1
        turn = TurnStart.trusted(decision, row, present, self.running.capped(decision, self.queues))
        self.policy.tell_started(turn)
        self.running.start(turn)
        self.contexts[turn.decision] = (turn.client, context)
        self.given[row] = self.called
        count_flags(self.counters.offered, turn.present)
        self.round = turn.decision
        self._end_round()

    def state(self) -> dict[str, Any]:
        """Returns everything except the ids, as plain arrays and numbers."""
        decisions = sorted(self.contexts)
        contexts = np.array([self.contexts[decision][1] for decision in decisions], dtype=np.float64)
        return {
            **super().state(),
            **prefixed("running", self.running.state()),
            "running_turns.decisions": np.array(decisions, dtype=np.int64),
            "running_turns.contexts": contexts.reshape(len(decisions), -1 if decisions else 0),
            "given": save_array(self.given),
        }

    def restore(self, state: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Restores what `state` returned, for the clients with these ids."""
        super().restore(state, ids)
        self.given = np.array(saved_value(state, "given"), dtype=np.float64)
        if len(self.given) != len(ids):
            raise StateError(f"the saved state has {len(self.given)} times of turns, but {len(ids)} ids were given")
        self.running = RunningTurns(len(ids))
        self.running.restore(subset(state, "running"))
        decisions, stored = (saved_value(state, f"running_turns.{name}") for name in ("decisions", "contexts"))
        contexts = dict(zip(decisions.tolist(), stored, strict=True))
        started = {self.running.decision_of(row): row for row in self.running.rows.tolist()}
        if contexts.keys() != started.keys():
            raise StateError("the saved state has other contexts than running turns")
        self.contexts = {decision: (row, np.array(contexts[decision])) for decision, row in started.items()}

    def _restart_learning(self, features: int) -> None:
        """Resets what was learned from contexts, and those of the running turns, which have the former features."""
        super()._restart_learning(features)
        self.contexts = {decision: (row, np.full(features, np.nan)) for decision, (row, _) in self.contexts.items()}

    def _end_turn(self, decision: int, row: int, kind: int, context: FloatArray, ended: EndedTurns, own: slice) -> None:
        """Ends one turn.

        Args:
            decision: The decision that gave it.
            row: The client.
            kind: The outcome, as an index into KINDS.
            context: The context of the client.
            ended: The turns that have ended, with what was reported.
            own: The place of this one among them.
        """
        rows, kinds, contexts = np.array([row]), np.array([kind]), context[None]
        seconds, losses = ended.seconds[own], ended.losses[own]
        report = RoundReport(
            decision,
            rows,
            contexts,
            seconds,
            outcomes=OUTCOME_OF_KIND[kinds],
            losses=None if np.isnan(losses).all() else losses,
            signals={name: values[own] for name, values in ended.signals.items()},
        )
        predicted = self._predict(rows, kinds, contexts)  # typical times are learned under any policy
        self.policy.tell_finished(report)
        self.running.finish(row)
        self.history.record(rows, kinds, seconds, predicted)
        self._count_ended(decision, rows, kinds, contexts, seconds)

    def _learn_late_times(self, filled: FilledSlots) -> None:
        """Learns the actual times of clients that were late."""
        late = self.pending.report(filled.late, self.counters.learned)
        if late is not None:
            nobody = np.empty(0, dtype=np.int64)
            contexts = np.empty((0, self.policy.features or 0))
            self.policy.tell_finished(RoundReport(self.round or 1, nobody, contexts, np.empty(0), late_arrivals=late))
        self._settle_late(filled.late)
