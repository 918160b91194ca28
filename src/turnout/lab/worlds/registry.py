"""Worlds by name: the built-in ones and those of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from turnout.errors import SettingError, suggestion
from turnout.lab.worlds.base import World
from turnout.lab.worlds.paper import PaperWorld
from turnout.lab.worlds.traces.world import TraceWorld
from turnout.plugins import Kind, Registry

#: Builds a world from a seed and keyword settings: a class, or a function.
WorldBuilder: TypeAlias = Callable[..., World]
AnyBuilder = TypeVar("AnyBuilder", bound=WorldBuilder)
OUR_WORLDS: Mapping[str, WorldBuilder] = MappingProxyType({"paper": PaperWorld, "traces": TraceWorld})


def _check_builder(name: str, value: object) -> WorldBuilder:
    if not callable(value):
        advice = ": use its class" if isinstance(value, World) else ""
        raise SettingError(f"{name} must be a class or a function that builds a world, got {value!r}{advice}")
    return value


def _is_world_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, World)


#: All worlds.
REGISTRY: Registry[WorldBuilder] = Registry(
    Kind("world", "known worlds are", "turnout.worlds", _check_builder, _is_world_class), OUR_WORLDS
)


def register_world(world: AnyBuilder, name: str) -> AnyBuilder:
    """Makes a world known under a name, in this process; returns it.

    Args:
        world: A class, or a function that accepts the seed and keyword settings and returns a world.
        name: Its name.
    """
    REGISTRY.register(name, world)
    return world


def world_names() -> list[str]:
    """Returns the names of all worlds: built-in, registered, and of installed packages."""
    return REGISTRY.names()


def make_world(name: str | WorldBuilder, seed: int = 0, /, **settings: Any) -> World:
    """Builds a world by its name.

    The name is one of `turnout.lab.world_names`, or `package.module:Name`, which imports that module. A class or
    a function that builds a world is accepted too.
    """
    found = name if isinstance(name, str) else REGISTRY.name_of(name)
    REGISTRY.load(found)
    return build_world(found, seed, **settings)


def build_world(name: str, seed: int = 0, /, **settings: Any) -> World:
    """Builds a world by its name, which may come from a file: modules that were not loaded are not imported."""
    build = REGISTRY.get(name)
    known, by_position = world_settings(build)
    for setting in settings:
        if setting not in known and not _accepts_any(build):
            raise SettingError(
                f"the world {name} has no setting {setting!r}{suggestion(setting, known)}; "
                f"its settings are {', '.join(known) or 'none'}"
            )
    for setting, default in known.items():
        if default is inspect.Parameter.empty and setting not in settings:
            raise SettingError(f"the world {name} needs the setting {setting!r}")
    if by_position:
        world = build(seed, **settings)
    elif "seed" in inspect.signature(build).parameters or _accepts_any(build):
        world = build(seed=seed, **settings)
    else:
        world = build(**settings)  # a world without random numbers
    if not isinstance(world, World):
        raise SettingError(f"{name} built {world!r}, which is not a world: it must be a turnout.lab.World")
    return world


def world_settings(build: WorldBuilder) -> tuple[dict[str, Any], bool]:
    """Returns the settings of a world with their defaults, and whether the seed is its first positional argument."""
    parameters = list(inspect.signature(build).parameters.values())
    by_position = bool(parameters) and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    own = parameters[1:] if by_position else parameters
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    settings = {parameter.name: parameter.default for parameter in own if parameter.kind in named}
    settings.pop("seed", None)
    return settings, by_position


def _accepts_any(build: WorldBuilder) -> bool:
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in inspect.signature(build).parameters.values()
    )
