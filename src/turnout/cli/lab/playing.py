"""Plays the runs of a command that its store lacks, and sends them to trackers."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from turnout.cli.advice import resumable
from turnout.cli.naming import load_here
from turnout.cli.options import make_folder, progress_bar, require_packages, say
from turnout.counting import pluralize
from turnout.kernel.arrays import IntArray
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.promise import knows_available, turns_behind
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan, policy_of_plan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, missing_plans, play_into, run_id
from turnout.tracking import GuardedTracker, RoundMeter, Tracker, open_tracker

TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME:TARGET",
        help="Send the metrics of every round to a tracker: tensorboard:FOLDER, mlflow:FILE.db, wandb:FOLDER (offline) "
        "or package.module:Name:TARGET. Repeatable.",
    ),
]


class TrackedRun:
    """Logs one run to trackers, part by part.

    How far clients are behind is logged in runs with rounds, if the store holds what the promise refers to.

    Args:
        trackers: The trackers.
        plan: The plan of the run, as its store holds it.
    """

    def __init__(self, trackers: Sequence[Tracker], plan: Mapping[str, Any]) -> None:
        self.rounds = 0
        self._trackers, self._plan, self._meter = trackers, plan, RoundMeter()
        self._owed: IntArray | None = None

    def log(self, columns: RoundColumns) -> None:
        """Logs the metrics of the next rounds."""
        if self._owed is None:
            self._owed = np.zeros(columns.clients, dtype=np.int64)
        guarantee, behind = policy_of_plan(self._plan, columns.clients).guarantee, None
        if guarantee is not None and (guarantee.accrual != "available" or knows_available(columns)):
            behind = None if STARTED in columns.metrics else turns_behind(columns, guarantee, self._owed)
        for index, record in enumerate(columns.records()):
            metrics = self._meter.measure(record)
            if behind is not None:
                metrics["promise/turns_behind"] = float(behind[index])
            for tracker in self._trackers:
                tracker.log(metrics, record.round)
        self.rounds += len(columns)

    def close(self) -> None:
        """Closes the trackers."""
        for tracker in self._trackers:
            tracker.close()


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


#: The seconds between two lines about the progress where standard error is not a terminal.
LOG_SECONDS = 60.0


class Machines(NamedTuple):
    """Where runs are played: the options --workers and --device."""

    workers: int | None = None
    device: str = "cpu"


@contextmanager
def played(
    named: Mapping[str, Sequence[RunPlan]],
    path: Path | None,
    machines: Machines,
    tracks: Tracks | None = None,
    *,
    out: Path | None = None,
) -> Iterator[RunStore]:
    """Plays the runs that a store lacks, and yields the store.

    Args:
        named: The plans of all runs, by the name of their policy.
        path: The store; None for one in `out`, or a temporary one.
        machines: Where runs are played.
        tracks: The trackers that receive the metrics of every round.
        out: The folder for the results of the command, which is created.
    """
    # The commands start faster without these.
    from turnout.lab.training.batched import Watchers, check_device, play_plans, trains

    plans = [plan for by_seed in named.values() for plan in by_seed]
    check_device(plans, machines.device)
    tracks = tracks or Tracks(None)
    if out is not None:
        require_packages("--out", "plots", "matplotlib")  # it draws figures
        make_folder(out)
        path = path or out / "runs.turnout"
    with ExitStack() as stack:
        stack.enter_context(resumable(saved=path is not None))
        if path is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "runs.turnout"
        make_folder(path.parent)
        store = stack.enter_context(RunStore(path))
        missing = missing_plans(plans, store)
        if len(missing) > 1 and machines.workers != 1 and importlib.util.find_spec("joblib") is None:
            say(
                "note: runs are played one after the other: pip install 'turnout[plots]' for all cores (joblib)",
                err=True,
            )
        with tracks.following(named, store, missing) as track, watched(missing) as watch:
            if machines == Machines() and len({plan.seed for plan in plans}) == 1 and not any(map(trains, plans)):
                for plan in missing:  # in this process, in steps that are stored: an interrupted run continues
                    info = store.find(plan.key)
                    watch(0 if info is None else info.rounds)
                    play_into(store, plan, track=Watchers(watch, track=track).stored)
            else:
                workers, device = machines.workers, machines.device
                play_plans(plans, store, workers=workers, device=device, watch=watch, track=track)
        yield store
    tracks.warn()


@contextmanager
def watched(missing: Sequence[RunPlan]) -> Iterator[Callable[[int], None]]:
    """Yields a callback for rounds that were played, which shows the progress of all workers on standard error.

    A terminal shows a bar; a log file receives a line per minute.
    """
    total = sum(plan.rounds for plan in missing)
    done, printed = 0, time.monotonic()

    def description() -> str:
        return f"{pluralize(done, 'round', of=total)} of {pluralize(len(missing), 'run')}"

    with progress_bar() as progress:
        task = progress.add_task(description(), total=total)

        def watch(rounds: int) -> None:
            nonlocal done, printed
            done += rounds
            progress.update(task, completed=done, description=description())
            if progress.disable and time.monotonic() - printed >= LOG_SECONDS:
                say(description(), err=True)
                printed = time.monotonic()

        yield watch
