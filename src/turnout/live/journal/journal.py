"""The journal of a fleet: a file or a schema of a database, in which every change is one transaction.

`turnout.live.journal.schema` describes its tables. Other modules of `live` change the file with `Changes`, which
`Journal.writing` opens, and read it by the methods of `Journal`, or by the functions of `summary` and `turns` inside
`Journal.reading`, where several queries see one state of the file.

Amendments are events that change the settings. The table `meta` holds the present settings, so that every process reads
those. The first amendment also stores the settings with which the fleet was created, from which a replay of all events
starts. Each event holds the settings after it, so the settings at any event are those of the last amendment before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from turnout.closing import close_on_error
from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.live.journal import turns
from turnout.live.journal.answers import StoredAnswer, read_answer
from turnout.live.journal.changes import Changes
from turnout.live.journal.schema import FLEET, INITIAL, INITIAL_DIGEST, corruption, meta_count, meta_value
from turnout.live.journal.summary import Summary, last_event, read_summary
from turnout.live.journal.turns import turns_where
from turnout.live.settings import SETTINGS
from turnout.live.turns.records import Turn, digest_of, settings_digest
from turnout.log import get_log
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.opening import create_store, open_store, store_exists
from turnout.storage.store import Access, Connection, Location, Modes, single_value

log = get_log("turnout.live")
#: Files of up to this many bytes are rewritten after a client was forgotten.
VACUUM_UP_TO = 64 * 2**20
#: The number of ids that one query reads; they are at most 64 MiB.
IDS_AT_ONCE = 65_536
#: A control character that ids seldom contain; `Dialect.JOINED_IDS` has it.
SEPARATOR = "\x1f"
#: The number of events that one query reads, if nobody needs fewer.
EVENTS_AT_ONCE = 500
#: The kind of the event.
AMEND = "amend"


class Journal:
    """Reads and writes the store of a fleet. It knows nothing about policies; all its errors are StoreErrors.

    Args:
        location: Where the store is, which must exist.
        access: "read"; "report": only outcomes are written, by a process beside the scheduler; "write".
        modes: How it is opened.
    """

    def __init__(self, location: Location, access: Access = "write", **modes: Unpack[Modes]) -> None:
        self.location = location = location.resolve() if isinstance(location, Path) else location
        #: Whether outcomes wait, and in which state of the file: how often this process and others have changed it.
        self._outcomes: tuple[tuple[int, int], bool] | None = None
        if not store_exists(location):
            raise StoreError(
                f"there is no fleet at {location}: check the path, or create one with Scheduler.open(path)"
            )
        schedules = access == "write"
        #: The store, with figures about its commits and its size; change it only by `writing`.
        self.file = open_store(location, FLEET, access, thoroughly=schedules, **modes)
        with close_on_error(self):
            while schedules and self.redact():
                pass

    @classmethod
    def make(cls, location: Location, settings: Mapping[str, Any]) -> None:
        """Creates the store of a new fleet atomically; one that already exists is left as it is."""
        text = json.dumps(settings, sort_keys=True)
        meta = {"settings": text, "seal": settings_digest(text), "epoch": "0", "writer": "", "head": "", "round": "0"}

        def fill(db: Connection) -> None:
            db.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))

        create_store(location, FLEET, fill)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the fleet, as the last amendment left them."""
        with self.file.reading() as db:
            text = meta_value(db, "settings")
            if settings_digest(text) != meta_value(db, "seal"):
                raise corruption(db, "the settings do not match their digest")
            return dict(parse_stored(text))

    def close(self) -> None:
        """Closes the file and releases the lock; a second call has no effect."""
        self.file.close()

    def reading(self) -> AbstractContextManager[Connection]:
        """Opens a read transaction, in which all queries see one state of the file; it may be nested."""
        return self.file.reading()

    @contextmanager
    def writing(self) -> Iterator[Changes]:
        """Opens a write transaction; refused once another process has taken over the file."""
        with self.file.writing() as db:
            yield Changes(db)

    def grouping(self) -> AbstractContextManager[None]:
        """Opens a write transaction that all `writing` blocks inside share; each of them that fails is undone alone."""
        return self.file.grouping()

    def answer(self, key: bytes) -> StoredAnswer | None:
        """Returns the answer that was stored with this key; None if there is none."""
        with self.file.reading() as db:
            answer = read_answer(db, key)
            if answer is not None and not answer.is_intact:
                raise corruption(db, "the stored answer to a request does not match its checksum")
            return answer

    def reset(self) -> None:
        """Ends a transaction that an interrupted call has left open."""
        self.file.roll_back()
        self._outcomes = None

    def redact(self) -> bool:
        """Removes some more of what forgotten clients reported; returns whether anything is left to do.

        Each call is a short transaction, so that other processes can write in between.
        """
        with self.file.reading() as db:
            is_pending, is_left = bool(turns.pending_redactions(db)), turns.needs_vacuum(db)
        if is_pending:
            with self.file.writing() as db:
                turns.continue_redaction(db)
            return True
        if is_left:
            self.file.checkpoint()
            try:
                if self.file.bytes <= VACUUM_UP_TO:  # so that unused parts of it contain no data of forgotten clients
                    self.compact()
            except StoreError as error:  # for example no space: the mark stays, and a notice says so
                log.warning("%s could not be rewritten after a client was forgotten: %s", self.location, error)
        return False

    @property
    def needs_vacuum(self) -> bool:
        """Whether unused parts of the file may contain data of forgotten clients, which no query returns."""
        with self.file.reading() as db:
            return turns.needs_vacuum(db)

    def compact(self) -> None:
        """Rewrites the file without unused space; this temporarily needs as much disk space again."""
        if self.file.vacuum():
            with self.file.writing() as db:
                db.execute("DELETE FROM meta WHERE key = ?", (turns.NEEDS_VACUUM,))

    # Queries

    def ids(self) -> list[str]:
        """Returns the ids of all clients, by row."""
        with self.file.reading() as db:
            # One string for many rows, which the engine joins, takes a third of the time of one string per row.
            query = f"SELECT {db.dialect.JOINED_IDS} FROM clients WHERE row BETWEEN ? AND ?"
            count, first, last = db.execute(
                "SELECT (SELECT COUNT(*) FROM clients), (SELECT MIN(row) FROM clients), (SELECT MAX(row) FROM clients)"
            ).fetchone()
            ids: list[str] = []
            if count and (first, last) == (0, count - 1):
                for start in range(0, count, IDS_AT_ONCE):
                    ids.extend(str(single_value(db, query, start, start + IDS_AT_ONCE - 1)).split(SEPARATOR))
            if len(ids) != count:  # an id contains the separator, or the table is damaged
                ids = [str(client) for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]
            return ids

    def summary(self) -> Summary:
        """Returns the place at which the events that are kept begin."""
        with self.file.reading() as db:
            return read_summary(db)

    def events(self, after: int = 0, limit: int = -1) -> Iterator[tuple[int, str, bytes, bytes | None]]:
        """Yields (number, kind, data, packed availability) of the events after event `after`, checking each digest.

        At most `limit` events are read; −1 stands for all. Events before the summary are not kept.
        """
        with self.file.reading() as db:
            summary = read_summary(db)
            if after <= summary.event:
                after, previous = summary.event, summary.digest
            else:
                previous = single_value(db, "SELECT digest FROM events WHERE seq = ?", after)
            # The first event after the boundary of a redaction still follows from the digest before the turns.
            pending = turns.pending_redactions(db)
            boundaries = {entry.boundary: entry.digest for entry in pending}
            stored = _stored_events(db, after, limit)
            for expected, (seq, kind, data, digest, availability) in enumerate(stored, start=after + 1):
                if seq - 1 in boundaries:
                    previous = bytes.fromhex(boundaries[seq - 1])
                if seq != expected or digest != digest_of(previous, kind, data):
                    raise corruption(db, f"event {expected} is missing or does not match its digest")
                previous = digest
                yield seq, kind, turns.redact_pending_event(pending, seq, kind, data), availability

    def newest_round(self) -> int:
        """Returns the number of the open round, or of the last closed round or decision."""
        with self.file.reading() as db:
            opened = single_value(db, "SELECT COALESCE(MAX(round), 0) FROM open_round")
            return max(meta_count(db, "round"), int(opened))

    def turns_between(self, first: int, last: int) -> list[Turn]:
        """Returns the turns of the rounds from `first` to `last`."""
        with self.file.reading() as db:
            return turns_where(db, "t.round BETWEEN ? AND ? ORDER BY t.round, t.row", first, last)

    def turns_of(self, round: int) -> list[Turn]:
        """Returns the turns of all clients that were invited in a round, by row."""
        with self.file.reading() as db:
            return turns_where(db, "t.round = ? ORDER BY t.row", round)

    def turns_of_client(self, client: str) -> list[Turn]:
        """Returns all turns of a client, in order."""
        with self.file.reading() as db:
            return turns_where(db, "t.id = ? ORDER BY t.round", client)

    def turns_running(self) -> list[Turn]:
        """Returns the turns of the open round, or those in slots, with the outcomes reported so far, in their order."""
        with self.file.reading() as db:
            return turns_where(db, "t.round IN (SELECT round FROM open_round) ORDER BY t.round, t.row")

    def has_outcomes(self) -> bool:
        """Returns whether the outcome of a running turn was reported; the file is read only if it has changed."""
        query = "SELECT EXISTS (SELECT 1 FROM open_round o JOIN turns t ON t.round = o.round WHERE t.kind IS NOT NULL)"
        with self.file.reading() as db:
            changes = (db.total_changes, self.file.changes)
            if self._outcomes is None or self._outcomes[0] != changes:
                self._outcomes = (changes, bool(single_value(db, query)))
        return self._outcomes[1]

    def pending_late_turns(self, after: int = 0) -> list[Turn]:
        """Returns the turns of late clients whose true times were reported but are not yet part of a closed round.

        Only rounds after round `after` are read: late clients of earlier ones can no longer report.
        """
        with self.file.reading() as db:
            reported = "t.late_seconds IS NOT NULL AND t.folded IS NULL"
            return turns_where(db, f"t.round > ? AND {reported} ORDER BY t.round, t.row", after)


def _stored_events(db: Connection, after: int, limit: int) -> Iterator[tuple[int, str, bytes, bytes, bytes | None]]:
    """Yields number, kind, data, digest and packed availability of events, a part of them at a time."""
    query = (
        "SELECT e.seq, e.kind, e.data, e.digest, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq "
        "WHERE e.seq > ? ORDER BY e.seq LIMIT ?"
    )
    while limit:
        size = EVENTS_AT_ONCE if limit < 0 else min(limit, EVENTS_AT_ONCE)
        part = db.execute(query, (after, size)).fetchall()
        yield from part
        if len(part) < size:
            return
        after, limit = part[-1][0], limit - size if limit > 0 else limit


@dataclass(frozen=True, slots=True, eq=False)
class Amendment:
    """A change of settings.

    Attributes:
        round: The last round that was closed before.
        at: When the settings were changed, in ISO format.
        changes: The new value of each setting that changed.
        before: Their values before; None for a setting of a policy that had its default.
        settings: All settings after the change, as they are stored.
    """

    round: int
    at: str
    changes: Mapping[str, Any]
    before: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def has_new_features(self) -> bool:
        """Whether contexts have other features from now on, so that times are learned again."""
        return "features" in self.changes

    def pack(self) -> bytes:
        """Returns the amendment as the event stores it."""
        return json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False).encode()

    def to_dict(self) -> dict[str, Any]:
        """Returns the amendment for JSON."""
        return asdict(self)

    @classmethod
    def unpack(cls, data: bytes) -> Amendment:
        """Returns what `pack` packed."""
        return cls(**parse_stored(data))

    def sentence(self) -> str:
        """Returns what was changed, for people."""
        parts = [_sentence(name, self.before[name], value) for name, value in self.changes.items()]
        unit = TimeUnit.of(self.settings.get("concurrency"))
        return f"amended after {unit.turn} {self.round:,}: {', '.join(parts)}"


def write_amendment(changes: Changes, amendment: Amendment) -> int:
    """Writes an amendment and the settings after it; returns the number of the event."""
    changes.put_settings(amendment.settings)
    return changes.add_event(AMEND, amendment.pack())


def initial_settings(db: Connection) -> dict[str, Any] | None:
    """Returns the settings with which the fleet was created; None if they were never amended."""
    stored = dict(db.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", (INITIAL, INITIAL_DIGEST)))
    if INITIAL not in stored:
        return None
    if settings_digest(stored[INITIAL]) != stored.get(INITIAL_DIGEST):
        raise corruption(db, "the settings at creation do not match their digest")
    return dict(parse_stored(stored[INITIAL]))


def amendments(journal: Journal, until: int | None = None) -> list[Amendment]:
    """Returns all amendments of a fleet, in order; those up to event `until`, if it is given."""
    with journal.reading() as db:
        if initial_settings(db) is None:  # without a search of all events
            return []
        summary, last = read_summary(db), last_event(db)[0] if until is None else until
        query = "SELECT data FROM events WHERE kind = ? AND seq > ? AND seq <= ? ORDER BY seq"
        kept = [data for (data,) in db.execute(query, (AMEND, summary.event, last))]
        dropped = [data for number, data in summary.amendments if number <= last]
        return [Amendment.unpack(data) for data in (*dropped, *kept)]


def settings_at(journal: Journal, event: int) -> dict[str, Any]:
    """Returns the stored settings after event `event`; 0 for those with which the fleet was created.

    Raises:
        StoreError: If the settings do not match their digests, or the present ones are not those of the last amendment.
    """
    with journal.reading() as db:
        present, initial = journal.settings, initial_settings(db)
        if initial is None:
            return present
        newest = amendments(journal)
        if not newest or newest[-1].settings != present:
            raise corruption(db, "the settings are not those of the last amendment")
        before = amendments(journal, event)
        return dict(before[-1].settings) if before else initial


def settings_before(journal: Journal, round: int) -> Mapping[str, Any]:
    """Returns the stored settings with which the cohort of a round was selected."""
    with journal.reading():
        earlier = [amendment for amendment in amendments(journal) if amendment.round < round]
        return earlier[-1].settings if earlier else settings_at(journal, 0)


def _sentence(name: str, before: Any, after: Any) -> str:
    return "new features" if name == "features" else f"{name} from {_shown(name, before)} to {_shown(name, after)}"


def _shown(name: str, value: Any) -> str:
    if name == "groups":
        named = [group for group in value or () if group is not None]
        return f"those of {len(named):,} clients ({', '.join(sorted(set(named)))})" if named else "none"
    if value is None:
        return SETTINGS[name].none_text if name in SETTINGS else "the default"
    return str(value)


def as_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as they are read from the file, where a tuple is a list."""
    stored: dict[str, Any] = json.loads(json.dumps(values))
    return stored
