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
    from turnout.policies.registry import POLICIES

    return starting(POLICIES, incomplete)


def complete_worlds(incomplete: str) -> list[str]:
    """Completes a setting of the world: its name, or a setting of the paper's world."""
    import inspect

    from turnout.simulator.paper import PaperWorld
    from turnout.simulator.plans import worlds

    settings = [
        f"{parameter.name}="
        for parameter in inspect.signature(PaperWorld).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    return starting([*(f"name={name}" for name in worlds()), *settings], incomplete)


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
    from turnout.experiments.leaderboard.slots import SLOT_SUITES
    from turnout.experiments.leaderboard.suites import SUITES

    return starting([*SUITES, *SLOT_SUITES], incomplete)


def complete_experiments(incomplete: str) -> list[str]:
    """Completes the name of an experiment or a group of them."""
    from turnout.experiments.catalogue import EXPERIMENTS, GROUPS

    return starting([*EXPERIMENTS, *GROUPS], incomplete)


def complete_datasets(incomplete: str) -> list[str]:
    """Completes the name of a dataset."""
    from turnout.lab.datasets import SOURCES

    return starting(SOURCES, incomplete)


def complete_backends(incomplete: str) -> list[str]:
    """Completes the name of a backend of sweeps."""
    from turnout.clusters import BACKENDS

    return starting(BACKENDS, incomplete)
