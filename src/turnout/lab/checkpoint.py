"""A trained model as a file: npz, one array a layer, nothing pickled."""

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
    """One array a layer; a file of this name is always whole.

    Arrays weight1, bias1, weight2, …: matrices are (inputs, outputs), those of a convolution (row, column, channel,
    outputs).
    """
    layers = network.layers(network.check_weights(weights))
    with atomic_write(path) as file:
        np.savez(file, **layers)  # type: ignore[arg-type]


def read_model(path: Path, network: Network) -> npt.NDArray[np.floating]:
    """The flat weights of a model that `write_model` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            layers = {name: saved[name] for name in saved.files}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile) as refused:  # TypeError: one array, not an archive
        raise SettingError(f"cannot read a model from {path}: {refused}") from refused
    wanted = network.layers(np.zeros(network.parameters))
    if {name: layer.shape for name, layer in layers.items()} != {name: layer.shape for name, layer in wanted.items()}:
        raise SettingError(f"{path} has the arrays {_told(layers)}, expected are {_told(wanted)}")
    return network.check_weights(np.concatenate([layers[name].ravel() for name in wanted]))


def _told(layers: Mapping[str, npt.NDArray[Any]]) -> str:
    return ", ".join(f"{name} {layer.shape}" for name, layer in layers.items())
