"""Repairs what interrupted calls of older versions have left in the files of fleets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from turnout.errors import StoreError
from turnout.live.journal.journal import Journal
from turnout.live.turns.records import unpack_closed


def doubled_closes(path: Path) -> list[int]:
    """Returns the numbers of the events that close a round for the second time.

    In older versions, a round whose close was interrupted after it was written could be closed again: its turns were
    counted twice.
    """
    with closing(Journal(path, read_only=True)) as journal:
        return _doubled(journal)


def remove_doubled_closes(path: Path) -> int:
    """Removes the second close of every round that was closed twice, and returns their number.

    The events after it get new numbers and digests, and the snapshot is deleted: the state is computed from all events
    when the file is opened again.

    Raises:
        StoreError: If the state cannot be computed from the events, because clients were forgotten or a large fleet has
            dropped the availability of earlier rounds.
    """
    with closing(Journal(path)) as journal:
        doubled = _doubled(journal)
        if doubled and (journal.forgotten() or not journal.has_all_availability()):
            raise StoreError(
                f"round {_closed_by(journal, doubled[0])} was closed twice in {path}, and the state cannot be computed "
                "again, because clients were forgotten or availability was dropped: restore a backup",
                damaged=path,
            )
        if doubled:
            with journal.writing() as changes:
                changes.remove_events(doubled)
        return len(doubled)


def _doubled(journal: Journal) -> list[int]:
    found, last = [], 0
    for number, kind, data, _ in journal.events():
        if kind == "close":
            round_ = unpack_closed(data, None)[0].round
            if round_ == last:
                found.append(number)
            last = round_
    return found


def _closed_by(journal: Journal, number: int) -> int:
    data = next(data for seq, _, data, _ in journal.events(number - 1, 1) if seq == number)
    return unpack_closed(data, None)[0].round
