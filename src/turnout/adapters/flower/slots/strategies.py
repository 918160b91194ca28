"""Checks the settings of a server without rounds: which strategies can be used, and with which fleet."""

from __future__ import annotations

from flwr.serverapp.strategy import Strategy

from turnout.adapters.common.fleet import Fleet, facts_of
from turnout.adapters.flower.flower_api import NEEDS_ROUNDS, WITHOUT_STATE, nested_strategies
from turnout.adapters.flower.settings import VersionSettings
from turnout.errors import SettingError

#: The declaration of a strategy of your own.
DECLARATION = "works_without_rounds"
KNOWN = frozenset(base for strategy in WITHOUT_STATE for base in strategy.__mro__)


def check_slot_strategy(strategy: Strategy) -> None:
    """Raises SettingError unless the strategy is known to work without rounds, or declares it.

    What counts is which class defines `configure_train` and `aggregate_train`: one of Flower's that was tried, or one
    with `works_without_rounds = True`.
    """
    for layer in nested_strategies(strategy):
        if getattr(layer, DECLARATION, False):
            continue
        for method in ("configure_train", "aggregate_train"):
            owner = next(base for base in type(layer).__mro__ if method in vars(base))
            if owner not in KNOWN:
                raise SettingError(f"{type(layer).__name__} cannot be used without rounds: {_remedy(owner, method)}")


def version_size(strategy: Strategy, scheduler: Fleet, settings: VersionSettings, *, is_simulated: bool) -> int | None:
    """Returns how many updates make a version, or None if the fleet has rounds.

    Raises SettingError if the settings do not fit the fleet.

    Args:
        strategy: The strategy.
        scheduler: The fleet.
        settings: How updates become versions.
        is_simulated: Whether a world determines the exchange times.
    """
    slots = scheduler.settings.concurrency
    if slots is None:
        if settings.updates_per_version is not None:
            raise SettingError(
                f"updates_per_version needs a fleet without rounds, and {facts_of(scheduler).location} has rounds: "
                "create another fleet with Scheduler.open(…, concurrency=8)"
            )
        return None
    if is_simulated and scheduler.settings.deadline is not None:
        raise SettingError(
            "in a fleet without rounds, deadlines are measured by the clock of this machine, not by that of the "
            "simulated world: create the fleet without deadline"
        )
    check_slot_strategy(strategy)
    return settings.updates_per_version or slots


def _remedy(owner: type, method: str) -> str:
    for start, why in NEEDS_ROUNDS.items():
        if owner.__module__.startswith("flwr.") and owner.__name__.startswith(start):
            return f"{why}. Use a fleet with rounds"
    return (
        f"{owner.__name__} has its own {method}. If it needs only the current model, however many updates there are "
        f"and of whichever clients, declare {DECLARATION} = True in the class; otherwise use a fleet with rounds"
    )
