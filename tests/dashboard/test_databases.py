"""The dashboard of a fleet in a database, which it only reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboard.served import served, small_fleet
from postgres import Cluster, running_cluster
from turnout.live import Scheduler
from turnout.storage.address import DatabaseAddress
from waiting import wait_until

pytestmark = pytest.mark.files


@pytest.fixture
def address(cluster: Cluster) -> Iterator[DatabaseAddress]:
    address = cluster.address("shown")
    yield address
    cluster.execute(f'DROP SCHEMA IF EXISTS "{address.schema}" CASCADE')


def test_the_pages_show_a_fleet_in_a_database_and_follow_it(cluster: Cluster, address: DatabaseAddress) -> None:
    small_fleet(address, 12)
    with served(address) as server:
        server.wait_rounds(12)
        with Scheduler.open(address) as scheduler:
            client = scheduler.clients[0]
        for page in ("overview", "fairness", "queues", "speed", "rounds", "clients", f"client?id={client}"):
            assert server.json(f"/api/{page}")["about"]["rounds"] == 12
        assert client in str(server.json(f"/api/explain?id={client}"))
        store = server.json("/api/system")["store"]
        assert (store["name"], store["kind"], store["writer"], store["log_bytes"]) == ("shown", "fleet", None, 0)
        assert store["bytes"] > 10_000
        with Scheduler.open(address) as scheduler:
            assert str(server.json("/api/system")["store"]["writer"]).startswith("process ")
            assert b"turnout_scheduler_running{policy=" in server.get("/metrics").body
            scheduler.choose(scheduler.clients[:5])
            scheduler.close_round(1.0)
            server.wait_rounds(13)
        sessions = cluster.execute(f'SELECT COUNT(*) FROM "{address.schema}".sessions')
        assert sessions == [(0,)]  # it has written nothing


def test_the_pages_say_so_while_the_database_cannot_be_reached() -> None:
    with running_cluster({"fsync": "off", "full_page_writes": "off"}) as own:
        place = own.address("shown")
        small_fleet(place, 3)
        with served(place) as server:
            server.wait_rounds(3)
            server.watch._fleet.store.wait_at_most(0.1)  # type: ignore[union-attr]
            own.stop()
            wait_until(lambda: server.watch.state.last_error, "it was noticed")
            assert "cannot be reached" in str(server.watch.state.last_error)
            assert server.get("/healthz").status == 503
            own.start()
            wait_until(lambda: server.watch.state.last_error is None, "it is read again")
            assert server.json("/api/overview")["about"]["rounds"] == 3
