"""Refuses what would make Flower wait for ever, or ask others than the chosen."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from turnout.errors import SettingError

NEEDED: Mapping[str, float] = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}


def check_strategy(strategy: Strategy) -> None:
    """It must take all nodes that it is shown, however few they are."""
    if not isinstance(strategy, Strategy):
        raise SettingError(
            f"FairSelection goes around a strategy of flwr.serverapp.strategy, not {strategy!r}: those of flwr.server "
            "belong to Flower's older interface"
        )
    for layer in layers(strategy):
        for name, needed in NEEDED.items():
            given = getattr(layer, name, needed)
            if given == needed or (name != "fraction_train" and given < needed):
                continue
            kind = type(layer).__name__
            told = "would ask only a part of the cohort" if name == "fraction_train" else "may wait for ever"
            remedy = f"write {kind}(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, …)"
            if not _takes(layer, name):
                remedy = f"{kind} takes no {name}, use another strategy"
            raise SettingError(f"{kind} with {name}={given} {told}, for it is shown the chosen clients only: {remedy}")


def check_asked(strategy: Strategy, messages: Sequence[Message], nodes: Mapping[str, int]) -> None:
    """Exactly the chosen were asked, each once."""
    asked = sorted(message.metadata.dst_node_id for message in messages)
    if asked != sorted(nodes.values()):
        raise SettingError(
            f"{type(strategy).__name__} was shown {len(nodes)} chosen nodes and asks {len(asked)}, {len(set(asked))} "
            "of them different: FairSelection needs a strategy that sends one message to each node it is shown"
        )


def fewest_evaluating(strategy: Strategy) -> int:
    """How many nodes it waits for before it evaluates."""
    counts: list[Any] = [0]
    for layer in layers(strategy):
        if getattr(layer, "fraction_evaluate", 1.0):
            counts += [getattr(layer, "min_evaluate_nodes", 0), getattr(layer, "min_available_nodes", 0)]
    return int(max(counts))


def evaluates(strategy: Strategy) -> bool:
    """Whether it asks clients to evaluate."""
    return all(getattr(layer, "fraction_evaluate", 1.0) for layer in layers(strategy))


def layers(strategy: Strategy) -> list[Strategy]:
    """The strategy, and those inside it: the ones for differential privacy go around another."""
    found = [strategy]
    while isinstance(inner := getattr(found[-1], "strategy", None), Strategy):
        found.append(inner)
    return found


def _takes(strategy: Strategy, name: str) -> bool:
    """Whether it can be made with a setting of this name."""
    parameters = inspect.signature(type(strategy)).parameters.values()
    return any(one.name == name or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
