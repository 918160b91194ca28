"""Run plans: everything that a run depends on, so that the same plan gives the same run on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import LOSS
from turnout.lab.runs.play import RoundRun, Run, SlotRun
from turnout.lab.worlds import registry as worlds
from turnout.lab.worlds.base import World
from turnout.plugins import Registry, is_module_name, naming_packages, packages_of
from turnout.policies import registry as policies
from turnout.policies.base import SelectionPolicy


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A policy, a world, a seed and a number of rounds.

    `keep`: "all" stores every round completely; "choices" stores only the selected clients and their times, for very
    long runs. `concurrency`: the number of slots if there are no rounds; `rounds` is the number of turns then, which
    are given one at a time, and by default every client is guaranteed three quarters of an equal share of them. `label`
    is the name that tables show; it does not affect the run or its key.

    Policy and world are names; `package.module:Name` imports that module. A class, or a function that builds one, is
    accepted too, and replaced by its name. The same holds for the setting `learner` of the world `training`. A plan
    that was read from a file (`stored`) imports nothing. `packages` is where its policy, world and learner came from,
    if they are not built in.
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
    packages: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    stored: bool = field(default=False, compare=False, repr=False)

    if TYPE_CHECKING:  # it also accepts what has a name

        def __init__(
            self,
            policy: str | policies.PolicyBuilder,
            rounds: int,
            seed: int = 0,
            settings: Mapping[str, Any] = ...,
            world: str | worlds.WorldBuilder = "paper",
            world_settings: Mapping[str, Any] = ...,
            keep: Literal["all", "choices"] = "all",
            concurrency: int | None = None,
            label: str = "",
            packages: Mapping[str, str] = ...,
            stored: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", as_count("rounds", self.rounds, SettingError))
        object.__setattr__(self, "seed", as_count("seed", self.seed, SettingError, least=0))
        for name in ("settings", "world_settings"):
            if not isinstance(getattr(self, name), Mapping):
                raise SettingError(f"{name} must be a mapping from names to values, not {getattr(self, name)!r}")
            object.__setattr__(self, name, dict(getattr(self, name)))
        self._name_plugins()
        if self.keep not in ("all", "choices"):
            raise SettingError(f"keep must be 'all' or 'choices', not {self.keep!r}")
        if self.concurrency is not None:
            object.__setattr__(self, "concurrency", as_count("concurrency", self.concurrency, SettingError))
            for name, settings in policies.nested_settings(self.policy, self.settings):
                if settings.get("cohort_size", 1) != 1:
                    raise SettingError(
                        f"cohort_size of {name} cannot be used with concurrency, because turns are given one at a "
                        "time: remove it"
                    )

    def _name_plugins(self) -> None:
        """Replaces classes by their names, and imports what was named explicitly."""
        policy, settings = policies.as_named(self.policy, self.settings)
        world = self.world if isinstance(self.world, str) else worlds.REGISTRY.name_of(self.world)
        inside = worlds.with_named_learner(world, self.world_settings)
        named = {"policy": policy, "settings": settings, "world": world, "world_settings": inside}
        for name, value in named.items():
            object.__setattr__(self, name, value)
        if not self.stored:
            policies.load_policies(policy, settings)
            for name in filter(is_module_name, self._worlds()):
                worlds.REGISTRY.load(name)
            if (learner := worlds.named_learner(world, inside)) is not None and is_module_name(learner):
                worlds.LEARNERS.load(learner)

    @property
    def name(self) -> str:
        """The label, or the policy and its settings."""
        return self.label or describe(self.policy, self.settings)

    @property
    def key(self) -> str:
        """A digest of the plan without its label: equal runs have equal keys."""
        data = _canonical(self.as_dict())
        for name in ("label", "packages"):
            data.pop(name, None)
        try:
            text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=True)
        except TypeError as error:
            raise SettingError(f"settings of a plan must be numbers, strings, lists and mappings: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as plain values for JSON; without `concurrency` for a plan with rounds."""
        data = asdict(self)
        del data["stored"]
        if self.concurrency is None:
            del data["concurrency"]
        if not self.packages:
            del data["packages"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunPlan:
        """Builds the plan from the values that `as_dict` returned, which may come from a file."""
        return cls(**{**data, "stored": True})

    def plugins(self) -> list[tuple[Registry[Any], str]]:
        """Returns the names of policies, worlds and learner, each with the registry that knows it."""
        learner = worlds.named_learner(self.world, self.world_settings)
        return [
            *((policies.REGISTRY, name) for name, _ in policies.nested_settings(self.policy, self.settings)),
            *((worlds.REGISTRY, name) for name in self._worlds()),
            *([] if learner is None else [(worlds.LEARNERS, learner)]),
        ]

    def _worlds(self) -> list[str]:
        """Returns the names of the world and of the world inside it, if it has one."""
        inner = self.world_settings.get("inner")
        return [self.world, inner] if isinstance(inner, str) else [self.world]

    def with_packages(self) -> RunPlan:
        """Returns the plan with the packages that its policy, its world and its learner come from."""
        return replace(self, packages={**packages_of(self.plugins()), **self.packages})

    def build(self) -> tuple[SelectionPolicy, World]:
        """Builds a new policy and a new world.

        A guarantee is checked against the availability of the world's clients.
        """
        with naming_packages(self.packages):
            return self._build()

    def _build(self) -> tuple[SelectionPolicy, World]:
        world = worlds.build_world(self.world, self.seed, **self.world_settings)
        settings = dict(self.settings)
        for reserved in ("name", "clients"):
            if reserved in settings:
                raise SettingError(
                    f"{self.policy} has no setting {reserved!r}: the plan and its world determine it; remove it"
                )
        defaults = {"seed": self.seed, "availability": world.availability}
        if self.concurrency is not None:
            defaults |= slot_defaults(world.clients)
        settings = policies.with_defaults(self.policy, settings, defaults)
        policy = policies.build_policy(self.policy, world.clients, **settings)
        for signal in policy.signals:
            if signal not in world.signals:
                raise SettingError(
                    f"{self.policy} learns from the signal {signal!r}{suggestion(signal, [LOSS, *world.signals])}, "
                    f"which the world {self.world} does not report: it reports {', '.join(world.signals) or 'none'}"
                )
        return policy, world

    def start(self) -> Run:
        """Builds a new policy and a new world, and returns a run that can be played, saved and restored."""
        policy, world = self.build()
        return RoundRun(policy, world) if self.concurrency is None else SlotRun(policy, world, self.concurrency)


def policy_of_plan(plan: Mapping[str, Any], clients: int) -> SelectionPolicy:
    """Builds the policy of a plan as it is stored, without its world, and whether its promise is feasible or not.

    Raises:
        PluginError: If the package of the policy is missing.
    """
    name, settings = str(plan.get("policy")), plan.get("settings") or {}
    defaults = {"seed": plan.get("seed", 0), "allow_infeasible": True}
    if plan.get("concurrency") is not None:
        defaults |= slot_defaults(clients)
    with naming_packages(plan.get("packages")):
        return policies.build_policy(name, clients, **policies.with_defaults(name, settings, defaults))


def slot_defaults(clients: int) -> dict[str, Any]:
    """Returns the default settings of a policy without rounds: one client at a time, 3/4 of an equal share each."""
    return {"cohort_size": 1, "guaranteed_rate": f"3/{4 * clients}"}


def describe(policy: str, settings: Mapping[str, Any]) -> str:
    """Returns a policy and its settings in words: "with-guarantee (policy oort (cohort_size 5), urgency 1)"."""
    parts = []
    for key, value in settings.items():
        if key == "settings" and isinstance(settings.get("policy"), str):
            continue
        if key == "policy" and isinstance(value, str) and isinstance(inner := settings.get("settings", {}), Mapping):
            parts.append(f"policy {describe(value, inner)}")
        else:
            parts.append(f"{key} {value}")
    return f"{policy} ({', '.join(parts)})" if parts else policy


def _canonical(value: Any) -> Any:
    """Converts integral floats to integers, because 5 and 5.0 are the same setting."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
