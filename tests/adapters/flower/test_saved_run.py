"""A saved run is restored exactly, and a damaged one is refused."""

from __future__ import annotations

import math
import random
import threading
import zipfile
from collections import deque, namedtuple
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

from adapters.flower.in_process import model, weights
from narrowing import known
from turnout.adapters.flower.core.progress import metrics_of
from turnout.adapters.flower.resume.saved_run import RunFiles, SavedRun, unstorable_type
from turnout.errors import SettingError, StateError
from turnout.storage.training_log import Metrics

DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint32", "bool", "complex64", "<U5", "datetime64[s]")


@pytest.fixture
def files(folder: Path) -> RunFiles:
    return RunFiles(folder / "fleet.turnout")


def run_with(arrays: ArrayRecord | None = None, **parts: Any) -> SavedRun:
    arrays = arrays or model(1.0, 2.0)
    return SavedRun(server_round=3, fleet_round=7, waited=12.5, begun_with={"weights": [2]}, arrays=arrays, **parts)


def round_trip(folder: Path, run: SavedRun) -> SavedRun:
    """Writes a run and returns what is read back."""
    files = RunFiles(folder / "fleet.turnout")
    files.write(run)
    return known(files.read())


def assert_identical(value: Any, other: Any) -> None:
    """Asserts that two nested values are equal and have the same types."""
    assert type(value) is type(other)
    if isinstance(value, dict):
        assert list(map(repr, value)) == list(map(repr, other))
        for name in value:
            assert_identical(value[name], other[name])
    elif isinstance(value, list | tuple):
        assert len(value) == len(other)
        for left, right in zip(value, other, strict=True):
            assert_identical(left, right)
    elif isinstance(value, np.ndarray):
        assert (value.dtype, value.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(value, other)
    elif isinstance(value, ArrayRecord):
        assert list(value) == list(other)
        for left, right in zip(value.values(), other.values(), strict=True):
            assert (left.dtype, tuple(left.shape), left.stype) == (right.dtype, tuple(right.shape), right.stype)
            assert left.data == right.data
    elif isinstance(value, float) and math.isnan(value):
        assert math.isnan(other)
    else:
        assert value == other


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """Returns a random nested value that a strategy may have as an attribute."""
    kind = rng.randrange(7 if depth > 3 else 10)
    if kind == 0:
        return rng.choice([None, True, False, "", "ω", "a\nb", '{"array": 0}', b"", b"\x00\xff model"])
    if kind == 1:
        return rng.choice([0, -1, 2**70, rng.getrandbits(40)])
    if kind == 2:
        return rng.choice([0.1, -0.0, 1e-300, math.inf, -math.inf, math.nan, rng.random()])
    if kind == 3:
        return rng.choice([np.float32(0.1), np.int64(-5), np.bool_(True), np.str_("ω"), np.datetime64("2026-01-01")])
    if kind in (4, 5):
        shape = tuple(rng.randrange(4) for _ in range(rng.randrange(4)))
        numbers = np.array([rng.randrange(100) for _ in range(math.prod(shape))]).reshape(shape)
        typed = numbers.astype(rng.choice(DTYPES))
        return rng.choice([typed, np.asfortranarray(typed)])
    if kind == 6:
        return ArrayRecord({f"layer{row}": Array(np.full(row, 0.5, np.float32)) for row in range(rng.randrange(3))})
    items = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return items
    if kind == 8:
        return tuple(items)
    names = ["array", "table", "record", "list", "number", "", 1, -7, 2.5, False]
    return dict(zip(rng.sample(names, len(items)), items, strict=True))


class Level(IntEnum):
    HIGH = 1


Point = namedtuple("Point", "x y")
ENDLESS: list[Any] = [1]
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"a": [1, {2: threading.Lock()}]}, "_thread.lock"),
        ({object(): 1}, "builtins.dict"),
        ({1, 2}, "builtins.set"),
        (deque([1]), "collections.deque"),
        (MetricRecord({"loss": 0.5}), "MetricRecord"),
        (np.array([object()]), "numpy.ndarray"),
        (Level.HIGH, "Level"),
        (Point(1, 2), "Point"),
        (ENDLESS, "value that contains itself, or is nested too deeply"),
        ([[1]] * 2, "None"),  # twice is not inside
    ],
)
def test_the_type_of_what_cannot_be_stored_is_named(value: Any, kind: str) -> None:
    assert kind in str(unstorable_type(value))


@pytest.mark.parametrize("seed", range(40))
def test_any_plain_state_of_a_strategy_is_restored_exactly(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    state = {f"attribute{index}": random_value(rng) for index in range(12)}
    assert_identical(round_trip(folder, run_with(strategy=state)).strategy, state)


def test_all_parts_of_a_run_are_restored(folder: Path) -> None:
    run = run_with(
        metrics={"loss": 0.5, "by class": [0.25, 0.75]},
        expected={"c0": 1.5},
        strategy={"m_t": {"weights": np.ones(3)}},
        world={"trained": np.array([True, False])},
    )
    saved = round_trip(folder, run)
    for name in ("server_round", "fleet_round", "waited", "begun_with"):
        assert getattr(saved, name) == getattr(run, name)
    for name in ("arrays", "metrics", "expected", "strategy", "world"):
        assert_identical(getattr(saved, name), getattr(run, name))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool"])
def test_the_names_order_and_types_of_a_model_are_restored(folder: Path, dtype: str) -> None:
    arrays = ArrayRecord({name: Array(np.ones((2, 3), dtype)) for name in ("z", "a", "blocks.0.weight")})
    arrays["none"] = Array(np.empty((0, 4), dtype))
    arrays["one"] = Array(np.asarray(np.ones((), dtype)))
    assert_identical(round_trip(folder, run_with(arrays)).arrays, arrays)


def test_a_torch_model_is_restored(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    weights_ = {"layer.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}
    saved = round_trip(folder, run_with(ArrayRecord(weights_))).arrays.to_torch_state_dict()
    assert list(saved) == list(weights_)
    assert all(torch.equal(saved[name], weights_[name]) and saved[name].dtype == weights_[name].dtype for name in saved)


def test_the_file_holds_plain_arrays_without_pickle(files: RunFiles) -> None:
    files.write(run_with(strategy={"kept": (1, [np.float32(2)], {"a": np.ones(2)})}))
    with np.load(files.model, allow_pickle=False) as saved:
        assert all(not saved[name].dtype.hasobject for name in saved.files)
    with zipfile.ZipFile(files.model) as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())


# Damage


def test_a_flipped_bit_is_detected_or_harmless(files: RunFiles) -> None:
    run = run_with(model(*range(5)), strategy={"m_t": {"weights": np.arange(5.0)}})
    files.write(run)
    content, refused = files.model.read_bytes(), 0
    for index in range(len(content)):
        damaged = bytearray(content)
        damaged[index] ^= 1 << index % 8
        files.model.write_bytes(damaged)
        saved = None
        with suppress(StateError):
            saved = files.read()
        if saved is None:
            refused += 1
        else:  # a part of the zip file that is not read, such as the modification time
            assert_identical(saved.arrays, run.arrays)
            assert_identical(saved.strategy, run.strategy)
            assert (saved.server_round, saved.fleet_round, saved.waited) == (3, 7, 12.5)
    assert refused > len(content) // 2


def test_a_truncated_file_is_refused(files: RunFiles) -> None:
    files.write(run_with())
    content = files.model.read_bytes()
    for length in range(0, len(content) - 1, 7):
        files.model.write_bytes(content[:length])
        with pytest.raises(StateError, match="cannot read the run in"):
            files.read()


def test_a_newer_format_is_refused(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("turnout.adapters.flower.resume.saved_run.FORMAT", 99)
        files.write(run_with())
    with pytest.raises(StateError, match="its format is 99, this version reads 1"):
        files.read()


def test_missing_files_are_read_as_no_run(files: RunFiles) -> None:
    assert files.read() is None
    assert files.read_metrics(5) == {}
    files.remove()


def test_a_full_disk_is_an_error_and_the_last_round_is_kept(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(run_with(model(1.0)))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(SettingError, match=r"cannot write .*fleet.turnout.run.npz: No space left on device"):
            files.write(run_with(model(2.0)))
    assert weights(known(files.read()).arrays) == [1.0]


def test_remove_deletes_temporary_files_of_a_killed_process(folder: Path) -> None:
    files, other = RunFiles(folder / "fleet[1].turnout"), RunFiles(folder / "fleet1.turnout")
    temporary = [folder / ".fleet[1].turnout.run.npz.x1y2", folder / ".fleet[1].turnout.run.jsonl.z"]
    foreign = [folder / ".fleet1.turnout.run.npz.x1y2", other.model]
    files.write(run_with())
    for path in (*temporary, *foreign):
        path.write_text("incomplete")
    files.remove()
    assert sorted(folder.iterdir()) == sorted(foreign)


# Metrics


def test_metrics_are_restored_up_to_the_saved_round(files: RunFiles) -> None:
    metrics: Metrics = {1: {"loss": math.inf}, 2: {"loss": 0.25, "by class": [1.0, 2.0]}, 3: {"loss": 0.125}}
    server: Metrics = {0: {"count": 5}, 1: metrics_of(MetricRecord({"loss": math.nan}))}
    files.write_metrics({"train": metrics, "evaluate": {}, "server": server})
    restored = files.read_metrics(2)
    assert math.isnan(restored["server"].pop(1)["loss"])
    assert restored == {"train": {1: metrics[1], 2: metrics[2]}, "server": {0: {"count": 5}}}
    assert MetricRecord(restored["train"][2]) == MetricRecord({"loss": 0.25, "by class": [1.0, 2.0]})
