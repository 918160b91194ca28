"""The summary of a stored run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A summary of a stored run, which is available without reading its rounds.

    Attributes:
        id: The number of the run in its store.
        key: The unique name of the run.
        plan: The settings that determine the run.
        clients: The number of clients.
        rounds: The number of stored rounds.
        finished: Whether the run is complete.
        code_version: The version of turnout that started the run.
        started: The time at which the run was started, in UTC and ISO format.
    """

    id: int
    key: str
    plan: dict[str, Any]
    clients: int
    rounds: int
    finished: bool
    code_version: str
    started: str
