"""Federated learning with your own server loop, complete with models: twelve threads are the clients, with the bundled
digits as data. One of them often fails, some are late, and the server can be killed at any moment: everything is in the
folder my-fleet, and the same command resumes. It needs turnout and nothing else, and trains for 40 rounds in less than
half a minute.

    python examples/plain_loop.py [my-fleet [40]]
"""

import random
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from turnout import ClientStatus, Scheduler
from turnout.lab import NumpyLearner, Training, load_dataset, partition

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "my-fleet")
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 40
folder.mkdir(exist_ok=True)
digits = load_dataset("digits")
learner = NumpyLearner(digits, Training(learning_rate=0.3, batch_size=10))
client_items = {
    f"phone-{n:02}": items for n, items in enumerate(partition(digits.train_labels, clients=12, items=100).items)
}
slowness = {
    client: 0.006 * (1 + n) for n, client in enumerate(client_items)
}  # unknown to the scheduler, which learns it from the times


def train(client: str, number: int, status: ClientStatus, model: Any, start: float) -> None:
    """Simulates one client in one round: it waits, trains on its data, stores its model and reports."""
    time.sleep(slowness[client] * (1 / status.free_cpu + 20 / status.bandwidth))
    if client == "phone-03" and random.random() < 0.5:
        scheduler.report_failure(client, "battery empty", round=number)
        return
    order = np.random.default_rng().permutation(client_items[client])
    models, _ = learner.train_clients(model, order[None, None])  # one client, one epoch
    save(f"{number}-{client}", models[0])  # before the report: a reported model must be on disk
    scheduler.report(client, time.monotonic() - start, round=number)


def model_after(number: int) -> Any:
    """Returns the mean of the models that arrived in time in this round; computed once, then read from disk."""
    if number == 0:
        return learner.initial_weights(seed=0)
    if not (folder / f"{number}.npy").exists():
        arrived = [turn.id for turn in scheduler.history(round=number) if turn.kind == "arrived"]
        models = [np.load(folder / f"{number}-{client}.npy") for client in arrived]
        save(f"{number}", np.mean(models, axis=0) if models else model_after(number - 1))
    return np.load(folder / f"{number}.npy")


def save(name: str, array: Any) -> None:
    """Writes an array atomically: to a temporary file that is then renamed."""
    np.save(folder / f"{name}.part.npy", array)
    (folder / f"{name}.part.npy").rename(folder / f"{name}.npy")


promise = {"cohort_size": 4, "guaranteed_rate": 0.2}  # a fifth of the rounds that a client is available for
with Scheduler.open(folder / "fleet.turnout", settings=promise, deadline=0.25) as scheduler:
    if scheduler.status().is_open:  # killed during a round: the clients, which are threads, are gone too
        for client in scheduler.status().out:
            scheduler.report_failure(client, "the server was restarted")
        scheduler.close_round()
    threads: list[Thread] = []
    for number in range(scheduler.round + 1, rounds + 1):
        model, start = model_after(number - 1), time.monotonic()
        available = [client for client in client_items if random.random() < 0.8]
        statuses = {client: ClientStatus(random.uniform(0.5, 2), random.uniform(10, 20)) for client in available}
        cohort = scheduler.choose(statuses)
        started = [Thread(target=train, args=(client, number, statuses[client], model, start)) for client in cohort]
        for thread in started:
            thread.start()
        threads += started
        while not scheduler.ready:  # until enough clients have reported or the deadline has passed
            time.sleep(0.01)
        scheduler.close_round()
        if number % 10 == 0 or number == rounds:
            accuracy = learner.evaluate([model_after(number)])[0]
            print(f"round {number}: accuracy {accuracy:.3f}, cohort {', '.join(cohort)}")
    for thread in threads:
        thread.join()
    print(scheduler.status())
    print("The promise is", scheduler.certificate().summary().sentence(scheduler.clients.__getitem__))
