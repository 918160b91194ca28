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
from turnout.plugins import Kind, Registry, accepts_any_setting

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
        world: A class, or a function that accepts `seed` and other settings as keywords and returns a world.
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
    known_name = name if isinstance(name, str) else REGISTRY.name_of(name)
    REGISTRY.load(known_name)
    return build_world(known_name, seed, **settings)


def build_world(name: str, seed: int = 0, /, **settings: Any) -> World:
    """Builds a world by its name, which may come from a file: modules that were not loaded are not imported."""
    build = REGISTRY.get(name)
    known, takes_any = world_settings(build), accepts_any_setting(build)
    for setting in settings:
        if setting not in known and not takes_any:
            raise SettingError(
                f"the world {name} has no setting {setting!r}{suggestion(setting, known)}; "
                f"its settings are {', '.join(known) or 'none'}"
            )
    for setting, default in known.items():
        if default is inspect.Parameter.empty and setting not in settings:
            raise SettingError(f"the world {name} needs the setting {setting!r}")
    if "seed" not in inspect.signature(build).parameters and not takes_any:
        raise SettingError(f"the world {name} must accept a seed: give it the parameter seed")
    world = build(seed=seed, **settings)
    if not isinstance(world, World):
        raise SettingError(f"{name} built {world!r}, which is not a world: it must be a turnout.lab.World")
    return world


def world_settings(build: WorldBuilder) -> dict[str, Any]:
    """Returns the settings of a world with their defaults."""
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(build).parameters.values()
    return {each.name: each.default for each in parameters if each.kind in named and each.name != "seed"}
