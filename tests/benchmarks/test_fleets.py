"""Fleets of the benchmarks are in their conditions, and the benchmark of the service sends its load."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.fleets import CONDITIONS, PACED_CONDITIONS, RBCSFFleet
from benchmarks.load import Load, http_request, send_load
from benchmarks.slots import decisions_of
from turnout.kernel.rounds import RoundOffer


@pytest.mark.parametrize("condition", CONDITIONS["rbcsf"])
def test_a_fleet_of_rbcsf_is_in_its_condition(condition: str) -> None:
    fleet = CONDITIONS["rbcsf"][condition](6000, 60, np.random.default_rng(0))
    assert isinstance(fleet, RBCSFFleet)
    times = fleet.policy.time_model.optimistic(fleet.contexts, 0.1)
    owed = fleet.policy.owed
    assert (owed >= 0).all()
    conditions: dict[str, Callable[[], bool]] = {
        "mixed": lambda: abs(np.corrcoef(times, owed)[0, 1]) < 0.1 and (times > 0).mean() > 0.9,
        "settled": lambda: np.corrcoef(times, owed)[0, 1] > 0.3,
        "mostly cold": lambda: 0.85 < (times == 0).mean() < 0.99,
        "cold": lambda: (times == 0).all() and len(set(owed.tolist())) == 1,
        "all ties": lambda: len(set(times.tolist())) == 1 and times[0] > 0 and len(set(owed.tolist())) == 1,
        "heavy-tailed": lambda: times.max() > 30 * np.median(times),
        "adverse": lambda: (np.diff(owed[np.argsort(times, kind="stable")]) >= 0).mean() > 0.99,
    }
    assert conditions[condition]()


@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_a_fleet_of_fair_pace_is_in_its_condition(condition: str) -> None:
    fleet = PACED_CONDITIONS[condition](6000, 60, np.random.default_rng(0))
    policy, rows = fleet.policy, np.arange(6000)
    times = policy.learned()[0].optimistic(fleet.contexts, 0.0)
    pace = policy.pace()
    slack = pace.slack(rows) / pace.units_per_turn
    assert fleet.available.mean() == pytest.approx(0.8, abs=0.05)
    conditions: dict[str, Callable[[], bool]] = {
        "mixed": lambda: abs(np.corrcoef(times, slack)[0, 1]) < 0.1 and slack.min() > 0,
        "mixed, with value": lambda: abs(np.corrcoef(times, slack)[0, 1]) < 0.1 and fleet.arrays()[-1].std() > 0.3,
        "settled": lambda: np.corrcoef(times, slack)[0, 1] < -0.3 and slack.min() > 0,
        "mostly cold": lambda: (policy.turns == 0).mean() > 0.85 and slack.min() > 0,
        "all urgent": lambda: slack.max() <= 0 and (policy.turns == 0).mean() > 0.98,
        "all ties": lambda: len(set(times.tolist())) == len(set(slack.tolist())) == 1 and slack[0] > 0,
    }
    assert conditions[condition]()


def test_a_full_round_of_rbcsf_selects_learns_and_counts_turns() -> None:
    fleet = CONDITIONS["rbcsf"]["mixed"](3000, 30, np.random.default_rng(0))
    assert isinstance(fleet, RBCSFFleet)
    chosen = fleet.policy.ask(RoundOffer(1, fleet.available, fleet.contexts)).clients
    bank = fleet.policy.time_model.bank.copy()
    fleet.full_round()
    assert fleet.policy.turns.sum() == 30
    assert np.flatnonzero((fleet.policy.time_model.bank != bank).any(axis=0)).tolist() == chosen.tolist()


def test_a_full_round_of_fair_pace_selects_learns_accrues_and_counts_turns() -> None:
    fleet = PACED_CONDITIONS["mixed"](3000, 30, np.random.default_rng(0))
    policy = fleet.policy
    chosen = policy.ask(RoundOffer(1, fleet.available, fleet.contexts)).clients
    bank, turns, rounds = policy.learned()[0].bank.copy(), policy.turns.copy(), policy.debts.rounds
    fleet.full_round()
    assert np.flatnonzero(policy.turns - turns).tolist() == chosen.tolist()
    assert (policy.debts.rounds - rounds).astype(bool).tolist() == fleet.available.tolist()
    assert np.flatnonzero((policy.learned()[0].bank != bank).any(axis=0)).tolist() == chosen.tolist()
    assert fleet.considered(30) < 3000
    read = sum(array.nbytes for array in fleet.arrays())
    assert read == 3000 * (3 * 8 + 3 * 8 + 4 * 8 + 8 + 4 + 1)
    assert fleet.held_bytes() == read + 3000 * (6 * 8 + 8)


@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_a_decision_gives_one_turn_and_everybody_earns(condition: str) -> None:
    fleet = PACED_CONDITIONS[condition](2000, 1, np.random.default_rng(0))
    fleet.available[:] = True
    turns, rounds = fleet.policy.turns.copy(), np.asarray(fleet.policy.debts.accounts().rounds).copy()
    decide = decisions_of(fleet)
    for _ in range(3):
        decide()
    assert int((fleet.policy.turns - turns).sum()) == 3
    assert (np.asarray(fleet.policy.debts.accounts().rounds) - rounds == 3).all()


def test_percentiles_and_rates() -> None:
    load = Load(4.0, [float(number) for number in range(1, 101)], {200: 100})
    assert load.per_second == 25
    assert [load.percentile(percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]


def test_every_request_is_sent_once_and_answered_in_parts() -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                for number in range(3):
                    received.append(connection.recv(1000))
                    for part in (b"HTTP/1.1 20%d OK\r\nContent-" % number, b"Length: 5\r\n\r\n", b"ab", b"cde"):
                        connection.sendall(part)

        thread = threading.Thread(target=answer)
        thread.start()
        requests = [http_request("POST", f"/{number}", [("X", "y")], b"{}") for number in range(3)]
        load = send_load(listener.getsockname()[1], requests, 1)
        thread.join()
    assert received == requests
    assert (load.statuses, len(load.latencies)) == ({200: 1, 201: 1, 202: 1}, 3)


def test_a_connection_that_is_closed_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            send_load(listener.getsockname()[1], [http_request("GET", "/")], 1)
        thread.join()
