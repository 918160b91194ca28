"""Verifies a fairness certificate against its record. It needs only Python, not turnout.

    python verify.py certificate.json record.jsonl

Line 0 of the record has the terms. Every further line is an event: clients join or leave, terms are amended, or a
round is closed. In a round, each client that has not left and is available (with accrual "always": or not) accrues
rate_units. A client that was selected and arrived (with paid "chosen": or not) takes a turn, which reduces its debt by
units_per_turn, but not below 0. A debt above cap_units is forfeited. After the round, a client is promised_units −
turns · units_per_turn behind: broken beyond the tolerance (in turns), otherwise kept below one turn. broken_since is
the round since which it is broken. The worst client that has not left decides on the overall status. New
terms count from the next round on, and all counts continue in the new units.
In a fleet without rounds, a line "fill" first ends turns, then gives turns, one decision after the other.
With each decision, clients accrue as in a round, also those that are training, unless they have trained for more
decisions than earn a turn: units_per_turn / rate_units. A turn counts when it is given or, if paid is "completed",
when it ends.
Terms must follow from the settings beside them. The certificate has the last terms; the record must give the same
certificate. If the header has a summary, line 1 states the counts after earlier events that are not part of the record,
with which it begins.

All this proves the arithmetic of the record, not that the record is true: who wrote it could have left out an event.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

LONGEST = 1 << 29  # the bytes of a certificate, or of a line of a record: enough for a million clients
FINEST = 10**9  # the largest denominator of a rate or a tolerance; rates of different clients are rounded up to it
OUTCOMES = {"arrived", "redundant", "cut_off", "late", "failed"}
GUARANTEED = ("fair-pace", "rbcsf", "cs-ucb-q", "with-guarantee")  # policies whose defaults are known here


def recount(lines: Iterable[bytes]) -> dict[str, Any]:
    """Computes the certificate from a record; raises ValueError if the lines are not a valid record."""
    digest, rounds, number = hashlib.sha256(), 0, -1
    header: dict[str, Any] = {}
    clients: dict[str, dict[str, Any]] = {}
    left: set[str] = set()
    training: dict[str, int] = {}  # without rounds: the decision that gave each training client its turn
    for number, line in enumerate(lines):
        digest.update(line)
        _require(line.endswith(b"\n"), f"the record ends in the middle of line {number + 1}")
        event = json.loads(line, object_pairs_hook=_unique_keys)
        if number == 1 and "summary" in header:
            rounds, clients, left = begin(header, event)
            training = event.get("training", {})
            continue
        expected = number + (header["summary"]["event"] - 1 if number and "summary" in header else 0)
        _require(event["event"] == expected, f"line {number} is event {event['event']}")
        if number == 0:
            header = event
            _require(header["format"] == 1, f"format {header['format']} needs another version of the verifier")
            _require(header["policy"] == header["settings"]["policy"], "the policy is not that of the settings")
            check_terms(header["settings"], header["terms"])
        elif event["kind"] == "join":
            for name in event["clients"]:
                _require(isinstance(name, str) and name not in clients, f"{name!r} joins twice, or is no client id")
                clients[name] = dict.fromkeys(("turns", "promised_units", "owed_units", "forfeited_units"), 0)
        elif event["kind"] in ("retire", "forget"):
            _require(event["client"] in clients, f"{event['client']!r} leaves, but has not joined")
            left.add(event["client"])
        elif event["kind"] == "amend":
            check_terms(event["settings"], event["terms"])
            amend(header["terms"], event["terms"], clients)
            header |= {"terms": event["terms"], "settings": event["settings"]}
        elif event["kind"] == "fill":
            rounds = fill(header["terms"], clients, left, training, event, rounds)
        else:
            rounds += 1
            _require((event["kind"], event["round"]) == ("round", rounds), f"line {number} is not round {rounds}")
            play(header["terms"], clients, left, event)
            judge(header["terms"], clients, rounds)
    events = number + (header["summary"]["event"] - 1 if "summary" in header else 0)
    counted = {"events": events, "rounds": rounds, "record_sha256": digest.hexdigest()}
    units = header["terms"]["units_per_turn"]
    books_balance = all(
        client["turns"] * units >= client["promised_units"] - client["owed_units"] - client["forfeited_units"]
        for client in clients.values()
    )
    judge(header["terms"], clients, 0)  # clients that joined after the last round
    judged = {name: client["behind_units"] for name, client in clients.items() if name not in left}
    worst = max(judged, key=lambda name: judged[name], default=None)
    status, since = ("kept", 0) if worst is None else (clients[worst][key] for key in ("status", "broken_since"))
    counted |= {"books_balance": books_balance, "status": status, "worst": worst, "since": since or None}
    return {key: header[key] for key in header if key not in ("event", "kind")} | counted | {"clients": clients}


def begin(header: dict[str, Any], summary: dict[str, Any]) -> tuple[int, dict[str, dict[str, Any]], set[str]]:
    """Returns the last round, the counts and the clients that have left, with which a record begins."""
    stated = {"event": summary["event"], "round": summary["round"]}
    _require(summary["kind"] == "summary" and header["summary"] == stated, "line 1 is not the summary of the header")
    _require(summary["event"] >= 1 and summary["round"] >= 0, "the summary has no events")
    clients, counts = summary["clients"], ("turns", "promised_units", "owed_units", "forfeited_units", "broken_since")
    for name, client in clients.items():
        _require(set(client) == set(counts), f"the summary has other counts of {name!r}")
        _require(all(type(count) is int and 0 <= count < 2**63 for count in client.values()), f"{name!r} has no counts")
        _require(client["broken_since"] <= summary["round"], f"{name!r} is broken since a later round")
    _require(set(summary["left"]) <= set(clients), "a client has left that never joined")
    judge(header["terms"], clients, 0)
    return summary["round"], clients, set(summary["left"])


def check_terms(settings: dict[str, Any], terms: dict[str, Any]) -> None:
    """Raises ValueError unless the terms follow from the settings; settings that are missing have their defaults."""
    policy, own = settings["policy"], settings["settings"]
    while policy != "with-guarantee" and isinstance(own.get("policy"), str):  # a wrapper: the policy inside guarantees
        policy, own = own["policy"], own.get("settings") or {}
    wait = settings["deadline"] if isinstance(settings["deadline"], int | float) else 60
    cap = None if policy == "fair-pace" else 10 + math.ceil(min(own.get("speed_weight", 20) * wait, 10**6))
    live = {"guaranteed_rate": 0.15, "tolerance": 2, "accrual": "available", "counts": "completed", "max_owed": cap}
    known = (live if policy in GUARANTEED else {}) | own
    units, rates, stated_cap = terms["units_per_turn"], terms["rate_units"], terms["cap_units"]
    numbers = [units, *(rates if isinstance(rates, list) else [rates]), *([] if stated_cap is None else [stated_cap])]
    _require(
        all(type(number) is int and 0 <= number < 2**63 for number in numbers), "the units are not 64-bit integers"
    )
    _require(units > 0, "a turn has no units")
    if "guaranteed_rate" in known:
        promised = known["guaranteed_rate"]
        _require(
            isinstance(promised, list) == isinstance(rates, list), "there must be one rate, or one for each client"
        )
        for rate, unit in set(zip(promised, rates, strict=True)) if isinstance(rates, list) else [(promised, rates)]:
            exact = _exact(rate).limit_denominator(FINEST) * units
            follows = exact <= unit < exact + Fraction(units, FINEST)
            _require(follows, "rate_units of the terms do not follow from guaranteed_rate of the settings")
    if "max_owed" in known:
        limit = None if known["max_owed"] is None else math.floor(_exact(known["max_owed"]) * units)
        _require(stated_cap == limit, "cap_units of the terms do not follow from max_owed of the settings")
    stated = _exact(terms["tolerance"])
    _require(str(stated) == terms["tolerance"], "the tolerance of the terms is not a fraction in lowest terms")
    if "tolerance" in known:
        tolerance = _exact(known["tolerance"]).limit_denominator(FINEST) or _exact(known["tolerance"])
        _require(stated == tolerance, "the tolerance of the terms is not that of the settings")
    for key in ("accrual", "counts"):
        _require(terms[key] == known.get(key, terms[key]), f"{key} of the terms is not that of the settings")


def play(terms: dict[str, Any], clients: dict[str, dict[str, Any]], left: set[str], event: dict[str, Any]) -> None:
    """Applies one round: adds the accrual, subtracts the turns that were taken, and forfeits debts above the cap."""
    outcomes, number = dict(zip(event["clients"], event["outcomes"], strict=True)), event["round"]
    mask = None if event["available_bits"] is None else bytes.fromhex(event["available_bits"])
    _require(mask is not None or terms["accrual"] == "always", f"the availability in round {number} is not recorded")
    valid = len(outcomes) == len(event["clients"]) and set(outcomes) <= set(clients) - left
    _require(valid, f"round {number} has a client twice, or one that has not joined or has left")
    _require(OUTCOMES.issuperset(outcomes.values()), f"round {number} has an unknown outcome")
    for row, (name, client) in enumerate(clients.items()):
        available = mask is None or bool(mask[row // 8] >> (7 - row % 8) & 1)
        _require(available or name not in outcomes, f"{name!r} was selected in round {number}, but was not available")
        if name not in left and (available or terms["accrual"] == "always"):
            _accrue(client, _rate(terms, row))
        if outcomes.get(name) == "arrived" or (name in outcomes and terms["counts"] == "selected"):
            _pay(terms, client)
        _forfeit(terms, client)


def fill(
    terms: dict[str, Any],
    clients: dict[str, dict[str, Any]],
    left: set[str],
    training: dict[str, int],
    event: dict[str, Any],
    decisions: int,
) -> int:
    """Applies a call of `fill`: ends turns, then gives turns; returns the number of the last decision."""
    for turn in event["ended"]:
        _require(training.pop(turn["client"], None) == turn["turn"], f"turn {turn['turn']} ends, but was not running")
        _require(turn["outcome"] in OUTCOMES, f"turn {turn['turn']} has an unknown outcome")
        if terms["counts"] == "completed" and turn["outcome"] == "arrived":
            _pay(terms, clients[turn["client"]])
    mask = None if event["present"] is None else bytes.fromhex(event["present"])
    _require(mask is not None or terms["accrual"] == "always", f"the presence at decision {decisions} is not recorded")
    for turn in event["turns"]:
        decisions += 1
        name = turn["client"]
        _require(turn["turn"] == decisions, f"turn {turn['turn']} is not that of decision {decisions}")
        _require(name in clients and name not in left, f"{name!r} has not joined, or has left")
        _require(name not in training, f"{name!r} is given a turn while it is training")
        for row, (other, client) in enumerate(clients.items()):
            present = mask is None or bool(mask[row // 8] >> (7 - row % 8) & 1)
            _require(present or other != name, f"{name!r} is given turn {decisions}, but was not available")
            rate = _rate(terms, row)
            since = training.get(other, decisions)
            is_capped = rate > 0 and decisions - since > terms["units_per_turn"] // rate
            if other not in left and not is_capped and (present or terms["accrual"] == "always"):
                _accrue(client, rate)
            if other == name and terms["counts"] == "selected":
                _pay(terms, client)
            _forfeit(terms, client)
        training[name] = decisions
        judge(terms, clients, decisions)
    return decisions


def _rate(terms: dict[str, Any], row: int) -> int:
    rates: Any = terms["rate_units"]
    return int(rates[row] if isinstance(rates, list) else rates)


def _accrue(client: dict[str, Any], units: int) -> None:
    client["promised_units"] += units
    client["owed_units"] += units


def _pay(terms: dict[str, Any], client: dict[str, Any]) -> None:
    client["turns"] += 1
    client["owed_units"] = max(client["owed_units"] - terms["units_per_turn"], 0)


def _forfeit(terms: dict[str, Any], client: dict[str, Any]) -> None:
    over = 0 if terms["cap_units"] is None else max(client["owed_units"] - terms["cap_units"], 0)
    client["owed_units"] -= over
    client["forfeited_units"] += over


def amend(old: dict[str, Any], new: dict[str, Any], clients: dict[str, dict[str, Any]]) -> None:
    """Converts all counts to the units of the new terms, and judges them by these."""
    finer, rest = divmod(new["units_per_turn"], old["units_per_turn"])
    same = all(old[key] == new[key] for key in ("accrual", "counts"))
    _require(finer > 0 and rest == 0 and same, "the amended terms do not continue the terms before")
    for client in clients.values():
        for key in ("promised_units", "owed_units", "forfeited_units"):
            client[key] *= finer
        _forfeit(new, client)
    judge(new, clients, 0)


def judge(terms: dict[str, Any], clients: dict[str, dict[str, Any]], number: int) -> None:
    """Computes how far each client is behind after a round, its status, and since when it is broken."""
    units = terms["units_per_turn"]
    limit = Fraction(terms["tolerance"]) * units // 1
    for client in clients.values():
        behind = client["behind_units"] = client["promised_units"] - client["turns"] * units
        client["status"] = "broken" if behind > limit else "kept" if behind < units else "behind"
        client["broken_since"] = (client.get("broken_since", 0) or number) if behind > limit else 0


def differences(certificate: bytes, record: Iterable[bytes]) -> list[str]:
    """Returns the differences between a certificate and the one computed from its record; empty if there are none."""
    try:
        _require(len(certificate) <= LONGEST, f"a certificate must have at most {LONGEST:,} bytes")
        stated, computed = _fields(json.loads(certificate, object_pairs_hook=_unique_keys)), _fields(recount(record))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return [f"these files are not a certificate and its record ({type(error).__name__}: {error})"]
    keys = [key for key in {**stated, **computed} if stated.get(key) != computed.get(key)]
    return [f"{' '.join(key)}: {stated.get(key)} in the certificate, {computed.get(key)} in the record" for key in keys]


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of a record; raises ValueError if one is too long."""
    while line := file.readline(LONGEST + 1):
        _require(len(line) <= LONGEST, f"a line of a record must have at most {LONGEST:,} bytes")
        yield line


def _exact(value: Any) -> Fraction:
    """Returns a number or string as a fraction; a string with an exponent, which may be huge, by way of a float."""
    return Fraction(float(value) if isinstance(value, str) and "e" in value.lower() else value)


def _fields(certificate: dict[str, Any]) -> dict[tuple[str, str], str]:
    parts = {"client": certificate.pop("clients"), "field": certificate}
    return {(part, key): json.dumps(value, sort_keys=True) for part in parts for key, value in parts[part].items()}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _require(len(dict(pairs)) == len(pairs), f"a field occurs twice: {', '.join(key for key, _ in pairs)[:80]}")
    return dict(pairs)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as certificate, Path(sys.argv[2]).open("rb") as record:
        problems = differences(certificate.read(LONGEST + 1), lines_of(record))
    print("\n".join(problems) or "the certificate agrees with its record")
    sys.exit(1 if problems else 0)
