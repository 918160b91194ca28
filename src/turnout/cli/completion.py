"""Names that the shell completes: policies, worlds, suites, experiments, datasets, backends.

The modules that know the names are imported when the shell asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


def starting(names: Iterable[str], incomplete: str) -> list[str]:
    """Returns the names that start with what was typed."""
    return [name for name in names if name.startswith(incomplete)]


def complete_policies(incomplete: str) -> list[str]:
    """Completes the name of a policy."""
    from turnout.policies.registry import policy_names

    return starting(policy_names(), incomplete)


def complete_worlds(incomplete: str) -> list[str]:
    """Completes a setting of the world: its name, or a setting of the paper's world."""
    import inspect

    from turnout.lab.worlds.paper import PaperWorld
    from turnout.lab.worlds.registry import world_names

    settings = [
        f"{parameter.name}="
        for parameter in inspect.signature(PaperWorld).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    return starting([*(f"name={name}" for name in world_names()), *settings], incomplete)


def complete_settings(incomplete: str) -> list[str]:
    """Completes the name of a setting of a policy."""
    from turnout.policies.registry import POLICIES, setting_names

    policy, dot, _ = incomplete.rpartition(".")
    if dot:
        return starting((f"{policy}.{name}=" for name in setting_names(policy)), incomplete)
    every = dict.fromkeys(name for policy in POLICIES for name in setting_names(policy))
    return starting((f"{name}=" for name in every), incomplete)


def complete_suites(incomplete: str) -> list[str]:
    """Completes the name of a suite."""
    from turnout.lab.studies.leaderboard.suites import SUITES

    return starting(SUITES, incomplete)


def complete_experiments(incomplete: str) -> list[str]:
    """Completes the name of an experiment or a group of them."""
    from turnout.lab.studies.catalogue import EXPERIMENTS, GROUPS

    return starting([*EXPERIMENTS, *GROUPS], incomplete)


def complete_datasets(incomplete: str) -> list[str]:
    """Completes the name of a dataset."""
    from turnout.lab.training.datasets import SOURCES

    return starting(SOURCES, incomplete)


def complete_backends(incomplete: str) -> list[str]:
    """Completes the name of a backend of sweeps."""
    from turnout.lab.clusters import BACKENDS

    return starting(BACKENDS, incomplete)
