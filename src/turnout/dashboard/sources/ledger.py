"""The data of one run or fleet that the pages show, updated round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from turnout.dashboard.sources.growing import AvailabilityMasks, GrowingArray
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.certificate import Accrual, Certificate, PromiseSummary, TimeUnit
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.rounds import RoundReport, round_seconds
from turnout.live import ClientHistory
from turnout.live._internals import ARRIVED, JUDGED_AFTER, KINDS, OUTRUN, SURPLUS, FleetTotals
from turnout.policies.base import SelectionPolicy
from turnout.policies.rbcsf.change import ChangeDetector

#: Threshold of Page's test for changed exchange times, in mean prediction errors of the client. With exponentially
#: distributed times the false alarm rate is 1 in 10,000 turns; doubled times are detected after about ten turns.
CHANGE_THRESHOLD = 16.0
#: In larger fleets the debts of all clients are not summarised after every round.
EVERY_ROUND_UP_TO = 100_000
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
    "usual": np.float64,
    "behind": np.float64,
    "price": np.float64,
    "losses": np.float64,
}
#: The reasons of a selection that are shown for each client.
TURN_REASONS = ("optimistic", "owed", "usual", "behind", "price")
UNKNOWN = -1
#: The kind of a turn without rounds that has not ended yet, after those of `turnout.live.KINDS`.
UNDER_WAY = len(KINDS)
_FAIRNESS_SERIES = ("rounds", "worst", "mean", "p95", "least_share", "behind")
_PER_CLIENT = {
    "turns": 0,
    "volunteered": 0,
    "last_round": 0,
    "joined": 0,
    "changed_in": 0,
    "left_in": UNKNOWN,
}


@dataclass(frozen=True, slots=True, eq=False)
class PlayedRound:
    """A closed round; `kinds`, `times` and per-client `reasons` follow the order of the clients in the report.

    Attributes:
        report: The report that the policy learned from.
        kinds: The outcome of each client, as an index of `turnout.live.KINDS`.
        times: Seconds from the selection to the reply of each client; NaN if unknown.
        reasons: The reasons that the policy recorded for its selection.
        opened: Unix time of the selection.
        closed: Unix time at which the round was closed.
        between: Seconds from the end of the previous round to this selection.
    """

    report: RoundReport
    kinds: IntArray
    times: FloatArray
    reasons: Mapping[str, Any]
    opened: float = np.nan
    closed: float = np.nan
    between: float = np.nan

    @property
    def duration(self) -> float:
        """The duration of the round in seconds: the server waits for all clients except those that are surplus."""
        return round_seconds(self.report.exchange_times, self.kinds != SURPLUS)


class FormerTerms(NamedTuple):
    """The terms of a guarantee up to a round, before they were amended.

    Attributes:
        until: The last round with these terms.
        rates: The guaranteed rates, in units per round.
        units_per_turn: The number of units in a turn.
        max_owed: The largest debt, in turns; None means no limit.
    """

    until: int
    rates: int | IntArray
    units_per_turn: int
    max_owed: float | Fraction | None


class Ledger:
    """Columns of rounds and turns, counters of clients, and fairness figures over time.

    `policy` is the policy that selected the cohorts, in its state after the last report it learned from; debts and
    certificates come from it. Debts are known for rounds after `debts_from`. The first round is that after
    `first_after`: earlier ones are no longer kept, and only part of the totals. `slots` is their number if there are no
    rounds; then the number of a round is that of a decision.
    """

    slots: int | None = None

    def __init__(self, *, debts_from: int = 0, first_after: int = 0) -> None:
        self.policy: SelectionPolicy | None = None
        self.clients = 0
        self.debts_from, self.first_after = debts_from, first_after
        self._rounds = {name: GrowingArray(dtype) for name, dtype in _PER_ROUND.items()}
        self._turns = {name: GrowingArray(dtype) for name, dtype in _PER_TURN.items()}
        self._fairness_series = {name: GrowingArray(np.float64) for name in _FAIRNESS_SERIES}
        self._ends = GrowingArray(np.int64)
        self.metrics: dict[str, tuple[GrowingArray, GrowingArray]] = {}
        #: The number of turns with each outcome, by index of KINDS, in rounds that are no longer kept.
        self.dropped_outcomes: IntArray = np.zeros(len(KINDS), dtype=np.int64)
        self.availability = AvailabilityMasks()
        self.knows_availability = True
        self.counters: dict[str, IntArray] = {name: np.empty(0, dtype=np.int64) for name in _PER_CLIENT}
        self.seconds: FloatArray = np.empty(0)
        self.history = ClientHistory()
        self._owns_history = True
        self.initial_units: IntArray | None = None
        self.initial_units_per_turn = 1
        self.former_terms: list[FormerTerms] = []
        self._change_detector: ChangeDetector | None = None
        self._model: ExchangeTimeModel | None = None
        # Which clients are beyond the tolerance, and since which round; 0 if that was before the first known round.
        self._broken: BoolArray = np.empty(0, dtype=np.bool_)
        self._broken_since: IntArray = np.empty(0, dtype=np.int64)
        self._changes = 0  # counts whatever can change a certificate
        self._certified: tuple[int, SelectionPolicy, Certificate, PromiseSummary] | None = None

    def __len__(self) -> int:
        return len(self._rounds["rounds"])

    def round_column(self, name: str) -> Any:
        """Returns a column with one value per round."""
        return self._rounds[name].values

    def turn_column(self, name: str) -> Any:
        """Returns a column with one value per turn, ordered by round."""
        return self._turns[name].values

    @property
    def fairness_series(self) -> dict[str, FloatArray]:
        """By round: the worst debt, mean debt, 95th percentile of the debts, least share, and most turns behind."""
        return {name: column.values for name, column in self._fairness_series.items()}

    @property
    def unit(self) -> TimeUnit:
        """What the numbers of `rounds` count: rounds, or decisions."""
        return TimeUnit.of(self.slots)

    @property
    def last_round(self) -> int:
        """The number of the last closed round; 0 before the first."""
        return int(self.round_column("rounds")[-1]) if len(self) else self.first_after

    @property
    def starts(self) -> IntArray:
        """Offsets of the rounds in the turn columns: round i has the turns starts[i]:starts[i+1]."""
        return np.concatenate([np.zeros(1, dtype=np.int64), self._ends.values])

    @property
    def round_of_each_turn(self) -> IntArray:
        """The round number of each turn."""
        return np.repeat(self.round_column("rounds"), np.diff(self.starts))

    def turns_of_round(self, number: int) -> slice | None:
        """Returns the slice of a round in the turn columns; None if there is no such round."""
        index = int(np.searchsorted(self.round_column("rounds"), number))
        if index >= len(self) or self.round_column("rounds")[index] != number:
            return None
        starts = self.starts
        return slice(int(starts[index]), int(starts[index + 1]))

    @property
    def queues(self) -> FairnessQueues | None:
        """The debts of the policy; None if it guarantees nothing."""
        return None if self.policy is None else self.policy.debts

    @property
    def paid(self) -> str:
        """What counts as a turn: "chosen" or "contributed"."""
        guarantee = None if self.policy is None else self.policy.guarantee
        return "chosen" if guarantee is None else guarantee.paid

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

    @property
    def retired(self) -> BoolArray:
        """Whether each client has retired."""
        retired: BoolArray = self.counters["left_in"] != UNKNOWN
        return retired

    def accruing(self, rows: IntArray, numbers: IntArray) -> BoolArray | None:
        """Returns in which rounds clients accrue turns, shape (rounds, clients); None if that is not recorded."""
        if self.queues is not None and self.queues.accrual == "available":
            return self.availability.get(rows, numbers)
        return np.ones((len(numbers), len(rows)), dtype=np.bool_)

    def payments(self, rows: IntArray) -> tuple[BoolArray, BoolArray | None]:
        """Returns with which rounds turns count, shape (rounds, clients); and None, because none count between them."""
        chosen, arrived = self.participation(rows)
        return (arrived if self.paid == "contributed" else chosen), None

    def participation(self, rows: IntArray) -> tuple[BoolArray, BoolArray]:
        """Returns whether each client was chosen, and whether it arrived, each of shape (rounds, clients)."""
        column_of = np.full(self.clients, -1, dtype=np.int64)
        column_of[rows] = np.arange(len(rows))
        columns = column_of[self.turn_column("chosen")]
        selected = columns >= 0
        rounds = np.repeat(np.arange(len(self)), np.diff(self.starts))[selected]
        chosen = np.zeros((len(self), len(rows)), dtype=np.bool_)
        chosen[rounds, columns[selected]] = True
        arrived = np.zeros_like(chosen)
        is_arrival = self.turn_column("kinds")[selected] == ARRIVED
        arrived[rounds[is_arrival], columns[selected][is_arrival]] = True
        return chosen, arrived

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
            certificate = replace(
                certificate,
                broken_since=self._broken_since.copy() if self._knows_broken_since else None,
                retired=self.retired if self.retired.any() else None,
                unit=self.unit,
            )
            known = self._certified = (self._changes, self.policy, certificate, certificate.summary())
        return known[2:]

    @property
    def _knows_broken_since(self) -> bool:
        """Whether the promise is judged after every round; larger fleets are judged only now and then."""
        return self.clients <= EVERY_ROUND_UP_TO

    @property
    def share_accrual(self) -> Accrual:
        """The rounds that `shares` counts: those in which a client was "available", or "always" all of them."""
        queues = self.queues
        return (
            "available"
            if queues is not None and queues.accrual == "available" and self.knows_availability
            else ("always")
        )

    def shares(self, certificate: Certificate | None = None) -> FloatArray:
        """Returns each client's turns divided by the rounds in which it accrues turns; NaN before the first of them.

        Turns are counted as the promise counts them; without a promise, they are the rounds for which a client was
        chosen. The certificate may be given if it was just computed.
        """
        certificate = certificate or self.certificate()
        if self.share_accrual == "available":
            rounds = self.counters["volunteered"]
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

    def mean_seconds(self) -> FloatArray:
        """Returns the mean exchange time of each client; NaN if no time is known."""
        means = np.full(self.clients, np.nan)
        np.divide(self.seconds, self.history.arrived, out=means, where=self.history.arrived > 0)
        return means

    def suspect_clients(self) -> BoolArray:
        """Returns whether each client's context predicts its times worse than its own typical time does."""
        return self.history.suspects()

    def join(self, count: int) -> None:
        """Adds `count` clients in new rows."""
        self.clients += count
        for name, start in _PER_CLIENT.items():
            new = np.full(count, self.last_round if name == "joined" else start, dtype=np.int64)
            self.counters[name] = np.concatenate([self.counters[name], new])
        self._changes += 1
        self.seconds = np.concatenate([self.seconds, np.zeros(count)])
        self._broken = np.concatenate([self._broken, np.zeros(count, dtype=np.bool_)])
        self._broken_since = np.concatenate([self._broken_since, np.zeros(count, dtype=np.int64)])
        if self._owns_history:
            self.history.add(count)
        if self._change_detector is None:
            self._change_detector = ChangeDetector(self.clients, CHANGE_THRESHOLD)
        else:
            self._change_detector.add(count)
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
        self.counters["turns"][:] = totals.turns[:clients]
        self.counters["last_round"][:] = totals.last_round[:clients]
        self.seconds[:] = totals.seconds[:clients]
        self.dropped_outcomes = np.array([int(totals.counts[kind].sum()) for kind in KINDS], dtype=np.int64)
        self.history.arrived[:] = (totals.counts["arrived"] + totals.counts["surplus"])[:clients]
        self.history.lost[:] = (totals.counts["late"] + totals.counts["failed"])[:clients]

    def use_history(self, history: ClientHistory) -> None:
        """Replaces the ledger's own client history by one that a fleet maintains."""
        self.history, self._owns_history = history, False

    def amend(self, policy: SelectionPolicy) -> None:
        """Continues with a policy that has other settings and the same turns and debts; earlier rounds stay."""
        queues = self.queues
        if queues is not None and policy.debts is not None:
            rates, unit = queues.accounts().rates, queues.units_per_turn
            self.former_terms.append(FormerTerms(self.last_round, rates, unit, queues.max_owed))
        self.policy = policy
        self._changes += 1
        # A promise that the new tolerance breaks is broken from the next round on.
        certificate = policy.certificate()
        if certificate is not None:
            self._broken &= certificate.broken
            self._broken_since[~self._broken] = 0

    def leave(self, row: int) -> None:
        """Marks a client as retired."""
        self._changes += 1
        self.counters["left_in"][row] = self.last_round

    def add(self, played: PlayedRound, tell: Callable[[], None] | None) -> None:
        """Adds a closed round.

        `tell` passes the report to the policy. It is None if the policy has already learned from this round; then the
        ledger has no predictions for it.
        """
        self._changes += 1
        report = played.report
        rows, number = report.clients, report.round
        predicted, band = self._predict(report) if tell is not None else (np.full(len(rows), np.nan),) * 2
        arrived_before = self.history.arrived[rows]
        if tell is not None:
            tell()
            if self._model is not None:
                self._model.learn_from(report)
        reasons = {name: np.asarray(played.reasons.get(name, np.full(len(rows), np.nan))) for name in TURN_REASONS}
        losses = np.full(len(rows), np.nan) if report.losses is None else report.losses
        turns = {"chosen": rows, "times": played.times, "kinds": played.kinds, "losses": losses}
        for name, values in {**turns, "predicted": predicted, "band": band, **reasons}.items():
            self._turns[name].append(values)
        self._ends.append(len(self._turns["chosen"]))
        available = report.available
        round_values = {
            "rounds": number,
            "seconds": played.duration,
            "volunteers": UNKNOWN if available is None else int(available.sum()),
            "threshold": float(played.reasons.get("threshold", np.nan)),
            "objective": float(played.reasons.get("objective", np.nan)),
            "opened": played.opened,
            "closed": played.closed,
            "between": played.between,
        }
        for name, value in round_values.items():
            self._rounds[name].append(value)
        for name, value in report.metrics.items():
            when, measured = self.metrics.setdefault(name, (GrowingArray(np.int64), GrowingArray(np.float64)))
            when.append(number)
            measured.append(value)
        self._count(played, predicted, arrived_before)
        if tell is not None and number % max(1, self.clients // EVERY_ROUND_UP_TO) == 0:
            self._changes += 1  # the policy has learned from the round
            self._record_fairness(self._judge(number))

    def judge_snapshot(self, broken_since: IntArray) -> None:
        """Notes which clients are beyond the tolerance in a state that was not computed round by round.

        Args:
            broken_since: The rounds since which they are, as the state records them; 0 if that is unknown.
        """
        self._changes += 1
        self._judge(0)
        self._broken_since[:] = np.where(self._broken, broken_since, 0)

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

    def _predict(self, report: RoundReport) -> tuple[FloatArray, FloatArray]:
        """Returns the predicted time and the half-width of the band of each client; NaN for unknown clients."""
        features = report.contexts.shape[1]
        if self.model is None and features and self.clients:
            self._model = ExchangeTimeModel(self.clients, features=features)
        model = self.model
        if model is None or model.features != features or not len(report.clients):
            unknown = np.full(len(report.clients), np.nan)
            return unknown, unknown
        contexts = np.nan_to_num(report.contexts)  # those of fleets that persist no statuses are NaN
        known = (self.history.arrived[report.clients] > 0) & ~np.isnan(report.contexts[:, 0])
        predicted = model.predict(contexts, report.clients)
        band = self.exploration * model.uncertainty(contexts, report.clients)
        return np.where(known, predicted, np.nan), np.where(known, band, np.nan)

    def _count(self, played: PlayedRound, predicted: FloatArray, arrived_before: IntArray) -> None:
        """Updates the counters of the clients; `arrived_before` counts the earlier replies of each client."""
        report, counters = played.report, self.counters
        counters["turns"][report.clients] += 1
        counters["last_round"][report.clients] = report.round
        if report.available is None:
            self.knows_availability = False
        else:
            counters["volunteered"][: len(report.available)] += report.available
            self.availability.add(report.round, report.available)
        self._count_times(played, predicted, arrived_before)

    def _count_times(self, played: PlayedRound, predicted: FloatArray, arrived_before: IntArray) -> None:
        """Updates what is known about the times of the clients that have returned, or have not."""
        report, counters = played.report, self.counters
        returned = played.kinds < OUTRUN
        timed = returned & (report.exchange_times > 0)  # the times of forgotten clients are erased
        if self._owns_history:
            known = timed | ~returned
            self.history.record(
                report.clients[known], played.kinds[known], report.exchange_times[known], predicted[known]
            )
        self.seconds[report.clients[timed]] += report.exchange_times[timed]
        judged = timed & (arrived_before >= JUDGED_AFTER) & np.isfinite(predicted)
        if judged.any() and self._change_detector is not None:
            rows = report.clients[judged]
            changed = self._change_detector.changed(rows, predicted[judged], report.exchange_times[judged])
            counters["changed_in"][rows[changed]] = report.round

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
        for name, value in zip(_FAIRNESS_SERIES, point, strict=True):
            self._fairness_series[name].append(float(value))
