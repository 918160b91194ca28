"""Trackers for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Recording:
    """Keeps everything in memory; `opened` lists all that were opened by name."""

    opened: list[Recording] = []  # noqa: RUF012

    def __init__(self, target: str = "", *, run: str = "", settings: Mapping[str, Any] | None = None) -> None:
        self.target, self.run, self.settings = target, run, dict(settings or {})
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.closed = 0
        Recording.opened.append(self)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.steps.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1

    def values(self, name: str) -> dict[int, float]:
        return {step: metrics[name] for step, metrics in self.steps if name in metrics}


class Broken(Recording):
    """Fails in every call."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        super().log(metrics, step)
        raise OSError("the disk is full")

    def close(self) -> None:
        super().close()
        raise RuntimeError("no connection")


class Unusable:
    """Cannot be opened."""

    def __init__(self, target: str, **_: object) -> None:
        raise PermissionError(f"may not write {target}")


def not_a_tracker(*_: object, **__: object) -> int:
    return 3
