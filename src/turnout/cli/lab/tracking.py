"""The option --track, and the runs that it sends to trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.naming import load_here
from turnout.counting import pluralize
from turnout.lab.analysis.judging import guarantee_of_plan, guarantee_of_run
from turnout.lab.analysis.tracked import TrackedRun
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher
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
        self._opened: list[GuardedTracker] = []
        self._names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._specifications)

    def open(self, run: str, settings: Mapping[str, Any]) -> ManyTrackers:
        """Opens all trackers for a run."""
        with ExitStack() as opened:
            trackers = [
                opened.enter_context(open_tracker(text, run=run, settings=settings)) for text in self._specifications
            ]
            opened.pop_all()
        self._opened += trackers
        return ManyTrackers(trackers)

    def record(self, store: RunStore, info: RunInfo) -> None:
        """Sends a stored run to all trackers."""
        plan = info.plan
        name = self._names.get(info.key, str(plan.get("label") or ""))
        name = name or (RunPlan.from_dict(plan).name if "policy" in plan else info.key)
        with self.open(f"{name}, seed {plan.get('seed', 0)}", plan) as trackers:
            TrackedRun(trackers, info.clients, guarantee_of_run(info)).log(store.columns(info.id))

    @contextmanager
    def following(
        self, named: Mapping[str, Sequence[RunPlan]], store: RunStore | None, missing: Sequence[RunPlan]
    ) -> Iterator[StoredWatcher | None]:
        """Sends the runs that the store holds to all trackers; yields what receives the others as they are stored.

        Args:
            named: The plans of all runs, by the name of their policy.
            store: The store; None if runs are kept in memory.
            missing: The plans that are going to be played.
        """
        if not self:
            yield None
            return
        self._names = {plan.key: name for name, plans in named.items() for plan in plans}
        played = {plan.key for plan in missing}
        for key in self._names:
            if store is not None and key not in played and (info := store.find(key)) is not None:
                self.record(store, info)
        with ExitStack() as live:
            trackers: dict[str, ManyTrackers] = {}
            runs: dict[str, TrackedRun] = {}

            def follow(plan: RunPlan) -> ManyTrackers:
                name = self._names.get(plan.key, plan.name)
                return live.enter_context(self.open(f"{name}, seed {plan.seed}", plan.as_dict()))

            def log(plan: RunPlan, columns: RoundColumns) -> None:
                key, clients = plan.key, columns.clients
                if key not in runs:
                    info = None if store is None else store.find(key)
                    if store is not None and info is not None:
                        columns = store.columns(info.id)  # with the rounds before an interruption
                    trackers[key] = trackers.get(key) or follow(plan)
                    runs[key] = TrackedRun(trackers[key], clients, guarantee_of_plan(plan.as_dict(), clients))
                runs[key].log(columns)
                if runs[key].rounds >= plan.rounds:
                    trackers[key].close()

            for plan in missing[:1]:  # reports a tracker that cannot be opened before the first round
                trackers[plan.key] = follow(plan)
            yield log

    def warn(self) -> None:
        """Says on standard error how many calls of trackers have failed."""
        failed = sum(tracker.failures for tracker in self._opened)
        if failed:
            calls = sum(tracker.calls for tracker in self._opened)
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"warning: trackers failed {pluralize(failed, 'time')}, in {pluralize(calls, 'call')}", markup=False
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
