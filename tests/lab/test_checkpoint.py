from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turnout.errors import SettingError, StateError
from turnout.lab.checkpoint import read_model, write_model
from turnout.lab.learners.networks import Network

NETWORK = Network((8, 8, 2), (3,), (4,), 10)
WEIGHTS: npt.NDArray[np.float32] = NETWORK.initial_weights(0).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


def layers() -> dict[str, Any]:
    return dict(NETWORK.layers(WEIGHTS))


def test_a_model_comes_back_to_the_bit(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    again = read_model(path, NETWORK)
    assert again.dtype == np.float32
    assert again.tobytes() == WEIGHTS.tobytes()


def test_others_read_a_model_without_us(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    with np.load(path, allow_pickle=False) as saved:
        assert {name: saved[name].shape for name in saved.files} == {
            "weight1": (5, 5, 2, 3),
            "bias1": (3,),
            "weight2": (12, 4),
            "bias2": (4,),
            "weight3": (4, 10),
            "bias3": (10,),
        }
        assert np.array_equal(saved["bias3"], WEIGHTS[-10:])


def test_a_newer_model_takes_the_place_of_an_older(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    write_model(path, NETWORK, 2 * WEIGHTS)
    assert np.array_equal(read_model(path, NETWORK), 2 * WEIGHTS)
    assert list(path.parent.iterdir()) == [path]


def test_a_model_that_does_not_fit_is_not_written(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    with pytest.raises(StateError, match="they are of another model"):
        write_model(path, NETWORK, WEIGHTS[1:])
    assert np.array_equal(read_model(path, NETWORK), WEIGHTS)
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_to_is_refused_and_left_clean(path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot write .*nowhere/model.npz: No such file or directory"):
        write_model(path.parent / "nowhere" / "model.npz", NETWORK, WEIGHTS)
    path.mkdir()
    with pytest.raises(SettingError, match=r"cannot write .*model.npz: Is a directory"):
        write_model(path, NETWORK, WEIGHTS)
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_model_is_told(path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read a model from .*model.npz: .*No such file"):
        read_model(path, NETWORK)


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5, 0.99])
def test_a_truncated_model_is_refused(path: Path, kept: float) -> None:
    write_model(path, NETWORK, WEIGHTS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(SettingError, match="cannot read a model from"):
        read_model(path, NETWORK)


def test_a_damaged_model_is_refused(path: Path) -> None:
    write_model(path, NETWORK, WEIGHTS)
    whole = bytearray(path.read_bytes())
    whole[whole.index(WEIGHTS[:4].tobytes())] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(SettingError, match="cannot read a model from"):
        read_model(path, NETWORK)


def test_what_is_no_npz_file_is_refused(path: Path) -> None:
    path.write_bytes(b"weights, one a line\n" * 50)
    with pytest.raises(SettingError, match="cannot read a model from"):
        read_model(path, NETWORK)
    with path.open("wb") as file:
        np.save(file, WEIGHTS)
    with pytest.raises(SettingError, match="cannot read a model from"):
        read_model(path, NETWORK)


def test_nothing_pickled_is_read(path: Path) -> None:
    np.savez(path, **{**layers(), "bias1": np.array([{}] * 3)})
    with pytest.raises(SettingError, match=r"cannot read a model from .*allow_pickle"):
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
def test_a_model_with_other_layers_is_refused(path: Path, change: dict[str, Any]) -> None:
    """Even of as many numbers: a matrix that lies on its side would be read without a word."""
    changed = {name: layer for name, layer in {**layers(), **change}.items() if layer is not None}
    np.savez(path, **changed)
    with pytest.raises(SettingError, match=r"model.npz has the arrays .*, expected are weight1 \(5, 5, 2, 3\), bias1"):
        read_model(path, NETWORK)


def test_a_model_of_whole_numbers_is_refused(path: Path) -> None:
    np.savez(path, **{name: layer.astype(np.int64) for name, layer in layers().items()})
    with pytest.raises(StateError, match="the saved weights are int64"):
        read_model(path, NETWORK)
