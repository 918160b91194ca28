"""An independent reading of fleets with exact fractions, and runs with random selections."""

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
from turnout.kernel.certificate import Certificate
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import OUTCOMES, RoundRecord, RoundReport, Selection
from turnout.lab import RoundColumns, RunStore
from turnout.live import FleetReader

FOREVER = 1e9


@dataclass
class Audit:
    """The figures of a fleet, counted from the events that its scheduler exports."""

    ids: list[str] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    offered: dict[str, int] = field(default_factory=dict)
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
    counts: Sequence[str] = ("arrived",),
) -> Audit:
    """Counts turns, availability and debts of a fleet.

    Args:
        path: The file of the fleet.
        rate: The guaranteed rate.
        cap: The largest debt in turns.
        accrual: "available" or "always".
        counts: The outcomes that pay a turn.
    """
    audit, owed, retired = Audit(), dict[str, Fraction](), set[str]()
    with FleetReader(path) as scheduler:
        events = list(scheduler.export())
    for event in events:
        if event["kind"] == "join":
            for client in event["clients"]:
                audit.ids.append(client)
                audit.turns[client] = audit.offered[client] = audit.last_round[client] = 0
                audit.counted[client] = 0
                audit.joined[client] = len(audit.durations)
                owed[client] = Fraction(0)
        elif event["kind"] == "round":
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(event["available_bits"]), dtype=np.uint8))
            available = {client for client, bit in zip(audit.ids, bits, strict=False) if bit}
            for client in available:
                audit.offered[client] += 1
            outcome_of = dict(zip(event["clients"], event["outcomes"], strict=True))
            for client, outcome in outcome_of.items():
                audit.turns[client] += 1
                audit.counted[client] += outcome in counts
                audit.last_round[client] = event["round"]
                audit.outcomes[outcome] = audit.outcomes.get(outcome, 0) + 1
            for client in audit.ids:
                accrues = client not in retired and (accrual == "always" or client in available)
                owed[client] += (rate if accrues else 0) - (outcome_of.get(client) in counts)
                owed[client] = max(owed[client], Fraction(0))
                if cap is not None:
                    owed[client] = min(owed[client], Fraction(cap))
            waited = [
                seconds
                for seconds, outcome in zip(event["seconds"], outcome_of.values(), strict=True)
                if outcome != "redundant"  # the server waits for failed and late clients, not for surplus ones
            ]
            audit.durations.append(max(waited, default=0.0))
            audit.cohorts.append(event["clients"])
            audit.present.append(available)
            audit.debts.append(dict(owed))
        else:
            retired.add(event["client"])
            audit.left_in[event["client"]] = len(audit.durations)
    return audit


def fleet_ledger(path: Path) -> tuple[FleetSource, Ledger]:
    """Reads a fleet completely; the caller closes the source."""
    source = FleetSource(FleetReader(path))
    source.catch_up(FOREVER)
    assert source.reading is None
    return source, source.ledger


def run_source(store: RunStore, run: int) -> RunSource:
    """Reads a run completely."""
    (info,) = (info for info in store.runs() if info.id == run)
    source = RunSource(store, info)
    source.catch_up(FOREVER)
    assert source.reading is None
    return source


def assert_same_certificate(certificate: Certificate | None, expected: Certificate, *, since: bool = True) -> None:
    """Compares certificates exactly; with `since`, also since when clients are beyond the tolerance."""
    assert certificate is not None
    assert certificate.units_per_turn == expected.units_per_turn
    names = ("turns", "promised_units", "owed_units", "forfeited_units", "levels")
    for name in (*names, "broken_since") if since else names:
        np.testing.assert_array_equal(getattr(certificate, name), getattr(expected, name), err_msg=name)


# Runs with random selections


def random_columns(
    rounds: int, clients: int, *, seed: int = 0, cohort: int = 3, failures: float = 0.3, features: int = 3
) -> RoundColumns:
    """Returns random rounds with late and failed clients; chosen clients are available.

    Args:
        rounds: The number of rounds.
        clients: The number of clients.
        seed: The seed of the random generator.
        cohort: The number of chosen clients.
        failures: The probability that a chosen client does not arrive.
        features: The number of context features.
    """
    rng = np.random.default_rng(seed)
    records = []
    for round_ in range(1, rounds + 1):
        available = rng.random(clients) < 0.7
        chosen = rng.permutation(np.flatnonzero(available))[:cohort]
        outcomes = np.where(rng.random(len(chosen)) < failures, rng.choice(OUTCOMES[1:], len(chosen)), "arrived")
        report = RoundReport(
            round_,
            chosen,
            rng.uniform(0.5, 2.0, (len(chosen), features)),
            rng.uniform(1.0, 9.0, len(chosen)),
            available=available,
            outcomes=outcomes,
        )
        records.append(RoundRecord(Selection(round_, chosen), report))
    return RoundColumns.from_records(records, clients=clients)


def write_random_run(
    store: RunStore, policy: str, settings: Mapping[str, Any], columns: RoundColumns, *, key: str | None = None
) -> int:
    """Writes a run that names this policy, although the policy did not select its cohorts."""
    plan = {"policy": policy, "settings": dict(settings), "seed": 0, "rounds": len(columns), "world": "random"}
    name = key or f"{policy} {settings}"
    return store.write_run(name, plan, columns, clients=columns.clients, code_version="test")


def close_to(values: Any, expected: npt.ArrayLike) -> bool:
    """Compares JSON numbers, which have six digits, with expected values; None corresponds to NaN."""
    actual = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return bool(np.allclose(actual, np.asarray(expected, dtype=np.float64), rtol=2e-5, atol=1e-9, equal_nan=True))


def predictions(columns: RoundColumns) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the predicted seconds of each turn and their uncertainty, before the model learns from its round."""
    model = ExchangeTimeModel(columns.clients, features=columns.contexts.shape[1])
    predicted: list[npt.NDArray[np.float64]] = []
    uncertainty: list[npt.NDArray[np.float64]] = []
    for record in columns.records():
        predicted.append(model.predict(record.report.contexts, record.report.clients))
        uncertainty.append(model.uncertainty(record.report.contexts, record.report.clients))
        model.learn_from(record.report)
    return np.concatenate(predicted), np.concatenate(uncertainty)
