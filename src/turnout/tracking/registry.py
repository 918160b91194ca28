"""Trackers by name: the built-in ones, those of installed packages, and classes of your own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from turnout.errors import SettingError, suggestion
from turnout.tracking.base import GuardedTracker, Tracker

ENTRY_POINTS = "turnout.trackers"
#: Modules are imported when a tracker is opened, because each needs a package of its own.
OUR_TRACKERS: Mapping[str, str] = MappingProxyType(
    {
        "tensorboard": "turnout.tracking.tensorboard:TensorBoardTracker",
        "mlflow": "turnout.tracking.mlflow:MLflowTracker",
        "wandb": "turnout.tracking.wandb:WandbTracker",
    }
)


def trackers() -> dict[str, str]:
    """Returns all trackers by name, as `package.module:Name`: the built-in ones and those of installed packages."""
    installed = sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    return {**OUR_TRACKERS, **{entry.name: entry.value for entry in installed}}


def open_tracker(
    tracker: str | Tracker, *, run: str = "turnout", settings: Mapping[str, Any] | None = None
) -> GuardedTracker:
    """Opens a tracker; its errors will be logged and counted, but stop nothing.

    A tracker of your own is a class, or a function, that is called as `Name(target, run=…, settings=…)` and returns an
    object with `log(metrics, step)` and `close()`.

    Args:
        tracker: `NAME:TARGET`, such as "tensorboard:logs" or "mlflow:mlflow.db"; `package.module:Name:TARGET`; or an
            object with `log(metrics, step)` and `close()`.
        run: The name of the run.
        settings: The settings of the run, as plain values.

    Raises:
        SettingError: If there is no such tracker, its package is missing, or it cannot be opened.
    """
    if isinstance(tracker, GuardedTracker):
        return tracker
    if not isinstance(tracker, str):
        if not isinstance(tracker, Tracker):
            raise SettingError(f"a tracker needs the methods log(metrics, step) and close(), which {tracker!r} lacks")
        return GuardedTracker(tracker)
    location, target = _parse(tracker)
    build = _load(tracker, location)
    try:
        opened = build(target, run=run, settings=dict(settings or {}))
    except ImportError as error:
        raise SettingError(str(error)) from error
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"the tracker {tracker} cannot be opened: {type(error).__name__}: {error}") from error
    if not isinstance(opened, Tracker):
        raise SettingError(f"{location} must return an object with log(metrics, step) and close(), not {opened!r}")
    return GuardedTracker(opened)


@lru_cache(maxsize=64)  # a sweep opens the same tracker for every run, and the search in all packages is slow
def _parse(text: str) -> tuple[str, str]:
    """Returns the location of a tracker as `package.module:Name`, and its target."""
    known = trackers()
    name, _, rest = text.partition(":")
    if name in known:
        if not rest:
            raise SettingError(f"the tracker {name} needs a target, such as {name}:{_example(name)}")
        return known[name], rest
    attribute, _, target = rest.partition(":")
    if not name or not attribute.isidentifier() or "/" in name:
        raise SettingError(
            f"unknown tracker {text!r}{suggestion(name, known)}: write NAME:TARGET with one of {', '.join(known)}, or "
            "package.module:Name:TARGET"
        )
    return f"{name}:{attribute}", target


def _example(name: str) -> str:
    return "mlflow.db" if name == "mlflow" else "logs"


def _load(text: str, location: str) -> Callable[..., Any]:
    module, _, name = location.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise SettingError(f"the tracker {text} cannot be imported: {error}") from error
        known = trackers()
        raise SettingError(
            f"unknown tracker {text!r}{suggestion(module, known)}: there is no module {error.name}, and the trackers "
            f"are {', '.join(known)}"
        ) from error
    except AttributeError as error:
        raise SettingError(f"unknown tracker {text!r}: the module {module} has no {name}") from error
    if not callable(found):
        raise SettingError(f"the tracker {text!r} must be a class or a function, not {found!r}")
    build: Callable[..., Any] = found
    return build


def require(module: str, extra: str) -> Any:
    """Imports the package of a tracker; raises ImportError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this tracker needs {module}: pip install 'turnout[{extra}]' ({error})") from error
