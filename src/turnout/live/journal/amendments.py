"""Amendments in the journal of a fleet: events that change its settings.

The table `meta` holds the present settings, so that every process reads those. The first amendment also stores the
settings with which the fleet was created, from which a replay of all events starts. Each event holds the settings after
it, so the settings at any event are those of the last amendment before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.schema import INITIAL, INITIAL_DIGEST, corruption
from turnout.live.journal.summary import last_event, read_summary
from turnout.live.settings import SETTINGS
from turnout.live.turns.records import settings_digest
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.store import Connection

#: The kind of the event.
AMEND = "amend"


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
