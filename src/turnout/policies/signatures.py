"""The settings that a policy accepts, read from the signature of its constructor."""

from __future__ import annotations

import inspect
import typing
from functools import cache
from typing import Any

from turnout.policies.base import SelectionPolicy

#: Parameters of a constructor that are not settings.
NOT_SETTINGS = ("clients", "policy")


def setting_names(policy: type[SelectionPolicy]) -> list[str]:
    """Returns the names of the settings, including those of a `**settings: Unpack[TypedDict]` parameter.

    >>> from turnout.policies import WithGuarantee
    >>> setting_names(WithGuarantee)[:3]
    ['guaranteed_rate', 'urgency', 'tolerance']
    """
    return list(_setting_names(policy))


@cache
def _setting_names(policy: type[SelectionPolicy]) -> tuple[str, ...]:
    names: list[str] = []
    for parameter in inspect.signature(policy).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            names.extend(_unpacked(policy, parameter.name))
        elif parameter.name not in NOT_SETTINGS:
            names.append(parameter.name)
    return tuple(names)


def setting_default(policy: type[SelectionPolicy], name: str) -> Any:
    """Returns the default of a setting that the constructor declares itself; None if it has none."""
    parameter = inspect.signature(policy).parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _unpacked(policy: type[SelectionPolicy], parameter: str) -> list[str]:
    hint = typing.get_type_hints(policy.__init__)[parameter]
    arguments = typing.get_args(hint)
    return list(typing.get_type_hints(arguments[0])) if typing.get_origin(hint) is typing.Unpack else []
