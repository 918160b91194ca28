"""Simulated clients: worlds, runs and their store, real training, analysis, and reproducible studies.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports

if TYPE_CHECKING:
    from turnout.lab.columns import RoundColumns
    from turnout.lab.runs.info import RunInfo
    from turnout.lab.runs.plans import RunPlan
    from turnout.lab.runs.play import play
    from turnout.lab.runs.slots import SlotRun
    from turnout.lab.runs.store import RunStore
    from turnout.lab.runs.sweep import play_into, play_plan, sweep
    from turnout.lab.runs.tables import RunTable
    from turnout.lab.training.comparison import TrainedRun, train_policies
    from turnout.lab.training.datasets import Dataset, load_dataset
    from turnout.lab.training.learners.base import Cohort, Learner, Training, TrainingResult
    from turnout.lab.training.learners.numpy_learner import NumpyLearner
    from turnout.lab.training.partition import Partition, partition
    from turnout.lab.training.task import TorchTask, load_task, register_task
    from turnout.lab.training.world import Federation, TrainingWorld
    from turnout.lab.worlds.base import World
    from turnout.lab.worlds.checks import check_world
    from turnout.lab.worlds.paper import PaperWorld
    from turnout.lab.worlds.registry import make_world, register_world, world_names
    from turnout.lab.worlds.traces.world import TraceWorld
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "columns": ("RoundColumns",),
            "runs.info": ("RunInfo",),
            "runs.plans": ("RunPlan",),
            "runs.play": ("play",),
            "runs.slots": ("SlotRun",),
            "runs.store": ("RunStore",),
            "runs.sweep": ("play_into", "play_plan", "sweep"),
            "runs.tables": ("RunTable",),
            "training.comparison": ("TrainedRun", "train_policies"),
            "training.datasets": ("Dataset", "load_dataset"),
            "training.learners.base": ("Cohort", "Learner", "Training", "TrainingResult"),
            "training.learners.numpy_learner": ("NumpyLearner",),
            "training.partition": ("Partition", "partition"),
            "training.task": ("TorchTask", "load_task", "register_task"),
            "training.world": ("Federation", "TrainingWorld"),
            "worlds.base": ("World",),
            "worlds.checks": ("check_world",),
            "worlds.paper": ("PaperWorld",),
            "worlds.registry": ("make_world", "register_world", "world_names"),
            "worlds.traces.world": ("TraceWorld",),
        },
    )

__all__ = [
    "Cohort",
    "Dataset",
    "Federation",
    "Learner",
    "NumpyLearner",
    "PaperWorld",
    "Partition",
    "RoundColumns",
    "RunInfo",
    "RunPlan",
    "RunStore",
    "RunTable",
    "SlotRun",
    "TorchTask",
    "TraceWorld",
    "TrainedRun",
    "Training",
    "TrainingResult",
    "TrainingWorld",
    "World",
    "check_world",
    "load_dataset",
    "load_task",
    "make_world",
    "partition",
    "play",
    "play_into",
    "play_plan",
    "register_task",
    "register_world",
    "sweep",
    "train_policies",
    "world_names",
]
