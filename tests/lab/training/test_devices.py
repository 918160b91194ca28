"""Unusable devices are rejected with a helpful message, and torch is imported only if it is needed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from turnout.errors import SettingError
from turnout.lab import NumpyLearner
from turnout.lab.training.learner_cache import LearnerCache, torch_device, training_world
from turnout.lab.training.learners import devices
from turnout.lab.training.learners.devices import device_name, usable_device
from turnout.lab.training.learners.module_learner import ModuleLearner

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@with_gpu
def test_what_a_machine_with_a_gpu_skips_passes_where_no_gpu_is_visible() -> None:
    """Torch trains in forked processes only where it sees no GPU."""
    files = [str(path) for path in Path(__file__).parent.glob("test_*.py") if "\n@forking" in path.read_text("utf-8")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not framework and not thorough", *files],
        env={**own, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "forked processes" not in tested.stdout


def test_the_cpu_can_always_be_used() -> None:
    assert usable_device("cpu") == torch_device("cpu") == "cpu"
    assert device_name("cpu") == "CPU"


@without_gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_a_missing_gpu_is_rejected(name: str) -> None:
    with pytest.raises(SettingError, match=rf"the device '{name}' cannot be used: .*\. Use cpu, or a machine"):
        LearnerCache(name)


@without_gpu
def test_the_error_distinguishes_torch_without_cuda_from_a_machine_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(SettingError, match="this torch was built without CUDA"):
        usable_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(SettingError, match="torch finds no GPU"):
        usable_device("cuda")


@with_gpu
def test_an_index_beyond_the_last_gpu_is_rejected() -> None:
    count = torch.cuda.device_count()
    assert usable_device("cuda") == usable_device(f"cuda:{count - 1}") == "cuda"
    with pytest.raises(SettingError, match=f"there is no device 'cuda:{count}': this machine has {count} GPUs"):
        usable_device(f"cuda:{count}")


UNKNOWN = dict.fromkeys(
    ("tpu", "nonsense", "", "cuda:many", "cuda:-1", "cpu cuda"), "there is no device '{}': use cpu, "
)
UNSUPPORTED = dict.fromkeys(("mps", "meta", "xpu:0"), "turnout trains on cpu and on cuda, not on '{}'")


@pytest.mark.parametrize(("name", "message"), [*UNKNOWN.items(), *UNSUPPORTED.items()])
def test_unknown_and_unsupported_devices_are_rejected(name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message.format(name)):
        usable_device(name)


def test_on_a_cpu_numpy_trains_the_mlp_and_torch_the_cnn() -> None:
    with LearnerCache("cpu", workers=1):
        assert isinstance(training_world(items=30).federation.learner, NumpyLearner)
        learner = training_world(items=30, model="cnn").federation.learner
        assert isinstance(learner, ModuleLearner)
        assert learner.workers == 1


def test_the_mlp_is_not_trained_on_a_gpu() -> None:
    cache = LearnerCache()
    cache.device = "cuda"  # simulates a machine with a GPU
    with cache, pytest.raises(SettingError, match="the model mlp is trained by NumPy on the cpu, not on 'cuda'"):
        training_world(items=30)


@pytest.fixture
def torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates an environment without torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "turnout.lab.training.learners.devices")


NEEDED = r"convolutional networks need torch: pip install 'turnout\[lab\]'"


@pytest.mark.usefixtures("torch_is_missing")
def test_without_torch_the_error_states_how_to_install_it() -> None:
    with pytest.raises(SettingError, match=NEEDED):
        training_world(items=30, model="cnn")
    with pytest.raises(SettingError, match=NEEDED):
        LearnerCache("cuda")


def test_torch_is_not_imported_before_it_is_needed() -> None:
    code = """
import sys
import turnout.lab, turnout.lab.training.learner_cache, turnout.lab.training.batched
from turnout.lab import RunPlan, play_plan
play_plan(RunPlan("random", 2, world="training", world_settings={"items": 30, "hidden": 0}))
print([name for name in sys.modules if name.split(".")[0] in ("torch", "triton")])
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "[]\n"


@pytest.mark.parametrize("methods", [["spawn"], ["fork", "spawn"]])
def test_workers_are_forked_only_where_that_is_safe(
    methods: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows cannot fork; macOS can, but its libraries fail in a forked process."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    assert devices.can_fork() == ("fork" in methods)
    monkeypatch.setattr(sys, "platform", "darwin" if "fork" in methods else "win32")
    assert not devices.can_fork()
    with caplog.at_level(logging.INFO), LearnerCache("cpu", workers=3):
        learner = training_world(items=30, model="cnn").federation.learner
    assert isinstance(learner, ModuleLearner)
    assert learner.workers == 1
    assert "clients are trained one after the other" in caplog.text
