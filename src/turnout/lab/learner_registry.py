"""Learners by name: models and data of other packages, for the setting `learner` of the world `training`.

What a learner is, `turnout.lab` says; plans, which are below it, only know the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from turnout.errors import SettingError
from turnout.plugins import Kind, Registry

#: The world whose setting `learner` is a name of this registry.
WORLD = "training"
#: A task (`turnout.lab.TorchTask`), or a function that builds one from keyword settings.
LearnerBuilder: TypeAlias = Any


def _check_learner(name: str, value: object) -> LearnerBuilder:
    if not callable(value) and not _is_task(value):
        raise SettingError(f"{name} must be a TorchTask or a function that builds one, not {value!r}")
    return value


def _is_task(value: object) -> bool:
    """Whether a value is a task; a class, or any function, could do something else than build one."""
    members = ("learner", "split", "world")
    return not isinstance(value, type) and all(callable(getattr(value, member, None)) for member in members)


#: All learners.
REGISTRY: Registry[LearnerBuilder] = Registry(
    Kind("learner", "known learners are", "turnout.learners", _check_learner, _is_task, register="register_task"), {}
)


def named_learner(world: str, settings: Mapping[str, Any]) -> str | None:
    """Returns the name of the learner in the settings of a world; None if there is none."""
    learner = settings.get("learner") if world == WORLD else None
    return learner if isinstance(learner, str) else None


def with_named_learner(world: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a world in which a function that builds a task is replaced by its name."""
    learner = settings.get("learner")
    if world != WORLD or learner is None or isinstance(learner, str):
        return dict(settings)
    return {**settings, "learner": REGISTRY.name_of(learner)}
