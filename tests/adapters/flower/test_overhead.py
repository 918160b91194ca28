"""What fair selection costs is measured with virtual nodes in this process."""

from __future__ import annotations

import json
import logging
import re

import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from adapters.flower.in_process import model, weights
from turnout.adapters.flower.client import with_status
from turnout.adapters.flower.overhead import OverheadFigures, RoundTimes, measure_overhead, trivial_app
from turnout.adapters.flower.virtual import VirtualGrid
from turnout.adapters.flower.wire import pop_client_info

TIMES = RoundTimes(plain=0.5, fair=0.75, first=2.0, query=4.0)


def test_every_kind_of_round_is_measured() -> None:
    figures = measure_overhead(nodes=12, cohort=3, repeats=1)
    for times in (figures.default, figures.train_only):
        assert min(times.plain, times.fair, times.first, times.query) > 0
    assert logging.getLogger("flwr").level != logging.CRITICAL  # the log is silent only meanwhile


def test_targets_are_ratios_of_rounds_with_flowers_default_evaluation() -> None:
    figures = OverheadFigures(2000, 20, TIMES, RoundTimes(1.0, 9.0, 9.0, 9.0))
    assert (figures.ratio, figures.first_ratio) == (1.5, 4.0)


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


def test_the_command_prints_both_ratios_with_their_targets() -> None:
    typer = pytest.importorskip("typer.testing")
    from turnout.cli.app import app

    arguments = ["bench", "flower", "--nodes", "12", "--cohort", "3", "--repeats", "1"]
    figures = json.loads(typer.CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [target["most"] for target in figures["targets"]] == [1.5, 5.0]
    assert [target["figure"] for target in figures["targets"]] == [figures["ratio"], figures["first_ratio"]]
    assert figures["ratio"] == pytest.approx(figures["default"]["fair"] / figures["default"]["plain"])
    shown = typer.CliRunner().invoke(app, arguments).stdout
    assert "first round / round of plain FedAvg" in shown
    assert re.search(r"Without evaluation, .* fair selection adds -?[\d.]+ ms to a round: [\d.]+ rounds of", shown)
    assert "12 virtual nodes, 3 selected" in shown
    refused = typer.CliRunner().invoke(app, [*arguments, "--cohort", "13"])
    assert refused.exit_code != 0
