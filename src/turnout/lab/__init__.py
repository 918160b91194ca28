"""Real federated training: datasets, partitions, learners, and a world in which the selected clients train.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.lab.comparison import TrainedRun, train_policies
from turnout.lab.datasets import Dataset, load_dataset
from turnout.lab.learners.base import Cohort, Learner, Training, TrainingResult
from turnout.lab.learners.numpy_learner import NumpyLearner
from turnout.lab.partition import Partition, partition
from turnout.lab.task import TorchTask, load_task, register_task
from turnout.lab.world import Federation, TrainingWorld

__all__ = [
    "Cohort",
    "Dataset",
    "Federation",
    "Learner",
    "NumpyLearner",
    "Partition",
    "TorchTask",
    "TrainedRun",
    "Training",
    "TrainingResult",
    "TrainingWorld",
    "load_dataset",
    "load_task",
    "partition",
    "register_task",
    "train_policies",
]
