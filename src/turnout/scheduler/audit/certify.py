"""A certificate that anybody can check: the promise, what each client had, and the record it follows from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import SettingError, StoreError
from turnout.kernel.fairness import Certificate
from turnout.scheduler.audit.verify import differences
from turnout.scheduler.clock import now
from turnout.scheduler.journal.events import event_to_dict
from turnout.scheduler.journal.reader import FleetReader
from turnout.scheduler.rounds.state import Fleet
from turnout.store.atomic import atomic_write
from turnout.version import __version__

FORMAT = 1


def certify(fleet: Path, certificate: Path, record: Path) -> dict[str, Any]:
    """Write a certificate of a fleet's file and the record that it follows from; what stands in the certificate.

    The certificate is what the scheduler itself has counted. It is held against the record by the independent verifier
    before it is written, and refused if the two do not agree.
    """
    if len({path.resolve() for path in (fleet, certificate, record)}) < 3:
        raise SettingError("the fleet, the certificate and the record must be three files: choose other names")
    with FleetReader(fleet) as reader, reader.reading():
        settings, memory = reader.settings, reader.state()
        if not memory.fleet.ids:
            raise StoreError(f"nobody has joined {fleet} yet: there is nothing to certify")
        header = {
            "format": FORMAT,
            "turnout": __version__,
            "date": now(),
            "fleet": fleet.name,
            "head": reader.head,
            "policy": settings.policy,
            "settings": reader.stored_settings,
            "terms": _terms(memory.fleet, settings.policy),
        }
        # Who joins with the round that is open is not of the record yet.
        joined = len(memory.fleet.ids) - (0 if memory.opened is None else len(memory.opened.joined))
        digest, events = hashlib.sha256(), 0
        with atomic_write(record) as out:
            for line in _lines(reader, header):
                out.write(line)
                digest.update(line)
                events += 1
        found = memory.fleet.policy.certificate()
        if found is None:
            raise SettingError(f"the policy {settings.policy} guarantees nothing: there is no certificate")
        told = {
            **header,
            "events": events - 1,
            "rounds": memory.fleet.round,
            "holds": bool(found.kept[:joined].all()),
            "record_sha256": digest.hexdigest(),
            "clients": _of_clients(found, memory.fleet.ids[:joined]),
        }
    words = f"{json.dumps(told, indent=1, ensure_ascii=False)}\n".encode()
    with record.open("rb") as lines:
        wrong = differences(words, lines)
    if wrong:
        more = f"; and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        raise StoreError(
            f"the record of {fleet} does not come to what its scheduler has counted ({wrong[0]}{more}): if a rule "
            "around the policy decides who earns, there can be no certificate; otherwise the file may be damaged",
            damaged=fleet,
        )
    with atomic_write(certificate) as out:
        out.write(words)
    return told


def _terms(fleet: Fleet, policy: str) -> dict[str, Any]:
    """The promise in whole units, with all that the scheduler fills in by itself."""
    guarantee, queues = fleet.policy.guarantee, fleet.policy.debts
    if guarantee is None or queues is None:
        raise SettingError(f"the policy {policy} guarantees nothing: use rbcsf, or with-guarantee around it")
    if fleet.policy.groups is not None:
        raise SettingError(
            "the policy also promises turns to groups, which a certificate does not hold: begin a fleet without groups "
            "and group_rates to certify it"
        )
    rates = np.asarray(queues.state()["rates"])
    cap = None if queues.max_owed is None else math.floor(Fraction(queues.max_owed) * queues.units_per_turn)
    return {
        "units_per_turn": int(queues.units_per_turn),
        "rate_units": rates.tolist(),
        "cap_units": cap,
        "accrual": queues.accrual,
        "paid": guarantee.paid,
    }


def _lines(reader: FleetReader, header: dict[str, Any]) -> Iterator[bytes]:
    yield _line({"event": 0, "kind": "terms", **header})
    for event in reader.events():
        if event.closed is not None and event.closed.available is None and header["terms"]["accrual"] == "available":
            raise StoreError(
                f"who volunteered in some rounds of {reader.path} is no longer on record, as large fleets drop it "
                "with a snapshot: turns that were earned by volunteering cannot be counted again"
            )
        yield _line(event_to_dict(event))


def _line(told: dict[str, Any]) -> bytes:
    return f"{json.dumps(told, ensure_ascii=False)}\n".encode()


def _of_clients(found: Certificate, ids: list[str]) -> dict[str, dict[str, int]]:
    columns = (found.turns, found.promised_units, found.owed_units, found.forfeited_units)
    names = ("turns", "promised_units", "owed_units", "forfeited_units")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {client: dict(zip(names, row, strict=True)) for client, row in zip(ids, rows, strict=False)}
