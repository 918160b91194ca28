"""Policies, worlds and learners that travel with a plan to a worker, which could not find them by their names."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from turnout.lab import learner_registry as learners
from turnout.lab.runs.plans import RunPlan
from turnout.lab.worlds import registry as worlds
from turnout.plugins import is_module_name
from turnout.policies import registry as policies

REGISTRIES = {registry.kind.noun: registry for registry in (policies.REGISTRY, worlds.REGISTRY, learners.REGISTRY)}
#: The noun of a registry, a name in it, and what has this name: a value, or where a worker can import it.
Carried = tuple[str, str, Any]


class _Imported(NamedTuple):
    """Something that a worker imports, from the folders in which this process finds modules.

    A worker that runs already does not know folders that were added later.
    """

    module: str
    name: str
    folders: tuple[str, ...]

    def value(self) -> Any:
        """Imports it."""
        sys.path.extend(folder for folder in self.folders if folder not in sys.path)
        importlib.invalidate_caches()
        return operator.attrgetter(self.name)(importlib.import_module(self.module))


def carried_plugins(plan: RunPlan) -> list[Carried]:
    """Returns everything of a plan that was registered or loaded in this process only."""
    found = [(registry.kind.noun, name, registry.carried(name)) for registry, name in plan.plugins()]
    return [(noun, name, _carried(name, value)) for noun, name, value in found if value is not None]


def adopt_plugins(carried: Iterable[Carried]) -> None:
    """Makes what `carried_plugins` returned in another process known in this one."""
    for noun, name, value in carried:
        REGISTRIES[noun].adopt(name, value.value() if isinstance(value, _Imported) else value)


def _carried(name: str, value: Any) -> Any:
    """Returns where a worker can import a value; the value itself if it is of the main program or of a function."""
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if is_module_name(name):
        module, _, qualified = name.partition(":")
    if module in (None, "__main__") or "<" in qualified:
        return value
    return _Imported(str(module), qualified, tuple(folder for folder in sys.path if folder))
