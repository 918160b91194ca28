"""What the parts of a training run share, and the parts that do as little as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from turnout.adapters.common.fleet import Fleet
from turnout.adapters.flower.core.messages import Messenger
from turnout.adapters.flower.core.nodes import NodeDirectory
from turnout.adapters.flower.core.progress import Progress
from turnout.adapters.flower.settings import ExchangeSettings
from turnout.live import Statuses

Aggregate = tuple[ArrayRecord | None, MetricRecord | None]


class Judge:
    """Accepts every reply.

    Attributes:
        needed: the number of replies that a round needs.
    """

    def __init__(self) -> None:
        self.needed, self._keys = 1, list[str]()

    def add(self, key: str, sent: RecordDict, reply: RecordDict) -> str | None:  # noqa: ARG002
        """Adds the reply to a message; returns what is wrong with its content, or None."""
        self._keys.append(key)
        return None

    def settle(self, *, is_final: bool) -> tuple[list[str], dict[str, str]]:  # noqa: ARG002
        """Returns the replies that are accepted, and why others are refused, since the last call."""
        accepted, self._keys = self._keys, []
        return accepted, {}


class Aggregator:
    """Lets the strategy aggregate replies."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def train(self, number: int, replies: Sequence[Message], before: ArrayRecord) -> Aggregate:  # noqa: ARG002
        """Aggregates the replies to training messages, which were sent the model `before`."""
        return self._strategy.aggregate_train(number, replies) if replies else (None, None)

    def evaluate(self, number: int, replies: Sequence[Message]) -> MetricRecord | None:
        """Aggregates evaluations; returns None if there is none."""
        return self._strategy.aggregate_evaluate(number, replies) if replies else None

    def check_failures(self) -> None:
        """Raises TrainingError if training cannot go on."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What one call of `start` works with.

    Attributes:
        strategy: Configures messages and aggregates replies.
        scheduler: Selects clients and records all outcomes.
        nodes: Knows which client runs on which node, and the statuses of the clients.
        settings: How messages are exchanged.
        messenger: Exchanges the messages.
        judge: Decides which replies can be used.
        aggregator: Calls the strategy.
        progress: Keeps the model and the metrics.
        statuses: Returns the statuses in a round of clients with their nodes; None: those that they report.
        min_nodes: The number of connected nodes to wait for before the first round.
        patience: How many seconds a fleet that has trained before waits for them.
        timeout: How many seconds the server waits for nodes, and for replies without a deadline.
    """

    strategy: Strategy
    scheduler: Fleet
    nodes: NodeDirectory
    settings: ExchangeSettings
    messenger: Messenger
    judge: Judge
    aggregator: Aggregator
    progress: Progress
    statuses: Callable[[int, Mapping[str, int]], Statuses] | None = None
    min_nodes: int = 1
    patience: float = 30.0
    timeout: float = 3600.0
