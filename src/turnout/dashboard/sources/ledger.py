"""The data of one run or fleet that the pages show, updated round by round or, without rounds, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from turnout.dashboard.sources.columns import (
    UNKNOWN,
    AvailabilityMasks,
    ClientLedger,
    Decision,
    GrowingTable,
    Outcomes,
    TurnColumns,
)
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.certificate import Accrual, Certificate, PromiseSummary, TimeUnit
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.slots.turns import FINISHED, STARTED
from turnout.live import ClientHistory
from turnout.live._internals import ARRIVED, KINDS, FleetTotals
from turnout.policies.base import SelectionPolicy

#: In larger fleets the debts of all clients are not summarised after every round.
EVERY_ROUND_UP_TO = 100_000
#: The metrics of a turn without rounds that are times of the run.
CLOCKS = (STARTED, FINISHED)
#: The metric with the versions of the model that were made during a turn.
STALENESS = "staleness"
_FAIRNESS_SERIES = ("rounds", "worst", "mean", "p95", "least_share", "behind")


class Ledger(TurnColumns, ClientLedger):
    """Columns of rounds, turns and clients, and fairness figures over time.

    `policy` is the policy that selected the cohorts, in its state after the last report it learned from; debts and
    certificates come from it. Without rounds, decisions take the place of rounds: a turn has its row as soon as it is
    given, with the kind RUNNING, and its outcome is added when it ends.

    Args:
        slots: The number of slots; None if there are rounds.
        first_after: Rounds up to this one are no longer kept.
        training: The turns that were running after it, by decision, as far as they are known.
        is_dated: Whether the times of rounds and turns are Unix times.
    """

    def __init__(
        self, slots: int | None = None, *, first_after: int = 0, training: Collection[int] = (), is_dated: bool = False
    ) -> None:
        TurnColumns.__init__(self, first_after)
        ClientLedger.__init__(self)
        self.slots, self.is_dated = slots, is_dated
        self.policy: SelectionPolicy | None = None
        self._fairness_series = GrowingTable(dict.fromkeys(_FAIRNESS_SERIES, np.float64))
        #: The metrics of the model by name, each as rounds and values; without rounds, by the turns that had ended.
        self.metrics: dict[str, GrowingTable] = {}
        #: The number of turns with each outcome, by index of KINDS, in rounds that are no longer kept.
        self.dropped_outcomes: IntArray = np.zeros(len(KINDS), dtype=np.int64)
        self.availability = AvailabilityMasks()
        self.knows_availability = True
        #: What staleness is counted in: the updates that arrived during a turn, or the versions made of them.
        self.stale_in = "updates"
        self._early = set(training)
        self._updates = self._ended = 0
        self._updates_before: dict[int, int] = {}  # by decision, for the turns that are running
        self._model: ExchangeTimeModel | None = None
        # Which clients are beyond the tolerance, and since which round; 0 if that was before the first known round.
        self._broken: BoolArray = np.empty(0, dtype=np.bool_)
        self._broken_since: IntArray = np.empty(0, dtype=np.int64)
        self._changes = 0  # counts whatever can change a certificate
        self._certified: tuple[int, SelectionPolicy, Certificate, PromiseSummary] | None = None

    @property
    def fairness_series(self) -> dict[str, FloatArray]:
        """By round: the worst debt, mean debt, 95th percentile of the debts, least share, and most turns behind."""
        return {name: self._fairness_series[name] for name in _FAIRNESS_SERIES}

    @property
    def unit(self) -> TimeUnit:
        """What the numbers of `rounds` count: rounds, or decisions."""
        return TimeUnit.of(self.slots)

    @property
    def queues(self) -> FairnessQueues | None:
        """The debts of the policy; None if it guarantees nothing."""
        return None if self.policy is None else self.policy.debts

    @property
    def counts(self) -> str:
        """What counts as a turn: "selected" or "completed"."""
        guarantee = None if self.policy is None else self.policy.guarantee
        return "selected" if guarantee is None else guarantee.counts

    @property
    def model(self) -> ExchangeTimeModel | None:
        """The time model of the policy, or a model that the ledger trains if the policy has none."""
        policy_model = None if self.policy is None else self.policy.time_model
        return self._model if policy_model is None else policy_model

    @property
    def exploration(self) -> float:
        """The half-width of the prediction band, in standard uncertainties of the model."""
        exploration = None if self.policy is None else self.policy.exploration_at(max(self.last_round, 1))
        return 0.1 if exploration is None else exploration

    def turn_running(self, row: int) -> int | None:
        """Returns the decision that gave a client the turn that has not ended yet; None if there is none."""
        last = int(self.counters["last_round"][row])
        return last if last in self._updates_before else None

    def certificate(self) -> Certificate | None:
        """Returns what every client was promised and got, and since when; None if the policy guarantees nothing."""
        certified = self._certify()
        return None if certified is None else certified[0]

    def promise_summary(self) -> PromiseSummary | None:
        """Returns the status of the promise in a few numbers; None if the policy guarantees nothing."""
        certified = self._certify()
        return None if certified is None else certified[1]

    def _certify(self) -> tuple[Certificate, PromiseSummary] | None:
        if self.policy is None or not self.clients:
            return None
        known = self._certified
        if known is None or known[0] != self._changes or known[1] is not self.policy:
            certificate = self.policy.certificate()
            if certificate is None:
                return None
            # Larger fleets are judged only now and then.
            knows_since = self.clients <= EVERY_ROUND_UP_TO
            certificate = replace(
                certificate,
                broken_since=self._broken_since.copy() if knows_since else None,
                retired=self.retired if self.retired.any() else None,
                unit=self.unit,
            )
            known = self._certified = (self._changes, self.policy, certificate, certificate.summary())
        return known[2:]

    @property
    def share_accrual(self) -> Accrual:
        """The rounds that `shares` counts: those in which a client was "available", or "always" all of them."""
        queues = self.queues
        is_known = queues is not None and queues.accrual == "available" and self.knows_availability
        return "available" if is_known else "always"

    def shares(self, certificate: Certificate | None = None) -> FloatArray:
        """Returns each client's turns divided by the rounds in which it accrues turns; NaN before the first of them.

        Turns are counted as the promise counts them; without a promise, they are the rounds for which a client was
        chosen. The certificate may be given if it was just computed.
        """
        certificate = certificate or self.certificate()
        if self.share_accrual == "available":
            rounds = self.counters["offered"]
        else:
            rounds = self.last_round - self.counters["joined"]
        shares = np.full(self.clients, np.nan)
        turns = self.counters["turns"] if certificate is None else certificate.turns
        np.divide(turns, rounds, out=shares, where=rounds > 0)
        return shares

    def judged_shares(self, certificate: Certificate | None = None) -> FloatArray:
        """Returns the shares of which the smallest is shown: NaN for retired clients, and for unknown shares.

        If clients accrue turns only while they are available, those that were promised no whole turn do not count
        either, unless there are no others: they were there for too few rounds.
        """
        certificate = certificate or self.certificate()
        counts = ~self.retired
        if certificate is not None and self.share_accrual == "available":
            servable = counts & (certificate.promised_units >= certificate.units_per_turn)
            counts = servable if servable.any() else counts
        return np.where(counts, self.shares(certificate), np.nan)

    def least_served(self) -> int | None:
        """Returns the client with the smallest of the judged shares; None if no share is known."""
        judged = self.judged_shares()
        return int(np.nanargmin(judged)) if np.isfinite(judged).any() else None

    def join(self, count: int) -> None:
        """Adds `count` clients in new rows."""
        self._changes += 1
        self._add_clients(count, self.last_round)
        self._broken = np.concatenate([self._broken, np.zeros(count, dtype=np.bool_)])
        self._broken_since = np.concatenate([self._broken_since, np.zeros(count, dtype=np.int64)])
        if self._model is not None:
            self._model.add(count)

    def begin(self, clients: int, joined: IntArray, left: BoolArray, totals: FleetTotals) -> None:
        """Adds the clients that joined, and the turns that were taken, in rounds that are no longer kept.

        Args:
            clients: The number of clients.
            joined: The rounds after which they joined.
            left: Which of them have left.
            totals: Their turns.
        """
        self.join(clients)
        self.counters["joined"][:] = joined
        self.counters["left_in"][left] = self.first_after
        self._add_totals(totals)
        self.dropped_outcomes = np.array([int(totals.counts[kind].sum()) for kind in KINDS], dtype=np.int64)

    def leave(self, row: int) -> None:
        """Marks a client as retired."""
        self._changes += 1
        self.counters["left_in"][row] = self.last_round

    def adopt(self, policy: SelectionPolicy, history: ClientHistory | None) -> None:
        """Follows a policy from now on; a client history that is maintained elsewhere replaces the ledger's own."""
        self.policy = policy
        if history is not None:
            self.history, self._owns_history = history, False

    def resume(self, offered: IntArray, broken_since: IntArray) -> None:
        """Notes the broken promises of a policy whose state was not computed round by round.

        Args:
            offered: The number of rounds in which each client was available.
            broken_since: The rounds since which clients are beyond the tolerance; 0 if that is unknown.
        """
        self.counters["offered"], self.knows_availability = offered, True
        if self.queues is not None:
            self._changes += 1
            self._judge(0)
            self._broken_since[:] = np.where(self._broken, broken_since, 0)

    def amend(self, policy: SelectionPolicy) -> None:
        """Continues with a policy that has other settings and the same turns and debts; earlier rounds stay."""
        self.policy = policy
        self._changes += 1
        # A promise that the new tolerance breaks is broken from the next round on.
        certificate = policy.certificate()
        if certificate is not None:
            self._broken &= certificate.broken
            self._broken_since[~self._broken] = 0

    def add(
        self,
        given: Sequence[Decision],
        ended: Sequence[Outcomes],
        tell: Callable[[], None] | None,
        *,
        capped: Callable[[int], IntArray] | None = None,
        broken_since: Callable[[], IntArray] | None = None,
    ) -> None:
        """Adds a closed round; without rounds, ends turns and then adds those that were given.

        Args:
            given: The turns that were given, in the order of their decisions.
            ended: The turns that have ended: those of the round or, without rounds, of earlier decisions.
            tell: Passes both to the policy; None if it has learned from them already. Then there are no predictions.
            capped: Returns the clients that earn nothing with a decision, because they have earned a whole turn since
                theirs began; it is called after `tell`. None if that is not known.
            broken_since: Returns since which decisions clients are beyond the tolerance, if that is known exactly; it
                is called after `tell`.
        """
        self._changes += 1
        predictions = self._predict(given) if tell is not None and self.slots is None else None
        arrived_before = [self.history.arrived[outcomes.report.clients] for outcomes in ended]
        if tell is not None:
            tell()
        if self.slots is not None:
            self._end(ended, arrived_before)
            predictions = self._predict(given) if tell is not None else None
        for index, decision in enumerate(given):
            unknown = np.full(len(decision.rows), np.nan)
            prediction = (unknown, unknown) if predictions is None else predictions[index]
            self._give(decision, prediction, None if capped is None else capped(decision.number))
        if self.slots is None:
            self._end(ended, arrived_before)
        if tell is not None and self.last_round % max(1, self.clients // EVERY_ROUND_UP_TO) < len(given):
            self._changes += 1  # the policy has learned from the turns
            self._record_fairness(self._judge(self.last_round))
            if broken_since is not None and self._broken.any():
                self._broken_since[:] = np.where(self._broken, broken_since(), 0)

    def _give(self, given: Decision, prediction: tuple[FloatArray, FloatArray], capped: IntArray | None) -> None:
        training = len(self._updates_before) + len(self._early)
        available_count = UNKNOWN if given.available is None else int(given.available.sum()) - training
        self._append(given, available_count, *prediction)
        if self.slots is not None:
            self._updates_before[given.number] = self._updates
        self.counters["turns"][given.rows] += 1
        self.counters["last_round"][given.rows] = given.number
        if given.available is None:
            self.knows_availability = False
            return
        missing = self.clients - len(given.available)  # clients that joined later
        present = np.concatenate([given.available, np.zeros(missing, dtype=np.bool_)]) if missing else given.available
        self.availability.add(given.number, present)
        if self.slots is not None:
            present = present.copy()
            if capped is not None:
                present[capped] = False
        self.counters["offered"] += present

    def _end(self, ended: Sequence[Outcomes], arrived_before: Sequence[IntArray]) -> None:
        for outcomes, arrivals in zip(ended, arrived_before, strict=True):
            self._ended += 1
            place = self.find_round(outcomes.report.round)
            if place is None:
                self._end_early(outcomes)
                continue
            index, turns = place
            report = outcomes.report
            self._set_outcomes(index, turns, outcomes)
            if self.slots is not None:
                self._end_turn(index, outcomes)
            for name, value in report.metrics.items():
                if name not in CLOCKS and np.isfinite(value):
                    table = self.metrics.setdefault(name, GrowingTable({"rounds": np.int64, "values": np.float64}))
                    table.append(1, {"rounds": report.round if self.slots is None else self._ended, "values": value})
            if self._model is not None and self._model.features == report.contexts.shape[1]:
                self._model.learn_from(report)
            self._count_times(outcomes, self.turn_column("predicted")[turns], arrivals)

    def _end_turn(self, index: int, ended: Outcomes) -> None:
        """Sets when a turn without rounds ended, and how old its update was."""
        end = float(self.round_column("started")[index]) + float(self.round_column("seconds")[index])
        self._rounds.replace("finished", index, min(end, ended.end))
        before = self._updates_before.pop(ended.report.round)
        if ended.kinds[0] == ARRIVED:
            versions = ended.report.metrics.get(STALENESS, np.nan)
            self.stale_in = "versions" if np.isfinite(versions) else "updates"
            self._rounds.replace("staleness", index, versions if np.isfinite(versions) else self._updates - before)
            self._updates += 1

    def _end_early(self, ended: Outcomes) -> None:
        """Ends a turn that was given by a decision that is no longer kept; the totals contain its outcome."""
        self._early.discard(ended.report.round)
        if ended.kinds[0] == ARRIVED:
            self._updates += 1

    def _judge(self, number: int) -> Certificate | None:
        """Notes since which round clients are beyond the tolerance; returns the certificate."""
        certificate = None if self.policy is None else self.policy.certificate()
        if certificate is None:
            return None
        broken = certificate.broken
        self._broken_since[broken & ~self._broken] = number
        self._broken_since[~broken] = 0
        self._broken = broken
        return replace(certificate, retired=self.retired if self.retired.any() else None)

    def _predict(self, given: Sequence[Decision]) -> list[tuple[FloatArray, FloatArray]]:
        """Returns the predicted times and the half-widths of their bands; NaN for clients that never returned."""
        predictions = []
        for decision in given:
            rows, contexts = decision.rows, decision.contexts
            if self.model is None and contexts.shape[1] and self.clients:
                self._model = ExchangeTimeModel(self.clients, features=contexts.shape[1])
            model, unknown = self.model, np.full(len(rows), np.nan)
            if model is None or model.features != contexts.shape[1] or not len(rows):
                predictions.append((unknown, unknown))
                continue
            # The contexts of cold starts, and of fleets that persist no statuses, are NaN.
            known = (self.history.arrived[rows] > 0) & ~np.isnan(contexts[:, 0])
            contexts = np.nan_to_num(contexts)
            band = self.exploration * model.uncertainty(contexts, rows)
            times = model.optimistic(contexts, 0.0, rows)  # not below 0
            predictions.append((np.where(known, times, np.nan), np.where(known, band, np.nan)))
        return predictions

    def _record_fairness(self, certificate: Certificate | None) -> None:
        owed = np.full(1, np.nan) if self.queues is None else self.queues.owed[~self.retired]
        shares = self.judged_shares(certificate)
        known = shares[np.isfinite(shares)]
        p95 = (95 * (len(owed) - 1)) // 100
        point = (
            self.last_round,
            owed.max(initial=0),
            owed.mean() if len(owed) else 0.0,
            np.partition(owed, p95)[p95] if len(owed) else 0.0,
            known.min() if len(known) else np.nan,
            np.nan if certificate is None or certificate.worst is None else certificate.behind[certificate.worst],
        )
        self._fairness_series.append(1, dict(zip(_FAIRNESS_SERIES, point, strict=True)))
