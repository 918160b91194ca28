"""Fleets in PostgreSQL: the same as in a file, and calls that are repeated. `--store postgres` runs all other tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from live.fleets import named, offered
from postgres import Cluster, Proxy
from turnout.errors import FleetKindError, InterruptedCallError, StoreError
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.live._internals import examine, session_of
from turnout.storage.address import DatabaseAddress
from turnout.storage.encoding.packing import pack_snapshot
from turnout.storage.store import Location

pytestmark = pytest.mark.files  # they choose themselves where a fleet is
ROUNDS: dict[str, Any] = {"settings": {"cohort_size": 3, "guaranteed_rate": 0.2}, "deadline": 60.0}
SLOTS: dict[str, Any] = {"settings": {"guaranteed_rate": 0.05}, "concurrency": 3, "deadline": 60.0}
FLEETS: dict[str, dict[str, Any]] = {
    "rounds": ROUNDS,
    "slots": SLOTS,
    "kept rounds": {**ROUNDS, "keep_rounds": 12, "keep_offers": 3},
    "without statuses": {**ROUNDS, "persist_statuses": False},
}


@pytest.fixture
def address(cluster: Cluster, request: pytest.FixtureRequest) -> DatabaseAddress:
    return cluster.address(f"f{abs(hash(request.node.nodeid))}")


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with TemporaryDirectory() as folder, closing(Proxy(cluster.folder, Path(folder))) as proxy:
        yield proxy


def play(location: Location, options: dict[str, Any], rounds: int = 30) -> tuple[bytes, list[Any], str]:
    """Plays a fleet with every kind of change; returns its state, its events without times of the clock, its status."""
    rng = random.Random(0)
    with Scheduler.open(location, **options) as scheduler, Reporter(location) as reporter:
        for number in range(rounds):
            statuses = offered(*rng.sample(named(10), 8), free_cpu=rng.uniform(0.5, 2.0))
            if "concurrency" in options:
                for turn in scheduler.fill(statuses):
                    scheduler.report(turn.id, rng.uniform(1, 9))
            else:
                first, *others = scheduler.choose(statuses)
                scheduler.report_failure(first, "its battery died")
                for client in others:
                    reporter.report(client, rng.uniform(1, 9), loss=rng.random())
                scheduler.close_round()
            if number == 20:
                scheduler.amend(guaranteed_rate=0.04)
        if "concurrency" in options:
            scheduler.fill([])
        scheduler.retire(scheduler.clients[0])
        for client in scheduler.clients[1:]:
            if client not in {turn.client for turn in scheduler.running()} if "concurrency" in options else ():
                scheduler.forget(client)
                break
        scheduler.compact()
        assert [finding for finding in examine(location) if finding.ok is False] == []
        state = session_of(scheduler).memory.state(with_contexts=False)
        status = scheduler.certificate().summary().sentence(scheduler.clients.__getitem__)
    with FleetReader(location) as reader:
        loaded = reader.state().state(with_contexts=False)
        for stored in (state, loaded):
            stored.pop("given", None)
        assert pack_snapshot(loaded) == pack_snapshot(state)
        events = list(reader.export())
    for event in events:
        for name in ("opened", "closed", "at", "started", "turns"):
            event.pop(name, None)
    return pack_snapshot(state), events, status


@pytest.mark.parametrize("options", FLEETS.values(), ids=FLEETS)
def test_a_fleet_in_a_database_is_the_same_as_one_in_a_file(
    address: DatabaseAddress, tmp_path: Path, options: dict[str, Any]
) -> None:
    in_file, in_database = play(tmp_path / "fleet.turnout", options), play(address, options)
    assert in_database[0] == in_file[0]
    assert in_database[1] == in_file[1]
    assert in_database[2] == in_file[2]


def test_every_call_is_repeated_if_its_connection_is_cut_and_counts_once(
    address: DatabaseAddress, proxy: Proxy
) -> None:
    location = proxy.address(address.name)
    with Scheduler.open(location, **ROUNDS) as scheduler, Reporter(location) as reporter:
        for number in range(8):
            when = ("before", "after")[number % 2]
            text = (b"BEGIN", b"COMMIT")[number // 2 % 2]
            proxy.cut_at(text, when)
            chosen = scheduler.choose(offered(*named(6)))
            proxy.cut_at(text, when)
            assert scheduler.report(chosen[0], 1.0)
            proxy.cut_at(text, when)
            assert reporter.report(chosen[1], 1.0)
            proxy.cut_at(text, when)
            assert scheduler.report_failure(chosen[2], "its battery died")
            proxy.cut_at(text, when)
            scheduler.close_round()
        assert scheduler.round == 8
        assert scheduler.certificate().books_balance
    assert [finding for finding in examine(address) if finding.ok is False] == []


def test_a_call_that_fails_in_a_group_whose_connection_is_cut_is_not_repeated_alone(
    address: DatabaseAddress, proxy: Proxy
) -> None:
    with Scheduler.open(proxy.address(address.name), **ROUNDS) as scheduler:
        chosen = scheduler.choose(offered(*named(6)))
        with pytest.raises(InterruptedCallError), scheduler.group():
            _report_and_cut(scheduler, chosen, proxy)
        assert [turn.kind for turn in scheduler.history(round=1)] == [None, None, None]
        assert scheduler.report_many(dict.fromkeys(chosen, 1.0)) == 3


def _report_and_cut(scheduler: Scheduler, chosen: list[str], proxy: Proxy) -> None:
    scheduler.report(chosen[0], 1.0)
    proxy.cut_at(b"SAVEPOINT part", "before")
    scheduler.report(chosen[1], 1.0)


def test_a_standby_takes_over_with_everything_that_was_acknowledged(address: DatabaseAddress) -> None:
    first = Scheduler.open(address, **ROUNDS)
    chosen = first.choose(offered(*named(6)))
    first.report(chosen[0], 1.0)
    store: Any = session_of(first).journal.file
    store._keeper.stop()  # as if its machine were gone
    with Scheduler.open(address, standby=True) as second:
        assert second.choose([]) == chosen
        second.report(chosen[1], 1.0)
        with pytest.raises(StoreError, match="was taken over by"):
            first.report(chosen[2], 1.0)
        assert [turn.kind for turn in second.history(round=1)].count("arrived") == 2
    first.close()


def test_a_standby_of_a_file_is_refused(tmp_path: Path) -> None:
    Scheduler.open(tmp_path / "fleet.turnout", **ROUNDS).close()
    with pytest.raises(StoreError, match="is a file, which only one machine can open: use a database"):
        Scheduler.open(tmp_path / "fleet.turnout", standby=True)


def test_a_fleet_in_a_database_names_its_address_and_has_no_path(address: DatabaseAddress) -> None:
    with Scheduler.open(str(address), **ROUNDS) as scheduler, FleetReader(address) as reader:
        assert reader.location == address
        assert str(address) in repr(reader)
        for fleet in (scheduler, reader):
            with pytest.raises(FleetKindError, match="is in a database, and has no file"):
                _ = fleet.path
        metrics = scheduler.metrics()
        assert metrics.log_bytes == 0
        assert metrics.file_bytes > 0
        assert metrics.commits > 0


def test_a_reader_does_not_stop_the_writer_from_compacting_for_long(address: DatabaseAddress) -> None:
    with Scheduler.open(address, **ROUNDS) as scheduler, FleetReader(address) as reader:
        scheduler.choose(offered(*named(6)))
        scheduler.close_round(after=1.0)
        with reader.reading():
            assert len(reader.clients) == 6
            scheduler.forget("c1")
            assert session_of(scheduler).journal.needs_vacuum
        scheduler.compact()
        assert not session_of(scheduler).journal.needs_vacuum
