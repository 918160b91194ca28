"""What a file says, read in another way than the dashboard does: plain counting, in fractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.sources.run import RunSource
from turnout.kernel.rounds import OUTCOMES, RoundRecord, RoundReport, Selection
from turnout.scheduler import Scheduler
from turnout.store import RoundColumns, RunStore

FOREVER = 1e9


@dataclass
class Audit:
    """A fleet by the events that its scheduler exports for an audit, client by client in order of joining."""

    ids: list[str] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    volunteered: dict[str, int] = field(default_factory=dict)
    last_round: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    left_in: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    durations: list[float] = field(default_factory=list)
    cohorts: list[list[str]] = field(default_factory=list)
    present: list[set[str]] = field(default_factory=list)
    debts: list[dict[str, Fraction]] = field(default_factory=list)


def audit_of(
    path: Path,
    rate: Fraction,
    *,
    cap: float | None = None,
    accrual: str = "available",
    paid: Sequence[str] = ("arrived",),
) -> Audit:
    """Count everything again; `paid`: the outcomes that pay a turn."""
    found, owed, gone = Audit(), dict[str, Fraction](), set[str]()
    with Scheduler.open(path, read_only=True) as scheduler:
        events = list(scheduler.export())
    for event in events:
        if event["kind"] == "join":
            for client in event["clients"]:
                found.ids.append(client)
                found.turns[client] = found.volunteered[client] = found.last_round[client] = 0
                found.joined[client] = len(found.durations)
                owed[client] = Fraction(0)
        elif event["kind"] == "round":
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(event["volunteers"]), dtype=np.uint8))
            there = {client for client, bit in zip(found.ids, bits, strict=False) if bit}
            for client in there:
                found.volunteered[client] += 1
            took = dict(zip(event["clients"], event["outcomes"], strict=True))
            for client, outcome in took.items():
                found.turns[client] += 1
                found.last_round[client] = event["round"]
                found.outcomes[outcome] = found.outcomes.get(outcome, 0) + 1
            for client in found.ids:
                earns = client not in gone and (accrual == "always" or client in there)
                owed[client] += (rate if earns else 0) - (took.get(client) in paid)
                owed[client] = max(owed[client], Fraction(0))
                if cap is not None:
                    owed[client] = min(owed[client], Fraction(cap))
            waited = [
                seconds
                for seconds, word in zip(event["seconds"], took.values(), strict=True)
                if word not in ("failed", "surplus")
            ]
            found.durations.append(max(waited or event["seconds"], default=0.0))
            found.cohorts.append(event["clients"])
            found.present.append(there)
            found.debts.append(dict(owed))
        else:
            gone.add(event["client"])
            found.left_in[event["client"]] = len(found.durations)
    return found


def fleet_ledger(path: Path) -> tuple[FleetSource, Ledger]:
    """All of it, read; close the source."""
    source = FleetSource(path)
    source.catch_up(FOREVER)
    assert source.reading is None
    return source, source.ledger


def run_source(store: RunStore, run: int) -> RunSource:
    """A run, read to its end."""
    (info,) = (one for one in store.runs() if one.id == run)
    source = RunSource(store, info)
    source.catch_up(FOREVER)
    assert source.reading is None
    return source


# Runs that nobody played


def made_up(
    rounds: int, clients: int, *, seed: int = 0, cohort: int = 3, failures: float = 0.3, features: int = 3
) -> RoundColumns:
    """Rounds in which chance chooses, with late and failed clients; whoever is chosen was there."""
    rng = np.random.default_rng(seed)
    records = []
    for round_ in range(1, rounds + 1):
        there = rng.random(clients) < 0.7
        chosen = rng.permutation(np.flatnonzero(there))[:cohort]
        words = np.where(rng.random(len(chosen)) < failures, rng.choice(OUTCOMES[1:], len(chosen)), "arrived")
        report = RoundReport(
            round_,
            chosen,
            rng.uniform(0.5, 2.0, (len(chosen), features)),
            rng.uniform(1.0, 9.0, len(chosen)),
            available=there,
            outcomes=words,
        )
        records.append(RoundRecord(Selection(round_, chosen), report))
    return RoundColumns.from_records(records, clients=clients)


def write_made_up(
    store: RunStore, policy: str, settings: Mapping[str, Any], columns: RoundColumns, *, key: str | None = None
) -> int:
    """A run of this policy, in which it had no say."""
    plan = {"policy": policy, "settings": dict(settings), "seed": 0, "rounds": len(columns), "world": "made up"}
    name = key or f"{policy} {settings}"
    return store.write_run(name, plan, columns, clients=columns.clients, code_version="test")


def close_to(values: Any, expected: npt.ArrayLike) -> bool:
    """As JSON tells it: up to six digits, and nothing for what is not known."""
    found = np.array([np.nan if one is None else one for one in values], dtype=np.float64)
    return bool(np.allclose(found, np.asarray(expected, dtype=np.float64), rtol=2e-5, atol=1e-9, equal_nan=True))
