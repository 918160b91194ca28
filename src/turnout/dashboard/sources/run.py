"""A run of a store, read into a ledger."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from turnout.analysis.explain import explain_run
from turnout.dashboard.sources.base import aligned
from turnout.dashboard.sources.ledger import Ledger, Played
from turnout.errors import ReportError, TurnoutError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import OUTCOMES, RoundRecord, RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import make_policy, with_defaults
from turnout.policies.wrappers.guarantee import MostOwed
from turnout.scheduler import KINDS, OpenRound, Turn
from turnout.simulator.plans import RunPlan
from turnout.store import RunInfo, RunStore

_KIND_OF = {outcome: KINDS.index(outcome) for outcome in OUTCOMES}


class RunSource:
    """A run of a store. Its policy is built anew and told what is on record."""

    def __init__(self, store: RunStore, info: RunInfo) -> None:
        self._store, self.info = store, info
        self.ledger = Ledger()
        self.trouble: str | None = None
        self.ledger.policy, self.trouble = _policy_of(info)
        self.ledger.join(info.clients)

    @property
    def name(self) -> str:
        """Its label, or its policy."""
        return name_of(self.info)

    @property
    def policy(self) -> str:
        """As its plan says."""
        return str(self.info.plan.get("policy", ""))

    @property
    def run(self) -> int | None:
        """Its number."""
        return self.info.id

    @property
    def planned(self) -> int | None:
        """As its plan says."""
        rounds = self.info.plan.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def finished(self) -> bool:
        """As the store says."""
        return self.info.finished

    @property
    def reading(self) -> tuple[int, int] | None:
        """Rounds read, and rounds in the store."""
        done = len(self.ledger)
        return (done, self.info.rounds) if done < self.info.rounds else None

    def catch_up(self, seconds: float) -> None:
        """A chunk at a time."""
        end = time.monotonic() + seconds
        while len(self.ledger) < self.info.rounds:
            columns = self._store.columns(self.info.id, after=self.ledger.last, most=1)
            for record in columns.records():
                self.ledger.add(_played(record), partial(self._tell, record.report))
            if time.monotonic() > end:
                break

    def id_of(self, row: int) -> str:
        """Rows are all that a run knows of clients."""
        return str(row)

    def row_of(self, client: str) -> int:
        """Also c17, or client 17."""
        row = client.removeprefix("client ").removeprefix("c")
        if not row.isdecimal() or int(row) >= self.info.clients:
            raise ReportError(f"there is no client {client!r}: those of a run are called 0 to {self.info.clients - 1}")
        return int(row)

    def found(self, words: str, most: int) -> IntArray:
        """By the digits."""
        there = (row for row in range(self.info.clients) if words in str(row))
        return np.fromiter((row for row, _ in zip(there, range(most), strict=False)), dtype=np.int64)

    def explain(self, row: int, number: int) -> dict[str, Any]:
        """By playing it again up to there."""
        return asdict(explain_run(self._store, self.info.id, row, number))

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Rounds of a run are written when they are over."""
        return None

    def failures(self, number: int) -> dict[int, str]:  # noqa: ARG002
        """A run keeps no words."""
        return {}

    def measured(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """As the rounds tell."""
        return {name: (where.all, what.all) for name, (where, what) in self.ledger.metrics.items()}

    def notices(self) -> list[str]:
        """Only that what it promised cannot be counted again here."""
        return [] if self.trouble is None else [self.trouble]

    def more_flags(self) -> dict[str, BoolArray]:
        """Nothing."""
        return {}

    def _tell(self, report: RoundReport) -> None:
        if self.ledger.policy is None:
            return
        try:
            self.ledger.policy.tell(report)
        except TurnoutError as refused:
            self.ledger.policy = None
            self.trouble = (
                f"What the policy of this run promised is not shown, as the record says too little: {refused}."
            )


def name_of(info: RunInfo) -> str:
    """As its plan is called; a plan of another program by its key."""
    try:
        return RunPlan.from_dict(info.plan).name
    except (TurnoutError, TypeError):
        return str(info.plan.get("label") or info.plan.get("policy") or info.key)


def _policy_of(info: RunInfo) -> tuple[SelectionPolicy | None, str | None]:
    """A new one like that of the run, and what to say if it cannot be made here."""
    plan = info.plan
    try:
        own = {"seed": plan.get("seed", 0), "allow_infeasible": True}
        name, settings = str(plan["policy"]), dict(plan.get("settings") or {})
        policy = make_policy(name, info.clients, **with_defaults(name, settings, own))
        return (_promise_of(policy) if plan.get("keep") == "choices" else policy), None
    except (TurnoutError, LookupError, TypeError, ValueError) as cannot:
        return None, f"The policy of this run cannot be built here ({cannot}): what it promised is not shown."


def _promise_of(policy: SelectionPolicy) -> SelectionPolicy | None:
    """Of a run that keeps no contexts its promise can be counted again, but nothing can be learned."""
    return None if policy.guarantee is None else MostOwed.counting(policy.guarantee, policy.clients)


def _played(record: RoundRecord) -> Played:
    report = record.report
    kinds = np.zeros(len(report.clients), dtype=np.int64)
    if report.outcomes is not None:
        kinds = np.array([_KIND_OF[str(word)] for word in report.outcomes], dtype=np.int64)
    return Played(report, kinds, report.exchange_times, aligned(record.selection, report))
