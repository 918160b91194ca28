"""pfl-research with fair selection: federated averaging of a logistic regression over 40 simulated users.

    python examples/other_frameworks/pfl_users.py [--out FOLDER]

The backend, the algorithm, the datasets and the metrics are pfl's own; the model, its local training and the selection
of users are not. The model needs NumPy only, so neither PyTorch nor TensorFlow has to be installed.
It needs pfl in the version of requirements.txt, which `make other-frameworks` installs in an environment of its own,
and takes a few seconds.
"""

from pathlib import Path

import numpy as np
from fair_sampler import FairSampler
from fleet_report import folder_of, print_fleet
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.base import StatefulModel
from pfl.stats import MappedVectorStatistics

USERS, COHORT_SIZE, ROUNDS, FEATURES = 40, 8, 60, 10


class LogisticRegression(StatefulModel):
    """A logistic regression in NumPy with the interface of pfl's models."""

    def __init__(self, features):
        self.weights = np.zeros(features)

    def probabilities(self, inputs):
        """Returns the probability of label 1 for each row."""
        return 1 / (1 + np.exp(-inputs @ self.weights))

    def train(self, dataset, params):
        """Takes steps of gradient descent on the data of one user."""
        inputs, labels = dataset.raw_data
        for _ in range(params.local_num_epochs):
            gradient = inputs.T @ (self.probabilities(inputs) - labels) / len(labels)
            self.weights = self.weights - params.local_learning_rate * gradient

    def evaluate(self, dataset, name_formatting_fn, eval_params=None):
        """Returns the loss and the accuracy."""
        inputs, labels = dataset.raw_data
        probabilities = self.probabilities(inputs)
        losses = -np.log(np.where(labels == 1, probabilities, 1 - probabilities))
        hits = (probabilities > 0.5) == labels
        return Metrics(
            [
                (name_formatting_fn("loss"), Weighted(losses.sum(), len(labels))),
                (name_formatting_fn("accuracy"), Weighted(hits.sum(), len(labels))),
            ]
        )

    def apply_model_update(self, statistics):
        """Adds the mean update of a cohort."""
        self.weights = self.weights + statistics["weights"]
        return self, Metrics()

    def get_parameters(self, placeholders=None):
        """Returns a copy of the weights."""
        return MappedVectorStatistics({"weights": self.weights.copy()})

    def set_parameters(self, w):
        """Replaces the weights."""
        self.weights = w["weights"].copy()

    def get_model_difference(self, other_parameters, clone=False):
        """Returns how far the weights are from other weights."""
        return MappedVectorStatistics({"weights": self.weights - other_parameters["weights"]})

    def save(self, dir_path):
        """Writes the weights to a file."""
        np.save(Path(dir_path) / "weights.npy", self.weights)

    def load(self, dir_path):
        """Reads the weights from a file."""
        self.weights = np.load(Path(dir_path) / "weights.npy")


class NumpyFederatedAveraging(FederatedAveraging):
    """Federated averaging; pfl's own version trains only models of PyTorch, TensorFlow and MLX."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        """Trains on one user and returns the update of the model."""
        model.train(user_dataset, central_context.model_train_params)
        return model.get_model_difference(initial_model_state), Metrics()


class Progress(TrainingProcessCallback):
    """Prints how well the model fits the data of all users."""

    def __init__(self, dataset, frequency):
        self.dataset, self.frequency = dataset, frequency

    def on_train_begin(self, *, model):
        """Prints the metrics of the initial model."""
        self._print(model, 0)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Prints the metrics of the model every few rounds."""
        if (central_iteration + 1) % self.frequency == 0:
            self._print(model, central_iteration + 1)
        return False, Metrics()

    def _print(self, model, number):
        metrics = model.evaluate(self.dataset, StringMetricName).to_simple_dict(to_lowercase=True)
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}, loss {metrics['loss']:.3f}")


def make_users(rng):
    """Returns inputs and labels of each user: 20 to 200 data points with a mean of their own, and one rule for all."""
    rule = rng.normal(size=FEATURES)
    users = {}
    for number in range(USERS):
        inputs = rng.normal(loc=rng.normal(scale=0.5, size=FEATURES), size=(rng.integers(20, 201), FEATURES))
        users[f"user-{number:02}"] = (inputs, (inputs @ rule + rng.normal(size=len(inputs)) > 0).astype(float))
    return users


def main(out):
    """Trains, and prints the accuracy and the certificate."""
    np.random.seed(0)  # noqa: NPY002 (pfl draws from NumPy's global generator)
    users = make_users(np.random.default_rng(0))
    sizes = {user: len(labels) for user, (_, labels) in users.items()}
    sampler = FairSampler(out / "fleet.turnout", sizes, COHORT_SIZE, guaranteed_rate=0.1)
    all_data = Dataset(tuple(np.concatenate(arrays) for arrays in zip(*users.values(), strict=True)))
    NumpyFederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=COHORT_SIZE,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset.from_slices(users, sampler),
            val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=LogisticRegression(FEATURES),
        model_train_params=NNTrainHyperParams(local_num_epochs=5, local_learning_rate=0.3, local_batch_size=None),
        callbacks=[Progress(all_data, frequency=20)],
        send_metrics_to_platform=False,
    )
    sampler.scheduler.close()
    print_fleet(out / "fleet.turnout")


if __name__ == "__main__":
    main(folder_of("Runs fair selection in a simulation of pfl-research."))
