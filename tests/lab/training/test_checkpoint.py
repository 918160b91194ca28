from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from turnout.errors import SettingError, StateError
from turnout.lab.training.checkpoint import write_model
from turnout.lab.training.learners.networks import Network

NETWORK = Network((8, 8, 2), (3,), (4,), 10)
WEIGHTS: npt.NDArray[np.float32] = NETWORK.initial_weights(0).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


def test_a_model_replaces_another_and_is_read_with_numpy_alone(path: Path) -> None:
    for weights in (2 * WEIGHTS, WEIGHTS):
        write_model(path, NETWORK, weights)
    assert list(path.parent.iterdir()) == [path]
    with np.load(path, allow_pickle=False) as archive:
        assert {name: archive[name].shape for name in archive.files} == {
            "weight1": (5, 5, 2, 3),
            "bias1": (3,),
            "weight2": (12, 4),
            "bias2": (4,),
            "weight3": (4, 10),
            "bias3": (10,),
        }
        assert np.concatenate([archive[name].ravel() for name in archive.files]).tobytes() == WEIGHTS.tobytes()


def test_weights_that_do_not_fit_the_network_are_not_written(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    before = path.read_bytes()
    with pytest.raises(StateError, match="they belong to another model"):
        write_model(path, NETWORK, WEIGHTS[1:])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_rejected_and_leaves_no_files(path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot write .*nowhere/model.npz: No such file or directory"):
        write_model(path.parent / "nowhere" / "model.npz", NETWORK, WEIGHTS)
    path.mkdir()
    with pytest.raises(SettingError, match=r"cannot write .*model.npz: Is a directory"):
        write_model(path, NETWORK, WEIGHTS)
    assert list(path.parent.iterdir()) == [path]
