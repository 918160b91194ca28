"""What a scheduler's memory makes of a fleet's file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import TurnoutError
from turnout.scheduler.audit.doctor.findings import (
    Finding,
    Look,
    finding_of,
    forgotten_rows,
    snapshot_gaps,
    snapshot_seq,
)
from turnout.scheduler.features import Features
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.journal.replay import FleetState, load, stored_features
from turnout.scheduler.outcomes import KINDS
from turnout.scheduler.rounds.state import Fleet
from turnout.scheduler.settings import SchedulerSettings


def from_memory(path: Path, remedy: str) -> Iterator[Finding]:
    """Load the file as a scheduler would."""
    try:
        with closing(_Overlooking(path, read_only=True)) as journal, journal.reading() as db:
            told = journal.settings
            settings, features = SchedulerSettings.from_dict(told), stored_features(told["features"])
            memory = load(journal, settings, features)
            yield finding_of("memory", lambda: _folded(journal, db, memory, settings, features), remedy)
            yield finding_of("promise", lambda: _promise(db, memory.fleet))
    except TurnoutError as refused:
        yield Finding("memory", False, f"a scheduler refuses this file: {refused}", remedy)


class _Overlooking(Journal):
    """A journal whose snapshot can be overlooked: then everything is folded from the first event on."""

    overlooked = False

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """None, if it is to be overlooked."""
        return None if self.overlooked else super().snapshot()


def _folded(
    journal: _Overlooking, db: sqlite3.Connection, memory: FleetState, settings: SchedulerSettings, features: Features
) -> Look:
    """The snapshot and the rest of the events come to the same as all events."""
    saved = snapshot_seq(db)
    if not saved:
        return Look("the fold of all events; no snapshot was taken yet")
    if gaps := snapshot_gaps(db):
        return Look(f"the snapshot after event {saved} and the rest; before it, {gaps}")
    journal.overlooked = True
    fast, slow = memory.state(), load(journal, settings, features).state()
    other = [name for name in {**fast, **slow} if not _same(fast.get(name), slow.get(name))]
    wrong = [f"the snapshot after event {saved} and the rest give another {', '.join(other)} than all events"]
    return Look(f"the snapshot after event {saved} and the rest come to the same as all events", wrong if other else [])


def _promise(db: sqlite3.Connection, fleet: Fleet) -> Look:
    """What memory has counted is what the turns say, and the certificate holds."""
    look, counts = Look("this policy promises nothing"), {kind: np.zeros(len(fleet.ids), np.int64) for kind in KINDS}
    for row, kind, count in db.execute(
        "SELECT row, kind, COUNT(*) FROM turns WHERE round <= ? GROUP BY row, kind", (fleet.round,)
    ):
        counts[kind][row] = count
    came, lost = counts["arrived"] + counts["surplus"], counts["late"] + counts["failed"]
    known = np.ones(len(fleet.ids), np.int64)
    known[list(forgotten_rows(db))] = 0
    look.wrong.extend(_miscounted(fleet, "came back", fleet.history.arrived, came * known))
    look.wrong.extend(_miscounted(fleet, "was lost", fleet.history.lost, lost * known))
    guarantee = fleet.policy.guarantee if fleet.ids else None
    certificate = fleet.policy.certificate() if fleet.ids else None
    if guarantee is not None and certificate is not None:
        paid = counts["arrived"] if guarantee.paid == "contributed" else sum(counts.values())
        look.wrong.extend(_miscounted(fleet, "was paid", certificate.turns, paid))
        if not certificate.holds:
            look.wrong.append(f"the certificate does not hold for {int((~certificate.kept).sum()):,} clients")
        look.words = f"the certificate holds for {len(fleet.ids):,} clients, and its turns are those on record"
    return look


def _miscounted(fleet: Fleet, what: str, memory: Any, record: Any) -> Iterator[str]:
    for row in np.flatnonzero(memory != record).tolist():
        yield f"{fleet.ids[row]!r} {what} {memory[row]} times by memory and {record[row]} times by its turns"


def _same(one: Any, other: Any) -> bool:
    """Alike to the last digit or two: another machine may round differently."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype.kind == "f":
        return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True))
    return type(one) is type(other) and bool(np.array_equal(one, other))
