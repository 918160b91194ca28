"""Every page of every kind of store: nothing is missing, nothing is odd, nothing grows without bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from urllib.parse import quote

import pytest

from dashboard.contract import SHAPES, assert_keeps, without_odd_numbers
from dashboard.readings import made_up, write_made_up
from dashboard.served import Served, play_rounds, run_store, served, small_fleet
from scheduler.fleets import named, offered
from turnout.scheduler import Scheduler
from turnout.scheduler.journal import journal
from turnout.simulator import RunPlan, play_into
from turnout.store import RunStore

OF_ONE = ("client", "explain")


def fleet(path: Path) -> None:
    small_fleet(path)


def closed_fleet(path: Path) -> None:
    small_fleet(path, is_open=False)


def fleet_without_a_promise(path: Path) -> None:
    small_fleet(path, policy="random", settings={"cohort_size": 4})


def fleet_with_a_guarantee_around_it(path: Path) -> None:
    small_fleet(path, policy="with-guarantee", settings={"policy": "random", "settings": {"cohort_size": 4}})


def large_fleet(path: Path) -> None:
    with patch.object(journal, "KEEP_AVAILABILITY_UP_TO", 3):
        small_fleet(path, rounds=30, is_open=False)
        with Scheduler.open(path) as scheduler:
            scheduler.snapshot()
            play_rounds(scheduler, 5, scheduler.clients)


def large_fleet_at_its_snapshot(path: Path) -> None:
    with patch.object(journal, "KEEP_AVAILABILITY_UP_TO", 3):
        small_fleet(path, rounds=30, is_open=False)
        with Scheduler.open(path) as scheduler:
            scheduler.snapshot()


def fleet_nobody_has_joined(path: Path) -> None:
    Scheduler.open(path).close()


def fleet_without_a_round(path: Path) -> None:
    with Scheduler.open(path, allow_infeasible=True) as scheduler:
        scheduler.register(named(5))


def fleet_in_its_first_round(path: Path) -> None:
    with Scheduler.open(path, allow_infeasible=True) as scheduler:
        chosen = scheduler.choose(offered(*named(5)))
        scheduler.report(chosen[0], 1.0)


def fleet_in_which_nobody_returned(path: Path) -> None:
    with Scheduler.open(path, settings={"cohort_size": 2}, allow_infeasible=True, deadline=5.0) as scheduler:
        for _ in range(4):
            for client in scheduler.choose(offered(*named(4))):
                scheduler.failed(client, "it went away")
            scheduler.close_round()


def fleet_that_forgot(path: Path) -> None:
    small_fleet(path, is_open=False)
    with Scheduler.open(path) as scheduler:
        scheduler.forget("c0")
        play_rounds(scheduler, 3, scheduler.clients[1:9], eventful=False)


def fleet_of_one(path: Path) -> None:
    small_fleet(path, rounds=5, ids=["alone"], settings={"cohort_size": 1})


def runs(path: Path) -> None:
    run_store(path)


def empty_store(path: Path) -> None:
    RunStore(path).close()


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


def runs_of_policies_that_are_not_here(path: Path) -> None:
    columns = made_up(30, 10)
    with RunStore(path) as store:
        write_made_up(store, "nobody-knows", {"much": [1, 2]}, columns)
        write_made_up(store, "rbcsf", {"cohort_size": "three"}, columns)
        write_made_up(store, "rbcsf", {"guaranteed_rate": "1/0"}, columns)
        store.write_run("no plan at all", {}, columns, clients=10, code_version="test")
        odd = {"policy": "rbcsf", "settings": {"cohort_size": 3}, "rounds": "many", "seed": "x", "world": 3}
        store.write_run("odd plan", odd, columns, clients=10, code_version="test")


def run_with_other_features(path: Path) -> None:
    """The plan says three, the record has two."""
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(20, 10, features=2))


def groups(path: Path) -> None:
    settings = {"cohort_size": 4, "groups": list("aabbccaabbcc"), "group_rates": {"a": 1, "b": "1/2"}}
    with RunStore(path) as store:
        play_into(
            store, RunPlan("rbcsf", 40, settings={**settings, "guaranteed_rate": 0.1}, world_settings={"clients": 12})
        )


def empty_rounds(path: Path) -> None:
    """Rounds for which nobody volunteered."""
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(12, 10, cohort=0))


KINDS = [
    fleet,
    closed_fleet,
    fleet_without_a_promise,
    fleet_with_a_guarantee_around_it,
    large_fleet,
    large_fleet_at_its_snapshot,
    fleet_nobody_has_joined,
    fleet_without_a_round,
    fleet_in_its_first_round,
    fleet_in_which_nobody_returned,
    fleet_that_forgot,
    fleet_of_one,
    runs,
    empty_store,
    run_without_rounds,
    run_of_choices_only,
    runs_of_policies_that_are_not_here,
    run_with_other_features,
    groups,
    empty_rounds,
]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


def told(there: Served, asked: str) -> dict[str, object]:
    answer = there.get(asked)
    assert answer.status == 200, (asked, answer)
    found = without_odd_numbers(answer.body)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_every_page_keeps_the_contract(place: Path, make: Callable[[Path], None]) -> None:
    path = place / f"{make.__name__}.turnout"
    make(path)
    with served(path) as there:
        there.wait_read()
        numbers = [one["id"] for one in there.json("/api/store")["runs"]] or [None]
        for run in numbers:
            which = "" if run is None else f"run={run}&"
            there.wait_read(run)
            for route in SHAPES:
                if route in OF_ONE:
                    continue
                found = told(there, f"/api/{route}?{which}")
                assert_keeps(route, found)
                if route != "store":
                    about = found["about"]
                    assert isinstance(about, dict)
                    assert about["run"] == run
                    assert about["reading"] is None
            rows = there.json(f"/api/clients?{which}size=500")["rows"]
            for row in (*rows[:2], *rows[-1:]):
                found = told(there, f"/api/client?{which}id={quote(row['id'], safe='')}")
                assert_keeps("client", found)
                assert {name: found[name] for name in row} == row, "the list and the page say the same"
            for number in {1, there.json(f"/api/round?{which}")["last"]}:
                answer = there.get(f"/api/round?{which}number={number}")
                if there.json(f"/api/round?{which}")["last"] is None:
                    assert answer.status in (200, 400, 404)
                    continue
                assert_keeps("round", without_odd_numbers(answer.body))
            if rows:
                answer = there.get(f"/api/explain?{which}id={quote(rows[0]['id'], safe='')}")
                if answer.status == 200:
                    assert_keeps("explain", without_odd_numbers(answer.body))
                else:
                    assert answer.status in (400, 404), answer
                    assert without_odd_numbers(answer.body)["error"]
        assert there.get("/metrics").status == 200
        assert there.get("/healthz").status == 200
