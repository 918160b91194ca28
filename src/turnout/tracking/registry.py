"""Trackers by name: the built-in ones, those of installed packages, and classes of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnout.errors import PluginError, SettingError, suggestion
from turnout.plugins import Kind, Registry, is_module_name
from turnout.tracking.base import GuardedTracker, Tracker
from turnout.tracking.mlflow import MLflowTracker
from turnout.tracking.tensorboard import TensorBoardTracker
from turnout.tracking.wandb import WandbTracker

#: Called as `Name(target, run=…, settings=…)`; returns a tracker.
TrackerBuilder = Callable[..., Tracker]


def _check_builder(name: str, value: object) -> TrackerBuilder:
    if not callable(value):
        raise SettingError(f"the tracker {name} must be a class or a function, not {value!r}")
    return value


#: All trackers. The built-in ones import their packages when they are opened.
REGISTRY: Registry[TrackerBuilder] = Registry(
    Kind(
        "tracker",
        "the trackers are",
        "turnout.trackers",
        _check_builder,
        lambda value: isinstance(value, type) and all(hasattr(value, method) for method in ("log", "close")),
    ),
    {"tensorboard": TensorBoardTracker, "mlflow": MLflowTracker, "wandb": WandbTracker},
)


def open_tracker(
    tracker: str | Tracker, *, run: str = "turnout", settings: Mapping[str, Any] | None = None
) -> GuardedTracker:
    """Opens a tracker; its errors will be logged and counted, but stop nothing.

    A tracker of your own is a class, or a function, that is called as `Name(target, run=…, settings=…)` and returns an
    object with `log(metrics, step)` and `close()`.

    Args:
        tracker: `NAME:TARGET`, such as "tensorboard:logs" or "mlflow:mlflow.db"; `package.module:Name:TARGET`, which
            imports that module; or an object with `log(metrics, step)` and `close()`.
        run: The name of the run.
        settings: The settings of the run, as plain values.

    Raises:
        SettingError: If there is no such tracker, its package is missing, or it cannot be opened.
    """
    if isinstance(tracker, GuardedTracker):
        return tracker
    if not isinstance(tracker, str):
        return GuardedTracker(_checked("a tracker", tracker))
    build, target = _find(tracker)
    try:
        opened = build(target, run=run, settings=dict(settings or {}))
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"the tracker {tracker} cannot be opened: {type(error).__name__}: {error}") from error
    return GuardedTracker(_checked(f"what the tracker {tracker} opens", opened))


def _find(text: str) -> tuple[TrackerBuilder, str]:
    """Returns what opens a tracker, and its target."""
    name, _, rest = text.partition(":")
    attribute, _, target = rest.partition(":")
    if name not in REGISTRY.own and is_module_name(f"{name}:{attribute}") and name not in REGISTRY.names():
        try:
            return REGISTRY.load(f"{name}:{attribute}"), target
        except PluginError as error:
            if not (meant := suggestion(name, REGISTRY.names())):
                raise
            raise PluginError(f"unknown tracker {text!r}{meant}", name=name) from error
    build = REGISTRY.get(name)
    if not rest:
        raise SettingError(f"the tracker {name} needs a target: write {name}:TARGET, such as a folder or a file")
    return build, rest


def _checked(what: str, value: object) -> Tracker:
    if not isinstance(value, Tracker):
        raise SettingError(f"{what} needs the methods log(metrics, step) and close(), which {value!r} lacks")
    return value
