"""What a strategy keeps between rounds: which parts are saved, and how they are restored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from turnout.adapters.flower.resume.saved_run import STORABLE, setting_digest, unstorable_type
from turnout.errors import SettingError, StateError
from turnout.log import get_log

log = get_log("flwr")


def strategy_state(strategy: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns what is saved of a strategy, and the names of the attributes that are not.

    It is what its `state_dict` returns, if it has one; otherwise its plain attributes, and the states of its parts:
    strategies, and objects with `state_dict`, such as a privacy accountant. Functions are code, not state.
    """
    state: dict[str, Any] = {"class": type(strategy).__name__}
    if has_hooks(strategy):
        own = strategy.state_dict()
        if (problem := unstorable_type(own)) is not None:
            kind = type(strategy).__name__
            raise StateError(f"state_dict() of {kind} returns what cannot be stored, a {problem}: return {STORABLE}")
        return state | {"own": own}, []
    attributes, inner, unsaved = {}, {}, list[str]()
    for name, value in vars(strategy).items():
        if _is_part(value):
            inner[name], parts = strategy_state(value)
            unsaved += [f"{name}.{part}" for part in parts]
        elif unstorable_type(value) is None:
            attributes[name] = value
        elif not callable(value) and not isinstance(value, logging.Logger):
            unsaved.append(name)
    return state | {"attributes": attributes, "inner": inner}, unsaved


def setting_digests(strategy: Any) -> dict[str, Any]:
    """Returns a digest of each setting of a strategy that was just constructed, and by name those of its parts."""
    attributes = getattr(strategy, "__dict__", {}).items()
    own = {name: digest for name, value in attributes if (digest := setting_digest(value))}
    return own | {name: setting_digests(value) for name, value in attributes if _is_part(value)}


def restore_strategy(
    strategy: Any,
    state: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
) -> None:
    """Restores the state to a strategy.

    A setting that differs from that with which the saved run began was changed by the user, and stays so, unless
    `load_state_dict` replaces it.

    Args:
        strategy: the strategy, as it was constructed.
        state: what `strategy_state` returned.
        before: what `setting_digests` returned when the saved run began; None to restore everything.
        now: what it returned for this strategy.
    """
    classes, is_own = [kind.__name__ for kind in type(strategy).__mro__], "own" in state
    if state["class"] not in classes or has_hooks(strategy) != is_own:
        raise StateError(
            f"the saved run had a {state['class']} with{'' if is_own else 'out'} state_dict(), which this {classes[0]} "
            "does not match: construct the strategy as before, or start a new run with resume=False"
        )
    before, now = before or {}, now or {}
    changed = {
        name: getattr(strategy, name)
        for name, digest in now.items()
        if isinstance(digest, str) and before.get(name, digest) != digest
    }
    if "own" in state:
        strategy.load_state_dict(state["own"])
        for name, value in changed.items():
            if setting_digest(getattr(strategy, name, None)) != now[name]:
                log.warning("turnout: load_state_dict() has replaced the new %s, which was %.200r", name, value)
        return
    for name, value in state["attributes"].items():
        if name in changed:
            log.warning("turnout: %s is %.200r, and was %.200r in the saved run", name, changed[name], value)
        else:
            setattr(strategy, name, value)
    for name, inner in state["inner"].items():
        restore_strategy(getattr(strategy, name, None), inner, before.get(name), now.get(name))


def has_hooks(strategy: Any) -> bool:
    """Returns whether a strategy saves and restores itself; raises SettingError if it has only one of the methods."""
    names = [name for name in ("state_dict", "load_state_dict") if callable(getattr(strategy, name, None))]
    if len(names) == 1:
        raise SettingError(
            f"{type(strategy).__name__} must have both state_dict() and load_state_dict(state), or neither, got only "
            f"{names[0]}"
        )
    return bool(names)


def _is_part(value: Any) -> bool:
    """Returns whether an attribute is a strategy, or an object that saves itself as something that can be stored."""
    hooks = [getattr(value, name, None) for name in ("state_dict", "load_state_dict")]
    return isinstance(value, Strategy) or (all(map(callable, hooks)) and unstorable_type(value.state_dict()) is None)
