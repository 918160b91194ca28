"""Policies and wrappers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from turnout.errors import SettingError, suggestion
from turnout.kernel.guarantee import Guarantee
from turnout.policies import signatures
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.data_size import DataSize
from turnout.policies.baselines.fedcs import FedCS
from turnout.policies.baselines.oracle import FairOracle, Fastest
from turnout.policies.baselines.round_robin import RoundRobin
from turnout.policies.baselines.uniform import SkewedRandom, UniformRandom
from turnout.policies.fair_pace import FairPace
from turnout.policies.published.active_fl import ActiveFL
from turnout.policies.published.cs_ucb import CSUCB, CSUCBQ
from turnout.policies.published.e3cs import E3CS
from turnout.policies.published.oort import Oort
from turnout.policies.published.power_of_choice import PowerOfChoice
from turnout.policies.published.refl import REFL
from turnout.policies.published.tifl import TiFL
from turnout.policies.published.ucb_cs import UCBCS
from turnout.policies.rbcsf.policy import RBCSF
from turnout.policies.wrappers.base import Wrapper
from turnout.policies.wrappers.busy import ExcludeBusy
from turnout.policies.wrappers.cooldown import CoolDown
from turnout.policies.wrappers.eligible import Eligible
from turnout.policies.wrappers.guarantee import WithGuarantee
from turnout.policies.wrappers.overcommit import Overcommit
from turnout.policies.wrappers.quota import Quota
from turnout.policies.wrappers.warmup import WarmUp

POLICIES: Mapping[str, type[SelectionPolicy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            FairPace,
            RBCSF,
            UniformRandom,
            SkewedRandom,
            RoundRobin,
            FedCS,
            Fastest,
            FairOracle,
            DataSize,
            Oort,
            PowerOfChoice,
            TiFL,
            ActiveFL,
            REFL,
            CSUCB,
            CSUCBQ,
            E3CS,
            UCBCS,
        )
    }
)

#: Wrappers; their settings `policy` and `settings` are the name and the settings of the policy inside.
WRAPPERS: Mapping[str, type[Wrapper]] = MappingProxyType(
    {wrapper.name: wrapper for wrapper in (WithGuarantee, Overcommit, Eligible, ExcludeBusy, CoolDown, Quota, WarmUp)}
)

#: Default settings: the same for every policy, or computed from the name and the given settings of each.
Defaults: TypeAlias = Mapping[str, Any] | Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def make_policy(name: str, clients: int, **settings: Any) -> SelectionPolicy:
    """Builds a policy by its name.

    >>> make_policy("rbcsf", 40, speed_weight=5.0).name
    'rbcsf'
    >>> make_policy("with-guarantee", 40, policy="oort", guaranteed_rate=0.1).policy.name
    'oort'
    """
    if name in WRAPPERS:
        return WRAPPERS[name].named(clients, make_policy, **settings)
    if name not in POLICIES:
        names = [*POLICIES, *WRAPPERS]
        raise SettingError(f"unknown policy {name!r}{suggestion(name, names)}; the policies are {', '.join(names)}")
    policy: Callable[..., SelectionPolicy] = POLICIES[name]
    known = setting_names(name)
    for setting in settings:
        if setting not in known:
            hint = suggestion(setting, known)
            raise SettingError(f"{name} has no setting {setting!r}{hint}; it has {', '.join(known)}")
    return policy(clients, **settings)


def setting_names(name: str) -> list[str]:
    """Returns the names of the settings of a policy or wrapper; none if the name is unknown."""
    if name in WRAPPERS:
        return ["policy", "settings", *WRAPPERS[name].own_settings()]
    return signatures.setting_names(POLICIES[name]) if name in POLICIES else []


def setting_default(name: str, setting: str) -> Any:
    """Returns the default of a setting of a policy; None if it has none."""
    return signatures.setting_default(POLICIES[name], setting) if name in POLICIES else None


def nested_settings(name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the name and the settings of a policy, and of every policy inside it."""
    yield name, settings
    inner, own = settings.get("policy"), settings.get("settings") or {}
    if name in WRAPPERS and isinstance(inner, str) and isinstance(own, Mapping):
        yield from nested_settings(inner, own)


def refuse_functions(settings: Mapping[str, Any]) -> None:
    """Raises SettingError if one of the settings is a function, because a function cannot be stored."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            refuse_functions(value)
        elif callable(value):
            raise SettingError(
                f"{name} is a function, which cannot be stored: use a number or a string, such as a named schedule"
            )


def guarantee_of(name: str, clients: int, settings: Mapping[str, Any]) -> Guarantee | None:
    """Returns what a policy with these settings guarantees; None if it guarantees nothing."""
    return make_policy(name, clients, **with_defaults(name, settings, {"allow_infeasible": True})).guarantee


def with_defaults(name: str, settings: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Returns the settings, completed with those defaults that the policy, or a policy inside it, accepts.

    Args:
        name: The name of the policy or wrapper.
        settings: Its settings as given; they take precedence.
        defaults: The defaults, or a function that computes them from the name and the settings of each policy.
    """
    known = setting_names(name)
    own = defaults(name, settings) if callable(defaults) else defaults
    complete = {**{setting: value for setting, value in own.items() if setting in known}, **settings}
    inner, inner_settings = complete.get("policy"), complete.get("settings") or {}
    # Invalid names and settings are left as they are: `make_policy` refuses them.
    if name in WRAPPERS and isinstance(inner, str) and isinstance(inner_settings, Mapping):
        complete["settings"] = with_defaults(inner, inner_settings, defaults)
    return complete
