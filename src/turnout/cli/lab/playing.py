"""Plays the runs of a command that its store lacks: on this machine or on a cluster, with a progress bar."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from turnout.cli.advice import resumable
from turnout.cli.lab.tracking import Tracks
from turnout.cli.options import make_folder, progress_bar, require_packages, say
from turnout.counting import pluralize
from turnout.lab.clusters import connect
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import missing_plans, play_into

#: The seconds between two lines about the progress where standard error is not a terminal.
LOG_SECONDS = 60.0


class Machines(NamedTuple):
    """Where runs are played: the options --workers, --device, --backend and --address."""

    workers: int | None = None
    device: str = "cpu"
    backend: str = "local"
    address: str | None = None


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
    from turnout.lab.training.batched import Watchers
    from turnout.lab.training.distributed import check_device, play_plans, trains

    plans = [plan for by_seed in named.values() for plan in by_seed]
    check_device(plans, machines.device)
    connection = connect(machines.backend, machines.address, workers=machines.workers)
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
        executor = stack.enter_context(connection) if missing else None
        with tracks.following(named, store, missing) as track, watched(missing, executor) as watch:
            if machines == Machines() and len({plan.seed for plan in plans}) == 1 and not any(map(trains, plans)):
                for plan in missing:  # in this process, in steps that are stored: an interrupted run continues
                    info = store.find(plan.key)
                    watch(0 if info is None else info.rounds)
                    play_into(store, plan, track=Watchers(watch, track=track).stored)
            else:
                play_plans(
                    plans,
                    store,
                    workers=machines.workers,
                    backend=executor,
                    device=machines.device,
                    watch=watch,
                    track=track,
                )
        yield store
    tracks.warn()


@contextmanager
def watched(missing: Sequence[RunPlan], executor: Executor | None) -> Iterator[Callable[[int], None]]:
    """Yields a callback for rounds that were played, which shows the progress of all workers on standard error.

    A terminal shows a bar; a log file receives a line per minute.
    """
    where = "" if executor is None else f" on {pluralize(executor.workers, 'worker')}"
    total = sum(plan.rounds for plan in missing)
    done, printed = 0, time.monotonic()

    def description() -> str:
        return f"{pluralize(done, 'round', of=total)} of {pluralize(len(missing), 'run')}{where}"

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
