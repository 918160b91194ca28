"""The log of a training run: what one side writes the other reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.errors import StoreError
from turnout.storage.training_log import METRIC_KINDS, OWN_PREFIX, Metrics, TrainingLog, read_metrics, read_model

METRICS: dict[str, Metrics] = {
    "train": {1: {"loss": 0.5, f"{OWN_PREFIX}asked": 8}, 2: {"loss": 0.25}},
    "evaluate": {},
    "server": {0: {"accuracy": 0.1, "name": "x", "by class": [0.5]}, 2: {"accuracy": 1}},
}


@pytest.fixture
def log(folder: Path) -> TrainingLog:
    return TrainingLog(folder / "fleet.turnout")


def plain(log: TrainingLog) -> dict[str, Any]:
    return {
        kind: {name: (rounds.tolist(), values.tolist()) for name, (rounds, values) in by_name.items()}
        for kind, by_name in log.series().items()
    }


def test_metrics_are_read_as_they_were_written(log: TrainingLog) -> None:
    log.write_metrics(METRICS)
    assert read_metrics(log.metrics) == {kind: METRICS[kind] for kind in METRIC_KINDS if METRICS[kind]}


def test_metrics_are_appended_and_the_last_ones_of_a_round_count(log: TrainingLog) -> None:
    log.append_metrics("train", 1, {"loss": 0.5})
    log.append_metrics("server", 1, {"accuracy": 0.5})
    log.append_metrics("train", 1, {"loss": 0.25})
    with log.metrics.open("ab") as file:
        file.write(b'["train", 2, {"lo')  # is being written
    assert read_metrics(log.metrics) == {"train": {1: {"loss": 0.25}}, "server": {1: {"accuracy": 0.5}}}


def test_a_model_is_read_as_it_was_written(log: TrainingLog) -> None:
    header = {"server_round": 2, "fleet_round": 7, "own": ["x"]}
    log.write_model(header, [np.arange(3.0), np.array([[True]])])
    result, arrays = read_model(log.model)
    assert result == header
    assert [array.tolist() for array in arrays] == [[0.0, 1.0, 2.0], [[True]]]


def test_series_hold_the_numbers_at_the_rounds_of_the_fleet(log: TrainingLog) -> None:
    assert log.series() == {}
    log.write_metrics(METRICS)
    from_zero = {"train": {"loss": ([1, 2], [0.5, 0.25])}, "server": {"accuracy": ([0, 2], [0.1, 1.0])}}
    assert plain(log) == from_zero, "without a model the fleet began with the run"
    log.write_model({"server_round": 2, "fleet_round": 7}, [])
    assert plain(log)["server"] == {"accuracy": ([5, 7], [0.1, 1.0])}


def test_the_log_of_a_finished_run_is_read_until_the_next_run_writes(log: TrainingLog) -> None:
    log.write_model({"server_round": 1, "fleet_round": 1}, [])
    log.write_metrics({"server": {1: {"accuracy": 0.5}}})
    log.finish()
    assert not log.metrics.exists()
    assert not log.model.exists()
    assert plain(log) == {"server": {"accuracy": ([1], [0.5])}}
    log.write_metrics({"server": {1: {"accuracy": 0.75}}})
    assert plain(log) == {"server": {"accuracy": ([1], [0.75])}}
    log.remove()
    assert plain(log) == {"server": {"accuracy": ([1], [0.5])}}


def test_it_is_known_when_metrics_were_last_written(log: TrainingLog) -> None:
    assert log.written_at == 0.0
    log.write_metrics(METRICS)
    assert log.written_at == log.metrics.stat().st_mtime


@pytest.mark.parametrize(
    "damage", [b"\n", b"[]\n", b'{"server": 3}\n', b'["server", 1, 3]\n', b'["server", "x", {}]\n', b"\x00\n"]
)
def test_damage_is_refused_with_the_name_of_the_file(log: TrainingLog, damage: bytes) -> None:
    log.metrics.write_bytes(damage)
    with pytest.raises(ValueError):
        read_metrics(log.metrics)
    with pytest.raises(StoreError, match=r"cannot be read from fleet.turnout.run.jsonl .*restore that file, or remove"):
        log.series()


def test_a_damaged_model_is_refused_with_the_metrics(log: TrainingLog) -> None:
    log.write_metrics(METRICS)
    log.model.write_bytes(b"not a model")
    with pytest.raises(StoreError, match="cannot be read from"):
        log.series()


def test_a_run_without_metrics_is_finished_too(log: TrainingLog) -> None:
    log.write_model({"server_round": 1, "fleet_round": 1}, [np.arange(2.0)])
    log.finish()
    assert read_model(log.last)[1][0].tolist() == [0.0, 1.0]
    assert not log.model.exists()
    assert not log.last_metrics.exists()
    assert log.series() == {}


def test_a_run_that_ends_while_its_log_is_read_is_read_under_its_last_names(
    log: TrainingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_model({"server_round": 2, "fleet_round": 7}, [])
    log.write_metrics(METRICS)
    expected, result = plain(log), TrainingLog._metrics_files
    calls: list[list[Path]] = []

    def finish_after(self: TrainingLog) -> list[Path]:
        calls.append(files := result(self))
        if len(calls) == 1:
            log.finish()
        return files

    monkeypatch.setattr(TrainingLog, "_metrics_files", finish_after)
    assert plain(log) == expected
    assert calls == [[log.metrics], [log.last_metrics]]
    calls.clear()
    log.last.replace(log.model)
    log.last_metrics.replace(log.metrics)
    assert log.written_at == log.last_metrics.stat().st_mtime
    assert len(calls) == 2
