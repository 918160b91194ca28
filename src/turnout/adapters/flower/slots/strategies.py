"""Checks the settings of a server without rounds: which strategies can be used, and with which fleet."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from turnout.adapters.flower.checks import nested_strategies
from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, as_number
from turnout.live import Scheduler

#: The declaration of a strategy of your own.
DECLARATION = "works_without_rounds"
#: Flower's strategies that keep nothing between both methods but the current model.
TRIED = (
    *(flower.FedAvg, flower.FedAdagrad, flower.FedAdam, flower.FedAvgM, flower.FedMedian, flower.FedProx),
    *(flower.FedTrimmedAvg, flower.FedYogi, flower.Krum, flower.MultiKrum, flower.Bulyan, flower.QFedAvg),
)
KNOWN = frozenset(base for strategy in TRIED for base in strategy.__mro__)
#: Why others of Flower's strategies need rounds, by the start of their names.
NEEDS_ROUNDS = {
    "DifferentialPrivacy": "its privacy holds only if each aggregation has at most one update of each client",
    "FedXgb": "its models are trees, and a difference of trees cannot be added to another model",
}


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """How updates become versions.

    Attributes:
        concurrency: The number of slots.
        updates_per_version: The number of updates that make a version.
        discount: The exponent of the discount of an update by its staleness.
    """

    concurrency: int
    updates_per_version: int
    discount: float


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


def check_slots(
    strategy: Strategy, scheduler: Scheduler, updates_per_version: int | None, discount: float, *, is_simulated: bool
) -> SlotSettings | None:
    """Returns how updates become versions, or None if the fleet has rounds.

    Raises SettingError if the arguments do not fit the fleet.

    Args:
        strategy: The strategy.
        scheduler: The fleet.
        updates_per_version: The number of updates that make a version.
        discount: The exponent of the discount by staleness.
        is_simulated: Whether a world determines the exchange times.
    """
    slots = scheduler.settings.concurrency
    if slots is None:
        if updates_per_version is not None:
            raise SettingError(
                f"updates_per_version needs a fleet without rounds, and {scheduler.path} has rounds: create another "
                "fleet with Scheduler.open(…, concurrency=8)"
            )
        return None
    if is_simulated and scheduler.settings.deadline is not None:
        raise SettingError(
            "in a fleet without rounds, deadlines are measured by the clock of this machine, not by that of the "
            "simulated world: create the fleet without deadline"
        )
    check_slot_strategy(strategy)
    return SlotSettings(
        slots,
        as_count("updates_per_version", slots if updates_per_version is None else updates_per_version, SettingError),
        as_number("discount", discount, SettingError, least=0),
    )


def _remedy(owner: type, method: str) -> str:
    for start, why in NEEDS_ROUNDS.items():
        if owner.__module__.startswith("flwr.") and owner.__name__.startswith(start):
            return f"{why}. Use a fleet with rounds"
    return (
        f"{owner.__name__} has its own {method}. If it needs only the current model, however many updates there are "
        f"and of whichever clients, declare {DECLARATION} = True in the class; otherwise use a fleet with rounds"
    )
