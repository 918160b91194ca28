"""The journal of a fleet: one SQLite file, in which every change is one transaction.

`turnout.live.journal.schema` describes its tables. All other modules of the scheduler use only `Journal` and
`Changes`, whose arguments and results are values of the scheduler, so that another database could take their place.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.answers import StoredAnswer, read_answer
from turnout.live.journal.changes import Changes
from turnout.live.journal.figures import JournalFigures, WriterFigures
from turnout.live.journal.redaction import (
    UNCLEAN,
    Redaction,
    continue_redaction,
    is_offer_dropped,
    is_unclean,
    pending_redactions,
    redact_pending_event,
    redact_pending_turn,
)
from turnout.live.journal.schema import FLEET, INITIAL, INITIAL_DIGEST, READABLE, upgrade
from turnout.live.journal.summary import (
    FleetTotals,
    Summary,
    has_summaries,
    last_event,
    read_summary,
    read_summary_state,
    read_totals,
)
from turnout.live.turns.records import (
    OpenRound,
    RecordedOffer,
    Turn,
    digest_of,
    offer_digest,
    settings_digest,
    turn_from_row,
    unpack_offer,
    unpack_open,
)
from turnout.live.turns.slots.records import Flight, unpack_flight
from turnout.log import get_log
from turnout.storage.encoding.packing import parse_stored, unpack_snapshot
from turnout.storage.files.database import create, single_value, translate_sqlite_errors
from turnout.storage.files.lock import Writer, WriterLock
from turnout.storage.files.storefile import StoreFile

log = get_log("turnout.live")
#: Files of up to this many bytes are rewritten after a client was forgotten.
VACUUM_UP_TO = 64 * 2**20
#: The number of ids that one query reads; they are at most 64 MiB.
IDS_AT_ONCE = 65_536
#: A control character that ids seldom contain; a constant, because SQLite takes twice as long with a parameter.
SEPARATOR = "\x1f"


class SavedState(NamedTuple):
    """A state that is stored in a file.

    Attributes:
        event: The number of the event after which it was taken.
        state: The state.
    """

    event: int
    state: dict[str, Any]


class Journal:
    """Reads and writes the file of a fleet. It knows nothing about policies; all its errors are StoreErrors.

    Args:
        path: The file, which must exist.
        read_only: Whether the file is only read.
        reporting: Whether only outcomes are written, by a process beside the scheduler.
        takeover: Whether to replace a process that holds the file but hangs; it can no longer write afterwards.
        accept_older: Whether a file that has lost commits is opened in its older state.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        reporting: bool = False,
        takeover: bool = False,
        accept_older: bool = False,
    ) -> None:
        self.path, self.read_only = path, read_only
        #: Whether outcomes wait, and in which state of the file: how often this process and others have changed it.
        self._outcomes: tuple[tuple[int, int], bool] | None = None
        if not path.exists():
            raise StoreError(f"there is no fleet at {path}: check the path, or create one with Scheduler.open(path)")
        schedules = not read_only and not reporting
        self._file = StoreFile(
            path,
            READABLE,
            "write" if schedules else "report" if reporting else "read",
            takeover=takeover,
            accept_older=accept_older,
            thoroughly=schedules,
        )
        try:
            if reporting and self._format < FLEET.format:
                raise StoreError(
                    f"{path} has fleet format {self._format}: open it once with Scheduler.open to upgrade it"
                )
            if schedules:
                self._claim_epoch()
                while self.redact():
                    pass
        except BaseException:
            self.close()
            raise

    @classmethod
    def make(cls, path: Path, settings: Mapping[str, Any]) -> None:
        """Creates the file of a new fleet atomically; a file that already exists is left as it is."""
        if not path.parent.is_dir():
            raise StoreError(f"there is no folder {path.parent}: create it, or choose another path")

        text = json.dumps(settings, sort_keys=True)
        meta = {"settings": text, "seal": settings_digest(text), "epoch": "0", "writer": "", "head": "", "round": "0"}

        def fill(db: sqlite3.Connection) -> None:
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

        with translate_sqlite_errors(path):
            lock = WriterLock(path)
            try:
                if not path.exists():
                    create(path, FLEET, fill)
            finally:
                lock.release()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the fleet, as the last amendment left them."""
        with self._file.reading():
            text = self._meta("settings")
            if settings_digest(text) != self._meta("seal"):
                raise self.corruption("the settings do not match their digest")
            return dict(parse_stored(text))

    @property
    def unit(self) -> TimeUnit:
        """What the numbers of turns count."""
        return TimeUnit.of(self.settings.get("concurrency"))

    @property
    def initial_settings(self) -> dict[str, Any] | None:
        """The settings with which the fleet was created; None if they were never amended."""
        with self._file.reading() as db:
            stored = dict(db.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", (INITIAL, INITIAL_DIGEST)))
            if INITIAL not in stored:
                return None
            if settings_digest(stored[INITIAL]) != stored.get(INITIAL_DIGEST):
                raise self.corruption("the settings at creation do not match their digest")
            return dict(parse_stored(stored[INITIAL]))

    def close(self) -> None:
        """Closes the file and releases the lock; a second call has no effect."""
        self._file.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Opens a read transaction, in which all queries see one state of the file; it may be nested."""
        with self._file.reading():
            yield

    @contextmanager
    def writing(self) -> Iterator[Changes]:
        """Opens a write transaction; refused once another process has taken over the file."""
        with self._file.writing() as db:
            yield Changes(db)

    @contextmanager
    def grouping(self) -> Iterator[None]:
        """Opens a write transaction that all `writing` blocks inside share; each of them that fails is undone alone."""
        with self._file.grouping():
            yield

    def answer(self, key: bytes) -> StoredAnswer | None:
        """Returns the answer that was stored with this key; None if there is none."""
        with self._file.reading() as db:
            found = read_answer(db, key)
        if found is not None and not found.is_intact:
            raise self.corruption("the stored answer to a request does not match its checksum")
        return found

    def figures(self) -> JournalFigures:
        """Returns the number of commits, how long the newest ones took, and sizes, for monitoring."""
        file = self._file
        return JournalFigures(file.commits, tuple(file.commit_times), file.log_bytes, self.path.stat().st_size)

    def writer_figures(self) -> WriterFigures:
        """Returns what the writer stored about itself when it closed the last round."""
        with self._file.reading() as db:
            stored = db.execute("SELECT value FROM meta WHERE key = 'figures'").fetchone()
        return WriterFigures() if stored is None else WriterFigures(**json.loads(stored[0]))

    def snapshot_age(self) -> int:
        """Returns the number of rounds that were closed since the last snapshot."""
        newest = "(SELECT COALESCE(MAX(seq), 0) FROM snapshot)"
        query = f"SELECT COUNT(*) FROM events WHERE kind IN ('close', 'fill') AND seq > {newest}"
        with self._file.reading() as db:
            return int(single_value(db, query))

    def check_writer(self) -> None:
        """Raises StoreError if another process has taken over the file."""
        with self._file.reading():
            self._file.guard()

    def reset(self) -> None:
        """Ends a transaction that an interrupted call has left open."""
        self._file.roll_back()
        self._outcomes = None

    def redact(self) -> bool:
        """Removes some more of what forgotten clients reported; returns whether anything is left to do.

        Each call is a short transaction, so that other processes can write in between.
        """
        with self._file.reading() as db:
            is_pending, is_left = bool(pending_redactions(db)), is_unclean(db)
        if is_pending:
            with self._file.writing() as db:
                continue_redaction(db)
            return True
        if is_left:
            self._file.checkpoint()
            if self.path.stat().st_size <= VACUUM_UP_TO:
                self._clean()
        return False

    def _clean(self) -> None:
        """Rewrites the file, so that unused parts of it contain no data of forgotten clients."""
        try:
            self.compact()
        except StoreError as error:  # for example no space: the mark stays, and a notice says so
            log.warning("%s could not be rewritten after a client was forgotten: %s", self.path, error)

    @property
    def is_unclean(self) -> bool:
        """Whether unused parts of the file may contain data of forgotten clients, which no query returns."""
        with self._file.reading() as db:
            return is_unclean(db)

    def compact(self) -> None:
        """Rewrites the file without unused space; this temporarily needs as much disk space again."""
        self._file.vacuum()
        with self._file.writing() as db:
            db.execute("DELETE FROM meta WHERE key = ?", (UNCLEAN,))

    # Queries

    def ids(self) -> list[str]:
        """Returns the ids of all clients, by row."""
        # One string for many rows, which SQLite joins, takes a third of the time of one string per row. Older files
        # have an index of ids; without it, rows are read in their order.
        query = f"SELECT GROUP_CONCAT(id, '{SEPARATOR}') FROM clients NOT INDEXED WHERE row BETWEEN ? AND ?"
        with self._file.reading() as db:
            count, first, last = db.execute("SELECT COUNT(*), MIN(row), MAX(row) FROM clients").fetchone()
            ids: list[str] = []
            if count and (first, last) == (0, count - 1):
                for start in range(0, count, IDS_AT_ONCE):
                    ids.extend(str(single_value(db, query, start, start + IDS_AT_ONCE - 1)).split(SEPARATOR))
            if len(ids) != count:  # an id contains the separator, or the table is damaged
                ids = [str(client) for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]
            return ids

    def summary(self) -> Summary:
        """Returns the place at which the events that are kept begin."""
        with self._file.reading() as db:
            return read_summary(db)

    def totals(self) -> FleetTotals:
        """Returns the turns before the summary of all clients, by row."""
        with self._file.reading() as db:
            return read_totals(db, single_value(db, "SELECT COUNT(*) FROM clients"))

    def snapshot(self, before: int | None = None) -> SavedState | None:
        """Returns the newest state that is stored: the last snapshot or, if there is none, the summary.

        Args:
            before: Only states before this round was closed are of use.
        """
        with self._file.reading() as db:
            rounds = "round" if has_summaries(db) else "NULL"
            for seq, round_ in db.execute(f"SELECT seq, {rounds} FROM snapshot ORDER BY seq DESC").fetchall():
                if before is not None and round_ is not None and round_ >= before:
                    continue
                data, digest = db.execute("SELECT data, digest FROM snapshot WHERE seq = ?", (seq,)).fetchone()
                if digest != digest_of(b"", str(seq), data):
                    raise self.corruption("the snapshot does not match its digest")
                state = unpack_snapshot(data)
                if before is None or int(state["round"]) < before:
                    return SavedState(int(seq), state)
            first = self.first_state()
            return None if first is None or (before is not None and int(first.state["round"]) >= before) else first

    def first_state(self) -> SavedState | None:
        """Returns the state at which the events that are kept begin: the summary; None if all events are kept."""
        with self._file.reading() as db:
            summary = read_summary(db)
            return SavedState(summary.event, read_summary_state(db)) if summary.event else None

    def replay_start(self) -> SavedState | None:
        """Returns the oldest state from which the promise can be computed again, event by event.

        That is the summary or, if a large fleet has dropped the availability of clients in later rounds, the newest
        snapshot. None if all events can be used.
        """
        return self.first_state() if self.has_all_availability() else self.snapshot()

    def events(self, after: int = 0, limit: int = -1) -> Iterator[tuple[int, str, bytes, bytes | None]]:
        """Yields (number, kind, data, packed availability) of the events after event `after`, checking each digest.

        At most `limit` events are read; −1 stands for all. Events before the summary are not kept.
        """
        with self._file.reading() as db:
            summary = read_summary(db)
            if after <= summary.event:
                after, previous = summary.event, summary.digest
            else:
                previous = single_value(db, "SELECT digest FROM events WHERE seq = ?", after)
            # The first event after the boundary of a redaction still follows from the digest before the redaction.
            pending = pending_redactions(db)
            boundaries = {redaction.boundary: redaction.digest for redaction in pending}
            stored = db.execute(
                "SELECT e.seq, e.kind, e.data, e.digest, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq "
                "WHERE e.seq > ? ORDER BY e.seq LIMIT ?",
                (after, limit),
            )
            for expected, (seq, kind, data, digest, availability) in enumerate(stored, start=after + 1):
                if seq - 1 in boundaries:
                    previous = bytes.fromhex(boundaries[seq - 1])
                if seq != expected or digest != digest_of(previous, kind, data):
                    raise self.corruption(f"event {expected} is missing or does not match its digest")
                previous = digest
                yield seq, kind, redact_pending_event(pending, seq, kind, data), availability

    def amendments(self, until: int | None = None) -> list[bytes]:
        """Returns the data of all amendments, in order; those up to event `until`, if it is given."""
        with self._file.reading() as db:
            summary, last = read_summary(db), self.last_event() if until is None else until
            query = "SELECT data FROM events WHERE kind = 'amend' AND seq > ? AND seq <= ? ORDER BY seq"
            kept = [data for (data,) in db.execute(query, (summary.event, last))]
            return [*(data for number, data in summary.amendments if number <= last), *kept]

    def forgotten(self) -> list[int]:
        """Returns the rows of the clients that were forgotten since the summary."""
        with self._file.reading() as db:
            query = "SELECT data FROM events WHERE kind = 'forget' AND seq > ? ORDER BY seq"
            return [int(parse_stored(data)["row"]) for (data,) in db.execute(query, (read_summary(db).event,))]

    def last_event(self) -> int:
        """Returns the number of the newest event; 0 before the first."""
        with self._file.reading() as db:
            return last_event(db)[0]

    def has_all_availability(self) -> bool:
        """Returns whether the availability of clients is stored for every closed round since the summary."""
        with self._file.reading() as db:
            first = read_summary(db).event
            closed = single_value(db, "SELECT COUNT(*) FROM events WHERE kind IN ('close', 'fill') AND seq > ?", first)
            return bool(closed == single_value(db, "SELECT COUNT(*) FROM masks WHERE seq > ?", first))

    def open_round(self) -> OpenRound | None:
        """Returns the open round, or None if no round is open."""
        with self._file.reading() as db:
            stored = db.execute("SELECT round, data, digest FROM open_round").fetchone()
        if stored is None:
            return None
        number, data, digest = stored
        if digest != digest_of(b"", str(number), data):
            raise self.corruption(f"the open round {number} does not match its digest")
        return unpack_open(data)

    def flights(self) -> dict[int, Flight]:
        """Returns the turns under way of a fleet without rounds, by decision."""
        with self._file.reading() as db:
            stored = db.execute("SELECT round, data, digest FROM open_round ORDER BY round").fetchall()
        flights = {}
        for number, data, digest in stored:
            if digest != digest_of(b"", str(number), data):
                raise self.corruption(f"the turn {number} that is under way does not match its digest")
            flights[int(number)] = unpack_flight(data)
        return flights

    def count_joined(self, event: int) -> int:
        """Returns how many clients had joined by this event, inclusive; by the summary, if the event is before it."""
        with self._file.reading() as db:
            summary = read_summary(db)
            query = "SELECT data FROM events WHERE kind = 'join' AND seq > ? AND seq <= ?"
            return summary.clients + sum(
                len(parse_stored(data)) for (data,) in db.execute(query, (summary.event, event))
            )

    def rounds_with_offers(self) -> list[int]:
        """Returns the rounds whose offers are recorded."""
        with self._file.reading() as db:
            if not has_offers(db):
                return []
            return [int(number) for (number,) in db.execute("SELECT round FROM offers ORDER BY round")]

    def offer(self, round: int) -> RecordedOffer | None:
        """Returns the offer from which the cohort of a round was selected, or None if it is not recorded."""
        with self._file.reading() as db:
            if not has_offers(db):
                return None
            stored = db.execute("SELECT volunteers, data, digest FROM offers WHERE round = ?", (round,)).fetchone()
            if stored is None or is_offer_dropped(pending_redactions(db), round, stored[0]):
                return None
        volunteers, data, digest = stored
        if digest != offer_digest(round, volunteers, data):
            raise self.corruption(f"the offer of {self.unit} {round} does not match its digest")
        return unpack_offer(data, volunteers)

    def last_offer(self, round: int) -> int | None:
        """Returns the last round up to `round` whose offer is recorded; None if there is none."""
        with self._file.reading() as db:
            found = db.execute("SELECT MAX(round) FROM offers WHERE round <= ?", (round,)).fetchone()[0]
        return None if found is None else int(found)

    def turns_between(self, first: int, last: int) -> list[Turn]:
        """Returns the turns of the rounds from `first` to `last`."""
        query = "SELECT * FROM turns WHERE round BETWEEN ? AND ? ORDER BY round, row"
        with self._file.reading() as db:
            return self._decode_turns(db, db.execute(query, (first, last)).fetchall())

    def head(self) -> str:
        """Returns the digest of the newest event, which covers all events."""
        with self._file.reading():
            return self._meta("head")

    def turns_of(self, round: int) -> list[Turn]:
        """Returns the turns of all clients that were invited in a round, by row."""
        with self._file.reading() as db:
            stored = db.execute("SELECT * FROM turns WHERE round = ? ORDER BY row", (round,)).fetchall()
            return self._decode_turns(db, stored)

    def turns_of_client(self, client: str) -> list[Turn]:
        """Returns all turns of a client, in order."""
        with self._file.reading() as db:
            stored = db.execute("SELECT * FROM turns WHERE id = ? ORDER BY round", (client,)).fetchall()
            return self._decode_turns(db, stored)

    def turn(self, client: str, round: int | None = None) -> Turn | None:
        """Returns the turn of a client in a round, by default its newest; None if there is none."""
        query, values = "SELECT * FROM turns WHERE id = ? ORDER BY round DESC LIMIT 1", (client,)
        if round is not None:
            query, values = "SELECT * FROM turns WHERE id = ? AND round = ?", (client, round)  # type: ignore[assignment]
        with self._file.reading() as db:
            found = self._decode_turns(db, db.execute(query, values).fetchall())
        return found[0] if found else None

    def turns_of_clients(self, clients: Sequence[str], round: int) -> dict[str, Turn]:
        """Returns the turns of these clients in a round, by id; clients without one are missing."""
        query = "SELECT * FROM turns INDEXED BY turns_by_id WHERE round = ? AND id IN (SELECT value FROM json_each(?))"
        with self._file.reading() as db:
            stored = db.execute(query, (round, json.dumps(clients, ensure_ascii=False))).fetchall()
            return {turn.id: turn for turn in self._decode_turns(db, stored)}

    @property
    def changes(self) -> int:
        """A number that changes whenever another connection has written to the file."""
        return self._file.changes

    def open_round_number(self) -> int | None:
        """Returns the number of the open round, or None if no round is open."""
        with self._file.reading() as db:
            stored = db.execute("SELECT round FROM open_round").fetchone()
        return None if stored is None else int(stored[0])

    def is_open(self, round: int) -> bool:
        """Returns whether a round is open, or the turn of a decision under way."""
        with self._file.reading() as db:
            return db.execute("SELECT 1 FROM open_round WHERE round = ?", (round,)).fetchone() is not None

    def turns_under_way(self) -> list[Turn]:
        """Returns the turns of the open round, or those in slots, with the outcomes reported so far, in their order."""
        query = "SELECT t.* FROM turns t JOIN open_round o ON t.round = o.round ORDER BY t.round, t.row"
        with self._file.reading() as db:
            return self._decode_turns(db, db.execute(query).fetchall())

    def has_outcomes(self) -> bool:
        """Returns whether the outcome of a turn under way was reported; the file is read only if it has changed."""
        query = "SELECT EXISTS (SELECT 1 FROM open_round o JOIN turns t ON t.round = o.round WHERE t.kind IS NOT NULL)"
        with self._file.reading() as db:
            changes = (db.total_changes, self._file.changes)
            if self._outcomes is None or self._outcomes[0] != changes:
                self._outcomes = (changes, bool(single_value(db, query)))
        return self._outcomes[1]

    def turns_since(self, round: int) -> list[Turn]:
        """Returns all turns after a round, and checks that the index by id contains each of them."""
        indexed = (
            "SELECT COUNT(*) FROM turns t WHERE round > ? AND EXISTS (SELECT 1 FROM turns u INDEXED BY turns_by_id "
            "WHERE u.id = t.id AND u.round = t.round AND u.row = t.row)"
        )
        with self._file.reading() as db:
            stored = db.execute("SELECT * FROM turns WHERE round > ? ORDER BY round, row", (round,)).fetchall()
            if single_value(db, indexed, round) != len(stored):
                raise self.corruption("the index of turns by id is incomplete")
            return self._decode_turns(db, stored)

    def last_closed_round(self) -> int:
        """Returns the number of the last closed round; 0 before the first."""
        with self._file.reading():
            return self._meta_count("round")

    def check_head(self) -> None:
        """Raises StoreError if the newest events are missing."""
        with self._file.reading() as db:
            if last_event(db)[1].hex() != self._meta("head"):
                raise self.corruption("the newest events are missing")

    def pending_late_turns(self, after: int = 0) -> list[Turn]:
        """Returns the turns of late clients whose true times were reported but are not yet part of a closed round.

        Only rounds after round `after` are read: late clients of earlier ones can no longer report.
        """
        query = (
            "SELECT * FROM turns WHERE round > ? AND late_seconds IS NOT NULL AND folded IS NULL ORDER BY round, row"
        )
        with self._file.reading() as db:
            return self._decode_turns(db, db.execute(query, (after,)).fetchall())

    def _decode_turns(self, db: sqlite3.Connection, stored: Sequence[tuple[Any, ...]]) -> list[Turn]:
        """Checks turns against their checksums, and returns them without what forgotten clients reported."""
        pending = pending_redactions(db) if stored else []
        return [self._decode_turn(row, pending) for row in stored]

    def _decode_turn(self, stored: tuple[Any, ...], pending: Sequence[Redaction]) -> Turn:
        turn, checksum = turn_from_row(stored)
        if turn.checksum != checksum:
            raise self.corruption(f"the turn of {turn.id!r} in {self.unit} {turn.round} does not match its checksum")
        return redact_pending_turn(pending, turn)

    @property
    def _format(self) -> int:
        with self._file.reading() as db:
            return int(single_value(db, "PRAGMA user_version"))

    def _claim_epoch(self) -> None:
        """Upgrades the file if necessary, and makes this process its writer."""
        format_ = self._format
        with self._file.writing() as db:
            upgrade(db, format_)
            epoch = self._meta_count("epoch") + 1
            db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
            db.execute("UPDATE meta SET value = ? WHERE key = 'writer'", (str(Writer.current()),))
        self._epoch = epoch
        self._file.guard = self._check_epoch

    def _check_epoch(self) -> None:
        if self._meta_count("epoch") != self._epoch:
            writer = self._meta("writer")
            raise StoreError(
                f"{self.path} was taken over by {writer}: this scheduler can no longer write, so stop its process"
            )

    def _meta(self, key: str) -> str:
        return str(single_value(self._file.connection, "SELECT value FROM meta WHERE key = ?", key))

    def _meta_count(self, key: str) -> int:
        value = self._meta(key)
        if not value.isdecimal():
            raise self.corruption(f"{key} is {value!r} instead of a number")
        return int(value)

    def corruption(self, problem: str) -> StoreError:
        """Returns the error that reports a damaged file."""
        return StoreError(f"{self.path} is damaged ({problem}): restore it from a backup", damaged=self.path)


def is_fleet(path: Path) -> bool:
    """Returns whether the application id of a file is that of a fleet."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path), path.open("rb") as file:
        return file.read(72)[68:] == FLEET.application_id.to_bytes(4, "big")


def has_offers(db: sqlite3.Connection) -> bool:
    """Returns whether the file has the table of offers, which older versions did not create."""
    return bool(single_value(db, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'offers'"))
