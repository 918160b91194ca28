"""What of Flower is private, undocumented or a bare number: all other modules use its documented interface only.

A test compares each of these names with the installed version of Flower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

#: Error codes of replies: the client app raised an exception; a message, or a reply, is no longer stored.
APP_ERROR, EXPIRED = 2, (3, 4)
#: The fields of the SuperLink's description of a node, from Flower 1.41 on.
NAME, REGISTERED, STARTED, OWNER, LOCATION = "name", "registered_at", "last_activated_at", "owner_name", "location"
#: Flower's strategies that keep nothing between configuration and aggregation but the current model.
WITHOUT_STATE = (
    *(flower.FedAvg, flower.FedAdagrad, flower.FedAdam, flower.FedAvgM, flower.FedMedian, flower.FedProx),
    *(flower.FedTrimmedAvg, flower.FedYogi, flower.Krum, flower.MultiKrum, flower.Bulyan, flower.QFedAvg),
)
#: Why others of Flower's strategies need rounds, by the start of their names.
NEEDS_ROUNDS = {
    "DifferentialPrivacy": "its privacy holds only if each aggregation has at most one update of each client",
    "FedXgb": "its models are trees, and a difference of trees cannot be added to another model",
}


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """The settings of a strategy, by the names of its attributes; a strategy without one has the default."""

    kind: str
    fraction_train: float = 1.0
    min_train_nodes: int = 1
    min_available_nodes: int = 0
    fraction_evaluate: float = 1.0
    min_evaluate_nodes: int = 0
    weighted_by_key: str | None = None
    num_malicious_nodes: int = 0
    num_nodes_to_select: int = 1
    num_sampled_clients: int | None = None


def nested_strategies(strategy: Strategy) -> list[Strategy]:
    """Returns the strategy and those inside it, outermost first: differential privacy wraps another strategy."""
    strategies = [strategy]
    while isinstance(inner := getattr(strategies[-1], "strategy", None), Strategy):
        strategies.append(inner)
    return strategies


def settings_of(strategy: Strategy) -> list[StrategySettings]:
    """Returns the settings of the strategy and of those inside it."""
    names: list[tuple[str, Any]] = [(each.name, each.default) for each in fields(StrategySettings)[1:]]
    return [
        StrategySettings(type(layer).__name__, **{name: getattr(layer, name, default) for name, default in names})
        for layer in nested_strategies(strategy)
    ]


def is_older_app(app: ClientApp) -> bool:
    """Returns whether a client app was made of a `client_fn` of the older interface."""
    return getattr(app, "_call", None) is not None


def describe_nodes(grid: Grid) -> dict[int, Any]:
    """Returns what the SuperLink knows of each node; nothing before Flower 1.41, whose grids know only ids."""
    return {node.node_id: node for node in grid.get_nodes()} if hasattr(grid, "get_nodes") else {}


def started_at(grid: Grid) -> dict[int, str]:
    """Returns when each node was started last, as far as the SuperLink knows."""
    return {node: getattr(described, STARTED, "") for node, described in describe_nodes(grid).items()}


class RestrictedGrid(Grid):
    """A view of a grid that lists only some nodes: a strategy that samples all of them samples exactly these."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        self._grid, self._nodes = grid, list(nodes)

    def get_node_ids(self) -> list[int]:
        """Returns the ids of the visible nodes."""
        return sorted(self._nodes)

    def get_nodes(self) -> Any:
        """Returns Flower's descriptions of the visible nodes."""
        visible = set(self._nodes)
        return [node for number, node in describe_nodes(self._grid).items() if number in visible]

    # The remaining methods delegate to the grid.

    def set_run(self, run: Any) -> None:
        """Delegates to the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Delegates to the grid."""
        return self._grid.run

    def create_message(self, content: RecordDict, *args: Any, **kwargs: Any) -> Message:
        """Delegates to the grid."""
        return self._grid.create_message(content, *args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Delegates to the grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Delegates to the grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Delegates to the grid."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def restrict_grid(grid: Grid, nodes: Iterable[int]) -> Grid:
    """Returns a view of the grid in which only these nodes are connected.

    Use it to apply your own eligibility rules before a strategy samples clients.
    """
    return RestrictedGrid(grid, nodes)
