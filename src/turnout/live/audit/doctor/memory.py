"""Checks of the state that a scheduler builds from a fleet's file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.errors import PluginError, TurnoutError
from turnout.live.audit.doctor.findings import RESTORE, CheckResult, Finding, run_check, snapshot_event
from turnout.live.audit.doctor.tables import why_not_replayed
from turnout.live.features import Features
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState, load, stored_features
from turnout.live.journal.summary import read_summary, read_totals
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.outcomes import KINDS
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.state import Fleet
from turnout.storage.store import Connection, Location


def check_state(location: Location, db: Connection) -> Iterator[Finding]:
    """Loads the file as a scheduler does, and checks the snapshot and the counters of the state.

    Loading compares the settings with their amendments, the ids of the clients with the join events, and the open round
    or the running turns with the turns.
    """
    try:
        with closing(Journal(location, read_only=True)) as journal, journal.reading():
            stored = journal.settings
            settings, features = SchedulerSettings.from_dict(stored), stored_features(stored["features"])
            state = load(journal, settings, features)
            yield run_check("state", lambda: _check_snapshot(journal, db, state, settings, features))
            yield run_check("books", lambda: _check_counters(db, state.fleet))
            # A broken promise is no damage: the file is intact and says truthfully that clients got too few turns.
            yield replace(run_check("promise", lambda: _describe_promise(state.fleet)), ok=None, remedy="")
    except PluginError as error:  # the file may be intact: nobody without the policy can tell
        yield Finding("state", None, f"not checked, because its policy is missing here: {error}", "")
    except Exception as error:  # damaged data can raise any exception
        problem = str(error) if isinstance(error, TurnoutError) else f"{type(error).__name__}: {error}"
        yield Finding("state", False, f"a scheduler cannot open this fleet: {problem}", RESTORE)


def can_replay(location: Location, db: Connection) -> bool:
    """Returns whether the state can be computed from all events, without a snapshot."""
    try:
        with closing(Journal(location, read_only=True)) as journal:
            stored = journal.settings
            settings, features = SchedulerSettings.from_dict(stored), stored_features(stored["features"])
            load(journal, settings, features, from_snapshot=False)
            return not why_not_replayed(journal, db)
    except Exception:  # whatever else is damaged, only a backup helps
        return False


def _check_snapshot(
    journal: Journal,
    db: Connection,
    state: FleetState,
    settings: SchedulerSettings,
    features: Features,
) -> CheckResult:
    """Checks that the snapshot and the events after it give the same state as all events.

    Args:
        journal: The journal of the fleet.
        db: Its connection, inside a transaction.
        state: The state that was loaded from the snapshot and the events after it.
        settings: The settings of the fleet.
        features: The features of the fleet.
    """
    last = snapshot_event(db)
    if not last:
        return CheckResult("built from all events; no snapshot was taken yet")
    if reason := why_not_replayed(journal, db):
        return CheckResult(
            f"built from the snapshot after event {last} and the events after it; earlier events cannot be compared "
            f"with it, because {reason}"
        )
    loaded = state.state()
    replayed = load(journal, settings, features, from_snapshot=False).state()
    different = [key for key in {**loaded, **replayed} if not _equal(loaded.get(key), replayed.get(key))]
    result = CheckResult(f"the snapshot after event {last} and the events after it give the same state as all events")
    if different:
        result.problems.append(
            f"the snapshot after event {last} gives another {', '.join(different)} than all events do"
        )
    return result


def _check_counters(db: Connection, fleet: Fleet) -> CheckResult:
    """Checks that the turns that the state counts are those that are recorded, and that the books balance."""
    result = CheckResult("this policy guarantees nothing")
    counts = {kind: np.zeros(len(fleet.ids), np.int64) for kind in KINDS}
    kept = (
        "SELECT row, kind, COUNT(*) FROM turns WHERE round > ? AND round <= ? AND round NOT IN (SELECT round FROM "
        "open_round) GROUP BY row, kind"
    )
    for row, kind, count in db.execute(kept, (read_summary(db).round, fleet.round)):
        counts[kind][row] = count
    dropped = read_totals(db, len(fleet.ids))
    counts = {kind: count + dropped.counts[kind] for kind, count in counts.items()}
    guarantee = fleet.policy.guarantee if fleet.ids else None
    certificate = fleet.policy.certificate() if fleet.ids else None
    if guarantee is not None and certificate is not None:
        paid = counts["arrived"] if guarantee.counts == "completed" else np.sum(list(counts.values()), axis=0)
        if isinstance(fleet, SlotFleet) and guarantee.counts == "selected":
            paid[fleet.running.rows] += 1  # turns count when they are given
        result.problems.extend(
            f"{fleet.ids[row]!r} was paid {certificate.turns[row]} turns according to the state, but {paid[row]} "
            "according to its turns"
            for row in np.flatnonzero(certificate.turns != paid).tolist()
        )
        if not certificate.books_balance:
            unbalanced = pluralize(int((~certificate.balanced).sum()), "client")
            result.problems.append(f"the books of {unbalanced} do not balance")
        result.summary = f"the books balance for {len(fleet.ids):,} clients and agree with the recorded turns"
    return result


def _describe_promise(fleet: Fleet) -> CheckResult:
    certificate = fleet.certificate() if fleet.ids else None
    if certificate is None:
        return CheckResult("nothing is promised" if fleet.ids else "there are no clients yet")
    return CheckResult(certificate.summary().sentence(fleet.ids.__getitem__))


def _equal(left: Any, right: Any) -> bool:
    """Returns whether two values are equal; floats may differ in the last digits, as machines round differently."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and left.dtype.kind == "f":
        return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-9, atol=1e-12, equal_nan=True))
    return type(left) is type(right) and bool(np.array_equal(left, right))
