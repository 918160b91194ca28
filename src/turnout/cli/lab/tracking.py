"""The option --track, and the runs that it sends to trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Annotated

import typer

from turnout.cli.naming import load_here
from turnout.cli.options import say
from turnout.counting import pluralize
from turnout.lab.analysis.tracked import TrackedRun
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, run_id
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

    def _open(self, name: str, plan: RunPlan) -> TrackedRun:
        """Opens all trackers for a run of the policy with this name."""
        run, settings = f"{name}, seed {plan.seed}", plan.as_dict()
        with ExitStack() as opened:
            trackers = [
                opened.enter_context(open_tracker(text, run=run, settings=settings)) for text in self._specifications
            ]
            opened.pop_all()
        self._opened += trackers
        return TrackedRun(trackers, settings)

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
        names = {plan.key: name for name, plans in named.items() for plan in plans}
        stored = {plan.key: plan for plans in named.values() for plan in plans}
        for plan in missing:
            del stored[plan.key]
        for key, plan in stored.items():
            with closing(self._open(names[key], plan)) as run:
                run.log(store.columns(run_id(store, plan)))
        with ExitStack() as open_runs:
            runs: dict[str, TrackedRun] = {}

            def follow(plan: RunPlan) -> None:
                runs[plan.key] = open_runs.enter_context(closing(self._open(names[plan.key], plan)))

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
