"""What is kept of a run comes back as it was, and what is damaged does not come back."""

from __future__ import annotations

import math
import random
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam, FedAvg

from adapters.flower.in_process import model, open_to_all, weights
from turnout.adapters.flower.saved_run import RunFiles, SavedRun, metrics_of, restore_strategy, strategy_state
from turnout.errors import SettingError, StateError
from turnout.store.training_log import Metrics

DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint32", "bool", "complex64", "<U5", "datetime64[s]")


def run_with(arrays: ArrayRecord | None = None, **parts: Any) -> SavedRun:
    return SavedRun(3, 7, 10, 12.5, {"weights": [2]}, arrays or model(1.0, 2.0), **parts)


def back(folder: Path, run: SavedRun) -> SavedRun:
    """What is read of what was written."""
    files = RunFiles(folder / "fleet.turnout")
    files.write(run)
    saved = files.read()
    assert saved is not None
    return saved


def assert_alike(one: Any, other: Any) -> None:
    """The same values, and of the same types."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_alike(mine, theirs)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, ArrayRecord):
        assert list(one) == list(other)
        for mine, theirs in zip(one.values(), other.values(), strict=True):
            assert (mine.dtype, tuple(mine.shape), mine.stype) == (theirs.dtype, tuple(theirs.shape), theirs.stype)
            assert mine.data == theirs.data
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other)
    else:
        assert one == other


def some_value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that a strategy may keep."""
    kind = chance.randrange(7 if depth > 3 else 10)
    if kind == 0:
        return chance.choice([None, True, False, "", "ω", "a\nb", '{"array": 0}'])
    if kind == 1:
        return chance.choice([0, -1, 2**70, chance.getrandbits(40)])
    if kind == 2:
        return chance.choice([0.1, -0.0, 1e-300, math.inf, -math.inf, math.nan, chance.random()])
    if kind == 3:
        return chance.choice([np.float32(0.1), np.float64(0.1), np.int64(-5), np.uint8(200)])
    if kind in (4, 5):
        shape = tuple(chance.randrange(4) for _ in range(chance.randrange(4)))
        numbers = np.array([chance.randrange(100) for _ in range(math.prod(shape))]).reshape(shape)
        typed = numbers.astype(chance.choice(DTYPES))
        return chance.choice([typed, np.asfortranarray(typed)])
    if kind == 6:
        return ArrayRecord({f"layer{row}": Array(np.full(row, 0.5, np.float32)) for row in range(chance.randrange(3))})
    some = [some_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return some
    if kind == 8:
        return tuple(some)
    names = ["array", "table", "record", "list", "number", ""]
    return dict(zip(chance.sample(names, len(some)), some, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_strategy_keeps_comes_back_as_it_was(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    state = {f"attribute{place}": {"value": some_value(chance)} for place in range(12)}
    assert_alike(back(folder, run_with(strategy=state)).strategy, state)


def test_all_of_a_run_comes_back(folder: Path) -> None:
    run = run_with(
        metrics={"loss": 0.5, "by class": [0.25, 0.75]},
        expected={"c0": 1.5},
        strategy={"m_t": {"value": {"weights": np.ones(3)}}},
        world={"trained": np.array([True, False])},
    )
    saved = back(folder, run)
    for name in ("server_round", "fleet_round", "rounds", "waited", "begun_with"):
        assert getattr(saved, name) == getattr(run, name)
    for name in ("arrays", "metrics", "expected", "strategy", "world"):
        assert_alike(getattr(saved, name), getattr(run, name))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool"])
def test_a_model_keeps_its_names_order_and_types(folder: Path, dtype: str) -> None:
    arrays = ArrayRecord({name: Array(np.ones((2, 3), dtype)) for name in ("z", "a", "blocks.0.weight")})
    arrays["none"] = Array(np.empty((0, 4), dtype))
    arrays["one"] = Array(np.asarray(np.ones((), dtype)))
    assert_alike(back(folder, run_with(arrays)).arrays, arrays)


def test_a_model_of_torch_comes_back_to_torch(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    weights_ = {"layer.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}
    saved = back(folder, run_with(ArrayRecord(weights_))).arrays.to_torch_state_dict()
    assert list(saved) == list(weights_)
    assert all(torch.equal(saved[name], weights_[name]) and saved[name].dtype == weights_[name].dtype for name in saved)


def test_what_is_written_is_plain_arrays(folder: Path) -> None:
    """No pickle: it can be read with allow_pickle=False, and nothing in it looks like one."""
    files = RunFiles(folder / "fleet.turnout")
    files.write(run_with(strategy={"kept": {"value": (1, [np.float32(2)], {"a": np.ones(2)})}}))
    with np.load(files.model, allow_pickle=False) as saved:
        assert all(not saved[name].dtype.hasobject for name in saved.files)
    with zipfile.ZipFile(files.model) as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())


# Damage


def test_no_flipped_bit_is_taken_for_the_run(folder: Path) -> None:
    files = RunFiles(folder / "fleet.turnout")
    run = run_with(model(*range(5)), strategy={"m_t": {"value": {"weights": np.arange(5.0)}}})
    files.write(run)
    whole, refused = files.model.read_bytes(), 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        files.model.write_bytes(damaged)
        saved = None
        with suppress(StateError):
            saved = files.read()
        if saved is None:
            refused += 1
        else:  # where a zip has what nobody reads, as the time of day
            assert_alike(saved.arrays, run.arrays)
            assert_alike(saved.strategy, run.strategy)
            assert (saved.server_round, saved.fleet_round, saved.waited) == (3, 7, 12.5)
    assert refused > len(whole) // 2


def test_no_part_of_a_file_is_taken_for_the_run(folder: Path) -> None:
    files = RunFiles(folder / "fleet.turnout")
    files.write(run_with())
    whole = files.model.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        files.model.write_bytes(whole[:length])
        with pytest.raises(StateError, match="cannot read the run in"):
            files.read()


def test_a_format_of_a_later_version_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(folder / "fleet.turnout")
    with monkeypatch.context() as later:
        later.setattr("turnout.adapters.flower.saved_run.FORMAT", 99)
        files.write(run_with())
    with pytest.raises(StateError, match="its format is 99, this version reads 1"):
        files.read()


def test_where_nothing_is_nothing_is_read(folder: Path) -> None:
    files = RunFiles(folder / "fleet.turnout")
    assert files.read() is None
    assert files.read_metrics(5) == {}
    files.remove()


def test_a_disk_that_is_full_is_told_and_the_last_round_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(folder / "fleet.turnout")
    files.write(run_with(model(1.0)))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as trouble:
        trouble.setattr("os.fsync", full)
        with pytest.raises(SettingError, match=r"cannot write .*fleet.turnout.run.npz: No space left on device"):
            files.write(run_with(model(2.0)))
    saved = files.read()
    assert saved is not None
    assert weights(saved.arrays) == [1.0]


def test_what_a_killed_process_left_half_written_goes_with_the_run(folder: Path) -> None:
    files, other = RunFiles(folder / "fleet[1].turnout"), RunFiles(folder / "fleet1.turnout")
    half = [folder / ".fleet[1].turnout.run.npz.x1y2", folder / ".fleet[1].turnout.run.json.z"]
    foreign = [folder / ".fleet1.turnout.run.npz.x1y2", other.model]
    files.write(run_with())
    for path in (*half, *foreign):
        path.write_text("half")
    files.remove()
    assert sorted(folder.iterdir()) == sorted(foreign)


# Metrics


def test_metrics_come_back_up_to_the_round_that_is_safe(folder: Path) -> None:
    files = RunFiles(folder / "fleet.turnout")
    told: Metrics = {1: {"loss": 0.5}, 2: {"loss": 0.25, "by class": [1.0, 2.0]}, 3: {"loss": 0.125}}
    files.write_metrics({"train": told, "evaluate": {}, "server": {0: {"count": 5}}})
    kept = files.read_metrics(2)
    assert kept == {"train": {1: told[1], 2: told[2]}, "evaluate": {}, "server": {0: {"count": 5}}}
    assert MetricRecord(kept["train"][2]) == MetricRecord({"loss": 0.25, "by class": [1.0, 2.0]})


def test_a_loss_that_is_no_number_comes_back(folder: Path) -> None:
    files = RunFiles(folder / "fleet.turnout")
    files.write_metrics({"train": {1: metrics_of(MetricRecord({"loss": math.nan, "best": math.inf}))}})
    kept = files.read_metrics(1)["train"][1]
    assert math.isnan(kept["loss"])
    assert kept["best"] == math.inf


# Strategies


def test_of_a_strategy_all_that_is_plain_is_kept_and_nothing_else() -> None:
    strategy = open_to_all(FedAdam)
    strategy.m_t = {"weights": np.ones(2)}
    state = strategy_state(strategy)
    assert {"m_t", "v_t", "eta", "fraction_train", "weighted_by_key"} <= set(state)
    assert "train_metrics_aggr_fn" not in state  # code is given again
    assert state["v_t"] == {"value": None}


def test_a_strategy_inside_another_is_kept_too() -> None:
    def build() -> DifferentialPrivacyServerSideAdaptiveClipping:
        return DifferentialPrivacyServerSideAdaptiveClipping(
            open_to_all(FedAdam), 0.0, 2, initial_clipping_norm=1.0, clipped_count_stddev=0.0
        )

    one, other = build(), build()
    inner = one.strategy
    assert isinstance(inner, FedAdam)
    one.clipping_norm, inner.m_t = 0.125, {"weights": np.arange(3.0)}
    restore_strategy(other, strategy_state(one))
    assert other.clipping_norm == 0.125
    assert isinstance(other.strategy, FedAdam)
    assert other.strategy.m_t is not None
    assert other.strategy.m_t["weights"].tolist() == [0.0, 1.0, 2.0]


def test_a_strategy_with_something_that_cannot_be_kept_goes_on_without_it() -> None:
    class Odd(FedAvg):
        """Keeps what has no place in a file of numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.by_number, self.objects, self.raw = {1: 2.0}, np.array([object()]), b"bytes"
            self.nested = [1, [2, {"deep": {3}}]]

    assert not {"by_number", "objects", "raw", "nested"} & set(strategy_state(Odd()))


def test_the_model_of_a_finished_run_stays_under_another_name(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "fleet.turnout")
    files.model.write_bytes(b"a model")
    files.metrics.write_bytes(b"{}")
    files.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.turnout.last.json", "fleet.turnout.last.npz"]
    assert files.last.read_bytes() == b"a model"
    assert files.last_metrics.read_bytes() == b"{}"
