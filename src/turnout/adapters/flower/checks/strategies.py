"""Rejects strategies that would wait indefinitely or send training messages to clients outside the cohort."""

from __future__ import annotations

from flwr.serverapp.strategy import Bulyan, Strategy

from turnout.adapters.flower.flower_api import nested_strategies, settings_of
from turnout.errors import SettingError

LEGACY_ADVICE = "and docs/flower.md lists the lines to change under 'Apps of the older interface'"


def check_strategy(strategy: Strategy) -> None:
    """Raises SettingError unless the strategy trains on all visible nodes, however few they are."""
    if not isinstance(strategy, Strategy):
        raise SettingError(
            f"FairSelection wraps a strategy of flwr.serverapp.strategy, got {strategy!r}: strategies of flwr.server "
            f"belong to Flower's older interface, {LEGACY_ADVICE}"
        )
    for layer in settings_of(strategy):
        if layer.fraction_train != 1.0:
            problem = f"fraction_train={layer.fraction_train} would train only a part of the cohort"
        elif layer.min_train_nodes > 1:
            problem = f"min_train_nodes={layer.min_train_nodes} may wait indefinitely"
        elif layer.min_available_nodes > 1:
            problem = f"min_available_nodes={layer.min_available_nodes} may wait indefinitely"
        else:
            continue
        raise SettingError(
            f"{layer.kind} with {problem}, because it sees only the selected clients: write {layer.kind}("
            "fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, …), or use another strategy"
        )


def check_minima(strategy: Strategy, replies: int | None) -> None:
    """Raises SettingError if the strategy makes no model, or one with wrong noise, of so many replies."""
    if replies is None:
        return
    for layer, its in zip(nested_strategies(strategy), settings_of(strategy), strict=True):
        malicious = its.num_malicious_nodes
        minimum = 4 * malicious + 3 if isinstance(layer, Bulyan) else 2 * malicious + 3 if malicious else 1
        minimum = max(minimum, its.num_nodes_to_select)
        if replies < minimum:
            raise SettingError(
                f"{its.kind} with num_malicious_nodes={malicious} needs {minimum} replies, and a model is made of "
                f"{replies}: increase the cohort size of the fleet, or change {its.kind}"
            )
        if its.num_sampled_clients not in (None, replies):
            raise SettingError(
                f"{its.kind} computes its noise for num_sampled_clients={its.num_sampled_clients}, and a model is made "
                f"of {replies} replies: write num_sampled_clients={replies}"
            )


def weight_key(strategy: Strategy) -> str | None:
    """Returns the metric by which the strategy weights replies; None if it has no such setting."""
    return next((layer.weighted_by_key for layer in settings_of(strategy) if layer.weighted_by_key), None)
