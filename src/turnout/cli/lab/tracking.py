"""The option --track, and the runs that it sends to trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Annotated, Any

import typer

from turnout.cli.naming import load_here
from turnout.cli.options import say
from turnout.counting import pluralize
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

    def open(self, key: str, plan: Mapping[str, Any]) -> TrackedRun:
        """Opens all trackers for the run with this key."""
        name = self._names.get(key) or (RunPlan.from_dict(plan).name if "policy" in plan else key)
        run = f"{name}, seed {plan.get('seed', 0)}"
        with ExitStack() as opened:
            trackers = [
                opened.enter_context(open_tracker(text, run=run, settings=plan)) for text in self._specifications
            ]
            opened.pop_all()
        self._opened += trackers
        return TrackedRun(trackers, plan)

    def record(self, store: RunStore, info: RunInfo) -> None:
        """Sends a stored run to all trackers."""
        with closing(self.open(info.key, info.plan)) as run:
            run.log(store.columns(info.id))

    @contextmanager
    def following(
        self, named: Mapping[str, Sequence[RunPlan]], store: RunStore, missing: Sequence[RunPlan]
    ) -> Iterator[StoredWatcher | None]:
        """Sends the runs that the store holds to all trackers; yields what receives the others as they are stored.

        Args:
            named: The plans of all runs, by the name of their policy.
            store: The store.
            missing: The plans that are going to be played.
        """
        if not self._specifications:
            yield None
            return
        self._names = {plan.key: name for name, plans in named.items() for plan in plans}
        played = {plan.key for plan in missing}
        for key in self._names:
            if key not in played and (info := store.find(key)) is not None:
                self.record(store, info)
        with ExitStack() as open_runs:
            runs: dict[str, TrackedRun] = {}

            def follow(plan: RunPlan) -> None:
                runs[plan.key] = open_runs.enter_context(closing(self.open(plan.key, plan.as_dict())))

            def log(plan: RunPlan, columns: RoundColumns) -> None:
                if plan.key not in runs:
                    follow(plan)
                run, info = runs[plan.key], store.find(plan.key)
                run.log(store.columns(info.id) if info is not None and not run.rounds else columns)
                if run.rounds >= plan.rounds:
                    run.close()

            for plan in missing[:1]:  # reports a tracker that cannot be opened before the first round
                follow(plan)
            yield log

    def warn(self) -> None:
        """Says on standard error how many calls of trackers have failed."""
        if failed := sum(tracker.failures for tracker in self._opened):
            calls = sum(tracker.calls for tracker in self._opened)
            say(f"warning: trackers failed {pluralize(failed, 'time')}, in {pluralize(calls, 'call')}", err=True)
