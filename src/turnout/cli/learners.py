"""Models of the user's own on the command line: `--world name=training --world learner=my.module:make_task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.progress import Progress

from turnout.cli.naming import load_here
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import missing_plans, sweep
from turnout.store import RunStore


def load_learner(world: str, settings: Mapping[str, Any]) -> None:
    """Imports the learner that a user named as `package.module:name`."""
    learner = settings.get("learner")
    if world != "training" or not isinstance(learner, str) or ":" not in learner:
        return
    from turnout.lab.task import load_task

    load_task(load_here(learner))


def play_all(
    plans: Sequence[RunPlan],
    store: RunStore,
    workers: int | None,
    progress: Progress,
    finished: Callable[[RunPlan], None] = lambda _: None,
) -> list[int]:
    """Plays all plans and shows the progress; runs with a learner of the user's own train together in this process.

    Args:
        plans: The plans.
        store: The store of the runs.
        workers: The number of processes; None for one per core.
        progress: The progress bar.
        finished: Receives each plan that was played, when it is finished.
    """
    missing = missing_plans(plans, store)
    if any(plan.world_settings.get("learner") is not None for plan in plans):
        from turnout.lab.batched import train_plans

        task = progress.add_task("Training", total=sum(plan.rounds for plan in missing))
        runs = train_plans(plans, store, workers=workers, watch=lambda rounds: progress.advance(task, rounds))
        for plan in missing:
            finished(plan)
        return runs
    task = progress.add_task("Simulating", total=len(missing))

    def watch(plan: RunPlan) -> None:
        progress.advance(task)
        finished(plan)

    return sweep(plans, store, workers=workers, watch=watch)
