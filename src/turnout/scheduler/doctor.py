"""What can be checked of a fleet's file, and what was found, in plain words."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from turnout.kernel.errors import StoreError, TurnoutError
from turnout.kernel.version import __version__
from turnout.scheduler.features import Features
from turnout.scheduler.fleet import KINDS, Closed, Fleet
from turnout.scheduler.journal import FLEET, FORMAT_1, KEEP_MASKS, Journal
from turnout.scheduler.memory import Memory, load, stored_features
from turnout.scheduler.records import Turn, digest_of, turn_of, unpack_closed, unpack_open
from turnout.scheduler.settings import SchedulerSettings
from turnout.store.database import connect, plain_words
from turnout.store.wal import lost_commits

TOLD = 5
RESTORE = "restore the file from a backup"
FOLD_AGAIN = (
    "with the scheduler ended, `sqlite3 FILE 'DELETE FROM snapshot'` lets the next opening fold all events anew"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at one part of the file came to; `sound` is None for what is told and not judged."""

    part: str
    sound: bool | None
    words: str
    remedy: str = ""


@dataclass(slots=True)
class _Look:
    """What a check saw: in a word, and what is wrong."""

    words: str = ""
    wrong: list[str] = field(default_factory=list)


def examine(path: Path) -> list[Finding]:
    """Check everything that can be checked, and change nothing; a file that is not a fleet is refused."""
    _refuse_strangers(path)
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)) as db:
        db.execute("BEGIN")  # one view, also while a scheduler is at work
        readable = _finding("format", lambda: _format(db), "install the turnout that wrote it")
        pages = _finding(
            "pages", lambda: _pages(db, path), f"{RESTORE}; `sqlite3 FILE .recover` saves what can still be read"
        )
        if not readable.sound:
            return [readable, pages]
        checks: dict[str, Callable[[], _Look]] = {
            "log": lambda: _log(path),
            "settings": lambda: _settings(db),
            "events": lambda: _events(db),
            "masks": lambda: _masks(db),
            "clients": lambda: _clients(db),
            "turns": lambda: _turns(db),
            "rounds": lambda: _rounds(db),
            "open round": lambda: _open_round(db),
        }
        found = [readable, pages, *(_finding(part, check) for part, check in checks.items())]
        foldable = all(one.sound for one in found) and not _gaps(db)
        found.extend(_from_memory(path, FOLD_AGAIN if foldable else RESTORE))
        told = (_finding("writer", lambda: _writer(db, path)), _finding("size", lambda: _size(db, path)))
        named = (replace(one, remedy=one.remedy.replace("FILE", shlex.quote(str(path)))) for one in found)
        return [*named, *(Finding(one.part, None, one.words) for one in told)]


def _finding(part: str, check: Callable[[], _Look], remedy: str = RESTORE) -> Finding:
    try:
        look = check()
    except Exception as damage:  # damaged bytes can lead to anything
        return Finding(part, False, f"cannot be read ({' '.join(str(damage).split())})", remedy)
    if not look.wrong:
        return Finding(part, True, look.words)
    more = f"; and {len(look.wrong) - TOLD:,} more" if len(look.wrong) > TOLD else ""
    return Finding(part, False, "; ".join(look.wrong[:TOLD]) + more, remedy)


def _refuse_strangers(path: Path) -> None:
    """A fleet is known by its mark, in whatever state the rest is."""
    if not path.is_file():
        raise StoreError(f"there is no fleet at {path}: check the path")
    with plain_words(path):
        with path.open("rb") as file:
            mark = file.read(72)[68:]
        if mark != FLEET.application_id.to_bytes(4, "big"):
            connect(path, FLEET, read_only=True).close()


# The file


def _format(db: sqlite3.Connection) -> _Look:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    look = _Look(f"fleet format {version}, read by turnout {__version__} with SQLite {sqlite3.sqlite_version}")
    if version not in (FORMAT_1.format, FLEET.format):
        look.wrong.append(f"it is of fleet format {version}, and turnout {__version__} reads up to {FLEET.format}")
    return look


def _pages(db: sqlite3.Connection, path: Path) -> _Look:
    look = _Look()
    (pages,), (page_size,) = (db.execute(f"PRAGMA {word}").fetchone() for word in ("page_count", "page_size"))
    size = path.stat().st_size
    if size < pages * page_size and not _size_of(path, "-wal"):
        look.wrong.append(f"{size:,} of {pages * page_size:,} bytes are there")
    for (complaint,) in db.execute("PRAGMA integrity_check"):
        if complaint != "ok":
            look.wrong.append(" ".join(complaint.split()))
    look.words = f"{pages:,} pages of {page_size:,} bytes are as SQLite wrote them"
    return look


def _log(path: Path) -> _Look:
    lost = lost_commits(path)
    wrong = [f"{path.name}-wal is damaged, and {lost:,} or more changes behind the damage are lost"] if lost else []
    return _Look("all that was committed can be read", wrong)


def _settings(db: sqlite3.Connection) -> _Look:
    meta = dict(db.execute("SELECT key, value FROM meta"))
    told = json.loads(meta["settings"])
    settings, features = SchedulerSettings.from_told(told), stored_features(told["features"])
    look = _Look(f"policy {settings.policy}, {features.outputs} features")
    if digest_of(b"", "settings", meta["settings"].encode()).hex() != meta["seal"]:
        look.wrong.append("they are not what was written")
    return look


# What is written, part by part


def _events(db: sqlite3.Connection) -> _Look:
    """The chain of digests."""
    look, kinds, before, expected = _Look(), Counter[str](), b"", 1
    for seq, kind, data, digest in db.execute("SELECT seq, kind, data, digest FROM events ORDER BY seq"):
        if seq != expected:
            look.wrong.append(f"event {expected} is missing")
        elif digest != digest_of(before, kind, data):
            look.wrong.append(f"event {seq} ({kind}) is not what was written")
        before, expected = digest, seq + 1
        kinds[kind] += 1
    if before.hex() != _meta(db, "head"):
        look.wrong.append("the newest events are gone")
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    look.words = f"{kinds.total():,} events{f' ({told})' if told else ''}, each sealed with all before it"
    return look


def _masks(db: sqlite3.Connection) -> _Look:
    look, held, gone, expected = _Look(), 0, 0, set()
    saved, (clients,) = _snapshot_seq(db), db.execute("SELECT COUNT(*) FROM clients").fetchone()
    for seq, data in _closes(db):
        expected.add(seq)
        found = db.execute("SELECT data FROM masks WHERE seq = ?", (seq,)).fetchone()
        header = unpack_closed(data, None)[1]
        if found is None and seq <= saved and clients > KEEP_MASKS:
            gone += 1
        elif found is None:
            look.wrong.append(f"who was available in round {header['round']} is missing")
        elif hashlib.sha256(found[0]).hexdigest() != header["mask"]:
            look.wrong.append(f"who was available in round {header['round']} is not what was written")
        held += found is not None
    for (seq,) in db.execute("SELECT seq FROM masks"):
        if seq not in expected:
            look.wrong.append(f"a mask belongs to event {seq}, which closes no round")
    look.words = f"who was available is known of {held:,} rounds"
    if gone:
        look.words += f"; of {gone:,} it was dropped with a snapshot, as this fleet is large"
    return look


def _clients(db: sqlite3.Connection) -> _Look:
    look = _Look()
    joined = [client for (data,) in _data(db, "join") for client in json.loads(data)]
    named = db.execute("SELECT row, id FROM clients ORDER BY row").fetchall()
    if len(named) != len(joined):
        look.wrong.append(f"{len(named):,} clients are named, and {len(joined):,} have joined")
    for place, ((row, client), other) in enumerate(zip(named, joined, strict=False)):
        if (row, client) != (place, other):
            look.wrong.append(f"row {row} is {client!r}, and the client that joined there is {other!r}")
    look.words = f"{len(named):,} clients, as they joined"
    return look


def _turns(db: sqlite3.Connection) -> _Look:
    """Every turn against its seal."""
    look, count = _Look(), 0
    for turn, seal in map(turn_of, db.execute("SELECT * FROM turns ORDER BY round, row")):
        count += 1
        if turn.seal != seal:
            look.wrong.append(f"what {turn.id!r} reported in round {turn.round} is not what was written")
    look.words = f"{count:,} turns, each as it was sealed"
    return look


def _rounds(db: sqlite3.Connection) -> _Look:
    """Turns against the events that closed their rounds: nothing lost, nothing twice."""
    look, closed_rounds = _Look(), 0
    ids = [client for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]
    late: dict[tuple[int, int], tuple[int, float]] = {}
    for _, data in _closes(db):
        closed = unpack_closed(data, None)[0]
        if closed.round != closed_rounds + 1:
            look.wrong.append(f"round {closed.round} follows round {closed_rounds}")
        closed_rounds = closed.round
        look.wrong.extend(_disagreements(closed, _turns_of(db, closed.round), ids))
        for round_, row, seconds in zip(
            closed.late_rounds.tolist(), closed.late_rows.tolist(), closed.late_seconds.tolist(), strict=True
        ):
            if (round_, row) in late:
                look.wrong.append(f"the late time of {ids[row]!r} in round {round_} was learned twice")
            late[round_, row] = (closed.round, seconds)
    if str(closed_rounds) != _meta(db, "round"):
        look.wrong.append(f"the last closed round should be {_meta(db, 'round')}, and is {closed_rounds}")
    look.wrong.extend(_late_disagreements(db, dict(late)))
    opened = db.execute("SELECT COALESCE(MAX(round), 0) FROM open_round").fetchone()[0]
    for (stray,) in db.execute("SELECT DISTINCT round FROM turns WHERE round > ?", (closed_rounds,)):
        if stray != opened:
            look.wrong.append(f"there are turns of round {stray}, which was never closed and is not open")
    look.words = f"{closed_rounds:,} closed rounds and {len(late):,} late times agree with the turns"
    return look


def _disagreements(closed: Closed, turns: dict[int, Turn], ids: list[str]) -> Iterator[str]:
    if sorted(turns) != sorted(closed.rows.tolist()):
        yield f"round {closed.round} was closed with {len(closed.rows)} clients, and {len(turns)} have turns in it"
    told = (closed.rows, closed.kinds, closed.seconds, closed.told_losses)
    for row, kind, seconds, loss in zip(*(array.tolist() for array in told), strict=True):
        turn = turns.get(row)
        if turn is None:
            continue
        if turn.id != ids[row]:
            yield f"in round {closed.round} row {row} is called {turn.id!r}, and its client {ids[row]!r}"
        if turn.kind != KINDS[kind] or (turn.seconds is not None and turn.seconds != seconds):
            yield (
                f"in round {closed.round} {turn.id!r} was closed as {KINDS[kind]} after {seconds:g} s, and its turn "
                f"says {turn.kind}{'' if turn.seconds is None else f' after {turn.seconds:g} s'}"
            )
        if KINDS[kind] in ("arrived", "surplus") and turn.loss != (None if math.isnan(loss) else loss):
            yield f"in round {closed.round} {turn.id!r} was closed with loss {loss:g}, and its turn says {turn.loss}"


def _late_disagreements(db: sqlite3.Connection, late: dict[tuple[int, int], tuple[int, float]]) -> Iterator[str]:
    forgotten = _forgotten(db)
    for turn, _ in map(turn_of, db.execute("SELECT * FROM turns WHERE folded IS NOT NULL ORDER BY round, row")):
        learned = late.pop((turn.round, turn.row), None)
        if turn.row not in forgotten and learned != (turn.folded, turn.late_seconds):
            yield f"the late time of {turn.id!r} in round {turn.round} is not the one that was learned"
    for round_, row in late:
        if row not in forgotten:
            yield f"a late time of row {row} in round {round_} was learned, and no turn knows of it"


def _open_round(db: sqlite3.Connection) -> _Look:
    found = db.execute("SELECT round, data, digest FROM open_round").fetchall()
    if not found:
        return _Look("none is open")
    look, (number, data, digest), closed = _Look(), found[0], int(_meta(db, "round"))
    if digest != digest_of(b"", str(number), data):
        look.wrong.append(f"round {number} is not what was handed out")
    opened = unpack_open(data)
    if len(found) > 1 or opened.round != closed + 1:
        look.wrong.append(f"round {opened.round} is open, and the last that was closed is {closed}")
    if sorted(_turns_of(db, opened.round)) != sorted(opened.rows.tolist()):
        look.wrong.append(f"round {opened.round} is open with other clients than have turns in it")
    look.words = f"round {opened.round} is open with {len(opened.rows):,} clients"
    return look


# What memory makes of it


class _Overlooking(Journal):
    """A journal whose snapshot can be overlooked: then everything is folded from the first event on."""

    overlooked = False

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """None, if it is to be overlooked."""
        return None if self.overlooked else super().snapshot()


def _from_memory(path: Path, remedy: str) -> Iterator[Finding]:
    """Load the file as a scheduler would."""
    try:
        with closing(_Overlooking(path, read_only=True)) as journal, journal.reading() as db:
            told = journal.settings
            settings, features = SchedulerSettings.from_told(told), stored_features(told["features"])
            memory = load(journal, settings, features)
            yield _finding("memory", lambda: _folded(journal, db, memory, settings, features), remedy)
            yield _finding("promise", lambda: _promise(db, memory.fleet))
    except TurnoutError as refused:
        yield Finding("memory", False, f"a scheduler refuses this file: {refused}", remedy)


def _folded(
    journal: _Overlooking, db: sqlite3.Connection, memory: Memory, settings: SchedulerSettings, features: Features
) -> _Look:
    """The snapshot and the rest of the events come to the same as all events."""
    saved = _snapshot_seq(db)
    if not saved:
        return _Look("the fold of all events; no snapshot was taken yet")
    if gaps := _gaps(db):
        return _Look(f"the snapshot after event {saved} and the rest; before it, {gaps}")
    journal.overlooked = True
    fast, slow = memory.state(), load(journal, settings, features).state()
    other = [name for name in {**fast, **slow} if not _same(fast.get(name), slow.get(name))]
    wrong = [f"the snapshot after event {saved} and the rest give another {', '.join(other)} than all events"]
    return _Look(
        f"the snapshot after event {saved} and the rest come to the same as all events", wrong if other else []
    )


def _promise(db: sqlite3.Connection, fleet: Fleet) -> _Look:
    """What memory has counted is what the turns say, and the certificate holds."""
    look, counts = _Look("this policy promises nothing"), {kind: np.zeros(len(fleet.ids), np.int64) for kind in KINDS}
    for row, kind, count in db.execute(
        "SELECT row, kind, COUNT(*) FROM turns WHERE round <= ? GROUP BY row, kind", (fleet.round,)
    ):
        counts[kind][row] = count
    came, lost = counts["arrived"] + counts["surplus"], counts["late"] + counts["failed"]
    known = np.ones(len(fleet.ids), np.int64)
    known[list(_forgotten(db))] = 0
    look.wrong.extend(_miscounted(fleet, "came back", fleet.numbers["arrived"], came * known))
    look.wrong.extend(_miscounted(fleet, "was lost", fleet.numbers["lost"], lost * known))
    certify = getattr(fleet.policy, "certificate", None) if fleet.ids else None
    if certify is not None:
        certificate = certify()
        paid = counts["arrived"] if getattr(fleet.policy, "paid", "") == "contributed" else sum(counts.values())
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


# Told, not judged


def _writer(db: sqlite3.Connection, path: Path) -> _Look:
    """By what processes say of themselves: taking the lock, even for a moment, could turn a scheduler away."""
    meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('writer', 'epoch')"))
    lock = path.with_name(f"{path.name}.lock")
    holder = lock.read_text(encoding="utf-8").strip() if lock.exists() else ""
    last = f"writer number {meta['epoch']} was {meta['writer'] or 'nobody'}"
    if not holder:
        return _Look(f"{last}; nobody holds the file now")
    if _is_gone(holder):
        return _Look(f"{last}; {holder} was killed or broke down: open the file again to go on, nothing is lost")
    return _Look(f"{last}; {holder} holds the file now")


def _is_gone(holder: str) -> bool:
    """Whether a process of this machine is no more; of others nothing is known."""
    found = re.fullmatch(r"process (\d+) on host (.*)", holder)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _size(db: sqlite3.Connection, path: Path) -> _Look:
    (free,), (page_size,) = (db.execute(f"PRAGMA {word}").fetchone() for word in ("freelist_count", "page_size"))
    return _Look(
        f"{path.stat().st_size / 2**20:,.1f} MiB, {free * page_size / 2**20:,.1f} of them free for use, and "
        f"{_size_of(path, '-wal') / 2**20:,.1f} MiB in the log"
    )


# Reading


def _meta(db: sqlite3.Connection, key: str) -> str:
    return str(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])


def _data(db: sqlite3.Connection, kind: str) -> Iterator[tuple[bytes]]:
    yield from db.execute("SELECT data FROM events WHERE kind = ? ORDER BY seq", (kind,))


def _closes(db: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    yield from db.execute("SELECT seq, data FROM events WHERE kind = 'close' ORDER BY seq")


def _turns_of(db: sqlite3.Connection, round_: int) -> dict[int, Turn]:
    found = db.execute("SELECT * FROM turns WHERE round = ?", (round_,))
    return {turn.row: turn for turn, _ in map(turn_of, found)}


def _forgotten(db: sqlite3.Connection) -> set[int]:
    return {int(json.loads(data)["row"]) for (data,) in _data(db, "forget")}


def _gaps(db: sqlite3.Connection) -> str:
    """Why the snapshot cannot be done without, if it cannot."""
    if _forgotten(db):
        return "clients were forgotten"
    masks, closes = db.execute("SELECT (SELECT COUNT(*) FROM masks), SUM(kind = 'close') FROM events").fetchone()
    return "who was available was dropped" if masks < (closes or 0) else ""


def _snapshot_seq(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM snapshot").fetchone()[0])


def _size_of(path: Path, suffix: str) -> int:
    beside = path.with_name(path.name + suffix)
    return beside.stat().st_size if beside.exists() else 0
