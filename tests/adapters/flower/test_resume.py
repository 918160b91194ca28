"""A server that was ended goes on where it stopped: the model, the strategy, the fleet, the round and the metrics."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    InProcessGrid,
    Spy,
    after,
    kinds_in,
    model,
    named_node,
    named_nodes,
    open_to_all,
    turns_of,
    weights,
)
from adapters.flower.restless_app import FLEET, ROUNDS, STRATEGIES, Killed, Moments, play, told
from scheduler.fleets import packed_from_disk, turns_in
from turnout.adapters.flower import FairSelection
from turnout.adapters.flower.saved_run import RunFiles
from turnout.errors import StateError
from turnout.scheduler import Scheduler

pytestmark = pytest.mark.usefixtures("clock")

HERE = Path(__file__).parent
PARTS, KILLS = 3, 10


def all_of(path: Path, result: dict[str, Any]) -> tuple[dict[str, Any], bytes, list[tuple[Any, ...]]]:
    """What a run came to, and the fleet's memory and turns."""
    return result, packed_from_disk(path), turns_in(path)


def assert_same(path: Path, result: dict[str, Any], expected: tuple[dict[str, Any], bytes, list[Any]]) -> None:
    first, state, turns = expected
    assert result["weights"] == first["weights"]
    assert turns_in(path) == turns
    assert packed_from_disk(path) == state
    for kind in ("train", "evaluate", "server"):
        assert list(result[kind]) == list(first[kind]), kind
        for number, record in first[kind].items():
            assert result[kind][number] == pytest.approx(record), (kind, number)


def end_at(path: Path, moment: int, strategy: str, **how: Any) -> int:
    """Play until this moment; how many there were."""
    moments = Moments(moment)
    with moments.watched(), suppress(Killed):
        play(path, STRATEGIES[strategy](), passing=moments.passing, **how)
    return moments.count


def check_ends(folder: Path, strategy: str, first: int, step: int, **how: Any) -> None:
    """End runs at some moments, go on with each, and compare it with the one that was not ended."""
    calm, moments = folder / "calm.turnout", Moments()
    with moments.watched():
        result = play(calm, STRATEGIES[strategy](), passing=moments.passing, **how)
    expected = all_of(calm, told(result))
    last = moments.count - 1  # after that nothing is left of the run
    assert last > 80
    for moment in range(first, last + 1, step):
        path = folder / f"{moment}.turnout"
        assert end_at(path, moment, strategy, **how) == moment
        try:
            assert_same(path, told(play(path, STRATEGIES[strategy](), **how)), expected)
            assert not any(file.exists() for file in files_of(path))
        except AssertionError as different:
            different.add_note(f"ended at moment {moment}")
            raise


def files_of(path: Path) -> tuple[Path, Path]:
    files = RunFiles(path)
    return files.model, files.metrics


# Ended at any moment


@pytest.mark.parametrize("part", range(PARTS))
def test_ended_at_any_moment_it_comes_to_the_same(folder: Path, part: int) -> None:
    check_ends(folder, "FedAvg", 1 + part, PARTS, rounds=4)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "FedAvg"])
def test_what_a_strategy_keeps_between_rounds_is_not_lost(folder: Path, strategy: str) -> None:
    check_ends(folder, strategy, 20, 37)


def test_ended_at_any_moment_with_measured_times_it_comes_to_the_same(folder: Path) -> None:
    check_ends(folder, "FedAdam", 5, 9, simulated=False)


def test_a_server_that_is_ended_again_and_again_comes_to_the_same(folder: Path) -> None:
    calm, path, chances = folder / "calm.turnout", folder / "fleet.turnout", random.Random(5)
    expected = all_of(calm, told(play(calm, STRATEGIES["FedAvgM"](), rounds=12)))
    lives = [chances.randint(1, 50) for _ in range(8)]
    assert [end_at(path, moment, "FedAvgM", rounds=12) for moment in lives] == lives  # none was the end of it
    assert_same(path, told(play(path, STRATEGIES["FedAvgM"](), rounds=12)), expected)


class Server:
    """The restless app as a process, with its orders."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self, path: Path, rounds: int, **death: float) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"path": str(path), "out": str(path.with_suffix(".json")), "rounds": rounds, **death}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture
def server() -> Iterator[Server]:
    tests = HERE.parents[1]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "src")])}
    program = [sys.executable, str(HERE / "restless_app.py")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def test_kill_9_at_random_moments(folder: Path, server: Server) -> None:
    calm, rounds, kills, chances, fleets = folder / "calm.turnout", 15, 0, random.Random(11), count()
    assert server.play(calm, rounds) == 0
    expected = all_of(calm, json.loads(calm.with_suffix(".json").read_text()))
    while kills < KILLS:
        path = folder / f"fleet-{next(fleets)}.turnout"
        files, over = RunFiles(path), False
        while not over and kills < KILLS and (code := server.play(path, rounds, die_after=chances.uniform(0.02, 0.2))):
            assert code == -signal.SIGKILL
            kills += 1
            over = files.last.exists()  # and only its result was not kept yet
        if over:
            assert turns_in(path) == expected[2]
            files.last.rename(files.model)
            saved = files.read()
            assert saved is not None
            assert weights(saved.arrays) == expected[0]["weights"]
            files.remove()
            continue
        assert server.play(path, rounds) == 0 if kills == KILLS else path.with_suffix(".json").exists()
        assert_same(path, json.loads(path.with_suffix(".json").read_text()), expected)
    assert [left.name for left in folder.iterdir() if ".run." in left.name] == []  # nor what was half written


# What an earlier server knew of the open round


class Crash(Spy):
    """Ends the server when it should aggregate for the first time."""

    def aggregate_train(self, *_: Any) -> Any:
        raise Killed


def crashed(scheduler: Scheduler, grid: InProcessGrid) -> None:
    with pytest.raises(Killed):
        FairSelection(Crash(), scheduler, poll=0.25).start(grid, model(0.0), num_rounds=3)


def test_the_same_cohort_is_asked_again_and_nobody_is_counted_twice(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(4, [1.0, 2.0, 3.0, 4.0]))
    crashed(scheduler, grid)
    spy, again = Spy(), InProcessGrid(named_nodes(4, 5.0))
    FairSelection(spy, scheduler, poll=0.25).start(again, model(0.0), num_rounds=3)
    assert again.asked("train")[0] == grid.asked("train")[0]
    assert spy.configured == [1, 2, 3]
    assert [turn.seconds for turn in scheduler.turns(1)] == [1.0, 2.0]  # as the earlier server measured
    assert scheduler.round == 3
    assert sum(turns_of(scheduler).values()) == 6


def test_who_is_not_there_any_more_has_failed(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    grid.client("c1").trouble = "silent"
    crashed(scheduler, grid)
    spy, again = Spy(), InProcessGrid(named_nodes(3))
    del again.nodes[101]
    FairSelection(spy, scheduler, poll=0.25).start(again, model(0.0), num_rounds=1)
    assert kinds_in(scheduler, 1) == {"c0": "arrived", "c1": "failed", "c2": "arrived"}
    assert [turn.why for turn in scheduler.history("c1")] == ["was not connected when the server came back"]
    assert spy.aggregated == [["0", "2"]]


def test_who_had_failed_is_not_asked_again(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    grid.client("c1").trouble = "raises"
    crashed(scheduler, grid)
    spy, again = Spy(), InProcessGrid(named_nodes(3))
    FairSelection(spy, scheduler, poll=0.25).start(again, model(0.0), num_rounds=1)
    assert again.asked("train") == [["c0", "c2"]]
    assert kinds_in(scheduler, 1) == {"c0": "arrived", "c1": "failed", "c2": "arrived"}


def test_who_was_back_before_and_is_late_now_is_as_the_first_server_knew_it(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    crashed(scheduler, grid)
    spy, again = Spy(), InProcessGrid(named_nodes(3, [5.0, 12.0, 5.0]))  # its reply comes in the next round
    FairSelection(spy, scheduler, poll=0.25).start(again, model(0.0), num_rounds=3)
    first = scheduler.history("c1")[0]
    assert (first.kind, first.seconds, first.late_seconds) == ("arrived", 1.0, None)
    assert spy.aggregated[0] == ["0", "2"]
    assert scheduler.round == 3


def test_with_nobody_of_the_cohort_left_the_round_ends_and_the_next_works(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(2))
    grid.before = lambda what: (_ for _ in ()).throw(Killed) if what == "push" and grid.sent("query.turnout") else None
    with pytest.raises(Killed):
        FairSelection(open_to_all(), scheduler).start(grid, model(0.0))
    spy, again = Spy(), InProcessGrid([named_node("c7", 500), named_node("c8", 501)])
    FairSelection(spy, scheduler, poll=0.25).start(again, model(0.0), num_rounds=2)
    assert kinds_in(scheduler, 1) == {"c0": "failed", "c1": "failed"}
    assert kinds_in(scheduler, 2) == {"c7": "arrived", "c8": "arrived"}
    assert spy.configured == [2]


# Begin, go on, begin anew


def ended_after(path: Path, server_round: int, strategy: Strategy | None = None) -> None:
    """A run that was ended after this round was over."""

    def end() -> None:
        raise Killed

    with Scheduler.open(path, **FLEET) as scheduler, pytest.raises(Killed):
        FairSelection(strategy or open_to_all(), scheduler).start(
            InProcessGrid(named_nodes(4)), model(1.0, -2.0), num_rounds=ROUNDS, evaluate_fn=after(server_round, end)
        )


def go_on(
    path: Path, strategy: Strategy | None = None, rounds: int = ROUNDS, **settings: Any
) -> tuple[Result, Spy, int]:
    """Start again: what it came to, what the strategy saw, and the fleet's round."""
    spy = Spy()
    with Scheduler.open(path, **FLEET) as scheduler:
        fair = FairSelection(strategy or spy, scheduler, **settings)
        result = fair.start(InProcessGrid(named_nodes(4)), model(1.0, -2.0), num_rounds=rounds)
        return result, spy, scheduler.round


def test_it_goes_on_after_the_last_round_and_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 4)
    result, spy, fleet_round = go_on(path)
    assert spy.configured == [5, 6]
    assert fleet_round == ROUNDS
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    assert list(result.evaluate_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    assert "going on after round 4 of 6 (Flower counts from 1 again)" in caplog.text


def test_a_run_can_be_prolonged_while_it_is_not_finished(folder: Path) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 3)
    result, spy, _ = go_on(path, rounds=8)
    assert spy.configured == [4, 5, 6, 7, 8]
    assert len(result.train_metrics_clientapp) == 8


def test_a_run_of_which_only_the_end_was_not_written_is_not_trained_again(folder: Path) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, ROUNDS)
    result, spy, fleet_round = go_on(path)
    assert spy.configured == []
    assert fleet_round == ROUNDS
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert weights(result.arrays) != [1.0, -2.0]


def test_a_finished_run_leaves_only_the_fleet_and_the_next_is_a_new_run_of_a_known_fleet(folder: Path) -> None:
    path = folder / "fleet.turnout"
    first, spy, fleet_round = go_on(path, rounds=3)
    assert fleet_round == 3
    assert not any(file.exists() for file in files_of(path))
    second, spy, fleet_round = go_on(path, rounds=3)
    assert spy.configured == [1, 2, 3]
    assert fleet_round == 6
    assert list(second.train_metrics_clientapp) == [1, 2, 3]
    assert first.train_metrics_clientapp[3]["turnout-fewest-turns"] == 1
    assert second.train_metrics_clientapp[3]["turnout-fewest-turns"] == 3


def test_the_same_object_can_be_started_again(folder: Path) -> None:
    spy = Spy()
    with Scheduler.open(folder / "fleet.turnout", settings={"cohort_size": 2}, deadline=60.0) as scheduler:
        fair = FairSelection(spy, scheduler)
        for _ in range(2):
            result = fair.start(InProcessGrid(named_nodes(4)), model(0.0), num_rounds=2)
            assert list(result.train_metrics_clientapp) == [1, 2]
        assert scheduler.round == 4
    assert spy.configured == [1, 2, 1, 2]


def test_resume_false_begins_anew_with_the_fleets_memory(folder: Path) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 4)
    result, spy, fleet_round = go_on(path, resume=False, rounds=2)
    assert spy.configured == [1, 2]
    assert fleet_round == 6
    assert list(result.train_metrics_clientapp) == [1, 2]


def test_save_false_writes_nothing_and_leaves_what_is_there(folder: Path) -> None:
    path, files = folder / "fleet.turnout", RunFiles(folder / "fleet.turnout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFiles, "write", pytest.fail)
        patch.setattr(RunFiles, "write_metrics", pytest.fail)
        go_on(path, save=False)
    ended_after(folder / "other.turnout", 2)
    (folder / "other.turnout.run.npz").rename(files.model)
    before = files.model.read_bytes()
    _, spy, _ = go_on(path, save=False, rounds=2)
    assert spy.configured == [1, 2]
    assert files.model.read_bytes() == before


def test_the_first_evaluation_is_not_done_twice(folder: Path) -> None:
    path, rounds = folder / "fleet.turnout", list[int]()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
        rounds.append(number)
        return MetricRecord({"number": number})

    ended_after(path, 2)
    with Scheduler.open(path) as scheduler:
        result = FairSelection(open_to_all(), scheduler).start(
            InProcessGrid(named_nodes(4)), model(1.0, -2.0), num_rounds=4, evaluate_fn=evaluate
        )
    assert rounds == [2, 3, 4]  # in the second, the earlier server was ended
    assert list(result.evaluate_metrics_serverapp) == [2, 3, 4]


# What cannot be gone on with


@pytest.mark.parametrize("given", [model(1.0), model(1.0, 2.0, 3.0), ArrayRecord({"other": Array(np.zeros(2))})])
def test_a_run_of_another_model_is_refused(folder: Path, given: ArrayRecord) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 2)
    with (
        Scheduler.open(path) as scheduler,
        pytest.raises(StateError, match=r"unfinished run of another model.*resume=False"),
    ):
        FairSelection(open_to_all(), scheduler).start(InProcessGrid(named_nodes(4)), given)
    assert RunFiles(path).model.exists()


def test_a_run_of_another_strategy_is_refused(folder: Path) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 2, STRATEGIES["FedAdam"]())
    with pytest.raises(StateError, match=r"the saved run has a strategy with '.*', this FedAvg has none"):
        go_on(path, open_to_all())


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "flipped"])
def test_a_damaged_run_is_never_taken_for_none(folder: Path, damage: str) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 2)
    file = RunFiles(path).model
    whole = file.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "empty": b"",
        "cut": whole[:middle],
        "text": b"not what it was",
        "flipped": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
    }[damage]
    file.write_bytes(damaged)
    with pytest.raises(StateError, match=r"cannot read the run in .*run.npz.*or begin anew with resume=False"):
        go_on(path)
    assert file.read_bytes() == damaged
    _, spy, _ = go_on(path, resume=False, rounds=1)
    assert spy.configured == [1]


@pytest.mark.parametrize(
    "damaged", ["", "[1, 2]", '{"train": {"one": {}}}', '{"train": {"1": 5}}', '{"train": {"1": {"a": "b"}}}']
)
def test_damaged_metrics_are_told_and_the_model_is_safe(folder: Path, damaged: str) -> None:
    path, files = folder / "fleet.turnout", RunFiles(folder / "fleet.turnout")
    ended_after(path, 2)
    files.metrics.write_text(damaged)
    with pytest.raises(StateError, match=r"cannot read the metrics in .*Restore or remove the file; the model is safe"):
        go_on(path)
    files.metrics.unlink()
    result, spy, _ = go_on(path)
    assert spy.configured == [3, 4, 5, 6]
    assert list(result.train_metrics_clientapp) == [2, 3, 4, 5, 6]  # the last is told again


def test_what_is_told_again_is_of_the_round_that_was_over(folder: Path) -> None:
    path, grid = folder / "fleet.turnout", InProcessGrid(named_nodes(4))

    def end_in_the_third_round(what: str) -> None:
        if what == "push" and len(grid.sent("evaluate")) == 2:
            raise Killed

    grid.before = end_in_the_third_round
    with Scheduler.open(path, **FLEET) as scheduler, pytest.raises(Killed):
        FairSelection(open_to_all(), scheduler).start(grid, model(1.0, -2.0), num_rounds=ROUNDS)
    RunFiles(path).metrics.unlink()
    result, _, _ = go_on(path)
    assert {told["turnout-arrived"] for told in result.train_metrics_clientapp.values()} == {2}
    assert list(result.train_metrics_clientapp) == [2, 3, 4, 5, 6]


# Odd strategies


class Growing(FedAvg):
    """A model that has one weight more after each round, as boosted trees have."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return model(*weights(arrays), float(server_round)), metrics


def test_a_model_that_grows_can_be_gone_on_with(folder: Path) -> None:
    path = folder / "fleet.turnout"
    ended_after(path, 2, open_to_all(Growing))
    result, _, _ = go_on(path, open_to_all(Growing))
    assert len(weights(result.arrays)) == 2 + ROUNDS


class Accountant:
    """Keeps its own books."""

    def __init__(self) -> None:
        self.spent = 0

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent, "orders": [1.5, 2.0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spent = state["spent"]


class Accounted(FedAvg):
    """Spends something in every round."""

    def __init__(self, accountant: Accountant | None) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.accountant = accountant

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if self.accountant is not None:
            self.accountant.spent += 1
        return super().aggregate_train(server_round, replies)


def test_what_was_spent_of_privacy_is_not_forgotten(folder: Path) -> None:
    path, accountant = folder / "fleet.turnout", Accountant()
    ended_after(path, 3, Accounted(Accountant()))
    with pytest.raises(StateError, match="has a strategy with 'accountant', this Accounted has none"):
        go_on(path, Accounted(None))
    go_on(path, Accounted(accountant))
    assert accountant.spent == ROUNDS
