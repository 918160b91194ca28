"""What a strategy keeps between rounds: which parts are saved, and how they are restored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from turnout.adapters.flower.resume.packing import STORABLE, unstorable_part
from turnout.errors import SettingError, StateError


def strategy_state(strategy: Any) -> dict[str, Any]:
    """Returns what the strategy's own `state_dict` gives, or else its plain attributes and the states of its parts.

    Parts are strategies inside it, and objects with `state_dict` and `load_state_dict`.
    """
    state: dict[str, Any] = {"class": _class_name(strategy)}
    if has_hooks(strategy):
        own = strategy.state_dict()
        check_storable(own, f"state_dict() of {type(strategy).__name__}")
        return state | {"hook": own}
    attributes = {}
    for name, value in vars(strategy).items():
        if _is_part(value):
            attributes[name] = {"inner": strategy_state(value)}
        elif unstorable_part(value) is None:
            attributes[name] = {"value": value}
    return state | {"attributes": attributes}


def check_storable(value: Any, source: str) -> None:
    """Raises StateError if a value contains something that cannot be stored; `source` says what returned it."""
    problem = unstorable_part(value)
    if problem is not None:
        raise StateError(f"{source} returns what cannot be stored ({problem}): return {STORABLE}")


def unsaved_attributes(strategy: Any) -> list[str]:
    """Returns the attributes of a strategy and its parts that are not saved. Functions are code, not state."""
    if has_hooks(strategy):
        return []
    unsaved = []
    for name, value in vars(strategy).items():
        if _is_part(value):
            unsaved += [f"{name}.{inner}" for inner in unsaved_attributes(value)]
        elif not callable(value) and not isinstance(value, logging.Logger) and unstorable_part(value) is not None:
            unsaved.append(name)
    return unsaved


def restore_strategy(strategy: Any, state: Mapping[str, Any]) -> None:
    """Restores the state to a strategy that was constructed with the same arguments."""
    if has_hooks(strategy) != ("hook" in state):
        had, has = ("", "no ") if "hook" in state else ("no ", "")
        raise StateError(
            f"the strategy of the saved run had {had}state_dict, this {type(strategy).__name__} has {has}such method: "
            "construct the strategy as before, or start a new run with resume=False"
        )
    if "hook" in state:
        strategy.load_state_dict(state["hook"])
        return
    for name, saved in state["attributes"].items():
        inner = getattr(strategy, name, None)
        # An attribute that appeared in a round is added if the strategy is of the same class.
        is_unknown = not hasattr(strategy, name) and state["class"] != _class_name(strategy)
        if is_unknown or ("inner" in saved and inner is None):
            raise StateError(
                f"the strategy of the saved run has {name!r}, this {type(strategy).__name__} has not: construct the "
                "strategy as before, or start a new run with resume=False"
            )
        if "inner" in saved:
            restore_strategy(inner, saved["inner"])
        else:
            setattr(strategy, name, saved["value"])


def has_hooks(strategy: Any) -> bool:
    """Returns whether a strategy saves and restores itself; raises SettingError if it has only one of the methods."""
    names = [name for name in ("state_dict", "load_state_dict") if callable(getattr(strategy, name, None))]
    if len(names) == 1:
        raise SettingError(
            f"{type(strategy).__name__} must have both state_dict() and load_state_dict(state), or neither, got only "
            f"{names[0]}"
        )
    return bool(names)


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_part(value: Any) -> bool:
    """Returns whether an attribute is a strategy, or an object that saves itself as something that can be stored."""
    if isinstance(value, Strategy):
        return True
    saves_itself = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    return saves_itself and unstorable_part(value.state_dict()) is None
