"""Federated learning with a server of your own: twelve threads are the clients, the bundled digits their data.

    python examples/plain_loop.py [my-fleet [40]]

plays 40 rounds and keeps everything in the folder my-fleet. Stop it, kill it, start it again: it goes on.
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
held = {f"phone-{n:02}": items for n, items in enumerate(partition(digits.train_labels, clients=12, items=100).items)}
slowness = {client: 0.006 * (1 + n) for n, client in enumerate(held)}  # the scheduler is not told: it finds out


def train(client: str, number: int, status: ClientStatus, model: Any, start: float) -> None:
    """One client in one round: it takes its time, trains on what it holds, sends its model and reports."""
    time.sleep(slowness[client] * (1 / status.free_cpu + 20 / status.bandwidth))
    if client == "phone-03" and random.random() < 0.5:
        scheduler.failed(client, "battery empty", round=number)
        return
    order = np.random.default_rng().permutation(held[client])
    models, _ = learner.train_clients(model, order[None, None])  # one client, one epoch
    keep(f"{number}-{client}", models[0])  # first its model is safe, then it has reported
    scheduler.report(client, time.monotonic() - start, round=number)


def model_after(number: int) -> Any:
    """The mean of the models that were back in time; made from what is on disk, if it was not made before."""
    if number == 0:
        return learner.initial_weights(seed=0)
    if not (folder / f"{number}.npy").exists():
        arrived = [turn.id for turn in scheduler.turns(number) if turn.kind == "arrived"]
        models = [np.load(folder / f"{number}-{client}.npy") for client in arrived]
        keep(f"{number}", np.mean(models, axis=0) if models else model_after(number - 1))
    return np.load(folder / f"{number}.npy")


def keep(name: str, array: Any) -> None:
    """Write beside and rename: a file is whole, or not there."""
    np.save(folder / f"{name}.part.npy", array)
    (folder / f"{name}.part.npy").rename(folder / f"{name}.npy")


promise = {"cohort_size": 4, "guaranteed_rate": 0.2, "speed_weight": 5.0}
with Scheduler.open(folder / "fleet.turnout", settings=promise, deadline=0.25) as scheduler:
    if scheduler.status().is_open:  # we were killed in the middle of a round, and our clients, being threads, with us
        for client in scheduler.status().out:
            scheduler.failed(client, "the server was restarted")
        scheduler.close_round()
    working: list[Thread] = []
    for number in range(scheduler.round + 1, rounds + 1):
        model, start = model_after(number - 1), time.monotonic()
        volunteers = [client for client in held if random.random() < 0.8]
        statuses = {client: ClientStatus(random.uniform(0.5, 2), random.uniform(10, 20)) for client in volunteers}
        chosen = scheduler.choose(statuses)
        sent = [Thread(target=train, args=(client, number, statuses[client], model, start)) for client in chosen]
        for thread in sent:
            thread.start()
        working += sent
        while not scheduler.ready:  # until enough are back, or time is up
            time.sleep(0.01)
        scheduler.close_round()
        if number % 10 == 0 or number == rounds:
            accuracy = learner.evaluate([model_after(number)])[0]
            print(f"round {number}: accuracy {accuracy:.3f}, chosen were {', '.join(chosen)}")
    for thread in working:
        thread.join()
    print(scheduler.status())
    print(f"the promise holds: {scheduler.certificate().holds}")
