"""Federated learning without rounds: four of twenty phones train at any time, and whenever one of them is done, another
one begins. Every four updates, discounted by their staleness, make a new version of the model, as in FedBuff. The
phones learn the bundled digits; only their times are simulated. Random selection and FairPace give equally many turns,
and the table shows what each took and who was left behind. It needs turnout and nothing else, and takes a few seconds.

    python examples/asynchronous.py [--turns 200]
"""

import argparse
import heapq
import tempfile
from pathlib import Path

import numpy as np

from turnout import Scheduler
from turnout.lab import NumpyLearner, Training, load_dataset, partition

PHONES, SLOTS, BUFFER, PROMISED = 20, 4, 4, 0.025  # half of an equal share, 1/20 of the turns
digits = load_dataset("digits")
learner = NumpyLearner(digits, Training(learning_rate=0.3, batch_size=10))
client_items = partition(digits.train_labels, clients=PHONES, items=60).items


def train(policy: str, settings: dict[str, object], folder: Path, turns: int) -> tuple[float, float, np.ndarray]:
    """Gives this number of turns; returns the simulated seconds, the accuracy, and the turns of each phone."""
    rng = np.random.default_rng(0)
    model, version, clock = learner.initial_weights(seed=0), 0, 0.0
    running: list[tuple[float, int, int, float, int, np.ndarray]] = []
    buffer: list[np.ndarray] = []
    counts = np.zeros(PHONES, dtype=int)
    options = {"policy": policy, "settings": settings, "concurrency": SLOTS, "deadline": 600.0}
    with Scheduler.open(folder / f"{policy}.turnout", **options) as scheduler:
        while counts.sum() < turns:
            for turn in scheduler.fill([f"phone-{phone}" for phone in range(PHONES)]):  # one for every free slot
                phone = int(turn.client[6:])
                seconds = (5 + 2 * phone) * rng.uniform(0.8, 1.2)
                heapq.heappush(running, (clock + seconds, turn.id, phone, seconds, version, model))
            clock, turn_id, phone, seconds, started_from, start = heapq.heappop(running)  # the next that is done
            order = rng.permutation(client_items[phone])
            trained, _ = learner.train_clients(start, order[None, None])  # one client, one epoch
            scheduler.report(turn_id, seconds)  # its slot is free
            counts[phone] += 1
            buffer.append((trained[0] - start) / (1 + version - started_from) ** 0.5)
            if len(buffer) == BUFFER:
                model, version = model + np.mean(buffer, axis=0), version + 1
                buffer.clear()
    return clock, float(learner.evaluate([model])[0]), counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=200)
    total = parser.parse_args().turns
    print("policy      minutes  accuracy  fewest turns  promised")
    with tempfile.TemporaryDirectory() as folder:
        for policy, settings in (
            ("random", {}),
            ("fair-pace", {"guaranteed_rate": PROMISED, "tolerance": 1.0}),
        ):
            seconds, accuracy, counts = train(policy, settings, Path(folder), total)
            promised = PROMISED * total if "guaranteed_rate" in settings else 0
            print(f"{policy:<12}{seconds / 60:7.1f}{accuracy:10.3f}{counts.min():14}{promised:10.1f}")
