from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turnout.errors import SettingError, StateError
from turnout.lab.training.checkpoint import read_model, write_model
from turnout.lab.training.learners.networks import Network

NETWORK = Network((8, 8, 2), (3,), (4,), 10)
WEIGHTS: npt.NDArray[np.float32] = NETWORK.initial_weights(0).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


def layers() -> dict[str, Any]:
    return dict(NETWORK.layers(WEIGHTS))


def test_a_written_model_is_read_back_exactly_and_replaces_another(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    again = read_model(path, NETWORK)
    assert again.dtype == np.float32
    assert again.tobytes() == WEIGHTS.tobytes()
    write_model(path, NETWORK, WEIGHTS)
    write_model(path, NETWORK, 2 * WEIGHTS)
    assert np.array_equal(read_model(path, NETWORK), 2 * WEIGHTS)
    assert list(path.parent.iterdir()) == [path]


def test_a_model_file_can_be_read_with_numpy_alone(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    with np.load(path, allow_pickle=False) as archive:
        assert {name: archive[name].shape for name in archive.files} == {
            "weight1": (5, 5, 2, 3),
            "bias1": (3,),
            "weight2": (12, 4),
            "bias2": (4,),
            "weight3": (4, 10),
            "bias3": (10,),
        }
        assert np.array_equal(archive["bias3"], WEIGHTS[-10:])


def test_weights_that_do_not_fit_the_network_are_not_written(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    with pytest.raises(StateError, match="they belong to another model"):
        write_model(path, NETWORK, WEIGHTS[1:])
    assert np.array_equal(read_model(path, NETWORK), WEIGHTS)
    assert list(path.parent.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_rejected_and_leaves_no_files(path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot write .*nowhere/model.npz: No such file or directory"):
        write_model(path.parent / "nowhere" / "model.npz", NETWORK, WEIGHTS)
    path.mkdir()
    with pytest.raises(SettingError, match=r"cannot write .*model.npz: Is a directory"):
        write_model(path, NETWORK, WEIGHTS)
    assert list(path.parent.iterdir()) == [path]


def test_what_is_no_model_is_rejected(path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read a model from .*model.npz: .*No such file"):
        read_model(path, NETWORK)
    np.savez(path, **{**layers(), "bias1": np.array([{}] * 3)})
    with pytest.raises(SettingError, match=r"cannot read a model from .*pickled objects"):
        read_model(path, NETWORK)
    np.savez(path, **{name: layer.astype(np.int64) for name, layer in layers().items()})
    with pytest.raises(StateError, match="the saved weights are int64"):
        read_model(path, NETWORK)


def as_npy(array: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda content, kept=kept: content[: int(kept * len(content))] for kept in (0, 0.01, 0.5, 0.99)),
        lambda content: content.replace(WEIGHTS[:4].tobytes(), WEIGHTS[1:5].tobytes()),
        lambda _: b"weights, one per line\n" * 50,
        lambda _: as_npy(WEIGHTS),
    ],
)
def test_a_damaged_file_and_one_of_another_kind_are_rejected(path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_model(path, NETWORK, WEIGHTS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SettingError, match="cannot read a model from"):
        read_model(path, NETWORK)


@pytest.mark.parametrize(
    "change",
    [
        {"bias3": None},
        {"weight4": np.zeros((10, 2), dtype=np.float32)},
        {"weight2": np.zeros((4, 12), dtype=np.float32)},
        {"weight1": np.zeros((50, 3), dtype=np.float32)},
        {"bias3": np.zeros(9, dtype=np.float32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_model_with_other_layers_is_rejected(path: Path, change: dict[str, Any]) -> None:
    """Also with an equal number of parameters: a transposed matrix would otherwise be read silently."""
    changed = {name: layer for name, layer in {**layers(), **change}.items() if layer is not None}
    np.savez(path, **changed)
    with pytest.raises(
        SettingError,
        match=r"model.npz does not fit this network: it has the arrays .*, expected are weight1 \(5, 5, 2, 3\), bias1",
    ):
        read_model(path, NETWORK)
