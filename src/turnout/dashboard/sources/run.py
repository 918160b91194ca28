"""A run of a store, with or without rounds, read into a ledger; and short summaries to compare many runs at once."""

from __future__ import annotations

import heapq
import json
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source, align_reasons
from turnout.dashboard.sources.columns import Decision, Outcomes
from turnout.dashboard.sources.ledger import CLOCKS, Ledger
from turnout.errors import ReportError, TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.rounds import OUTCOMES, RoundRecord, RoundReport
from turnout.kernel.slots.turns import FINISHED, STARTED, RunningTurns, TurnStart
from turnout.lab.analysis.explain import explain_run
from turnout.lab.analysis.metrics import JudgedPromise, Judgement, jain_index, judged_tolerance, known_guarantee
from turnout.lab.analysis.promise import knows_available
from turnout.lab.analysis.slots import SlotMetrics, slot_metrics, turn_clocks
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan, policy_of_plan
from turnout.lab.runs.play import SimulatedTurn
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.tables import RunInfo
from turnout.live._internals import FAILED, KINDS
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.explanation import Explanation
from turnout.policies.wrappers.guarantee import MostOwed

#: What may be wrong with the policy of a plan, which may be that of another program.
_BUILD_ERRORS = (TurnoutError, LookupError, TypeError, ValueError)
_KIND_OF = {outcome: KINDS.index(outcome) for outcome in OUTCOMES}


class RunSource(Source):
    """The source of a run: builds the policy of its plan again and passes the recorded reports to it.

    Without rounds, the record has the turns in the order of their decisions. They are passed to the policy as they
    happened: a turn ends before the first decision that was made after its end, as in `turnout.lab.SlotRun`.
    """

    def __init__(self, store: RunStore, info: RunInfo) -> None:
        described = describe_run(info)
        shown = {name: described[name] for name in ("name", "policy", "planned")}
        super().__init__(Ledger(_slots_of(store, info)), run=info.id, **shown)
        self._store, self.info = store, info
        self.ledger.policy, self.last_error = _make_policy(info)
        self.ledger.join(info.clients)
        self._running = RunningTurns(info.clients)
        self._running_turns: list[SimulatedTurn] = []  # a heap
        self._now = 0.0

    @property
    def finished(self) -> bool:
        """Whether the store marks the run as finished."""
        return self.info.finished

    @property
    def reading(self) -> dict[str, int] | None:
        """The numbers of rounds read and of rounds stored; None if all rounds have been read."""
        rounds = len(self.ledger)
        return {"done": rounds, "of": self.info.rounds} if rounds < self.info.rounds else None

    def catch_up(self, seconds: float) -> None:
        """Reads one chunk of rounds at a time, so that it stops soon after `seconds`."""
        end = time.monotonic() + seconds
        while len(self.ledger) < self.info.rounds:
            for record in self._store.columns(self.info.id, after=self.ledger.last_round, most=1).records():
                if self.ledger.slots is None:
                    self._add_round(record)
                else:
                    self._add_turn(record)
            if time.monotonic() > end:
                break
        if self.info.finished and len(self.ledger) >= self.info.rounds and self._running_turns:
            self._end([heapq.heappop(self._running_turns) for _ in range(len(self._running_turns))], None)

    def name_of(self, row: int) -> str:
        """Returns what sentences call the client of this row, whose id is a number."""
        return f"client {row}"

    def row_of(self, client: str) -> int:
        """Returns the row of a client; accepts "17", "c17" and "client 17"."""
        row = client.removeprefix("client ").removeprefix("c")
        if not row.isdecimal() or int(row) >= self.info.clients:
            raise ReportError(
                f"there is no client {client!r}: the clients of this run are 0 to {self.info.clients - 1}"
            )
        return int(row)

    def explain(self, row: int, number: int) -> Explanation:
        """Explains a round by replaying the run up to it."""
        return explain_run(self._store, self.info.id, row, number)

    def _add_round(self, record: RoundRecord) -> None:
        report = record.report
        reasons = align_reasons(record.selection, report)
        decision = Decision(record.round, report.clients, report.contexts, report.available, reasons)
        outcomes = Outcomes(report, kinds_of(report), report.exchange_times, np.nan)
        self.ledger.add([decision], [outcomes], partial(self._tell, [report], None))

    def _add_turn(self, record: RoundRecord) -> None:
        started, ended = record.report.metrics[STARTED], list[SimulatedTurn]()
        client = int(record.report.clients[0])
        while self._running_turns and self._ends_before(started, client, ended):
            ended.append(heapq.heappop(self._running_turns))
            self._now = ended[-1].end
        self._now = started
        self._end(ended, record)
        heapq.heappush(self._running_turns, SimulatedTurn(record.report.metrics[FINISHED], record.round, record))

    def _ends_before(self, started: float, client: int, ended: list[SimulatedTurn]) -> bool:
        """Returns whether the turn that ends next ended before a decision.

        Of turns that end at the moment of the decision, only as many ended as it needed: for the clock to reach that
        moment, for a free slot, and for the client to be idle.

        Args:
            started: The time of the decision.
            client: The client that was given a turn.
            ended: The turns that ended since the decision before, as far as they are known.
        """
        end = self._running_turns[0].end
        is_full = len(self._running_turns) >= int(self.info.plan["concurrency"])
        is_training = self._running.decision_of(client) not in (0, *(running_turn.decision for running_turn in ended))
        return end < started or (end == started and (is_full or is_training or self._now < started))

    def _end(self, running_turns: list[SimulatedTurn], record: RoundRecord | None) -> None:
        """Ends turns, and then gives the next one, if there is one."""
        reports = [running_turn.record.report for running_turn in running_turns]
        for report in reports:
            self._running.finish(int(report.clients[0]))
        turn, given = None, list[Decision]()
        if record is not None:
            turn, report = self._started(record), record.report
            self._running.start(turn)
            reasons = align_reasons(record.selection, report)
            given = [Decision(record.round, report.clients, report.contexts, turn.present, reasons, self._now)]
        ended = []
        for report in reports:
            kinds = kinds_of(report)
            times = np.where(kinds == FAILED, np.nan, report.exchange_times)
            ended.append(Outcomes(report, kinds, times, np.inf))
        capped = np.empty(0, dtype=np.int64) if turn is None else turn.capped
        self.ledger.add(given, ended, partial(self._tell, reports, turn), capped=lambda _: capped)

    def _started(self, record: RoundRecord) -> TurnStart:
        """Returns the decision: the record has the clients that earned with it, the others present were capped."""
        debts = None if self.ledger.policy is None else self.ledger.policy.debts
        capped = self._running.capped(record.round, debts)
        present = np.ones(self.info.clients, dtype=np.bool_)
        if record.report.available is not None:
            present = record.report.available.copy()
            present[capped] = True
        return TurnStart.trusted(record.round, int(record.report.clients[0]), present, capped)

    def _tell(self, reports: list[RoundReport], turn: TurnStart | None) -> None:
        policy = self.ledger.policy
        if policy is None:
            return
        try:
            for report in reports:
                policy.tell(report) if self.ledger.slots is None else policy.tell_finished(report)
            if turn is not None:
                policy.tell_started(turn)
        except TurnoutError as error:
            self.ledger.policy = None
            self.last_error = f"The guarantee of this run is not shown because its record is incomplete: {error}."


def _slots_of(store: RunStore, info: RunInfo) -> int | None:
    """Returns the number of slots of a run; None if it has rounds.

    Plans of other programs may name a concurrency of another kind: without the times of its turns, a run has rounds.
    """
    slots = info.plan.get("concurrency")
    if not isinstance(slots, int):
        return None
    is_timed = not info.rounds or all(name in store.columns(info.id, most=1).metrics for name in CLOCKS)
    return slots if is_timed else None


def name_of(info: RunInfo) -> str:
    """Returns the name of the plan; for plans of other programs the label, the policy or the key."""
    try:
        return RunPlan.from_dict(info.plan).name
    except (TurnoutError, TypeError):
        return str(info.plan.get("label") or info.plan.get("policy") or info.key)


def describe_run(info: RunInfo) -> dict[str, Any]:
    """Returns what lists of runs show about a run; plans of other programs may contain anything."""
    seed, planned = (value if isinstance(value, int) else None for value in map(info.plan.get, ("seed", "rounds")))
    return {
        "id": info.id,
        "name": name_of(info),
        "policy": str(info.plan.get("policy", "")),
        "seed": seed,
        "world": str(info.plan.get("world", "")),
        "rounds": info.rounds,
        "planned": planned,
        "clients": info.clients,
        "finished": info.finished,
    }


def given_true_times(info: RunInfo) -> bool:
    """Returns whether the policy of a run was given the true times of clients; False if it cannot be built here."""
    plan = {key: info.plan.get(key) for key in ("policy", "settings", "packages", "concurrency")}
    return _needs_true_times(json.dumps(plan, sort_keys=True, default=str), info.clients)


@lru_cache(maxsize=1024)
def _needs_true_times(plan: str, clients: int) -> bool:
    try:
        return policy_of_plan(json.loads(plan), clients).requires_expected_times
    except _BUILD_ERRORS:
        return False


def _make_policy(info: RunInfo) -> tuple[SelectionPolicy | None, str | None]:
    """Returns a new policy as in the plan of the run; or None and the reason why it cannot be built."""
    try:
        policy = policy_of_plan(info.plan, info.clients)
        return (_counting_policy(policy) if info.plan.get("keep") == "choices" else policy), None
    except _BUILD_ERRORS as error:
        return None, f"The guarantee of this run is not shown because its policy cannot be built here: {error}."


def _counting_policy(policy: SelectionPolicy) -> SelectionPolicy | None:
    """Returns a policy that counts the debts only, for runs recorded without contexts; None without a guarantee."""
    if policy.guarantee is None:
        return None
    counting = MostOwed.counting(policy.guarantee, policy.clients)
    counting.selects_by_queue = policy.selects_by_queue
    return counting


def kinds_of(report: RoundReport) -> IntArray:
    """Returns the outcomes of a simulated report, as indices of `turnout.live.KINDS`."""
    if report.outcomes is None:
        return np.zeros(len(report.clients), dtype=np.int64)
    return np.array([_KIND_OF[str(outcome)] for outcome in report.outcomes], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Summary of a run: durations of its rounds, turns of its clients, and metrics (rounds and values by name).

    Without rounds, a decision counts as a round that lasts until the next one, and metrics are ordered by the end of
    the turns: their rounds are the numbers of turns that had ended. `judgement` says how the run kept the promise by
    which it is judged; None if the store lacks the availability that the promise refers to. `clock` is when each round,
    or turn in that order, ended.
    """

    promise: JudgedPromise
    rounds: int
    seconds: FloatArray
    turns: IntArray
    metrics: dict[str, tuple[IntArray, FloatArray]]
    judgement: Judgement | None
    clock: FloatArray
    slots: SlotMetrics | None = None

    @property
    def staleness(self) -> float | None:
        """The mean staleness of updates, in versions if these are recorded, else in updates; None with rounds."""
        if self.slots is None:
            return None
        return float(self.metrics["staleness"][1].mean()) if "staleness" in self.metrics else self.slots.mean_staleness

    @property
    def figures(self) -> dict[str, float | None]:
        """The scalar figures of the comparison table."""
        return {
            "mean_round": float(self.seconds.mean()),
            "p95_round": float(np.percentile(self.seconds, 95)),
            "total_time": float(self.seconds.sum()),
            "least_share": None if self.judgement is None else self.judgement.summary.least_share,
            "jain": jain_index(self.turns),
            "shortfall": None if self.judgement is None else max(self.judgement.summary.largest_shortfall, 0.0),
            "accuracy": None if "accuracy" not in self.metrics else float(self.metrics["accuracy"][1][-1]),
            "rate": None if self.slots is None else self.slots.updates_per_second,
            "mean_turn": None if self.slots is None else self.slots.mean_turn,
            "staleness": self.staleness,
        }


def make_digest(columns: RoundColumns, promise: JudgedPromise, info: RunInfo) -> Digest:
    """Returns the digest of a run that has at least one round, judged by a promise and its own tolerance."""
    judgement = None
    if promise.accrual == "always" or knows_available(columns):
        judgement = promise.judge(columns, judged_tolerance(known_guarantee(info), None))
    is_timed = FINISHED in columns.metrics
    order = np.argsort(columns.metrics[FINISHED], kind="stable") if is_timed else np.arange(len(columns))
    metrics: dict[str, Any] = {}
    for name, values in columns.metrics.items():
        known = np.isfinite(values)
        if (absent := columns.absent.get(f"metrics.{name}")) is not None:
            known &= ~absent
        if known.any() and name not in CLOCKS:
            known = known[order]
            metrics[name] = (columns.rounds[known], values[order][known])
    if not is_timed:
        durations = columns.durations
        return Digest(promise, len(columns), durations, columns.turns, metrics, judgement, np.cumsum(durations))
    started, finished = turn_clocks(columns)
    between, slots = np.diff(started, prepend=0.0), slot_metrics(columns)
    return Digest(promise, len(columns), between, columns.turns, metrics, judgement, finished[order], slots)
