"""Writes a certificate that anyone can verify: the promise, what each client got, and the record behind it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import SettingError, StoreError
from turnout.kernel.certificate import Certificate, exact_tolerance
from turnout.live.audit.verify import differences
from turnout.live.clock import now
from turnout.live.journal.replay import live_policy, stored_features
from turnout.live.journal.schema import meta_value
from turnout.live.reader import FleetReader, ReplayStart, journal_of
from turnout.live.settings import SchedulerSettings
from turnout.policies.base import SelectionPolicy
from turnout.storage.address import DatabaseAddress, as_location
from turnout.storage.files.system import atomic_write
from turnout.version import __version__

#: The format of certificates and records, which the verifier requires.
FORMAT = 1


def certify(fleet: str | Path | DatabaseAddress, certificate: Path, record: Path) -> dict[str, Any]:
    """Writes a certificate of a fleet, and the record from which it can be computed again; returns the certificate.

    The certificate has the counts of the scheduler itself: the turns of each client, how far it is behind its promise,
    its status, and since when it is beyond the tolerance. `status`, `worst` and `since` are those of the clients that
    have not left. Before it is written, the independent verifier compares it with the record. The settings and terms
    are those after the last amendment; the record has those at its beginning and the amended ones.

    The record begins with the first event or, if earlier rounds are no longer kept or a large fleet has dropped the
    availability of clients in them, with a summary of the events before. `summary` then states the last of them: what
    the clients got up to there is stated, but cannot be computed again.

    Args:
        fleet: The file of the fleet, or its address in a database.
        certificate: The file to write the certificate to.
        record: The file to write the record to.

    Raises:
        SettingError: The policy guarantees nothing, or something that a certificate cannot express.
        StoreError: The record is incomplete, or its counts are not those of the scheduler.
    """
    location = as_location(fleet)
    files = [path.resolve() for path in (location, certificate, record) if isinstance(path, Path)]
    if len(set(files)) < len(files):
        raise SettingError("fleet, certificate and record must be three different files: choose other paths")
    with FleetReader(location) as reader, journal_of(reader).reading() as db:
        settings, state, head = reader.settings, reader.state(), meta_value(db, "head")
        # Clients that are new in the open round are not part of the record until it is closed.
        joined = len(state.fleet.ids) - (0 if state.opened is None else len(state.opened.joined))
        if not joined:
            raise StoreError(f"no client has joined {location} yet: close a round before you certify")
        queues = state.fleet.queues
        start = reader.replay_start(with_availability=queues is not None and queues.accrual == "available")
        header = {
            "format": FORMAT,
            "turnout": __version__,
            "date": now(),
            "fleet": location.name,
            "head": head,
            "policy": settings.policy,
            "settings": reader.stored_settings(),
            "terms": _terms(state.fleet.policy),
        }
        if start is not None:
            header["summary"] = {"event": start.event, "round": start.fleet.round}
        digest = hashlib.sha256()
        with atomic_write(record) as out:
            for line in _record_lines(reader, header, start):
                out.write(line)
                digest.update(line)
        certificate_of_all = state.fleet.certificate()
        if certificate_of_all is None:
            raise _guarantees_nothing(settings.policy)
        ids, counted = state.fleet.ids[:joined], certificate_of_all.of(np.arange(joined))
        summary = counted.summary()
        content = {
            **header,
            "events": reader.last_event,
            "rounds": state.fleet.round,
            "books_balance": counted.books_balance,
            "status": summary.status,
            "worst": None if summary.worst is None else ids[summary.worst],
            "since": summary.since,
            "record_sha256": digest.hexdigest(),
            "clients": _client_entries(counted, ids),
        }
    text = f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
    with record.open("rb") as lines:
        problems = differences(text, lines)
    if problems:
        more = f"; and {len(problems) - 1:,} more" if len(problems) > 1 else ""
        raise StoreError(
            f"the counts of the scheduler of {location} differ from its record ({problems[0]}{more}): if a wrapper "
            "around the policy decides which clients accrue turns, the fleet cannot be certified; otherwise it may be "
            "damaged",
            damaged=location if isinstance(location, Path) else None,
        )
    with atomic_write(certificate) as out:
        out.write(text)
    return content


def _guarantees_nothing(policy: str) -> SettingError:
    return SettingError(f"the policy {policy} guarantees nothing: use fair-pace, or with-guarantee around the policy")


def _terms(policy: SelectionPolicy, unit: int = 1) -> dict[str, Any]:
    """Returns the terms of the guarantee in integer units, including the defaults of live fleets.

    Args:
        policy: The policy of the fleet.
        unit: The units per turn of the terms before an amendment: the new units divide them and those of the policy.
    """
    guarantee, queues = policy.guarantee, policy.debts
    if guarantee is None or queues is None:
        raise _guarantees_nothing(policy.name)
    unit = math.lcm(unit, queues.units_per_turn)
    rates = np.asarray(queues.accounts().rates) * (unit // queues.units_per_turn)
    return {
        "units_per_turn": unit,
        "rate_units": rates.tolist(),
        "cap_units": None if queues.max_owed is None else math.floor(Fraction(queues.max_owed) * unit),
        "accrual": queues.accrual,
        "counts": guarantee.counts,
        "tolerance": str(exact_tolerance(guarantee.tolerance)),
    }


def _terms_of(stored: Mapping[str, Any], unit: int = 1) -> dict[str, Any]:
    """Returns the terms that stored settings mean; `unit` as for `_terms`."""
    settings = SchedulerSettings.from_dict(stored)
    policy = live_policy(settings, stored_features(stored["features"]).outputs, 1)
    return _terms(policy, unit)


def _record_lines(reader: FleetReader, header: dict[str, Any], start: ReplayStart | None) -> Iterator[bytes]:
    """Yields the lines of the record: the terms at its beginning, a summary of earlier events, one line per event."""
    terms = header["terms"]
    if start is not None:
        terms = _terms(start.fleet.policy)
        header = {**header, "settings": start.settings, "terms": terms}
    elif reader.amendments:
        created = reader.stored_settings(0)
        terms = _terms_of(created)
        header = {**header, "settings": created, "terms": terms}
    yield _line({"event": 0, "kind": "terms", **header})
    if start is not None:
        yield _line(_summary_entry(start))
    for event in reader.events(0 if start is None else start.event):
        if event.amended is not None:
            terms = _terms_of(event.amended.settings, terms["units_per_turn"])
            yield _line({**event.to_dict(), "terms": terms})
        else:
            yield _line(event.to_dict())


def _summary_entry(start: ReplayStart) -> dict[str, Any]:
    """Returns the line of a record that states what clients got before the record begins."""
    fleet, certificate = start.fleet, start.fleet.certificate()
    if certificate is None:
        raise _guarantees_nothing(fleet.policy.name)
    entries = _client_entries(certificate, fleet.ids)
    stated = ("turns", "promised_units", "owed_units", "forfeited_units", "broken_since")
    left = [fleet.ids[row] for row in np.flatnonzero(fleet.counters.retired).tolist()]
    clients = {name: {key: entry[key] for key in stated} for name, entry in entries.items()}
    entry = {"event": start.event, "kind": "summary", "round": fleet.round, "clients": clients, "left": left}
    if fleet.slots is not None:
        entry["training"] = {fleet.ids[row]: decision for decision, row in fleet.training().items()}
    return entry


def _line(entry: dict[str, Any]) -> bytes:
    return f"{json.dumps(entry, ensure_ascii=False)}\n".encode()


def _client_entries(counted: Certificate, ids: list[str]) -> dict[str, dict[str, Any]]:
    columns = {
        "turns": counted.turns,
        "promised_units": counted.promised_units,
        "owed_units": counted.owed_units,
        "forfeited_units": counted.forfeited_units,
        "behind_units": counted.behind_units,
        "status": counted.statuses,
        "broken_since": np.zeros_like(counted.turns) if counted.broken_since is None else counted.broken_since,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {client: dict(zip(columns, row, strict=True)) for client, row in zip(ids, rows, strict=True)}
