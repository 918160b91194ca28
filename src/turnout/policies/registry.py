"""Policies by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from turnout.errors import SettingError, suggestion
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.data_size import DataSize
from turnout.policies.baselines.fedcs import FedCS
from turnout.policies.baselines.oracle import FairOracle, Fastest
from turnout.policies.baselines.round_robin import RoundRobin
from turnout.policies.baselines.uniform import SkewedRandom, UniformRandom
from turnout.policies.published.active_fl import ActiveFL
from turnout.policies.published.cs_ucb import CSUCB, CSUCBQ
from turnout.policies.published.e3cs import E3CS
from turnout.policies.published.oort import Oort
from turnout.policies.published.power_of_choice import PowerOfChoice
from turnout.policies.published.refl import REFL
from turnout.policies.published.tifl import TiFL
from turnout.policies.published.ucb_cs import UCBCS
from turnout.policies.rbcsf.policy import RBCSF
from turnout.policies.wrappers.base import (
    CoolDown,
    Eligible,
    ExcludeBusy,
    Overcommit,
    Quota,
    WarmUp,
    Wrapper,
    with_defaults,
)
from turnout.policies.wrappers.guarantee import WithGuarantee

POLICIES: Mapping[str, type[SelectionPolicy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
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

#: Rules around a policy: their settings `policy` and `settings` name the one inside.
WRAPPERS: Mapping[str, type[Wrapper]] = MappingProxyType(
    {rule.name: rule for rule in (WithGuarantee, Overcommit, Eligible, ExcludeBusy, CoolDown, Quota, WarmUp)}
)


def make_policy(name: str, clients: int, **settings: Any) -> SelectionPolicy:
    """Build a policy by its name.

    >>> make_policy("rbcsf", 40, speed_weight=5.0).name
    'rbcsf'
    >>> make_policy("with-guarantee", 40, policy="oort", guaranteed_rate=0.1).policy.name
    'oort'
    """
    if name in WRAPPERS:
        return WRAPPERS[name].named(clients, make_policy, **settings)
    if name not in POLICIES:
        names = [*POLICIES, *WRAPPERS]
        raise SettingError(f"unknown policy {name!r}{suggestion(name, names)}; there are {', '.join(names)}")
    policy = POLICIES[name]
    known = settings_of(policy)
    for setting in settings:
        if setting not in known:
            raise SettingError(
                f"{name} has no setting {setting!r}{suggestion(setting, known)}; it has {', '.join(known)}"
            )
    return policy(clients, **settings)


def settings_of(policy: type[SelectionPolicy]) -> list[str]:
    """The names of the settings a policy takes."""
    parameters = inspect.signature(policy).parameters.values()
    return [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


def filled(name: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, and those of the defaults that this policy, or one inside it, takes and is not given."""
    return with_defaults(name, settings, defaults, settings_named)


def settings_named(name: str) -> list[str]:
    """The names of the settings of the policy of this name; none if there is no such policy."""
    if name in WRAPPERS:
        return ["policy", "settings", *WRAPPERS[name].own_settings()]
    return settings_of(POLICIES[name]) if name in POLICIES else []
