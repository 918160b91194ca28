"""Every page of every kind of store matches the contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import pytest

from dashboard.contract import SHAPES, assert_matches_contract, strict_json
from dashboard.readings import random_columns, write_random_run
from dashboard.served import Served, play_rounds, run_store, served, small_fleet
from live.fleets import named, offered, play_round, take_snapshot
from live.turns.slots.played import open_slots, play_turns
from turnout.lab import RunPlan, RunStore, play_into
from turnout.live import Feature, Features, Scheduler
from turnout.live.journal import changes

FOUR = {"cohort_size": 4}
CLIENT_ROUTES = ("client", "explain")


def large_fleet(path: Path, rounds: int) -> None:
    """Writes a large fleet with so many rounds after its snapshot."""
    with patch.object(changes, "KEEP_AVAILABILITY_UP_TO", 3):
        small_fleet(path, rounds=20, is_open=False)
        with Scheduler.open(path) as scheduler:
            take_snapshot(scheduler)
            play_rounds(scheduler, rounds, scheduler.clients)


def fleet_without_a_round(path: Path) -> None:
    with Scheduler.open(path, allow_infeasible=True) as scheduler:
        scheduler.register(named(5))


def fleet_in_its_first_round(path: Path) -> None:
    with Scheduler.open(path, allow_infeasible=True) as scheduler:
        scheduler.report(scheduler.choose(offered(*named(5)))[0], 1.0)


def fleet_with_failures_only(path: Path) -> None:
    with Scheduler.open(path, settings={"cohort_size": 2}, allow_infeasible=True, deadline=5.0) as scheduler:
        for _ in range(4):
            for client in scheduler.choose(offered(*named(4))):
                scheduler.report_failure(client, "connection lost")
            scheduler.close_round()


def fleet_with_a_forgotten_client(path: Path) -> None:
    small_fleet(path, rounds=20, is_open=False)
    with Scheduler.open(path) as scheduler:
        scheduler.forget("c0")
        play_rounds(scheduler, 3, scheduler.clients[1:9], eventful=False)


def run_without_rounds(path: Path) -> None:
    plan = RunPlan("rbcsf", 50)
    with RunStore(path) as store:
        store.begin(plan.key, plan.as_dict(), clients=40, code_version="test")


def run_of_choices_only(path: Path) -> None:
    with RunStore(path) as store:
        for policy in ("rbcsf", "random"):
            play_into(store, RunPlan(policy, 30, world_settings={"clients": 12}, keep="choices"))
        settings = {"accrual": "available", "cohort_size": 3}
        play_into(store, RunPlan("rbcsf", 30, 0, settings, world_settings={"clients": 12}, keep="choices"))


def runs_of_unknown_policies(path: Path) -> None:
    columns = random_columns(30, 10)
    with RunStore(path) as store:
        write_random_run(store, "unknown-policy", {"setting": [1, 2]}, columns)
        write_random_run(store, "rbcsf", {"cohort_size": "three"}, columns)
        write_random_run(store, "rbcsf", {"guaranteed_rate": "1/0"}, columns)
        store.write_run("no plan at all", {}, columns, clients=10, code_version="test")
        odd = {"policy": "rbcsf", "settings": {"cohort_size": 3}, "rounds": "many", "seed": "x", "world": 3}
        store.write_run("odd plan", odd, columns, clients=10, code_version="test")


def random_run(path: Path, **kind: int) -> None:
    with RunStore(path) as store:
        write_random_run(store, "rbcsf", {"cohort_size": 3}, random_columns(20, 10, **kind))


def fleet_without_rounds(path: Path) -> None:
    with open_slots(path) as scheduler:
        play_turns(scheduler, 30)


def large_fleet_without_rounds(path: Path) -> None:
    with patch.object(changes, "KEEP_AVAILABILITY_UP_TO", 3), open_slots(path) as scheduler:
        play_turns(scheduler, 20)
        take_snapshot(scheduler)
        play_turns(scheduler, 5, seed=2)


def fleet_without_rounds_and_turns(path: Path) -> None:
    with open_slots(path, policy="random", settings={}, deadline=None) as scheduler:
        scheduler.register(named(5))


def runs_without_rounds(path: Path) -> None:
    small: dict[str, Any] = {"world_settings": {"clients": 12}, "concurrency": 3}
    training = {"items": 20, "hidden": 8, "world": {"clients": 12}, "updates_per_version": 3}
    with RunStore(path) as store:
        for policy in ("fair-pace", "random"):
            play_into(store, RunPlan(policy, 30, **small))
        play_into(store, RunPlan("fair-pace", 30, keep="choices", **small))
        play_into(store, RunPlan("oort", 30, 0, {}, "training", training, concurrency=3))
        store.write_run("rounds after all", {"concurrency": 3}, random_columns(9, 10), clients=10, code_version="test")


def amended_fleet(path: Path) -> None:
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=500.0, allow_infeasible=True) as scheduler:
        play_rounds(scheduler, 6, named(7))
        scheduler.amend(guaranteed_rate="1/7", tolerance=0.9)
        play_rounds(scheduler, 6, named(7))
        scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
        for _ in range(4):
            play_round(scheduler, {name: {"battery": 0.5} for name in named(7)})


def fleet_whose_older_rounds_are_not_kept(path: Path) -> None:
    with Scheduler.open(path, keep_rounds=12, keep_offers=3, allow_infeasible=True) as scheduler:
        play_rounds(scheduler, 40, named(7))
        scheduler.compact()


KINDS: dict[str, Callable[[Path], object]] = {
    "fleet": partial(small_fleet, rounds=20),
    "closed fleet": partial(small_fleet, rounds=20, is_open=False),
    "fleet without a guarantee": partial(small_fleet, rounds=20, policy="random", settings=FOUR),
    "fleet with a guarantee wrapper": partial(
        small_fleet, rounds=20, policy="with-guarantee", settings={"policy": "random", "settings": FOUR}
    ),
    "fleet without clients": lambda path: Scheduler.open(path).close(),
    "fleet of one": partial(small_fleet, rounds=5, ids=["alone"], settings={"cohort_size": 1}),
    "large fleet": partial(large_fleet, rounds=5),
    "large fleet at its snapshot": partial(large_fleet, rounds=0),
    "runs": partial(run_store, rounds=30, seeds=1),
    "empty store": lambda path: RunStore(path).close(),
    "run whose plan has three features and whose record has two": partial(random_run, features=2),
    "run whose rounds have no available clients": partial(random_run, cohort=0),
    **{
        make.__name__: make
        for make in (
            fleet_without_a_round,
            fleet_in_its_first_round,
            fleet_with_failures_only,
            fleet_with_a_forgotten_client,
            amended_fleet,
            fleet_whose_older_rounds_are_not_kept,
            run_without_rounds,
            run_of_choices_only,
            runs_of_unknown_policies,
            fleet_without_rounds,
            large_fleet_without_rounds,
            fleet_without_rounds_and_turns,
            runs_without_rounds,
        )
    },
}

SIMILAR = {
    "closed fleet",
    "fleet of one",
    "large fleet at its snapshot",
    "runs_of_unknown_policies",
    "runs_without_rounds",
}


def get_object(server: Served, path: str) -> dict[str, object]:
    answer = server.get(path)
    assert answer.status == 200, (path, answer)
    data = strict_json(answer.body)
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.thorough] if kind in SIMILAR else []) for kind in KINDS]
)
def test_every_page_of_every_store_matches_the_contract(directory: Path, kind: str) -> None:
    path = directory / f"{kind}.turnout"
    KINDS[kind](path)
    with served(path) as server:
        server.wait_read()
        numbers = [run["id"] for run in server.json("/api/store")["runs"]] or [None]
        for run in numbers:
            query = "" if run is None else f"run={run}&"
            server.wait_read(run)
            for route in SHAPES:
                if route in CLIENT_ROUTES:
                    continue
                data = get_object(server, f"/api/{route}?{query}")
                assert_matches_contract(route, data)
                if route != "store":
                    about = data["about"]
                    assert isinstance(about, dict)
                    assert about["run"] == run
                    assert about["reading"] is None
            rows = server.json(f"/api/clients?{query}size=500")["rows"]
            for row in (*rows[:2], *rows[-1:]):
                data = get_object(server, f"/api/client?{query}id={quote(row['id'], safe='')}")
                assert_matches_contract("client", data)
                assert {name: data[name] for name in row} == row, "the list and the client page must agree"
            newest = server.json(f"/api/round?{query}")
            for number in {newest["first"], newest["last"]} - {None}:
                assert_matches_contract("round", get_object(server, f"/api/round?{query}number={number}"))
            if rows:
                answer = server.get(f"/api/explain?{query}id={quote(rows[0]['id'], safe='')}")
                if answer.status == 200:
                    assert_matches_contract("explain", strict_json(answer.body))
                else:
                    assert answer.status in (400, 404), answer
                    assert strict_json(answer.body)["detail"]
        assert server.get("/metrics").status == 200
        assert server.get("/healthz").status == 200
