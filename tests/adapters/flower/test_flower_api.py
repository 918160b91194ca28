"""The names of Flower that are not part of its documented interface, in the installed version."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import flwr
import pytest
from flwr.app import Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import constant
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Result, Strategy

from adapters.flower.in_process import open_to_all
from benchmarks.virtual_nodes import stamp_message, stamp_reply
from turnout.adapters.flower import flower_api

VERSION = f"Flower {flwr.__version__}"
STRATEGIES: list[Any] = [
    open_to_all(),
    flower.Krum(num_malicious_nodes=1),
    flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2),
    flower.DifferentialPrivacyServerSideFixedClipping(open_to_all(), 0.0, 1.0, 2),
]


@pytest.mark.parametrize("name", [each.name for each in fields(flower_api.StrategySettings)[1:]])
def test_a_strategy_has_each_of_the_settings_that_are_checked(name: str) -> None:
    assert any(name in vars(strategy) for strategy in STRATEGIES), (
        f"{VERSION}: no strategy has the attribute {name!r} any more, and its check passes without a look at it"
    )


def test_differential_privacy_keeps_the_strategy_that_it_wraps() -> None:
    inner = STRATEGIES[-1].strategy
    assert flower_api.nested_strategies(STRATEGIES[-1]) == [STRATEGIES[-1], inner], f"{VERSION}: not in .strategy"
    names = [name for name in dir(flower) if name.startswith(tuple(flower_api.NEEDS_ROUNDS))]
    assert {name[:6] for name in names} == {"Differ", "FedXgb"}, f"{VERSION}: strategies were renamed: {names}"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CLIENT_APP_RAISED_EXCEPTION", flower_api.APP_ERROR),
        ("MESSAGE_UNAVAILABLE", flower_api.EXPIRED[0]),
        ("REPLY_MESSAGE_UNAVAILABLE", flower_api.EXPIRED[1]),
    ],
)
def test_the_numbers_of_errors_are_those_of_flower(name: str, code: int) -> None:
    assert getattr(constant.ErrorCode, name, None) == code, (
        f"{VERSION}: the error {name} has another number than {code}"
    )


def test_the_view_of_a_grid_has_every_method_that_flower_requires() -> None:
    missing = [name for name in Grid.__abstractmethods__ if name not in vars(flower_api.RestrictedGrid)]
    assert not missing, f"{VERSION}: RestrictedGrid must delegate {missing}, or no run starts"


@pytest.mark.filterwarnings("ignore")
def test_an_app_of_the_older_interface_is_recognized() -> None:
    older: Any = lambda _: None  # noqa: E731
    assert flower_api.is_older_app(ClientApp(client_fn=older)), f"{VERSION}: _call does not hold a client_fn any more"
    assert not flower_api.is_older_app(ClientApp()), f"{VERSION}: every ClientApp has _call"


@pytest.mark.skipif(not hasattr(Grid, "get_nodes"), reason="before Flower 1.41, grids know only node ids")
def test_the_superlink_describes_a_node_by_these_fields() -> None:
    from flwr.proto.node_pb2 import NodeInfo

    names = {"node_id", flower_api.NAME, flower_api.REGISTERED, flower_api.STARTED, flower_api.OWNER}
    names.add(flower_api.LOCATION)
    missing = names - set(NodeInfo.DESCRIPTOR.fields_by_name)
    assert not missing, f"{VERSION}: a node is not described by {missing} any more"


def test_a_result_and_a_strategy_have_the_parts_that_a_run_needs() -> None:
    names = [each.name for each in fields(Result)]
    parts = ["arrays", "train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"]
    assert names == parts, f"{VERSION}: Result has the fields {names}"
    methods = {"configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary"}
    assert Strategy.__abstractmethods__ == methods, f"{VERSION}: strategies must have other methods"


def test_messages_keep_their_ids_where_grids_without_a_superlink_set_them() -> None:
    sent = Message(RecordDict(), dst_node_id=5, message_type="train")
    stamp_message(sent, "m1")
    reply = Message(RecordDict(), reply_to=sent)
    stamp_reply(reply, sent, 5)
    ids = (sent.metadata.message_id, reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
    assert ids == ("m1", "m1", 5), f"{VERSION}: {Metadata.__name__} keeps its values elsewhere"


#: What Flower documents for apps; `legacy` is for the older interface, of which it needs more.
DOCUMENTED = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
OWN = Path(flower_api.__file__).parent


@pytest.mark.parametrize(
    "path",
    [path for path in OWN.rglob("*.py") if path.name not in ("flower_api.py", "legacy.py")],
    ids=lambda p: p.stem,
)
def test_other_modules_use_documented_names_only(path: Path) -> None:
    """No other packages, no private attributes of something else than `self`, and no attributes by their names."""
    tree = ast.parse(path.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {module for module in modules if module.startswith("flwr")} <= DOCUMENTED
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)]
    assert [ast.unparse(node) for node in attributes if ast.unparse(node.value) not in ("self", "super()")] == []
    named = {field.name for field in fields(flower_api.StrategySettings)} - {"kind"}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert named & texts == set()
