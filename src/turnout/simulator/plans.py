"""A plan says all that a run depends on; the same plan gives the same run, anywhere."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Literal

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import as_count
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import make_policy, with_defaults
from turnout.simulator.paper import PaperWorld
from turnout.simulator.traces.world import TraceWorld
from turnout.simulator.world import World

ENTRY_POINTS = "turnout.worlds"
OUR_WORLDS: Mapping[str, Callable[..., World]] = MappingProxyType({"paper": PaperWorld, "traces": TraceWorld})


def worlds() -> dict[str, Callable[..., World]]:
    """Worlds by name: ours, and those that installed packages offer as entry points of turnout.worlds.

    A builder takes the seed, and settings by keyword.
    """
    offered = sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    return {**OUR_WORLDS, **{entry.name: entry.load() for entry in offered}}


def make_world(name: str, seed: int = 0, /, **settings: Any) -> World:
    """Build a world by its name."""
    build = OUR_WORLDS.get(name) or worlds().get(name)
    if build is None:
        known = list(worlds())
        raise SettingError(f"unknown world {name!r}{suggestion(name, known)}; there are {', '.join(known)}")
    known = [one.name for one in inspect.signature(build).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for setting in settings:
        if setting not in known:
            raise SettingError(
                f"the world {name} has no setting {setting!r}{suggestion(setting, known)}; it has {', '.join(known)}"
            )
    return build(seed, **settings)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A policy, a world, a seed and a number of rounds.

    `keep`: "all" of every round, or only its "choices" and their times, for very long runs. `label` is what tables call
    it, and changes nothing.
    """

    policy: str
    rounds: int
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    world: str = "paper"
    world_settings: Mapping[str, Any] = field(default_factory=dict)
    keep: Literal["all", "choices"] = "all"
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", as_count("rounds", self.rounds, SettingError))
        object.__setattr__(self, "seed", as_count("seed", self.seed, SettingError, least=0))
        for name in ("settings", "world_settings"):
            if not isinstance(getattr(self, name), Mapping):
                raise SettingError(f"{name} must be a table, not {getattr(self, name)!r}")
            object.__setattr__(self, name, dict(getattr(self, name)))
        if self.keep not in ("all", "choices"):
            raise SettingError(f"keep must be 'all' or 'choices', not {self.keep!r}")

    @property
    def name(self) -> str:
        """Its label, or what tells it from others."""
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        return self.label or f"{self.policy}{f' ({settings})' if settings else ''}"

    @property
    def key(self) -> str:
        """The same for the same run, whatever it is called."""
        told = _canonical(self.as_dict())
        del told["label"]
        try:
            words = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=True)
        except TypeError as odd:
            raise SettingError(f"settings of a plan must be numbers, words, lists and tables: {odd}") from odd
        return hashlib.sha256(words.encode()).hexdigest()[:32]

    def as_dict(self) -> dict[str, Any]:
        """Plain, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> RunPlan:
        """What as_dict gave."""
        return cls(**told)

    def build(self) -> tuple[SelectionPolicy, World]:
        """A fresh policy in a fresh world; a promise is checked against how often the world's clients volunteer."""
        world = make_world(self.world, self.seed, **self.world_settings)
        settings = dict(self.settings)
        for word in ("name", "clients"):
            if word in settings:
                raise SettingError(f"{self.policy} has no setting {word!r}; the plan and its world say it")
        settings = with_defaults(self.policy, settings, {"seed": self.seed, "availability": world.availability})
        return make_policy(self.policy, world.clients, **settings), world


def _canonical(value: Any) -> Any:
    """5 and 5.0 are the same setting."""
    if isinstance(value, Mapping):
        return {key: _canonical(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
