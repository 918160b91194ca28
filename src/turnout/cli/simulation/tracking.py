"""The option --track, and the runs that it sends to trackers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.analysis.tracked import track_run
from turnout.cli.naming import load_here
from turnout.cli.simulation.judging import guarantee_of_run
from turnout.simulator.plans import RunPlan
from turnout.store import RunInfo, RunStore
from turnout.tracking import GuardedTracker, open_tracker

TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME:TARGET",
        help="Send the metrics of every round to a tracker: tensorboard:FOLDER, mlflow:FILE.db, wandb:FOLDER (offline) "
        "or package.module:Name:TARGET. Repeatable.",
    ),
]


class Tracks:
    """Opens the same trackers for every run, and counts what they could not record."""

    def __init__(self, specifications: Sequence[str] | None) -> None:
        self._specifications = list(specifications or ())
        for text in self._specifications:
            load_here(text.rpartition(":")[0])
        self._runs: list[GuardedTracker] = []

    def __bool__(self) -> bool:
        return bool(self._specifications)

    def open(self, run: str, settings: dict[str, Any]) -> ManyTrackers:
        """Opens all trackers for a run."""
        with ExitStack() as opened:
            trackers = [
                opened.enter_context(open_tracker(text, run=run, settings=settings)) for text in self._specifications
            ]
            opened.pop_all()
        self._runs += trackers
        return ManyTrackers(trackers)

    def open_plan(self, plan: RunPlan) -> ManyTrackers:
        """Opens all trackers for the run of a plan."""
        return self.open(f"{plan.name}, seed {plan.seed}", plan.as_dict())

    def record(self, store: RunStore, info: RunInfo) -> None:
        """Sends a stored run to all trackers."""
        plan = info.plan
        name = str(plan.get("label") or "") or (RunPlan.from_dict(plan).name if "policy" in plan else info.key)
        with self.open(f"{name}, seed {plan.get('seed', 0)}", plan) as trackers:
            track_run(trackers, store.columns(info.id), guarantee_of_run(info))

    def warn(self) -> None:
        """Says on standard error how many calls of trackers have failed."""
        failed = sum(tracker.failures for tracker in self._runs)
        if failed:
            calls = sum(tracker.calls for tracker in self._runs)
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"warning: trackers failed {failed} times, in {calls} calls", markup=False
            )


class ManyTrackers:
    """Several trackers of one run as one."""

    def __init__(self, trackers: Sequence[GuardedTracker]) -> None:
        self._trackers = trackers

    def log(self, metrics: Any, step: int) -> None:
        """Logs to all."""
        for tracker in self._trackers:
            tracker.log(metrics, step)

    def close(self) -> None:
        """Closes all."""
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> ManyTrackers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
