"""Policies by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from turnout.kernel.errors import SettingError
from turnout.policies.base import SelectionPolicy
from turnout.policies.fedcs import FedCS
from turnout.policies.oracle import FairOracle, Fastest
from turnout.policies.rbcsf import RBCSF
from turnout.policies.round_robin import RoundRobin
from turnout.policies.uniform import SkewedRandom, UniformRandom

POLICIES: Mapping[str, type[SelectionPolicy]] = MappingProxyType(
    {policy.name: policy for policy in (RBCSF, UniformRandom, SkewedRandom, RoundRobin, FedCS, Fastest, FairOracle)}
)


def make_policy(name: str, clients: int, **settings: Any) -> SelectionPolicy:
    """Build a policy by its name.

    >>> make_policy("rbcsf", 40, speed_weight=5.0).name
    'rbcsf'
    """
    if name not in POLICIES:
        raise SettingError(f"unknown policy {name!r}{near(name, POLICIES)}; there are {', '.join(POLICIES)}")
    policy = POLICIES[name]
    known = settings_of(policy)
    for setting in settings:
        if setting not in known:
            raise SettingError(f"{name} has no setting {setting!r}{near(setting, known)}; it has {', '.join(known)}")
    return policy(clients, **settings)


def settings_of(policy: type[SelectionPolicy]) -> list[str]:
    """The names of the settings a policy takes."""
    parameters = inspect.signature(policy).parameters.values()
    return [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


def near(word: str, words: Iterable[str]) -> str:
    """A hint at the word that was perhaps meant."""
    import difflib  # only who mistypes pays for it

    near = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
