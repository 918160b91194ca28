"""Models of the user's own on the command line: `--world name=training --world learner=my.module:make_task`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import missing_plans, sweep
from turnout.store import RunStore


def load_learner(world: str, settings: Mapping[str, Any]) -> None:
    """Imports the learner that a user named as `package.module:name`; modules of the working folder are found too."""
    learner = settings.get("learner")
    if world != "training" or not isinstance(learner, str) or ":" not in learner:
        return
    from turnout.lab.task import load_task

    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    load_task(learner)


def play_all(plans: Sequence[RunPlan], store: RunStore, workers: int | None, progress: Progress) -> list[int]:
    """Plays all plans and shows the progress; runs with a learner of the user's own train together in this process."""
    if any(plan.world_settings.get("learner") is not None for plan in plans):
        from turnout.lab.batched import train_plans

        task = progress.add_task("Training", total=sum(plan.rounds for plan in missing_plans(plans, store)))
        return train_plans(plans, store, workers=workers, watch=lambda rounds: progress.advance(task, rounds))
    task = progress.add_task("Simulating", total=len(missing_plans(plans, store)))
    return sweep(plans, store, workers=workers, watch=lambda _: progress.advance(task))
