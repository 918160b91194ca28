"""A training script that adds 1 to each parameter, for recipes of every framework."""

from __future__ import annotations

import sys

import numpy as np
import nvflare.client as flare
from nvflare.app_common.app_constant import AlgorithmConstants


def main(has_differences: bool) -> None:
    """Trains whenever the server sends a model."""
    flare.init()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        kind = flare.ParamsType.DIFF if has_differences else flare.ParamsType.FULL
        params = {name: value * (0 if has_differences else 1) + 1 for name, value in received.params.items()}
        # Scaffold demands the change of its control variates; the others ignore it.
        controls = {name: np.zeros(np.shape(value)) for name, value in params.items()}
        meta = {"NUM_STEPS_CURRENT_ROUND": 1, AlgorithmConstants.SCAFFOLD_CTRL_DIFF: controls}
        flare.send(flare.FLModel(params=params, params_type=kind, meta=meta))


if __name__ == "__main__":
    main("differences" in sys.argv)
