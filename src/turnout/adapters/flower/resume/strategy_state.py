"""What a strategy keeps between rounds: which parts are saved, and how they are restored."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from turnout.adapters.flower.resume.packing import copy_generator, unstorable_part
from turnout.errors import SettingError, StateError

#: Code, not state: attributes of these types are set when the strategy is constructed.
CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    functools.partial,
    logging.Logger,
    logging.LoggerAdapter,
)


def strategy_state(strategy: Strategy) -> dict[str, Any]:
    """Returns the state of a strategy: that of its own `state_dict`, or else all attributes that can be stored.

    Attributes with `state_dict` and `load_state_dict`, nested strategies, and objects of which every attribute can be
    stored are included.
    """
    state: dict[str, Any] = {"class": _class_name(strategy)}
    if has_hooks(strategy):
        return state | {"hook": _hook_state(strategy)}
    found = {name: _attribute_state(value, {id(strategy)}) for name, value in vars(strategy).items()}
    return state | {"attributes": {name: saved for name, saved in found.items() if saved is not None}}


def unsaved_attributes(strategy: Strategy) -> dict[str, str]:
    """Returns the attributes of a strategy, and of those inside it, that are not saved, and why."""
    if has_hooks(strategy):
        return {}
    unsaved: dict[str, str] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            unsaved |= {f"{name}.{inner}": why for inner, why in unsaved_attributes(value).items()}
        elif not isinstance(value, CODE) and _attribute_state(value, {id(strategy)}) is None:
            unsaved[name] = _why_unsaved(value)
    return unsaved


def restore_strategy(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Restores the state to a strategy that was constructed with the same arguments."""
    if has_hooks(strategy) != ("hook" in state):
        had, has = ("", "no ") if "hook" in state else ("no ", "")
        raise StateError(
            f"the strategy of the saved run had {had}state_dict, this {type(strategy).__name__} has {has}such method: "
            "construct the strategy as before, or start a new run with resume=False"
        )
    if "hook" in state:
        strategy.load_state_dict(state["hook"])  # type: ignore[attr-defined]
        return
    _restore_attributes(strategy, state["attributes"], may_add=state["class"] == _class_name(strategy))


def has_hooks(strategy: Strategy) -> bool:
    """Returns whether a strategy saves and restores itself; raises SettingError if it has only one of the methods."""
    names = [name for name in ("state_dict", "load_state_dict") if callable(getattr(strategy, name, None))]
    if len(names) == 1:
        raise SettingError(
            f"{type(strategy).__name__} must have both state_dict() and load_state_dict(state), or neither, got only "
            f"{names[0]}"
        )
    return bool(names)


def _hook_state(strategy: Strategy) -> Any:
    state = strategy.state_dict()  # type: ignore[attr-defined]
    problem = unstorable_part(state)
    if problem is not None:
        raise StateError(
            f"state_dict() of {type(strategy).__name__} returns what cannot be stored ({problem}): return numbers, "
            "strings, bytes, arrays, random generators and containers of these"
        )
    return state


def _attribute_state(value: Any, above: Iterable[int]) -> dict[str, Any] | None:
    """Returns what is saved of an attribute; None if it cannot be stored. `above` has the objects that contain it."""
    if isinstance(value, CODE):
        return None
    if isinstance(value, Strategy):
        return {"inner": strategy_state(value)}
    if callable(getattr(value, "load_state_dict", None)) and callable(getattr(value, "state_dict", None)):
        own = value.state_dict()
        return {"state": own} if unstorable_part(own) is None else None
    if unstorable_part(value) is None:
        return {"value": value}
    return _object_state(value, above)


def _object_state(value: Any, above: Iterable[int]) -> dict[str, Any] | None:
    """Returns the attributes of an object if every one can be stored, apart from code."""
    if not hasattr(value, "__dict__") or id(value) in above:
        return None
    attributes = {}
    for name, item in vars(value).items():
        if isinstance(item, CODE):
            continue
        saved = _attribute_state(item, {*above, id(value)})
        if saved is None:
            return None
        attributes[name] = saved
    return {"object": {"class": _class_name(value), "attributes": attributes}} if attributes else None


def _restore_attributes(target: Any, attributes: Mapping[str, Any], *, may_add: bool) -> None:
    """Sets the attributes of an object; one that appeared in a round is added if the object is of the same class."""
    for name, saved in attributes.items():
        is_missing = not hasattr(target, name)
        if (is_missing and not may_add) or ("value" not in saved and getattr(target, name, None) is None):
            raise StateError(
                f"the strategy of the saved run has {name!r}, this {type(target).__name__} has not: construct the "
                "strategy as before, or start a new run with resume=False"
            )
        if "inner" in saved:
            restore_strategy(getattr(target, name), saved["inner"])
        elif "state" in saved:
            getattr(target, name).load_state_dict(saved["state"])
        elif "object" in saved:
            inner, current = saved["object"], getattr(target, name)
            _restore_attributes(current, inner["attributes"], may_add=inner["class"] == _class_name(current))
        elif is_missing or not copy_generator(saved["value"], getattr(target, name)):  # others may share a generator
            setattr(target, name, saved["value"])


def _why_unsaved(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    part = unstorable_part(value)
    return f"it is a {kind}" if part is None or not part.startswith("[") else part


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
