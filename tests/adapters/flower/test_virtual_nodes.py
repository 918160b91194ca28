"""The virtual nodes with which a Flower round is measured."""

from __future__ import annotations

from flwr.app import ArrayRecord, Message, RecordDict

from adapters.flower.in_process import model, weights
from benchmarks.virtual_nodes import VirtualGrid, trivial_app
from turnout.adapters.flower.client import with_status
from turnout.adapters.flower.wire import pop_client_info


def train(node: int, arrays: ArrayRecord) -> Message:
    return Message(RecordDict({"arrays": arrays}), dst_node_id=node, message_type="train")


def test_a_virtual_node_gets_a_copy_of_the_model_and_replies_at_once() -> None:
    grid, arrays = VirtualGrid(with_status(trivial_app()), 3), model(1.0, 2.0)
    nodes = grid.get_node_ids()
    first, second = grid.send_and_receive([train(nodes[0], arrays), train(nodes[2], arrays)])
    assert weights(first.content.array_records["arrays"]) == [2.0, 3.0]
    assert weights(arrays) == [1.0, 2.0]
    assert [reply.metadata.src_node_id for reply in (first, second)] == [nodes[0], nodes[2]]
    infos = [pop_client_info(reply.content) for reply in (first, second)]
    assert [info.client for info in infos if info is not None] == ["0", "2"]
    assert [dict(info.status) for info in infos if info is not None] == [{"free_cpu": 1.0, "bandwidth": 1.0}] * 2


def test_virtual_nodes_are_named_as_registered_supernodes_are() -> None:
    app = trivial_app()
    assert [node.name for node in VirtualGrid(app, 2).get_nodes()] == ["client-0", "client-1"]
    assert [node.name for node in VirtualGrid(app, 2, are_named=False).get_nodes()] == ["", ""]
