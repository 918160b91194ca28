"""Trained models as npz files: one array per layer, nothing pickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.lab.training.learners.base import Layout
from turnout.storage.encoding.limits import read_npz
from turnout.storage.files.atomic import atomic_write

#: A model of another network should be described, not only refused for its size: this many bytes more are read.
SPARE_BYTES = 1 << 28


def write_model(path: Path, network: Layout, weights: npt.NDArray[np.floating]) -> None:
    """Writes the model atomically, as the arrays weight1, bias1, weight2, …

    Matrices have the shape (inputs, outputs), those of a convolution (row, column, channel, outputs).
    """
    layers = network.layers(network.check_weights(weights))
    with atomic_write(path) as file:
        np.savez(file, **layers)  # type: ignore[arg-type]


def read_model(path: Path, network: Layout) -> npt.NDArray[np.floating]:
    """Returns the flat weights of a model that `write_model` wrote."""
    try:
        with path.open("rb") as file:
            layers = read_npz(file, SPARE_BYTES + 2 * np.dtype(np.float64).itemsize * network.parameters)
    except (OSError, ValueError) as error:
        raise SettingError(f"cannot read a model from {path}: {error}") from error
    expected = network.layers(np.zeros(network.parameters))
    if {name: layer.shape for name, layer in layers.items()} != {name: layer.shape for name, layer in expected.items()}:
        raise SettingError(
            f"{path} does not fit this network: it has the arrays {_describe_shapes(layers)}, expected are "
            f"{_describe_shapes(expected)}"
        )
    return network.check_weights(np.concatenate([layers[name].ravel() for name in expected]))


def _describe_shapes(layers: Mapping[str, npt.NDArray[Any]]) -> str:
    return ", ".join(f"{name} {layer.shape}" for name, layer in layers.items())
