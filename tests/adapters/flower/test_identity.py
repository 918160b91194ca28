"""A client id can be bound to the key of its SuperNode."""

from __future__ import annotations

import pytest

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    InProcessGrid,
    Node,
    after,
    between_rounds,
    model,
    named_node,
    open_to_all,
    turns_of,
)
from turnout.adapters.flower import FairSelection
from turnout.adapters.flower.discovery.identity import KeyBook
from turnout.errors import StateError

pytestmark = pytest.mark.usefixtures("clock")


def keyed(client: str, node_id: int, key: bytes) -> Node:
    node = named_node(client, node_id)
    node.described = {"public_key": key}
    return node


def trained(grid: InProcessGrid) -> list[list[int]]:
    return [sorted(sent.node_id for sent in push) for push in grid.sent("train")]


def nodes() -> list[Node]:
    return [keyed("c0", 100, b"key 0"), keyed("c1", 101, b"key 1")]


def test_by_default_another_node_with_the_same_id_replaces_the_first(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(nodes())
    caplog.set_level("INFO", "flwr")
    join = after(1, lambda: grid.add(keyed("c1", 900, b"another key")))
    FairSelection(open_to_all(), scheduler).start(grid, model(0.0), num_rounds=2, evaluate_fn=join)
    assert trained(grid) == [[100, 101], [100, 900]]
    assert "node 900 takes over the client id 'c1', which another SuperNode key used before" in caplog.text
    assert "nodes 101 and 900 both report the client id 'c1'" in caplog.text
    assert not scheduler.path.with_name("fleet.turnout.keys.json").exists()


def test_another_key_that_claims_the_same_id_is_refused(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(nodes())
    join = after(1, lambda: grid.add(keyed("c1", 900, b"another key")))
    fair = FairSelection(open_to_all(), scheduler, duplicates="refuse")
    fair.start(grid, model(0.0), num_rounds=4, evaluate_fn=join)
    assert trained(grid) == [[100, 101]] * 4
    refused = "node 900 is refused: it claims the client id 'c1', which another SuperNode key used before"
    assert caplog.text.count(refused) == 1
    assert grid.asked("query.turnout") == [["c0", "c1"], ["c1"]]  # a refused node is not asked again
    assert turns_of(scheduler) == {"c0": 4, "c1": 4}
    assert [sorted(sent.node_id for sent in push) for push in grid.sent("evaluate")][1:] == [[100, 101]] * 3


def test_the_same_key_may_come_back_with_another_node_id(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(nodes())

    def restart() -> None:
        del grid.nodes[101]
        grid.add(keyed("c1", 900, b"key 1"))

    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(
        grid, model(0.0), num_rounds=3, evaluate_fn=after(1, restart)
    )
    assert trained(grid) == [[100, 101], [100, 900], [100, 900]]


def test_a_client_stays_bound_to_its_key_after_a_restart_of_the_server(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = open_fleet()
    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(InProcessGrid(nodes()), model(0.0), num_rounds=1)
    stored = scheduler.path.with_name("fleet.turnout.keys.json").read_text()
    assert '"c1"' not in stored
    assert "key 1" not in stored
    grid = InProcessGrid([keyed("c0", 100, b"key 0"), keyed("c1", 900, b"another key")])
    fair = FairSelection(open_to_all(min_evaluate_nodes=1), scheduler, duplicates="refuse")
    fair.start(grid, model(0.0), num_rounds=2)
    assert trained(grid) == [[100], [100]]
    assert "node 900 is refused" in caplog.text


def test_the_status_of_a_refused_node_is_not_that_of_the_client(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(nodes())
    impostor = keyed("c1", 900, b"another key")
    impostor.config["free_cpu"] = -1.0
    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(
        grid, model(0.0), num_rounds=3, evaluate_fn=after(1, lambda: grid.add(impostor))
    )
    assert turns_of(scheduler) == {"c0": 3, "c1": 3}


def test_without_keys_the_node_that_is_connected_keeps_the_id(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, grid = open_fleet(), InProcessGrid([named_node("c0", 100), named_node("c1", 101)])
    join = after(1, lambda: grid.add(named_node("c1", 50)))
    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(grid, model(0.0), num_rounds=3, evaluate_fn=join)
    assert trained(grid) == [[100, 101]] * 3
    assert "node 50 is refused: it claims the client id 'c1', which node 101 uses" in caplog.text


def test_without_keys_a_refused_node_gets_the_id_when_the_other_has_gone(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid([named_node("c0", 100), named_node("c1", 101)])

    def come_and_go(number: int) -> None:
        if number == 1:
            grid.add(named_node("c1", 50))
        if number == 2:
            del grid.nodes[101]

    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(
        grid, model(0.0), num_rounds=3, evaluate_fn=between_rounds(come_and_go)
    )
    assert trained(grid) == [[100, 101], [100, 101], [50, 100]]


def test_the_key_of_a_forgotten_client_is_dropped(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    grid = InProcessGrid(nodes())
    path = scheduler.path.with_name("fleet.turnout.keys.json")
    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(grid, model(0.0), num_rounds=1)
    before = path.read_text()
    scheduler.forget("c1")
    other = InProcessGrid([keyed("c0", 100, b"key 0"), keyed("c2", 102, b"key 2")])
    FairSelection(open_to_all(), scheduler, duplicates="refuse").start(other, model(0.0), num_rounds=1)
    book = KeyBook(path)
    assert not book.is_other("c1", b"a new key")
    assert book.is_other("c0", b"a new key")
    assert path.read_text() != before


def test_a_damaged_file_of_keys_is_refused(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    path = scheduler.path.with_name("fleet.turnout.keys.json")
    for damaged in ("", "[1]", "{"):
        path.write_text(damaged)
        with pytest.raises(StateError, match=r"cannot read the keys of the clients in .*Restore the file"):
            FairSelection(open_to_all(), scheduler, duplicates="refuse")
