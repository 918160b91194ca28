"""The settings that a policy, or anything else that is built from settings, accepts: read from its signature."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from turnout.errors import SettingError, suggestion

#: Parameters of a constructor that are not settings.
NOT_SETTINGS = ("clients", "policy")


@cache
def setting_names(build: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the settings, including those of a `**settings: Unpack[TypedDict]` parameter.

    >>> from turnout.policies import WithGuarantee
    >>> setting_names(WithGuarantee)[:3]
    ('guaranteed_rate', 'urgency', 'tolerance')
    """
    names: list[str] = []
    for index, parameter in enumerate(inspect.signature(build).parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            names.extend(unpacked_settings(build, parameter.name))
        elif parameter.kind is parameter.VAR_POSITIONAL or parameter.name in NOT_SETTINGS:
            continue
        elif index > 0 or parameter.kind is parameter.KEYWORD_ONLY:  # the first is the clients, by whatever name
            names.append(parameter.name)
    return tuple(names)


@cache
def accepts_any_setting(build: Callable[..., Any]) -> bool:
    """Returns whether there is a `**settings` parameter that does not declare its names."""
    parameters = inspect.signature(build).parameters.values()
    return any(
        parameter.kind is parameter.VAR_KEYWORD and not unpacked_settings(build, parameter.name)
        for parameter in parameters
    )


@cache
def required_settings(build: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the settings without a default."""
    parameters = inspect.signature(build).parameters
    return tuple(
        name
        for name in setting_names(build)
        if name in parameters and parameters[name].default is inspect.Parameter.empty
    )


def check_settings(name: str, build: Callable[..., Any], settings: Mapping[str, Any], *others: str) -> None:
    """Raises SettingError if a setting is unknown or missing.

    Args:
        name: The name of what is built, for the message.
        build: What builds it.
        settings: Its settings.
        others: The names of settings that were taken out before.
    """
    known = setting_names(build)
    for setting in settings:
        if setting not in known and not accepts_any_setting(build):
            raise SettingError(
                f"{name} has no setting {setting!r}{suggestion(setting, known)}; it has {', '.join((*others, *known))}"
            )
    for setting in required_settings(build):
        if setting not in settings:
            raise SettingError(f"{name} needs the setting {setting!r}")


def setting_default(build: Callable[..., Any], name: str) -> Any:
    """Returns the default of a setting that the signature declares itself; None if it has none."""
    parameter = inspect.signature(build).parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def unpacked_settings(build: Callable[..., Any], parameter: str) -> dict[str, Any]:
    """Returns the names and types that a parameter `**settings: Unpack[TypedDict]` declares; none if it does not."""
    function = getattr(build, "__init__") if isinstance(build, type) else build  # noqa: B009 - mypy refuses the other
    try:
        hint = typing.get_type_hints(function).get(parameter)
    except (NameError, TypeError):  # annotations of other packages need not exist at run time
        return {}
    arguments = typing.get_args(hint)
    return typing.get_type_hints(arguments[0]) if typing.get_origin(hint) is typing.Unpack else {}
