"""The data of a run or fleet without rounds: one turn per decision, whose outcome is known some decisions later."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from turnout.dashboard.sources.growing import AvailabilityMasks, GrowingArray
from turnout.dashboard.sources.ledger import EVERY_ROUND_UP_TO, TURN_REASONS, UNDER_WAY, UNKNOWN, Ledger, PlayedRound
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport
from turnout.live._internals import ARRIVED, KINDS


@dataclass(frozen=True, slots=True, eq=False)
class GivenSlot:
    """A turn that a decision gave.

    Attributes:
        decision: The number of the decision.
        row: The client.
        context: The context of the client; NaN if it is not known.
        started: When the turn began, in seconds.
        present: Which clients were available or training, by row; None if that is not recorded.
        reasons: The reasons that the policy recorded for its selection.
        opened: The Unix time at which the turn began; NaN in a simulated run.
    """

    decision: int
    row: int
    context: FloatArray
    started: float
    present: BoolArray | None
    reasons: Mapping[str, Any]
    opened: float = np.nan


class EndedSlot(NamedTuple):
    """A turn that has ended.

    Attributes:
        decision: The number of the decision that gave it.
        row: The client.
        kind: The outcome, as an index of `turnout.live.KINDS`.
        seconds: How long it lasted.
        time: The exchange time; NaN if it is not known, because the client failed.
        loss: The loss; NaN if none was reported.
        staleness: The versions of the model that were made meanwhile, if they are recorded; else NaN.
        known_at: When its end was known, on the clock of `GivenSlot.started`: it ended before that, although a server
            may report more seconds than have passed.
    """

    decision: int
    row: int
    kind: int
    seconds: float
    time: float
    loss: float
    staleness: float = math.nan
    known_at: float = math.inf


class SlotLedger(Ledger):
    """Columns of decisions, each of which gave one turn.

    Decisions take the place of rounds: a turn has its row as soon as it is given, with the kind UNDER_WAY, and its
    outcome is added when it ends.

    Args:
        slots: The number of slots.
        debts_from: Debts are known after this decision.
        first_after: Decisions up to this one are no longer kept.
        training: The turns that were under way after it, by decision, as far as they are known.
    """

    slots: int

    def __init__(
        self, slots: int, *, debts_from: int = 0, first_after: int = 0, training: Collection[int] = ()
    ) -> None:
        super().__init__(debts_from=debts_from, first_after=first_after)
        self.slots = slots
        #: What staleness is counted in: the updates that arrived during a turn, or the versions made of them.
        self.stale_in = "updates"
        self._rounds |= {name: GrowingArray(np.float64) for name in ("started", "finished", "staleness")}
        #: The decision before which each turn was known to have ended, in the order of the decisions that gave it.
        self._rounds["learned"] = GrowingArray(np.int64)
        self.earning = AvailabilityMasks()
        self._contexts: dict[int, FloatArray] = {}
        self._updates = 0
        self._updates_before: dict[int, int] = {}
        self._early = set(training)
        self._early_payments: list[tuple[int, int]] = []  # decision before which, and row

    @property
    def under_way(self) -> list[int]:
        """The decisions that gave the turns that have not ended yet."""
        return list(self._updates_before)

    def turn_under_way(self, row: int) -> int | None:
        """Returns the decision that gave a client the turn that has not ended yet; None if there is none."""
        last = int(self.counters["last_round"][row])
        return last if last in self._updates_before else None

    def accruing(self, rows: IntArray, numbers: IntArray) -> BoolArray | None:
        """Returns with which decisions clients earn, shape (decisions, clients); None if that is not recorded."""
        return self.earning.get(rows, numbers)

    def payments(self, rows: IntArray) -> tuple[BoolArray, BoolArray | None]:
        """Returns the turns that count as they are given and, before each decision, those that count as they end.

        The latter have one row more than there are decisions: the turns that have ended since the last one.
        """
        chosen, arrived = self.participation(rows)
        if self.paid == "chosen":
            return chosen, None
        ended = np.zeros((len(self) + 1, len(rows)), dtype=np.bool_)
        decisions, columns = np.nonzero(arrived)
        ended[self.round_column("learned")[decisions] - self.first_after, columns] = True
        column_of = {row: column for column, row in enumerate(rows.tolist())}
        for learned, row in self._early_payments:
            if row in column_of:
                ended[learned - self.first_after, column_of[row]] = True
        return np.zeros_like(chosen), ended

    def fill(
        self,
        ended: Sequence[EndedSlot],
        given: Sequence[GivenSlot],
        tell: Callable[[], None] | None,
        capped: Callable[[int], IntArray] | None = None,
        broken_since: Callable[[], IntArray] | None = None,
    ) -> None:
        """Ends turns, then adds those that were given.

        Args:
            ended: The turns that have ended.
            given: The turns that were given afterwards, in the order of their decisions.
            tell: Passes both to the policy; None if it has learned from them already.
            capped: Returns the clients that earn nothing with a decision, because they have earned a whole turn since
                theirs began; it is called after `tell`. None if that is not known.
            broken_since: Returns since which decisions clients are beyond the tolerance, if that is known exactly; it
                is called after `tell`.
        """
        self._changes += 1
        for turn in ended:
            if turn.decision <= self.first_after:
                self._end_early(turn)
        known = [turn for turn in ended if turn.decision > self.first_after]
        arrived_before = [int(self.history.arrived[turn.row]) for turn in known]
        if tell is not None:
            tell()
        for turn, arrivals in zip(known, arrived_before, strict=True):
            self._end(turn, arrivals)
        for turn_ in given:
            self._give(turn_, None if capped is None else capped(turn_.decision), is_learned=tell is not None)
        if tell is not None and given:
            self._changes += 1
            if self.last_round % max(1, self.clients // EVERY_ROUND_UP_TO) < len(given):
                self._record_fairness(self._judge(self.last_round))
                if broken_since is not None and self._broken.any():
                    self._broken_since[:] = np.where(self._broken, broken_since(), 0)

    def _give(self, turn: GivenSlot, capped: IntArray | None, *, is_learned: bool) -> None:
        rows = np.array([turn.row])
        report = RoundReport(turn.decision, rows, turn.context[None], np.zeros(1))
        predicted, band = self._predict(report) if is_learned else (np.full(1, np.nan),) * 2
        reasons = {name: float(np.ravel(turn.reasons.get(name, np.nan))[0]) for name in TURN_REASONS}
        turns = {"chosen": turn.row, "times": np.nan, "kinds": UNDER_WAY, "losses": np.nan}
        for name, value in {**turns, "predicted": predicted, "band": band, **reasons}.items():
            self._turns[name].append(value)
        self._ends.append(len(self._turns["chosen"]))
        present, training = turn.present, len(self._updates_before) + len(self._early)
        round_values = {
            "rounds": turn.decision,
            "seconds": np.nan,
            "volunteers": UNKNOWN if present is None else int(present.sum()) - training,
            "threshold": float(turn.reasons.get("threshold", np.nan)),
            "objective": float(turn.reasons.get("objective", np.nan)),
            "opened": turn.opened,
            "closed": np.nan,
            "between": np.nan,
            "started": turn.started,
            "finished": np.nan,
            "staleness": np.nan,
            "learned": UNKNOWN,
        }
        for name, value in round_values.items():
            self._rounds[name].append(value)
        self._updates_before[turn.decision] = self._updates
        self._contexts[turn.decision] = turn.context
        self.counters["turns"][turn.row] += 1
        self.counters["last_round"][turn.row] = turn.decision
        self._count_presence(turn, capped)

    def _count_presence(self, turn: GivenSlot, capped: IntArray | None) -> None:
        present, queues = turn.present, self.queues
        if present is None:
            self.knows_availability = False
            return
        present = np.concatenate([present, np.zeros(self.clients - len(present), dtype=np.bool_)])
        self.availability.add(turn.decision, present)
        earning = np.ones_like(present) if queues is not None and queues.accrual == "always" else present.copy()
        if capped is not None:
            earning[capped] = False
        self.earning.add(turn.decision, earning)
        self.counters["volunteered"] += present & earning

    def _end_early(self, turn: EndedSlot) -> None:
        """Ends a turn that was given by a decision that is no longer kept; the totals contain its outcome."""
        self._early.discard(turn.decision)
        if turn.kind == ARRIVED:
            self._updates += 1
            self._early_payments.append((self.last_round, turn.row))

    def _end(self, turn: EndedSlot, arrived_before: int) -> None:
        index = turn.decision - self.first_after - 1
        context = self._contexts.pop(turn.decision)
        before = self._updates_before.pop(turn.decision)
        report = RoundReport(
            turn.decision,
            np.array([turn.row]),
            context[None],
            np.array([turn.seconds]),
            outcomes=np.array([KINDS[turn.kind]]),
            losses=None if np.isnan(turn.loss) else np.array([turn.loss]),
        )
        started, opened = (float(self.round_column(name)[index]) for name in ("started", "opened"))
        finished = min(started + turn.seconds, turn.known_at)
        ended = {"seconds": turn.seconds, "finished": finished, "closed": opened + finished - started}
        for name, value in ended.items():
            self._rounds[name].set(index, value)
        self._rounds["learned"].set(index, self.last_round)
        if turn.kind == ARRIVED:
            is_known = np.isfinite(turn.staleness)
            self.stale_in = "versions" if is_known else "updates"
            self._rounds["staleness"].set(index, turn.staleness if is_known else self._updates - before)
            self._updates += 1
        for name, value in {"times": turn.time, "kinds": turn.kind, "losses": turn.loss}.items():
            self._turns[name].set(index, value)
        if self._model is not None and not np.isnan(context).any():
            self._model.learn_from(report)
        predicted = self.turn_column("predicted")[index : index + 1]
        played = PlayedRound(report, np.array([turn.kind]), np.array([turn.time]), {})
        self._count_times(played, predicted, np.array([arrived_before]))
