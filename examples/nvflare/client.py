"""The training script of a client: a linear model on the data of its site. It knows nothing of turnout.

Two arguments make sites misbehave, for the examples: `--failing` names a site whose training raises an error, and
`--slow` one that takes `--seconds` longer than the others.
"""

import argparse
import time
import zlib

import numpy as np
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants

TRUE_WEIGHTS = np.array([2.0, -1.0, 0.5])


def main() -> None:
    """Trains whenever the server sends a model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--failing", default="")
    parser.add_argument("--slow", default="")
    parser.add_argument("--seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    flare.init()
    site = flare.get_site_name()
    rng = np.random.default_rng(zlib.crc32(site.encode()))
    features = rng.normal(size=(200, 3))
    targets = features @ TRUE_WEIGHTS + rng.normal(scale=0.1, size=200)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        if site == arguments.failing:
            raise RuntimeError("the disk with the data is gone")
        if site == arguments.slow:
            time.sleep(arguments.seconds)
        weights = np.asarray(received.params[NPConstants.NUMPY_KEY], dtype=float)
        for _ in range(5):
            weights = weights - 0.1 * features.T @ (features @ weights - targets) / len(targets)
        loss = float(np.mean((features @ weights - targets) ** 2))
        flare.send(
            flare.FLModel(
                params={NPConstants.NUMPY_KEY: weights},
                metrics={"train_loss": loss},
                meta={"NUM_STEPS_CURRENT_ROUND": len(targets)},
            )
        )


if __name__ == "__main__":
    main()
