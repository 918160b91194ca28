"""What the parts of a training run share."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.serverapp.strategy import Strategy

from turnout.adapters.flower.discovery.nodes import NodeDirectory
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.live import Scheduler


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The strategy, the fleet, and how replies are read.

    Attributes:
        strategy: Configures messages and aggregates replies.
        scheduler: Selects clients and records all outcomes.
        nodes: Knows which client runs on which node, and the statuses of the clients.
        simulated: Determines which clients are available and how long they take, in a simulation.
        loss_key: The metric with the training loss.
        weight_key: The metric by which the strategy weights replies.
        is_checked: Whether replies and models that cannot be used are refused.
        max_failed_rounds: The number of failed rounds in a row after which training ends; None: never.
        min_nodes: The number of connected nodes to wait for before the first round.
        patience: How many seconds a fleet that has trained before waits for them.
        groups: The name of the groups that the fleet has quotas for; None if it has none.
    """

    strategy: Strategy
    scheduler: Scheduler
    nodes: NodeDirectory
    simulated: SimulatedFleet | None
    loss_key: str | None
    weight_key: str | None
    is_checked: bool
    max_failed_rounds: int | None
    min_nodes: int
    patience: float
    groups: str | None
