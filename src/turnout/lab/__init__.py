"""Simulated clients: worlds, runs and their store, real training, analysis, and reproducible studies.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports

if TYPE_CHECKING:
    from turnout.lab.columns import RoundColumns as RoundColumns
    from turnout.lab.runs.plans import RunPlan as RunPlan
    from turnout.lab.runs.play import SlotRun as SlotRun
    from turnout.lab.runs.play import play as play
    from turnout.lab.runs.store import RunStore as RunStore
    from turnout.lab.runs.sweep import play_into as play_into
    from turnout.lab.runs.sweep import play_plan as play_plan
    from turnout.lab.runs.sweep import sweep as sweep
    from turnout.lab.runs.tables import RunInfo as RunInfo
    from turnout.lab.runs.tables import RunTable as RunTable
    from turnout.lab.training.batched import TrainedRun as TrainedRun
    from turnout.lab.training.batched import train_policies as train_policies
    from turnout.lab.training.datasets import Dataset as Dataset
    from turnout.lab.training.datasets import load_dataset as load_dataset
    from turnout.lab.training.learners.base import Cohort as Cohort
    from turnout.lab.training.learners.base import Learner as Learner
    from turnout.lab.training.learners.base import Training as Training
    from turnout.lab.training.learners.base import TrainingResult as TrainingResult
    from turnout.lab.training.learners.numpy_learner import NumpyLearner as NumpyLearner
    from turnout.lab.training.partition import Partition as Partition
    from turnout.lab.training.partition import partition as partition
    from turnout.lab.training.task import TorchTask as TorchTask
    from turnout.lab.training.task import load_task as load_task
    from turnout.lab.training.task import register_task as register_task
    from turnout.lab.training.world import Federation as Federation
    from turnout.lab.training.world import TrainingWorld as TrainingWorld
    from turnout.lab.worlds.base import World as World
    from turnout.lab.worlds.checks import check_world as check_world
    from turnout.lab.worlds.paper import PaperWorld as PaperWorld
    from turnout.lab.worlds.registry import make_world as make_world
    from turnout.lab.worlds.registry import register_world as register_world
    from turnout.lab.worlds.registry import world_names as world_names
    from turnout.lab.worlds.traces.world import TraceWorld as TraceWorld
else:
    __getattr__, __dir__ = lazy_exports(__name__)
