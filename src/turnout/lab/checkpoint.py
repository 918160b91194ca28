"""Trained models as npz files: one array per layer, nothing pickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.lab.learners.networks import Network
from turnout.store.atomic import atomic_write


def write_model(path: Path, network: Network, weights: npt.NDArray[np.floating]) -> None:
    """Writes the model atomically, as the arrays weight1, bias1, weight2, …

    Matrices have the shape (inputs, outputs), those of a convolution (row, column, channel, outputs).
    """
    layers = network.layers(network.check_weights(weights))
    with atomic_write(path) as file:
        np.savez(file, **layers)  # type: ignore[arg-type]


def read_model(path: Path, network: Network) -> npt.NDArray[np.floating]:
    """Returns the flat weights of a model that `write_model` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            layers = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile) as error:  # TypeError: a single array, no archive
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
