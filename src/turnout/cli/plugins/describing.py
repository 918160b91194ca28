"""What policies and worlds can be set to: one line about each setting, from docstrings and signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnout.errors import TurnoutError
from turnout.kernel.guarantee import Guarantee
from turnout.lab.worlds import registry as worlds
from turnout.policies import signatures
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.uniform import UniformRandom
from turnout.policies.registry import REGISTRY, is_wrapper

#: The number of clients of an example, from which the defaults of a guarantee are read.
EXAMPLE = 40
REQUIRED = inspect.Parameter.empty
INSIDE = {"policy": "The name of the policy inside.", "settings": "The settings of the policy inside."}


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """A setting, its default (REQUIRED if it has none), and what it means, with its unit."""

    name: str
    default: Any
    meaning: str

    @property
    def shown_default(self) -> str:
        """The default as the command line writes it."""
        if self.default is REQUIRED:
            return "required"
        return str(list(self.default) if isinstance(self.default, tuple) else self.default)


@dataclass(frozen=True, slots=True)
class Description:
    """A policy or world: its name, one line about it, where it comes from, and its settings."""

    name: str
    kind: str
    summary: str
    package: str | None
    settings: tuple[DescribedSetting, ...]


def describe_policy(name: str) -> Description:
    """Describes a policy or wrapper."""
    build = REGISTRY.load(name)
    wrapper = is_wrapper(name)
    meanings = {**_arguments(Guarantee), **_arguments(build)}
    meanings["guaranteed_rate"] = meanings["rate"]
    defaults = {setting: signatures.setting_default(build, setting) for setting in signatures.setting_names(build)}
    if (guarantee := _guarantee_of(build, wrapper=wrapper)) is not None:
        for setting in defaults.keys() - inspect.signature(build).parameters:
            defaults[setting] = getattr(guarantee, setting.removeprefix("guaranteed_"), defaults[setting])
    defaults |= dict.fromkeys(signatures.required_settings(build), REQUIRED)
    if wrapper:
        defaults, meanings = {"policy": REQUIRED, "settings": {}, **defaults}, {**meanings, **INSIDE}
    settings = tuple(
        DescribedSetting(setting, default, meanings.get(setting, "")) for setting, default in defaults.items()
    )
    return Description(name, "wrapper" if wrapper else "policy", _summary(build), REGISTRY.package_of(name), settings)


def describe_world(name: str) -> Description:
    """Describes a world."""
    build = worlds.REGISTRY.load(name)
    meanings = _arguments(build)
    settings = tuple(
        DescribedSetting(setting, default, meanings.get(setting, ""))
        for setting, default in worlds.world_settings(build).items()
    )
    return Description(name, "world", _summary(build), worlds.REGISTRY.package_of(name), settings)


def _guarantee_of(build: Callable[..., Any], *, wrapper: bool) -> Guarantee | None:
    """Returns the guarantee with its defaults; None if the policy has none, or cannot be built without settings."""
    try:
        policy: SelectionPolicy = build(UniformRandom(EXAMPLE)) if wrapper else build(EXAMPLE)
    except (TurnoutError, TypeError):
        return None
    return policy.guarantee


def _summary(build: Callable[..., Any]) -> str:
    """Returns the first paragraph of the docstring, which is not that of a base class."""
    own = build.__doc__ if not isinstance(build, type) or "__doc__" in vars(build) else None
    return " ".join(inspect.cleandoc(own or "").split("\n\n")[0].split())


def _arguments(build: Callable[..., Any]) -> dict[str, str]:
    """Returns what the docstring says about each argument, in a section `Args:` or `Attributes:`."""
    meanings: dict[str, str] = {}
    for documented in (build, getattr(build, "__init__", None)):
        text = inspect.cleandoc(getattr(documented, "__doc__", None) or "")
        section = re.search(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)*)", text, flags=re.MULTILINE)
        if section is None:
            continue
        entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1], flags=re.MULTILINE)
        meanings |= {name: " ".join(meaning.split()) for name, meaning in entries}
    return meanings
