"""Trained models as npz files: one array per layer, nothing pickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from turnout.lab.training.learners.base import Layout
from turnout.storage.files.atomic import atomic_write


def write_model(path: Path, network: Layout, weights: npt.NDArray[np.floating]) -> None:
    """Writes the model atomically, as the arrays weight1, bias1, weight2, … which `numpy.load` reads.

    Matrices have the shape (inputs, outputs), those of a convolution (row, column, channel, outputs).
    """
    layers = network.layers(network.check_weights(weights))
    with atomic_write(path) as file:
        np.savez(file, **layers)  # type: ignore[arg-type]
