"""Plug-ins: policies, worlds and learners of other packages, found by name, and the settings that each accepts.

A name is that of something built in, of something registered in Python, of an entry point of an installed package, or
`package.module:Name`. Names of the last kind import a module, that is, run its code. Only names that a user wrote may
do so (`Registry.load`); a name from a file is found only if it was loaded before (`Registry.get`).
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from turnout.errors import PluginError, SettingError, suggestion
from turnout.log import printable

if TYPE_CHECKING:  # importing it takes milliseconds, and what is built in needs no entry points
    from importlib.metadata import EntryPoint


T = TypeVar("T")

#: A name that can be registered: `:`, `,`, `=` and `.` separate settings on the command line.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
#: `package.module:Name`; the name may be an attribute of a class.
MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_module_name(name: str) -> bool:
    """Returns whether a name has the form `package.module:Name`."""
    return MODULE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a registry holds.

    Attributes:
        noun: "policy", for messages.
        plural: "the policies are", for messages.
        group: The group of entry points.
        check: Returns a loaded object, or raises SettingError (with the name, its first argument) if it is of another
            kind.
        is_class: Whether an object is a class of this kind, which a file may name once its module was imported.
        register: The function that registers something of this kind, for messages; by default register_NOUN.
    """

    noun: str
    plural: str
    group: str
    check: Callable[[str, object], T]
    is_class: Callable[[object], bool]
    register: str = ""


class LazyTable(Mapping[str, T]):
    """What is built in, by name; a module is imported when something in it is first looked up.

    Args:
        package: The package of the modules.
        homes: The module and the class of each, as module:Class.
    """

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        self._package, self._homes = package, homes

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._homes[name].partition(":")
        value: T = getattr(importlib.import_module(f"{self._package}.{module}"), attribute)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


class Registry(Generic[T]):
    """Everything of one kind that has a name."""

    def __init__(self, kind: Kind[T], own: Mapping[str, T]) -> None:
        self.kind, self.own = kind, own
        self._here: dict[str, T] = {}  # registered in this process, or loaded from a module that a user named
        self._installed: dict[str, T] = {}
        self._packages: dict[str, str | None] = {}

    def names(self) -> list[str]:
        """Returns all names except those of the form `package.module:Name`; imports nothing."""
        registered = [name for name in self._here if not is_module_name(name)]
        return list(dict.fromkeys([*self.own, *registered, *(entry.name for entry in self._entries())]))

    def register(self, name: str, value: T) -> None:
        """Adds something under a name of its own, for this process."""
        noun = self.kind.noun
        if not isinstance(name, str) or PLAIN_NAME.fullmatch(name) is None:
            raise SettingError(
                f"the name of a {noun} must be letters, digits, - and _, such as my-{noun}, got {name!r}"
            )
        if name in self.own:
            raise SettingError(f"{name!r} is a {noun} of turnout: choose another name")
        self._here[name] = self.kind.check(name, value)
        self._packages.pop(name, None)

    def clear(self) -> None:
        """Forgets everything that was registered or loaded; tests use this."""
        for known in (self._here, self._installed, self._packages):
            known.clear()

    def get(self, name: str) -> T:
        """Returns what has this name; never imports a module that only the name mentions.

        Raises:
            PluginError: If the name is unknown, or was not loaded.
        """
        for known in (self.own, self._here, self._installed):
            if name in known:
                return known[name]
        if isinstance(name, str) and is_module_name(name):
            return self._imported(name)
        entries = [entry for entry in self._entries() if entry.name == name]
        if not entries:
            raise self._unknown(name)
        if len(entries) > 1:
            packages = " and ".join(_package_of_entry(entry) for entry in entries)
            raise PluginError(
                f"{len(entries)} packages have a {self.kind.noun} {name!r}: {packages}. Uninstall one of them, or "
                f"write {entries[0].value!r}",
                name=name,
            )
        self._installed[name] = self._load(name, entries[0].load, _package_of_entry(entries[0]))
        return self._installed[name]

    def load(self, name: str) -> T:
        """Returns what has this name, which a user wrote: `package.module:Name` imports the module."""
        if not isinstance(name, str) or not is_module_name(name) or name in self._here:
            return self.get(name)
        self._here[name] = self._load(name, lambda: _resolve(name, importlib.import_module), None)
        return self._here[name]

    def name_of(self, value: Any) -> str:
        """Returns the name of a class or a function, under which it can be found from now on.

        Raises:
            SettingError: If it has none, because it was defined inside a function.
        """
        for name, other in [*self.own.items(), *self._here.items(), *self._installed.items()]:
            if other is value and not is_module_name(name):
                return name
        module, qualified = str(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
        for entry in self._entries():  # files may use the name of an entry point without further ado
            if _top_level(entry.module) == _top_level(module) and self.get(entry.name) is value:
                return entry.name
        name = f"{module}:{qualified}"
        checked = self.kind.check(name if is_module_name(name) else repr(value), value)
        if not is_module_name(name):
            raise SettingError(
                f"{value!r} has no name that can be stored: define it at the top of a module, or register it under a "
                f"name with {self.kind.register or f'register_{self.kind.noun}'}"
            )
        self._here[name] = checked
        return name

    def package_of(self, name: str) -> str | None:
        """Returns the package and version that a name came from, or its module; None if it is built in or unknown."""
        if name in self.own:
            return None
        if name not in self._packages:
            self._packages[name] = self._find_package(name)
        return self._packages[name]

    def _find_package(self, name: str) -> str | None:
        value = self._here.get(name)
        if is_module_name(name):
            package = package_of_module(name.partition(":")[0])
        elif value is not None:
            package = package_of_module(str(getattr(getattr(value, "func", value), "__module__", "")))
        else:
            package = next((_package_of_entry(entry) for entry in self._entries() if entry.name == name), "turnout")
        return None if package.partition(" ")[0] == "turnout" else package

    def registered_here(self, name: str) -> T | None:
        """Returns what another process could not find by this name: what was registered or loaded in this one."""
        return self._here.get(name)

    def register_received(self, name: str, value: T) -> None:
        """Makes what another process sent known under its name."""
        self._here[name] = self.kind.check(name, value)

    def _imported(self, name: str) -> T:
        """Returns a class of a module that was imported already."""
        value: object = None
        with suppress(KeyError, AttributeError):
            value = _resolve(name, lambda module: sys.modules[module])
        if value is None or not self.kind.is_class(value):
            module = name.partition(":")[0]
            raise PluginError(
                f"the {self.kind.noun} {name!r} is not loaded, and a name in a file does not import a module: import "
                f"{module} first, or name it explicitly",
                name=name,
                argument="plugin",
            )
        return self.kind.check(name, value)

    def _load(self, name: str, load: Callable[[], object], package: str | None) -> T:
        try:
            value = load()
        except AttributeError as error:
            raise PluginError(f"{error}{self._names_in(name)}", name=name) from error
        except Exception as error:
            source = f" of {package}" if package else ""
            raise PluginError(
                f"the {self.kind.noun} {name!r}{source} cannot be loaded: {type(error).__name__}: {error}. Check its "
                "spelling, and that its package is installed",
                name=name,
            ) from error
        return self.kind.check(name, value)

    def _names_in(self, name: str) -> str:
        """Returns what the module of a name has of this kind, or else its functions, for the error about the name."""
        module, _, attribute = name.partition(":")
        own = vars(sys.modules.get(module, object)).items()
        content = [(key, value) for key, value in own if getattr(value, "__module__", None) == module]
        names = [key for key, value in content if self.kind.is_class(value)]
        names = names or [key for key, value in content if inspect.isfunction(value) and not key.startswith("_")]
        return f"{suggestion(attribute, names)}; it has {', '.join(names) or f'no {self.kind.noun}'}"

    def _entries(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points

        entries = {(entry.name, entry.value): entry for entry in entry_points(group=self.kind.group)}
        return [entries[key] for key in sorted(entries)]

    def _unknown(self, name: object) -> PluginError:
        known = self.names()
        return PluginError(
            f"unknown {self.kind.noun} {name!r}{suggestion(str(name), known)}; "
            f"{self.kind.plural} {', '.join(known) or 'none'}",
            name=str(name),
        )


@cache
def package_of_module(module: str) -> str:
    """Returns the installed package that a module belongs to, with its version, or else the module.

    >>> package_of_module("numpy.linalg").split()[0]
    'numpy'
    >>> package_of_module("my_experiment")
    'module my_experiment'
    """
    from importlib.metadata import packages_distributions, version

    packages = packages_distributions().get(_top_level(module)) or []
    return f"{packages[0]} {version(packages[0])}" if packages else f"module {module}"


@contextmanager
def naming_packages(packages: Mapping[str, str] | None) -> Iterator[None]:
    """Adds to an error about a plug-in which package it came from, as a file recorded it."""
    try:
        yield
    except PluginError as error:
        package = packages.get(error.name) if isinstance(packages, Mapping) else None
        if not isinstance(package, str):  # a file may hold anything
            raise
        advice = "make it importable" if package.startswith("module ") else "install that package"
        raise PluginError(
            f"{error}. It was made with {error.name!r} of {printable(package)}: {advice}",
            name=error.name,
            argument=error.argument,
        ) from error


def packages_of(plugins: Iterable[tuple[Registry[Any], str]]) -> dict[str, str]:
    """Returns the package of each name that is not built in."""
    packages = {name: registry.package_of(name) for registry, name in plugins}
    return {name: package for name, package in packages.items() if package is not None}


def _top_level(module: str) -> str:
    return module.partition(".")[0]


def _resolve(name: str, module_of: Callable[[str], Any]) -> Any:
    module, _, path = name.partition(":")
    value = module_of(module)
    for attribute in path.split("."):
        value = getattr(value, attribute)
    return value


def _package_of_entry(entry: EntryPoint) -> str:
    return package_of_module(entry.module) if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


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
    return any(
        parameter.kind is parameter.VAR_KEYWORD and not unpacked_settings(build, parameter.name)
        for parameter in inspect.signature(build).parameters.values()
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
