"""Real training: datasets, who holds what, learners, and a world in which the chosen train."""

from turnout.lab.datasets import Dataset, load_dataset
from turnout.lab.learners import Learner, NumpyLearner, Training
from turnout.lab.partition import Partition, partition
from turnout.lab.world import Federation, TrainingWorld

__all__ = [
    "Dataset",
    "Federation",
    "Learner",
    "NumpyLearner",
    "Partition",
    "Training",
    "TrainingWorld",
    "load_dataset",
    "partition",
]
