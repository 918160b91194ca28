"""Rejects strategies that would wait indefinitely or send training messages to clients outside the cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import Bulyan, Strategy

from turnout.errors import SettingError
from turnout.live import Scheduler
from turnout.policies.registry import nested_settings

LEGACY_ADVICE = "and docs/flower.md lists the lines to change under 'Apps of the older interface'"
REQUIRED: Mapping[str, float] = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}


def check_strategy(strategy: Strategy) -> None:
    """Raises SettingError unless the strategy trains on all visible nodes, however few they are."""
    if not isinstance(strategy, Strategy):
        raise SettingError(
            f"FairSelection wraps a strategy of flwr.serverapp.strategy, got {strategy!r}: strategies of flwr.server "
            f"belong to Flower's older interface, {LEGACY_ADVICE}"
        )
    for layer in nested_strategies(strategy):
        for name, required in REQUIRED.items():
            value = getattr(layer, name, required)
            if value == required or (name != "fraction_train" and value < required):
                continue
            kind = type(layer).__name__
            effect = "would train only a part of the cohort" if name == "fraction_train" else "may wait indefinitely"
            raise SettingError(
                f"{kind} with {name}={value} {effect}, because it sees only the selected clients: write {kind}("
                "fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, …), or use another strategy"
            )


def check_minima(strategy: Strategy, replies: int | None) -> None:
    """Raises SettingError if the strategy makes no model, or one with wrong noise, of so many replies."""
    for layer in nested_strategies(strategy):
        malicious, kind = getattr(layer, "num_malicious_nodes", 0), type(layer).__name__
        minimum = 4 * malicious + 3 if isinstance(layer, Bulyan) else 2 * malicious + 3 if malicious else 1
        minimum = max(minimum, getattr(layer, "num_nodes_to_select", 1))
        if replies is not None and replies < minimum:
            raise SettingError(
                f"{kind} with num_malicious_nodes={malicious} needs {minimum} replies, and a model is made of "
                f"{replies}: increase the cohort size of the fleet, or change {kind}"
            )
        sampled = getattr(layer, "num_sampled_clients", replies)
        if replies is not None and sampled != replies:
            raise SettingError(
                f"{kind} computes its noise for num_sampled_clients={sampled}, and a model is made of {replies} "
                f"replies: write num_sampled_clients={replies}"
            )


def check_recipients(strategy: Strategy, messages: Sequence[Message], nodes: Mapping[str, int]) -> None:
    """Raises SettingError unless the strategy sends exactly one message to each selected node."""
    recipients = sorted(message.metadata.dst_node_id for message in messages)
    if recipients != sorted(nodes.values()):
        raise SettingError(
            f"{type(strategy).__name__} sees {len(nodes)} selected nodes but sends {len(recipients)} messages to "
            f"{len(set(recipients))} nodes: FairSelection needs a strategy that sends one message to each visible node"
        )


def min_nodes_to_evaluate(strategy: Strategy) -> int:
    """Returns the number of connected nodes that the strategy waits for before it evaluates."""
    counts: list[Any] = [0]
    for layer in nested_strategies(strategy):
        if getattr(layer, "fraction_evaluate", 1.0):
            counts += [getattr(layer, "min_evaluate_nodes", 0), getattr(layer, "min_available_nodes", 0)]
    return int(max(counts))


def evaluates_on_clients(strategy: Strategy) -> bool:
    """Returns whether the strategy sends evaluation messages to clients."""
    return all(getattr(layer, "fraction_evaluate", 1.0) for layer in nested_strategies(strategy))


def weight_key(strategy: Strategy) -> str | None:
    """Returns the metric by which the strategy weights replies; None if it has no such setting."""
    keys = (getattr(layer, "weighted_by_key", None) for layer in nested_strategies(strategy))
    return next((key for key in keys if isinstance(key, str)), None)


def nested_strategies(strategy: Strategy) -> list[Strategy]:
    """Returns the strategy and those inside it, outermost first: differential privacy wraps another strategy."""
    strategies = [strategy]
    while isinstance(inner := getattr(strategies[-1], "strategy", None), Strategy):
        strategies.append(inner)
    return strategies


def check_quota(scheduler: Scheduler) -> None:
    """Raises SettingError unless the policy of the fleet reserves places for groups."""
    names = [name for name, _ in nested_settings(scheduler.settings.policy, scheduler.settings.settings)]
    if "quota" not in names:
        raise SettingError(
            f"groups needs a fleet with the policy 'quota', and {scheduler.path} has {' around '.join(names)}: leave "
            "out groups, or create a fleet with places for groups"
        )
