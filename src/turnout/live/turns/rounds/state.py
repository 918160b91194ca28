"""The state of a fleet with rounds."""

from __future__ import annotations

from typing import ClassVar

from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.kernel.rounds import RoundReport
from turnout.live.turns.records import ARRIVED, OUTCOME_OF_KIND
from turnout.live.turns.rounds.records import CLOSE, ClosedRound, unpack_closed
from turnout.live.turns.state import Fleet


class RoundFleet(Fleet):
    """The clients by row, and what is known about each; `close`, `join`, `retire`, `forget` and `amend` change it."""

    unit: ClassVar[TimeUnit] = TimeUnit.ROUND

    def apply(self, kind: str, data: bytes, availability: bytes | None) -> None:
        """Applies the stored close of a round."""
        if kind != CLOSE:
            raise StoreError("the fleet has rounds, but its journal has turns without rounds: restore a backup")
        if availability is None:
            raise StoreError("the availability of clients in a round is not stored any more: restore a backup")
        closed = unpack_closed(data, availability)[0]
        if closed.round != self.round + 1:
            raise StoreError(
                f"the close of round {closed.round} follows that of round {self.round}, so one was recorded twice or "
                "is missing: restore a backup"
            )
        self.close(closed, self.build_report(closed))

    def apply_before(self, number: int, kind: str, data: bytes, availability: bytes | None) -> bool:  # noqa: ARG002
        """Returns whether an event closed this round; its cohort was selected in the state before that."""
        return kind == CLOSE and self.round + 1 == number

    def build_report(self, closed: ClosedRound) -> RoundReport:
        """Returns the report of a round for the policy; raises an error if the policy does not accept it."""
        report = RoundReport(
            closed.round,
            closed.rows,
            closed.contexts,
            closed.seconds,
            available=closed.available,
            outcomes=OUTCOME_OF_KIND[closed.kinds] if (closed.kinds != ARRIVED).any() else None,
            losses=closed.losses,
            signals=closed.signals,
            late_arrivals=self.pending.report(closed.late, self.counters.learned),
        )
        self.policy.check_report(report)
        return report

    def close(self, closed: ClosedRound, report: RoundReport) -> None:
        """Applies a closed round, of which the policy learns the report that `build_report` returned."""
        rows, kinds = closed.rows, closed.kinds
        predicted = None if self.model is None else self._predict(rows, kinds, closed.contexts)
        self.policy.tell(report)
        self.round = closed.round
        self.history.record(rows, kinds, closed.seconds, predicted)
        self.counters.offered += 1 if closed.available.all() else closed.available
        self._count_ended(closed.round, rows, kinds, closed.contexts, closed.seconds)
        self._settle_late(closed.late)
        self._end_round()
