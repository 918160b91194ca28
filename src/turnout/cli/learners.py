"""Runs on the command line that may train a model of the user's own: `--world learner=my.module:make_task`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, missing_plans


def play_all(
    plans: Sequence[RunPlan],
    store: RunStore,
    workers: int | None,
    progress: Progress,
    *,
    device: str = "cpu",
    track: StoredWatcher | None = None,
) -> list[int]:
    """Plays all plans and shows the progress; returns the run ids.

    Args:
        plans: The plans.
        store: The store of the runs.
        workers: The number of processes; None for one per core.
        progress: The progress bar.
        device: The device that trains models.
        track: Receives the plan and the rounds of runs as they are stored.
    """
    from turnout.lab.training.distributed import play_plans, trains  # runs without training should not wait for it

    missing = missing_plans(plans, store)
    what = "Training" if any(trains(plan) for plan in missing) else "Simulating"
    task = progress.add_task(what, total=sum(plan.rounds for plan in missing))
    return play_plans(
        plans,
        store,
        workers=workers,
        device=device,
        watch=lambda rounds: progress.advance(task, rounds),
        track=track,
    )
