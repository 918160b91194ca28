"""Run plans: everything that a run depends on, so that the same plan gives the same run on every machine."""

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
from turnout.policies.registry import make_policy, nested_settings, refuse_functions, with_defaults
from turnout.simulator.paper import PaperWorld
from turnout.simulator.play import RoundRun, Run
from turnout.simulator.slots import SlotRun
from turnout.simulator.traces.world import TraceWorld
from turnout.simulator.world import World

ENTRY_POINTS = "turnout.worlds"
OUR_WORLDS: Mapping[str, Callable[..., World]] = MappingProxyType({"paper": PaperWorld, "traces": TraceWorld})


def worlds() -> dict[str, Callable[..., World]]:
    """Returns all worlds by name: the built-in ones and the entry points `turnout.worlds` of installed packages.

    Each value is a builder that accepts the seed as its first argument and settings as keyword arguments.
    """
    installed = sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    return {**OUR_WORLDS, **{entry.name: entry.load() for entry in installed}}


def make_world(name: str, seed: int = 0, /, **settings: Any) -> World:
    """Builds a world by its name."""
    build = OUR_WORLDS.get(name) or worlds().get(name)
    if build is None:
        known = list(worlds())
        raise SettingError(f"unknown world {name!r}{suggestion(name, known)}; known worlds are {', '.join(known)}")
    parameters = inspect.signature(build).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for setting in settings:
        if setting not in known:
            raise SettingError(
                f"the world {name} has no setting {setting!r}{suggestion(setting, known)}; "
                f"its settings are {', '.join(known)}"
            )
    return build(seed, **settings)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A policy, a world, a seed and a number of rounds.

    `keep`: "all" stores every round completely; "choices" stores only the selected clients and their times, for very
    long runs. `concurrency`: the number of slots if there are no rounds; `rounds` is the number of turns then, which
    are given one at a time, and by default every client is guaranteed three quarters of an equal share of them. `label`
    is the name that tables show; it does not affect the run or its key.
    """

    policy: str
    rounds: int
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    world: str = "paper"
    world_settings: Mapping[str, Any] = field(default_factory=dict)
    keep: Literal["all", "choices"] = "all"
    concurrency: int | None = None
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", as_count("rounds", self.rounds, SettingError))
        object.__setattr__(self, "seed", as_count("seed", self.seed, SettingError, least=0))
        for name in ("settings", "world_settings"):
            if not isinstance(getattr(self, name), Mapping):
                raise SettingError(f"{name} must be a mapping from names to values, not {getattr(self, name)!r}")
            object.__setattr__(self, name, dict(getattr(self, name)))
        if self.keep not in ("all", "choices"):
            raise SettingError(f"keep must be 'all' or 'choices', not {self.keep!r}")
        if self.concurrency is not None:
            object.__setattr__(self, "concurrency", as_count("concurrency", self.concurrency, SettingError))
            for name, settings in nested_settings(self.policy, self.settings):
                if settings.get("cohort_size", 1) != 1:
                    raise SettingError(
                        f"cohort_size of {name} cannot be used with concurrency, because turns are given one at a "
                        "time: remove it"
                    )

    @property
    def name(self) -> str:
        """The label, or the policy and its settings."""
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        return self.label or f"{self.policy}{f' ({settings})' if settings else ''}"

    @property
    def key(self) -> str:
        """A digest of the plan without its label: equal runs have equal keys."""
        refuse_functions(self.settings)
        data = _canonical(self.as_dict())
        del data["label"]
        try:
            text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=True)
        except TypeError as error:
            raise SettingError(f"settings of a plan must be numbers, strings, lists and mappings: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as plain values for JSON; without `concurrency` for a plan with rounds."""
        data = asdict(self)
        if self.concurrency is None:
            del data["concurrency"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunPlan:
        """Builds the plan from the values that `as_dict` returned."""
        return cls(**data)

    def build(self) -> tuple[SelectionPolicy, World]:
        """Builds a new policy and a new world.

        A guarantee is checked against the availability of the world's clients.
        """
        world = make_world(self.world, self.seed, **self.world_settings)
        settings = dict(self.settings)
        for reserved in ("name", "clients"):
            if reserved in settings:
                raise SettingError(
                    f"{self.policy} has no setting {reserved!r}: the plan and its world determine it; remove it"
                )
        defaults = {"seed": self.seed, "availability": world.availability}
        if self.concurrency is not None:
            defaults |= slot_defaults(world.clients)
        settings = with_defaults(self.policy, settings, defaults)
        return make_policy(self.policy, world.clients, **settings), world

    def start(self) -> Run:
        """Builds a new policy and a new world, and returns a run that can be played, saved and restored."""
        policy, world = self.build()
        return RoundRun(policy, world) if self.concurrency is None else SlotRun(policy, world, self.concurrency)


def slot_defaults(clients: int) -> dict[str, Any]:
    """Returns the default settings of a policy without rounds: one client at a time, 3/4 of an equal share each."""
    return {"cohort_size": 1, "guaranteed_rate": f"3/{4 * clients}"}


def _canonical(value: Any) -> Any:
    """Converts integral floats to integers, because 5 and 5.0 are the same setting."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
