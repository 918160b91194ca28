"""vantage6 with fair selection: eight hospitals train a logistic regression in vantage6's own mock network.

    python examples/other_frameworks/vantage6_organizations.py [--out FOLDER]

The central function and the function that trains are decorated as in any algorithm of vantage6. Hospital 5 fails in
every third round: its result is lost, and the others train on.
It needs vantage6 in the version of requirements.txt, which `make other-frameworks` installs in an environment of its
own, and takes a few seconds.
"""

import json
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from fair_rounds import fair_rounds
from fleet_report import folder_of, print_fleet
from vantage6.algorithm.tools.decorators import algorithm_client, data
from vantage6.algorithm.tools.mock_client import MockAlgorithmClient

HOSPITALS, COHORT_SIZE, ROUNDS, FEATURES, FAILING = 8, 3, 40, 6, 5
DEADLINE = 600.0  # seconds


@algorithm_client
def central(client, fleet):
    """Trains by federated averaging; returns the weights of the model."""
    weights = np.zeros(FEATURES)

    def make_input():
        return {"method": "train", "kwargs": {"weights": weights.tolist()}}

    def combine(results):
        nonlocal weights
        if results:  # none, if all organizations of the round failed
            sizes = [result["size"] for result in results]
            weights = np.average([result["weights"] for result in results], axis=0, weights=sizes)

    fair_rounds(client, ROUNDS, fleet, COHORT_SIZE, DEADLINE, make_input, combine, guaranteed_rate=0.2)
    return {"weights": weights.tolist()}


@data(1)
def train(records, weights):
    """Takes five steps of gradient descent on the records of one organization."""
    inputs, labels = records.drop(columns="label").to_numpy(), records["label"].to_numpy()
    weights = np.array(weights)
    for _ in range(5):
        weights -= 0.3 * inputs.T @ (1 / (1 + np.exp(-inputs @ weights)) - labels) / len(labels)
    return {"weights": weights.tolist(), "size": len(labels)}


class Network(MockAlgorithmClient):
    """The mock network, except that runs take time and may fail: in the mock itself, all end well and at once."""

    class Task(MockAlgorithmClient.Task):
        """Creates tasks."""

        def create(self, input_, organizations, name="mock", description="mock"):
            """Creates a task, in which hospital n takes 10 (n + 1) seconds."""
            task = super().create(input_, organizations, name, description)
            for run in self.parent.run.from_task(task["id"]):
                hospital = run["organization"]["id"]
                started = datetime.fromisoformat(run["assigned_at"])
                run["finished_at"] = (started + timedelta(seconds=10 * (hospital + 1))).isoformat()
                if name == "train" and hospital == FAILING and task["id"] % 3 == 0:
                    run["status"] = "failed"
                    for result in self.parent.results:
                        if result["run"]["id"] == run["id"]:
                            result["result"] = json.dumps(None)
            return task


def make_hospitals(rng):
    """Returns the records of each hospital: 50 to 300, with a mean of their own, and one rule for all."""
    rule = rng.normal(scale=2, size=FEATURES)
    hospitals = []
    for _ in range(HOSPITALS):
        inputs = rng.normal(loc=rng.normal(scale=0.5, size=FEATURES), size=(rng.integers(50, 301), FEATURES))
        records = pd.DataFrame(inputs, columns=[f"feature_{number}" for number in range(FEATURES)])
        hospitals.append(records.assign(label=(inputs @ rule + rng.normal(size=len(inputs)) > 0).astype(int)))
    return hospitals


def accuracy(weights, records):
    """Returns the share of the records for which the model predicts the label."""
    predicted = records.drop(columns="label").to_numpy() @ weights > 0
    return np.mean(predicted == records["label"].to_numpy())


def main(out):
    """Runs the central function as a task of the first hospital; prints the accuracy and the certificate."""
    hospitals = make_hospitals(np.random.default_rng(0))
    fleet = out / "fleet.turnout"
    network = Network([[{"database": records}] for records in hospitals], module=__name__)
    task = network.task.create({"method": "central", "kwargs": {"fleet": str(fleet)}}, organizations=[0])
    (result,) = network.wait_for_results(task["id"])
    everything = pd.concat(hospitals)
    print(f"round 0: accuracy {accuracy(np.zeros(FEATURES), everything):.3f}")
    print(f"round {ROUNDS}: accuracy {accuracy(np.array(result['weights']), everything):.3f}")
    print_fleet(fleet)


if __name__ == "__main__":
    main(folder_of("Runs fair selection in the mock network of vantage6."))
