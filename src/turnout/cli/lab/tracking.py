"""The option --track, and the runs that it sends to trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.lab.judging import guarantee_of_run
from turnout.cli.naming import load_here
from turnout.counting import counted
from turnout.lab.analysis.tracked import track_run
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.tracked import MetricsWatcher
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
        self._names: dict[str, str] = {}
        self._live: dict[str, ManyTrackers] = {}
        self._keys: dict[int, tuple[RunPlan, str]] = {}

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
        name = self._names.get(plan.key, plan.name)
        return self.open(f"{name}, seed {plan.seed}", plan.as_dict())

    def record(self, store: RunStore, info: RunInfo) -> None:
        """Sends a stored run to all trackers."""
        plan = info.plan
        name = self._names.get(info.key, str(plan.get("label") or ""))
        name = name or (RunPlan.from_dict(plan).name if "policy" in plan else info.key)
        with self.open(f"{name}, seed {plan.get('seed', 0)}", plan) as trackers:
            track_run(trackers, store.columns(info.id), guarantee_of_run(info))

    @contextmanager
    def following(
        self, named: Mapping[str, Sequence[RunPlan]], store: RunStore, missing: Sequence[RunPlan]
    ) -> Iterator[MetricsWatcher | None]:
        """Sends the runs that the store holds to all trackers; yields what receives the others while they are played.

        Args:
            named: The plans of all runs, by the name of their policy.
            store: The store.
            missing: The plans that are going to be played.
        """
        if not self:
            yield None
            return
        self._names = {plan.key: name for name, plans in named.items() for plan in plans}
        played = {plan.key for plan in missing}
        for key in self._names:
            if key not in played and (info := store.find(key)) is not None:
                self.record(store, info)
        if missing:
            self._follow(missing[0])  # reports a tracker that cannot be opened before the first round
        try:
            yield self._log
        finally:
            for trackers in self._live.values():
                trackers.close()
            self._live.clear()
            self._keys.clear()

    def _log(self, plan: RunPlan, metrics: Mapping[str, float], step: int) -> None:
        self._follow(plan).log(metrics, step)
        if step >= plan.rounds:
            self._live.pop(self._key(plan)).close()

    def _follow(self, plan: RunPlan) -> ManyTrackers:
        """Returns the trackers of a run that is being played."""
        key = self._key(plan)
        if key not in self._live:
            self._live[key] = self.open_plan(plan)
        return self._live[key]

    def _key(self, plan: RunPlan) -> str:
        """Returns the key of a plan, which takes too long to compute it in every round."""
        if id(plan) not in self._keys:
            self._keys[id(plan)] = (plan, plan.key)  # the plan is kept, so that its id stays unique
        return self._keys[id(plan)][1]

    def warn(self) -> None:
        """Says on standard error how many calls of trackers have failed."""
        failed = sum(tracker.failures for tracker in self._runs)
        if failed:
            calls = sum(tracker.calls for tracker in self._runs)
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"warning: trackers failed {counted(failed, 'time')}, in {counted(calls, 'call')}", markup=False
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
