"""OpenFL with fair selection: ten collaborators train a logistic regression, without a network.

    python examples/other_frameworks/openfl_collaborators.py [--out FOLDER]

OpenFL's plan builds its aggregator and assigner with fair selection, and the collaborators are OpenFL's own. They talk
to each other by function calls instead of gRPC, and the collaborators run one after the other.
It needs OpenFL in the version of requirements.txt, which `make other-frameworks` installs in an environment of its
own, and takes a few seconds.
"""

import numpy as np
from fleet_report import folder_of, print_fleet
from openfl.component.collaborator.collaborator import Collaborator
from openfl.federated.data.loader import DataLoader
from openfl.federated.plan import Plan
from openfl.federated.task.runner import TaskRunner
from openfl.interface.aggregation_functions import WeightedAverage
from openfl.protocols.aggregator_client_interface import AggregatorClientInterface
from openfl.utilities import TensorKey

COLLABORATORS, COHORT_SIZE, ROUNDS, FEATURES = 10, 3, 40, 6
TASKS = {
    "aggregated_model_validation": {"function": "validate_task", "kwargs": {}, "aggregation_type": WeightedAverage()},
    "train": {"function": "train_task", "kwargs": {}, "aggregation_type": WeightedAverage()},
}


class Records(DataLoader):
    """The records of one collaborator: 50 to 300, with a mean of their own, and one rule for all."""

    def __init__(self, rng, rule):
        super().__init__()
        self.inputs = rng.normal(loc=rng.normal(scale=0.5, size=FEATURES), size=(rng.integers(50, 301), FEATURES))
        self.labels = (self.inputs @ rule + rng.normal(size=len(self.inputs)) > 0).astype(float)

    def get_feature_shape(self):
        """Returns the shape of one record."""
        return self.inputs[0].shape

    def get_train_data_size(self):
        """Returns the number of records."""
        return len(self.labels)

    get_valid_data_size = get_train_data_size


class LogisticRegression(TaskRunner):
    """A logistic regression in NumPy with the interface of OpenFL's task runners."""

    def get_required_tensorkeys_for_function(self, func_name, **_):
        """Returns that each task needs the weights of the global model."""
        return [TensorKey("weights", "GLOBAL", 0, False, ("model",))]

    def validate_task(self, col_name, round_num, input_tensor_dict):
        """Returns the accuracy of the global model."""
        hits = (self.data_loader.inputs @ input_tensor_dict["weights"] > 0) == self.data_loader.labels
        return {TensorKey("accuracy", col_name, round_num, True, ("metric", "validate_agg")): np.mean(hits)}, {}

    def train_task(self, col_name, round_num, input_tensor_dict):
        """Takes five steps of gradient descent; returns the new weights."""
        inputs, labels = self.data_loader.inputs, self.data_loader.labels
        weights = input_tensor_dict["weights"]
        for _ in range(5):
            weights = weights - 0.3 * inputs.T @ (1 / (1 + np.exp(-inputs @ weights)) - labels) / len(labels)
        return {TensorKey("weights", col_name, round_num, False, ("trained",)): weights}, {}


class DirectClient(AggregatorClientInterface):
    """Calls the aggregator in the place of a gRPC client."""

    def __init__(self, name, aggregator):
        self.name, self.aggregator = name, aggregator

    def ping(self):
        """Does nothing: the aggregator is in the same process."""

    def get_tasks(self):
        """Returns tasks, the round, how long to sleep, and whether the experiment is over."""
        return self.aggregator.get_tasks(self.name)

    def get_aggregated_tensor(self, *key):
        """Returns a tensor of the global model."""
        return self.aggregator.get_aggregated_tensor(*key, requested_by=self.name)

    def send_local_task_results(self, *results):
        """Sends the tensors that a task has produced."""
        self.aggregator.send_local_task_results(self.name, *results)

    def send_message_to_server(self, openfl_message, collaborator_name):
        """Is not used: only other frameworks inside OpenFL send such messages."""
        raise NotImplementedError


def build_aggregator(names, out, deadline=600):
    """Returns an aggregator with fair selection, as a plan describes it."""
    assigner = Plan.build(
        template="fair_aggregator.FairAssigner",
        settings={
            "fleet": out / "fleet.turnout",
            "task_names": list(TASKS),
            "cohort_size": COHORT_SIZE,
            "guaranteed_rate": 0.2,
            "deadline": deadline,
            "authorized_cols": names,
            "rounds_to_train": ROUNDS,
            "tasks": TASKS,
        },
    )
    return Plan.build(
        template="fair_aggregator.FairAggregator",
        settings={
            "aggregator_uuid": "aggregator",
            "federation_uuid": "federation",
            "authorized_cols": names,
            "assigner": assigner,
            "rounds_to_train": ROUNDS,
            "init_state_path": None,
            "best_state_path": str(out / "best.pbuf"),
            "last_state_path": str(out / "last.pbuf"),
            "persist_checkpoint": False,
        },
        initial_tensor_dict={"weights": np.zeros(FEATURES, dtype=np.float32)},
    )


def build_collaborators(loaders, aggregator):
    """Returns a collaborator for each set of records."""
    return [
        Collaborator(
            collaborator_name=name,
            aggregator_uuid="aggregator",
            federation_uuid="federation",
            client=DirectClient(name, aggregator),
            task_runner=LogisticRegression(loader),
            task_config=TASKS,
        )
        for name, loader in loaders.items()
    ]


def run(collaborators):
    """Does what each collaborator's own `run` does, one after the other and without its sleep of ten seconds."""
    running = list(collaborators)
    while running:
        for collaborator in list(running):
            tasks, number, _, is_over = collaborator.client.get_tasks()
            for task in tasks or []:
                collaborator.do_task(task, number)
            if is_over:
                running.remove(collaborator)


def make_loaders():
    """Returns the records of all collaborators."""
    rng = np.random.default_rng(0)
    rule = rng.normal(scale=2, size=FEATURES)
    return {f"hospital-{number}": Records(rng, rule) for number in range(COLLABORATORS)}


def accuracy(weights, loaders):
    """Returns the share of all records for which the model predicts the label."""
    return np.mean(np.concatenate([(loader.inputs @ weights > 0) == loader.labels for loader in loaders.values()]))


def main(out):
    """Trains, and prints the accuracy and the certificate."""
    loaders = make_loaders()
    print(f"round 0: accuracy {accuracy(np.zeros(FEATURES), loaders):.3f}")
    aggregator = build_aggregator(list(loaders), out)
    run(build_collaborators(loaders, aggregator))
    aggregator.assigner.scheduler.close()
    trained = aggregator.tensor_db.get_tensor_from_cache(TensorKey("weights", "aggregator", ROUNDS, False, ("model",)))
    print(f"round {ROUNDS}: accuracy {accuracy(trained, loaders):.3f}")
    print_fleet(out / "fleet.turnout")


if __name__ == "__main__":
    main(folder_of("Runs fair selection with the aggregator and the collaborators of OpenFL."))
