"""Policies and wrappers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeGuard, TypeVar, get_type_hints

from turnout import plugins
from turnout.errors import PluginError, SettingError
from turnout.plugins import Kind, LazyTable, Registry, is_module_name
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper

#: The class of each policy and wrapper, by name; its module is imported when it is first used.
BUILT_IN_POLICIES = {
    "fair-pace": "fair_pace:FairPace",
    "rbcsf": "rbcsf:RBCSF",
    "random": "baselines:UniformRandom",
    "skewed": "baselines:SkewedRandom",
    "round-robin": "baselines:RoundRobin",
    "fedcs": "baselines:FedCS",
    "fastest": "baselines:Fastest",
    "fair-oracle": "baselines:FairOracle",
    "data-size": "baselines:DataSize",
    "oort": "published.oort:Oort",
    "power-of-choice": "published.losses:PowerOfChoice",
    "tifl": "published.times:TiFL",
    "active-fl": "published.losses:ActiveFL",
    "refl": "published.availability:REFL",
    "cs-ucb": "published.times:CSUCB",
    "cs-ucb-q": "published.times:CSUCBQ",
    "e3cs": "published.availability:E3CS",
    "ucb-cs": "published.losses:UCBCS",
}
BUILT_IN_WRAPPERS = {
    "with-guarantee": "wrappers.guarantee:WithGuarantee",
    "overcommit": "wrappers.offers:Overcommit",
    "eligible": "wrappers.offers:Eligible",
    "exclude-busy": "wrappers.offers:ExcludeBusy",
    "cool-down": "wrappers.offers:CoolDown",
    "quota": "wrappers.offers:Quota",
    "warm-up": "wrappers.offers:WarmUp",
}

#: The policies by name.
POLICIES: Mapping[str, type[SelectionPolicy]] = LazyTable("turnout.policies", BUILT_IN_POLICIES)

#: Wrappers; their settings `policy` and `settings` are the name and the settings of the policy inside.
WRAPPERS: Mapping[str, type[Wrapper]] = LazyTable("turnout.policies", BUILT_IN_WRAPPERS)

#: Builds a policy from a number of clients and keyword settings: a class, or a function.
PolicyBuilder: TypeAlias = Callable[..., SelectionPolicy]
AnyBuilder = TypeVar("AnyBuilder", bound=PolicyBuilder)

#: Default settings: the same for every policy, or computed from the name and the given settings of each.
Defaults: TypeAlias = Mapping[str, Any] | Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def _check_builder(name: str, value: object) -> PolicyBuilder:
    if isinstance(value, SelectionPolicy):
        raise SettingError(
            f"{name} is a policy that was built already; what has a name is built for each run: use its class, "
            f"{type(value).__name__}, and settings"
        )
    if isinstance(value, type) and not issubclass(value, SelectionPolicy):
        raise SettingError(f"{name} is the class {value.__qualname__}, which does not derive from SelectionPolicy")
    if not callable(value):
        raise SettingError(f"{name} must be a class or a function that builds a policy, got {value!r}")
    if inspect.isabstract(value):
        missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise SettingError(f"{name} is an abstract class: use one that has {missing}")
    if is_module_name(name) and not isinstance(value, type) and not _returns_policy(value):
        raise SettingError(
            f"{name} is not known to build a policy, so it is not called: declare that it returns one (-> "
            "SelectionPolicy), or register it under a name with register_policy"
        )
    return value


def _returns_policy(build: Callable[..., Any]) -> bool:
    """Returns whether a function declares that it builds a policy: any function of any module can be named."""
    build = build.func if isinstance(build, partial) else build
    try:
        returned = build if isinstance(build, type) else get_type_hints(build).get("return")
    except (NameError, TypeError):  # a type that only type checkers import, or no function in Python
        return False
    return _is_policy_class(returned)


def _is_policy_class(value: object) -> TypeGuard[type[SelectionPolicy]]:
    return isinstance(value, type) and issubclass(value, SelectionPolicy)


#: All policies and wrappers: the built-in ones and those of other packages.
REGISTRY: Registry[PolicyBuilder] = Registry(
    Kind("policy", "the policies are", "turnout.policies", _check_builder, _is_policy_class),
    LazyTable("turnout.policies", BUILT_IN_POLICIES | BUILT_IN_WRAPPERS),
)


def register_policy(policy: AnyBuilder, name: str | None = None) -> AnyBuilder:
    """Makes a policy or wrapper known under a name, in this process; returns it, so that it can decorate a class.

    Args:
        policy: A class, or a function that accepts the number of clients and keyword settings and returns a policy.
        name: Its name; by default the attribute `name` of a class.
    """
    own = name or (policy.name if _is_policy_class(policy) else "")
    if not own:
        raise SettingError(f"{policy!r} has no name: pass name")
    REGISTRY.register(own, policy)
    return policy


def make_policy(name: str | PolicyBuilder, clients: int, **settings: Any) -> SelectionPolicy:
    """Builds a policy by its name.

    Args:
        name: A name of `turnout.policies.policy_names`, or `package.module:Name`, which imports that module. A class or
            a function that builds a policy is accepted too.
        clients: The number of clients.
        settings: The settings of the policy.

    >>> make_policy("rbcsf", 40, speed_weight=5.0).name
    'rbcsf'
    >>> make_policy("with-guarantee", 40, policy="oort", guaranteed_rate=0.1).policy.name
    'oort'
    """
    known, own = as_named(name, settings)
    load_policies(known, own)
    return build_policy(known, clients, **own)


def build_policy(name: str, clients: int, /, **settings: Any) -> SelectionPolicy:
    """Builds a policy by its name, which may come from a file: modules that were not loaded are not imported."""
    build = REGISTRY.get(name)
    if "clients" in settings:
        raise SettingError(f"{name} has no setting 'clients': the number of clients is not a setting")
    if _is_wrapper_class(build):
        return build.named(clients, build_policy, **settings)
    plugins.check_settings(name, build, settings)
    policy = build(clients, **settings)
    if not isinstance(policy, SelectionPolicy):
        raise SettingError(f"{name} built {policy!r}, which is not a SelectionPolicy")
    return policy


def policy_names() -> list[str]:
    """Returns the names of all policies and wrappers: built-in, registered, and of installed packages."""
    return REGISTRY.names()


def load_policies(name: Any, settings: Any = None) -> None:
    """Imports the modules of a policy, and of those inside it, that a user named as `package.module:Name`."""
    if isinstance(name, str) and is_module_name(name):
        REGISTRY.load(name)
    if isinstance(settings, Mapping) and settings.get("policy") is not None:
        load_policies(settings["policy"], settings.get("settings"))


def as_named(policy: Any, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the name and the settings of a policy, with names in place of classes and functions."""
    name = policy if isinstance(policy, str) else REGISTRY.name_of(policy)  # which refuses anything else
    own = dict(settings)
    inner, inner_settings = own.get("policy"), own.get("settings")
    if callable(inner) or isinstance(inner, SelectionPolicy):
        own["policy"] = REGISTRY.name_of(inner)
    if isinstance(inner_settings, Mapping) and own.get("policy") is not None:
        own["policy"], own["settings"] = as_named(own["policy"], inner_settings)
    return name, own


def setting_names(name: str) -> list[str]:
    """Returns the names of the settings of a policy or wrapper; none if the name is unknown."""
    build = _known(name)
    inner = ["policy", "settings"] if _is_wrapper_class(build) else []
    return [] if build is None else [*inner, *plugins.setting_names(build)]


def setting_default(name: str, setting: str) -> Any:
    """Returns the default of a setting of a policy; None if it has none."""
    build = _known(name)
    return None if build is None else plugins.setting_default(build, setting)


def is_wrapper(name: str) -> bool:
    """Returns whether this is the name of a wrapper."""
    return _is_wrapper_class(_known(name))


def nested_settings(name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the name and the settings of a policy, and of every policy inside it."""
    yield name, settings
    inner, own = settings.get("policy"), settings.get("settings") or {}
    if isinstance(inner, str) and isinstance(own, Mapping) and is_wrapper(name):
        yield from nested_settings(inner, own)


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
    if isinstance(inner, str) and isinstance(inner_settings, Mapping) and is_wrapper(name):
        complete["settings"] = with_defaults(inner, inner_settings, defaults)
    return complete


def _known(name: str) -> PolicyBuilder | None:
    """Returns what has this name; None if there is nothing, or if it was not loaded."""
    try:
        return REGISTRY.get(name)
    except PluginError:
        return None


def _is_wrapper_class(build: object) -> TypeGuard[type[Wrapper]]:
    return isinstance(build, type) and issubclass(build, Wrapper)
