"""Names that the shell completes: policies, worlds, suites, experiments, datasets, backends.

The modules that know the names are imported when the shell asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module


def starting(names: Iterable[str], incomplete: str) -> list[str]:
    """Returns the names that start with what was typed."""
    return [name for name in names if name.startswith(incomplete)]


def completing(*sources: str) -> Callable[[str], list[str]]:
    """Returns a callback that completes names; each source is module:attribute, a collection or a function."""

    def complete(incomplete: str) -> list[str]:
        names: list[str] = []
        for source in sources:
            module, _, attribute = source.partition(":")
            known = getattr(import_module(f"turnout.{module}"), attribute)
            names += known() if callable(known) else known
        return starting(names, incomplete)

    return complete


complete_policies = completing("policies.registry:policy_names")
complete_suites = completing("lab.studies.leaderboard.suites:SUITES")
complete_experiments = completing("lab.studies.catalogue:EXPERIMENTS", "lab.studies.catalogue:GROUPS")
complete_datasets = completing("lab.training.datasets:SOURCES")
complete_backends = completing("lab.clusters:BACKENDS")


def complete_worlds(incomplete: str) -> list[str]:
    """Completes a setting of the world: its name, or a setting of the paper's world."""
    from turnout.lab.worlds.registry import REGISTRY, world_names, world_settings

    settings = [f"{name}=" for name in world_settings(REGISTRY.get("paper"))]
    return starting([*(f"name={name}" for name in world_names()), *settings], incomplete)


def complete_settings(incomplete: str) -> list[str]:
    """Completes the name of a setting of a policy."""
    from turnout.policies.registry import POLICIES, setting_names

    every = dict.fromkeys(name for policy in POLICIES for name in setting_names(policy))
    return starting((f"{name}=" for name in every), incomplete)
