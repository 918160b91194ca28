"""Checks a fairness certificate against its record. Needs Python, and nothing of turnout.

    python verify.py certificate.json record.jsonl

Line 0 of the record holds the terms; then each line is an event: clients join and leave, rounds are closed. In a round
each client that has not left and volunteered (with accrual "always" also who did not) earns rate_units; who was chosen
and arrived (with paid "chosen" also who did not) takes a turn, which costs units_per_turn of what it is owed, to 0.
What is owed beyond cap_units is forfeited. The certificate is made anew from the record and must be the same in all.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def recount(lines: Iterable[bytes]) -> dict[str, Any]:
    """The certificate that a record comes to; ValueError where it is not a record."""
    digest, header, left, rounds, number = hashlib.sha256(), {}, set(), 0, -1
    clients: dict[str, dict[str, int]] = {}
    for number, line in enumerate(lines):
        digest.update(line)
        told = json.loads(line, object_pairs_hook=_each_once)
        _demand(told["event"] == number, f"line {number} is event {told['event']}")
        if number == 0:
            header = told
        elif told["kind"] == "join":
            for name in told["clients"]:
                _demand(name not in clients, f"{name!r} joins twice")
                clients[name] = dict.fromkeys(("turns", "promised_units", "owed_units", "forfeited_units"), 0)
        elif told["kind"] in ("retire", "forget"):
            left.add(told["client"])
        else:
            rounds += 1
            _demand((told["kind"], told["round"]) == ("round", rounds), f"line {number} is not round {rounds}")
            play(header["terms"], clients, left, told)
    due = [one["promised_units"] - one["owed_units"] - one["forfeited_units"] for one in clients.values()]
    had = [one["turns"] * header["terms"]["units_per_turn"] for one in clients.values()]
    holds = all(turns >= least for turns, least in zip(had, due, strict=True))
    counted = {"events": number, "rounds": rounds, "holds": holds, "record_sha256": digest.hexdigest()}
    return {key: header[key] for key in header if key not in ("event", "kind")} | counted | {"clients": clients}


def play(terms: dict[str, Any], clients: dict[str, dict[str, int]], left: set[str], told: dict[str, Any]) -> None:
    """One round: everyone who may earns, the paid pay, and what is beyond the cap is forfeited."""
    outcomes = dict(zip(told["clients"], told["outcomes"], strict=True))
    mask = None if told["volunteers"] is None else bytes.fromhex(told["volunteers"])
    _demand(mask is not None or terms["accrual"] == "always", f"nobody knows who volunteered in round {told['round']}")
    fit = len(outcomes) == len(told["clients"]) and set(outcomes) <= set(clients) - left
    _demand(fit, f"round {told['round']} has somebody twice, or somebody who is not there")
    for row, (name, one) in enumerate(clients.items()):
        there = mask is None or bool(mask[row // 8] >> (7 - row % 8) & 1)
        _demand(there or name not in outcomes, f"{name!r} was chosen in round {told['round']} and did not volunteer")
        if name not in left and (there or terms["accrual"] == "always"):
            rate = terms["rate_units"][row] if isinstance(terms["rate_units"], list) else terms["rate_units"]
            one["promised_units"] += rate
            one["owed_units"] += rate
        if outcomes.get(name) == "arrived" or (name in outcomes and terms["paid"] == "chosen"):
            one["turns"] += 1
            one["owed_units"] = max(one["owed_units"] - terms["units_per_turn"], 0)
        over = 0 if terms["cap_units"] is None else max(one["owed_units"] - terms["cap_units"], 0)
        one["owed_units"] -= over
        one["forfeited_units"] += over


def differences(certificate: bytes, record: Iterable[bytes]) -> list[str]:
    """What is wrong with a certificate and its record; nothing if all is well."""
    try:
        said, found = _fields(json.loads(certificate, object_pairs_hook=_each_once)), _fields(recount(record))
    except (ValueError, LookupError, TypeError, AttributeError) as damage:
        return [f"this is no certificate with its record ({type(damage).__name__}: {damage})"]
    wrong = [key for key in {**said, **found} if said.get(key) != found.get(key)]
    return [f"{' '.join(key)}: the certificate says {said.get(key)}, the record {found.get(key)}" for key in wrong]


def _fields(certificate: dict[str, Any]) -> dict[tuple[str, str], str]:
    parts = {"client": certificate.pop("clients"), "field": certificate}
    return {(part, key): json.dumps(one, sort_keys=True) for part in parts for key, one in parts[part].items()}


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _demand(len(dict(pairs)) == len(pairs), f"a field is there twice: {', '.join(key for key, _ in pairs)[:80]}")
    return dict(pairs)


def _demand(true: bool, otherwise: str) -> None:
    if not true:
        raise ValueError(otherwise)


if __name__ == "__main__":
    with Path(sys.argv[2]).open("rb") as lines:
        found = differences(Path(sys.argv[1]).read_bytes(), lines)
    print("\n".join(found) or "the certificate is what the record comes to")
    sys.exit(1 if found else 0)
