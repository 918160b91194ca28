"""Settings that would make Flower wait indefinitely are refused or have no effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Krum,
    MultiKrum,
    Strategy,
)

import turnout
from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    Clock,
    InProcessGrid,
    Spy,
    fair_selection,
    model,
    named_nodes,
    open_to_all,
    partitions,
    train,
    weights,
)
from turnout.adapters.flower import FairSelection
from turnout.errors import SettingError
from turnout.lab import PaperWorld

pytestmark = pytest.mark.usefixtures("clock")

WAITING: dict[str, tuple[dict[str, Any], str]] = {
    "a part of the cohort": ({"fraction_train": 0.5}, "fraction_train=0.5 would train only a part of the cohort"),
    "no client": ({"fraction_train": 0.0}, "fraction_train=0.0 would train only a part"),
    "at least two": ({"min_train_nodes": 2}, "min_train_nodes=2 may wait indefinitely"),
    "two available": ({"min_available_nodes": 2}, "min_available_nodes=2 may wait indefinitely"),
}


WRAPPED: dict[str, Callable[[FedAvg], Strategy]] = {
    "alone": lambda strategy: strategy,
    "privacy": lambda strategy: DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1.0, 2),
    "adaptive privacy": lambda strategy: DifferentialPrivacyClientSideAdaptiveClipping(
        strategy, 0.0, 2, clipped_count_stddev=0.0
    ),
}


@pytest.mark.parametrize("case", WAITING)
@pytest.mark.parametrize("kind", [FedAvg, FedAdam])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_settings_that_make_flower_wait_are_refused_with_the_line_to_write(
    open_fleet: OpenFleet, case: str, kind: type[FedAvg], wrapped: str
) -> None:
    settings, problem = WAITING[case]
    line = rf"write {kind.__name__}\(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, …\), or use another"
    with pytest.raises(SettingError, match=f"{kind.__name__} with {problem}.*{line}"):
        FairSelection(WRAPPED[wrapped](open_to_all(kind, **settings)), open_fleet())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: open_to_all(Bulyan, num_malicious_nodes=1),
            "Bulyan with num_malicious_nodes=1 needs 7 replies.* of 4",
        ),
        (lambda: open_to_all(Krum, num_malicious_nodes=1), "Krum with num_malicious_nodes=1 needs 5 replies"),
        (lambda: open_to_all(MultiKrum, num_nodes_to_select=5), "MultiKrum .*needs 5 replies"),
        (lambda: DifferentialPrivacyServerSideFixedClipping(open_to_all(), 0.0, 1.0, 9), "num_sampled_clients=4$"),
    ],
)
def test_a_strategy_that_needs_more_replies_than_the_cohort_has_is_refused(
    open_fleet: OpenFleet, make: Callable[[], Strategy], problem: str
) -> None:
    with pytest.raises(SettingError, match=problem):
        FairSelection(make(), open_fleet(settings={"cohort_size": 4}))


def test_a_strategy_that_needs_fewer_nodes_than_the_cohort_works_and_need_not_evaluate(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(3))
    train(scheduler, grid, open_to_all(min_train_nodes=0, min_available_nodes=0, fraction_evaluate=0.0), rounds=2)
    assert len(grid.asked("train")[0]) == 2
    assert grid.sent("evaluate") == []


class Minimal(Strategy):
    """A strategy that is not derived from FedAvg and has no settings."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        return open_to_all().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return open_to_all().aggregate_train(server_round, replies)

    def configure_evaluate(self, *_: Any) -> Any:
        return []

    def aggregate_evaluate(self, *_: Any) -> MetricRecord | None:
        raise AssertionError("no evaluation message was sent")

    def summary(self) -> None:
        pass


def test_a_strategy_without_these_settings_is_accepted(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(3))
    result = train(open_fleet(), grid, Minimal(), rounds=2)
    assert [len(cohort) for cohort in grid.asked("train")] == [2, 2]
    assert result.evaluate_metrics_clientapp == {}


def test_a_strategy_of_the_older_interface_is_refused(open_fleet: OpenFleet) -> None:
    older: Any = OlderFedAvg(fraction_fit=1.0, min_fit_clients=1, min_available_clients=1)
    with pytest.raises(SettingError, match=r"strategy of flwr.serverapp.strategy.*older interface, and docs/flower.md"):
        FairSelection(older, open_fleet())


INELIGIBLE: list[Any] = ["berlin", {"location": "berlin"}, {"location": []}, {"location": 5}]
SLOTS: dict[str, Any] = {"settings": {"guaranteed_rate": 0.05}, "concurrency": 2, "deadline": None}


@pytest.mark.parametrize(
    ("fleet", "settings", "problem"),
    [
        ({}, {"nodes": 0}, "nodes"),
        ({}, {"poll": 0.0}, "poll"),
        ({}, {"patience": float("nan")}, "patience"),
        ({}, {"evaluate_deadline": -1.0}, "evaluate_deadline"),
        ({}, {"max_failed_rounds": 0}, "max_failed_rounds"),
        *(({}, {"eligible": wrong}, "eligible") for wrong in INELIGIBLE),
        ({}, {"groups": "location"}, r"groups needs a fleet with the policy 'quota', and .* has fair-pace"),
        ({}, {"updates_per_version": 4}, r"updates_per_version needs a fleet without rounds.*open\(…, concurrency=8\)"),
        (SLOTS, {"updates_per_version": 0}, "updates_per_version"),
        (SLOTS, {"discount": -1.0}, "discount"),
        (SLOTS, {"evaluate_every": 0}, "evaluate_every"),
        ({**SLOTS, "deadline": 9.0}, {"simulated": PaperWorld()}, "create the fleet without deadline"),
    ],
)
def test_invalid_arguments_are_refused(
    open_fleet: OpenFleet, fleet: dict[str, Any], settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingError, match=problem):
        fair_selection(open_to_all(), open_fleet(**fleet), **settings)


# Evaluation


def test_with_too_few_nodes_no_evaluation_but_a_warning(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid(named_nodes(3))
    result = train(open_fleet(), grid, open_to_all(min_evaluate_nodes=4), rounds=2)
    assert grid.sent("evaluate") == []
    assert (result.evaluate_metrics_clientapp, len(result.train_metrics_clientapp)) == ({}, 2)
    assert "evaluation is skipped: the strategy needs 4 nodes (min_evaluate_nodes), 3 are connected" in caplog.text


@pytest.mark.parametrize(
    ("deadline", "evaluate_deadline", "timeout", "waited"),
    [(10.0, None, 3600, 10), (10.0, 25.0, 3600, 25), (None, None, 60, 60), (None, 5.0, 60, 5), (90.0, None, 60, 60)],
)
def test_a_silent_node_delays_evaluation_by_at_most_its_deadline(
    open_fleet: OpenFleet,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    deadline: float | None,
    evaluate_deadline: float | None,
    timeout: float,
    waited: float,
) -> None:
    grid = InProcessGrid(named_nodes(3))
    grid.client("c1").trouble, grid.client("c1").troubled = "silent", ("evaluate",)
    fair = fair_selection(open_to_all(), open_fleet(deadline=deadline), poll=0.25, evaluate_deadline=evaluate_deadline)
    start = clock.now
    assert list(fair.start(grid, model(0.0), num_rounds=1, timeout=timeout).evaluate_metrics_clientapp) == [1]
    assert clock.now - start == 1 + waited
    assert f"no evaluation from c1 within {waited:g} s" in caplog.text
    assert {sent.ttl for sent in grid.sent("evaluate")[0]} == {waited + max(5, waited / 10)}


def test_in_a_simulation_the_deadline_does_not_apply_to_evaluation(open_fleet: OpenFleet, clock: Clock) -> None:
    grid = InProcessGrid(partitions(3))
    grid.client("1").trouble, grid.client("1").troubled = "silent", ("evaluate",)
    fair = fair_selection(open_to_all(), open_fleet(), poll=0.25, simulated=PaperWorld(clients=3))
    start = clock.now
    fair.start(grid, model(0.0), num_rounds=1, timeout=60)
    assert clock.now - start == 60


class Sparse(FedAvg):
    """Decides itself when clients evaluate."""

    def configure_evaluate(self, server_round: int, *args: Any) -> Any:
        self.fraction_evaluate = 1.0 if server_round == 2 else 0.0
        return super().configure_evaluate(server_round, *args)


def test_a_strategy_may_decide_itself_when_clients_evaluate(open_fleet: OpenFleet) -> None:
    strategy = open_to_all(Sparse, fraction_evaluate=0.0)
    result = train(open_fleet(), InProcessGrid(named_nodes(3)), strategy, rounds=3)
    assert list(result.evaluate_metrics_clientapp) == [2]


# Nodes


@pytest.mark.parametrize("connected", [0, 3])
def test_start_fails_after_the_timeout_if_fewer_nodes_than_given_are_connected(
    open_fleet: OpenFleet, clock: Clock, caplog: pytest.LogCaptureFixture, connected: int
) -> None:
    start, grid = clock.now, InProcessGrid(named_nodes(connected))
    problem = rf"{connected} of 4 nodes were connected after 300 s: start more SuperNodes, or increase timeout"
    with pytest.raises(SettingError, match=problem):
        train(open_fleet(), grid, timeout=300, nodes=4)
    assert 300 <= clock.now - start <= 301
    assert 25 <= caplog.text.count(f"waiting for nodes: {connected} of 4 are connected") <= 31  # about every 10 s


def test_start_waits_for_the_given_number_of_nodes(open_fleet: OpenFleet, clock: Clock) -> None:
    first, *later = named_nodes(4)
    grid = InProcessGrid([first])
    for seconds, node in enumerate(later, start=5):
        clock.after(float(seconds), partial(grid.add, node))
    train(open_fleet(), grid, rounds=1, nodes=4)
    assert grid.asked("query.turnout") == [["c0", "c1", "c2", "c3"]]
    assert grid.asked("evaluate") == [["c0", "c1", "c2", "c3"]]


def test_a_fleet_that_has_trained_before_continues_with_fewer_nodes(
    open_fleet: OpenFleet, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = open_fleet()
    train(scheduler, InProcessGrid(named_nodes(4)), rounds=1, nodes=4)
    start = clock.now
    train(scheduler, InProcessGrid(named_nodes(3, 0.0)), rounds=2, nodes=4, patience=20)
    assert 20 <= clock.now - start <= 21  # once, not in every round
    assert "continuing with 3 of 4 nodes" in caplog.text


def test_nodes_that_never_identify_themselves_are_a_separate_error(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(2))
    for node in grid.nodes.values():
        node.trouble, node.troubled = "silent", ("query",)
    with pytest.raises(
        SettingError, match=r"none of 2 nodes identified itself within 100 s, .*check the log of a SuperNode"
    ):
        train(open_fleet(), grid, timeout=100, patience=30)
    assert len(grid.sent("query.turnout")) == 1  # and kept until it is answered


def test_a_single_node_is_enough(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(1))
    result = train(open_fleet(), grid, open_to_all(min_evaluate_nodes=1), rounds=2)
    assert grid.asked("train") == [["c0"], ["c0"]]
    assert weights(result.arrays) == [2.75]


def test_the_strategy_is_not_called_for_an_empty_cohort(open_fleet: OpenFleet) -> None:
    spy, scheduler = Spy(), open_fleet(backoff_after=1)
    grid = InProcessGrid(named_nodes(2))
    for node in grid.nodes.values():
        node.trouble = "raises"  # and is backed off
    result = train(scheduler, grid, spy, arrays=model(5.0), rounds=2)
    assert (spy.configured, spy.aggregated) == ([1], [["error", "error"]])
    assert scheduler.round == 2
    assert weights(result.arrays) == [5.0]
    assert result.train_metrics_clientapp[2]["turnout-asked"] == 0


# Installation


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Another Python, with the same package."""
    path = [str(Path(turnout.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def test_without_flower_the_first_import_already_says_so(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.metadata as m\n"
        "sys.modules['flwr'] = None\n"
        "def version(name): raise m.PackageNotFoundError(name)\n"
        "m.version = version\n"
        "import turnout.adapters.flower\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: Flower is not installed: pip install 'turnout[flower]'" in done.stderr


def test_no_module_of_ours_causes_a_warning_when_it_is_imported(tmp_path: Path) -> None:
    """A warning counts where it points at our code; what Flower causes in its own dependencies is not ours to mend."""
    code = (
        "import importlib, json, pkgutil, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import turnout.adapters.flower as ours\n"
        "    found = [module.name for module in pkgutil.iter_modules(ours.__path__, 'turnout.adapters.flower.')]\n"
        "    for name in found:\n"
        "        importlib.import_module(name)\n"
        "print(json.dumps([found, [[one.filename, str(one.message)] for one in caught]]))\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported, caught = json.loads(done.stdout)
    assert "turnout.adapters.flower.selection" in imported
    package = str(Path(turnout.__file__).parent)
    assert [message for file, message in caught if file.startswith(package)] == []
