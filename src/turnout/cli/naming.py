"""Policies and worlds as the command line names them: `rbcsf:speed_weight=5`, `my.module:MyPolicy`."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnout.errors import SettingError, suggestion
from turnout.plugins import is_module_name
from turnout.policies.registry import POLICIES, REGISTRY, WRAPPERS, is_wrapper, policy_names, setting_names
from turnout.storage.encoding.limits import check_depth, too_deep

Named = tuple[str, dict[str, Any]]
OPENING, CLOSING = "([{", ")]}"


def parse_policy(text: str) -> Named:
    """Parses a policy with settings, NAME or NAME:SETTING=VALUE,SETTING=VALUE; a dot sets a value inside a setting.

    >>> parse_policy("rbcsf:speed_weight=5,prior=fleet")
    ('rbcsf', {'speed_weight': 5, 'prior': 'fleet'})
    >>> parse_policy("with-guarantee:policy=oort,settings.cohort_size=5")
    ('with-guarantee', {'policy': 'oort', 'settings': {'cohort_size': 5}})
    """
    name, colon, rest = text.partition(":")
    attribute, _, further = rest.partition(":")
    if colon and "=" not in attribute:
        if name in policy_names() or not is_module_name(f"{name}:{attribute}"):
            raise SettingError(
                f"{text!r} is neither NAME:SETTING=VALUE, such as rbcsf:speed_weight=5, nor package.module:Name"
            )
        name, rest = f"{name}:{attribute}", further
    settings: dict[str, Any] = {}
    for part in _split(rest):
        path, value = parse_setting(part)
        put_setting(settings, path.split("."), value)
    return load_here(name), settings


def load_here(name: str) -> str:
    """Returns a name; from now on, modules are also searched for in the working folder and its folder src."""
    if is_module_name(name):
        for folder in (Path.cwd(), Path.cwd() / "src"):
            if folder.is_dir() and str(folder) not in sys.path:
                sys.path.append(str(folder))
    return name


def load_plugin(text: str) -> None:
    """Loads what a user named as `package.module:Name`, so that files may name it."""
    from turnout.lab.worlds import registry as worlds  # commands about fleets need nothing of the lab

    name, problems = parse_policy(text)[0], []
    registries = (REGISTRY, worlds.REGISTRY, worlds.LEARNERS)
    for registry in registries:
        try:
            registry.load(name)
        except SettingError as error:
            problems.append(error)
    if len(problems) == len(registries):
        raise problems[0]


def parse_setting(text: str) -> tuple[str, Any]:
    """Parses NAME=VALUE. The value is read as TOML, or as a string if it is not valid TOML."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SettingError(f"write a setting as NAME=VALUE, such as tolerance=1, not {text!r}")
    try:
        return name.strip(), parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
    except ValueError as error:
        raise SettingError(f"the value of {name.strip()} is not valid: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML; too deep nesting raises ValueError, not RecursionError."""
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise too_deep() from None
    check_depth(content)
    return content


def put_setting(settings: dict[str, Any], path: Sequence[str], value: Any, *, overwrite: bool = True) -> None:
    """Sets a value, or a value inside a setting; without `overwrite` only if there is none."""
    for name in path[:-1]:
        inner = settings.get(name, {})
        settings[name] = dict(inner) if isinstance(inner, Mapping) else {}
        settings = settings[name]
    if overwrite or path[-1] not in settings:
        settings[path[-1]] = value


def apply_settings(policies: Iterable[Named], texts: Sequence[str], *, overwrite: bool) -> list[Named]:
    """Applies the values of --set to policies, and to the policies inside them.

    Args:
        policies: The policies.
        texts: Values of --set: NAME=VALUE, for every policy that has this setting.
        overwrite: Whether they replace settings that the policies have already.

    Raises:
        SettingError: If one of them is invalid, or has no effect.
    """
    named = [(name, dict(settings)) for name, settings in policies]
    for text in texts:
        name, value = parse_setting(text)
        effects = [_apply(policy, settings, name.split("."), value, overwrite) for policy, settings in named]
        if not any(effects):
            raise _without_effect(text, name.split(".")[0], [policy for policy, _ in named])
    return named


def _apply(name: str, settings: dict[str, Any], path: Sequence[str], value: Any, overwrite: bool) -> bool:
    applies = path[0] in setting_names(name)
    if applies:
        put_setting(settings, path, value, overwrite=overwrite)
    inner = settings.get("policy")
    if isinstance(inner, str) and is_wrapper(name):
        own = dict(settings.get("settings") or {})
        if _apply(inner, own, path, value, overwrite):
            settings["settings"] = own
            return True
    return applies


def _without_effect(text: str, setting: str, names: Sequence[str]) -> SettingError:
    if setting in policy_names():
        return SettingError(f"--set {text} names a policy: write its settings after its name, as {setting}:NAME=VALUE")
    known = {name for policy in (*POLICIES, *WRAPPERS, *names) for name in setting_names(policy)}
    if setting not in known:
        return SettingError(f"no policy has a setting {setting!r}{suggestion(setting, known)}")
    return SettingError(f"--set {text} has no effect: it is no setting of {', '.join(dict.fromkeys(names))}")


def _split(text: str) -> list[str]:
    """Splits at commas that are not inside brackets or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in (*parts, text[start:]) if part.strip()]
