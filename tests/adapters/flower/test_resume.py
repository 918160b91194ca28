"""A restarted server resumes where it stopped: model, strategy state, fleet, round and metrics."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
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
    train,
    turns_of,
    weights,
)
from adapters.flower.killable_app import FLEET, ROUNDS, STRATEGIES, Checkpoints, Killed, as_dict, play
from live.fleets import packed_from_disk, turns_in
from turnout.adapters.flower.resume.saved_run import RunFiles
from turnout.errors import StateError
from turnout.live import Scheduler
from turnout.storage.training_log import read_metrics

pytestmark = pytest.mark.usefixtures("clock")

HERE = Path(__file__).parent
PARTS, KILLS = 3, 10


def outcome_of(path: Path, result: dict[str, Any]) -> tuple[dict[str, Any], bytes, list[tuple[Any, ...]]]:
    """Returns the result of a run, and the state and turns of its fleet."""
    return result, packed_from_disk(path), turns_in(path)


def assert_same(path: Path, result: dict[str, Any], expected: tuple[dict[str, Any], bytes, list[Any]]) -> None:
    reference, state, turns = expected
    assert result["weights"] == reference["weights"]
    assert turns_in(path) == turns
    assert packed_from_disk(path) == state
    for kind in ("train", "evaluate", "server"):
        assert list(result[kind]) == list(reference[kind]), kind
        for number, record in reference[kind].items():
            assert result[kind][number] == pytest.approx(record), (kind, number)


def interrupt_at(path: Path, moment: int, strategy: str, **options: Any) -> int:
    """Plays until this moment and returns the number of moments that were reached."""
    checkpoints = Checkpoints(moment)
    with checkpoints.installed(), suppress(Killed):
        play(path, STRATEGIES[strategy](), checkpoint=checkpoints.checkpoint, **options)
    return checkpoints.count


def check_interruptions(
    folder: Path, strategy: str, first: int, step: int, *, rounds: int = ROUNDS, **options: Any
) -> None:
    """Interrupts runs at every `step`-th moment, resumes each, and compares it with an uninterrupted run."""
    options |= {"rounds": rounds}
    reference, checkpoints = folder / "reference.turnout", Checkpoints()
    with checkpoints.installed():
        result = play(reference, STRATEGIES[strategy](), checkpoint=checkpoints.checkpoint, **options)
    expected = outcome_of(reference, as_dict(result))
    last = checkpoints.count - 1  # after the last moment the run is finished
    assert last > 20 * rounds
    for moment in range(first, last + 1, step):
        path = folder / f"{moment}.turnout"
        assert interrupt_at(path, moment, strategy, **options) == moment
        try:
            assert_same(path, as_dict(play(path, STRATEGIES[strategy](), **options)), expected)
            assert not any(file.exists() for file in files_of(path))
        except AssertionError as error:
            error.add_note(f"interrupted at moment {moment}")
            raise


def files_of(path: Path) -> tuple[Path, Path]:
    files = RunFiles(path)
    return files.model, files.metrics


# Interrupted at any moment


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_interrupted_at_any_moment_gives_the_same_result(folder: Path, part: int) -> None:
    check_interruptions(folder, "FedAvg", 1 + part, PARTS, rounds=4)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "FedAvg"])
def test_the_state_of_a_strategy_survives_an_interruption(folder: Path, strategy: str) -> None:
    check_interruptions(folder, strategy, 20, 37, rounds=4)


@pytest.mark.parametrize("rounds", [3, pytest.param(ROUNDS, marks=pytest.mark.thorough)])
def test_an_interrupted_run_with_measured_times_gives_the_same_result(folder: Path, rounds: int) -> None:
    check_interruptions(folder, "FedAdam", 5, 9, simulated=False, rounds=rounds)


def test_a_server_interrupted_many_times_gives_the_same_result(folder: Path) -> None:
    reference, path, rng = folder / "reference.turnout", folder / "fleet.turnout", random.Random(5)
    expected = outcome_of(reference, as_dict(play(reference, STRATEGIES["FedAvgM"](), rounds=12)))
    moments = [rng.randint(1, 40) for _ in range(8)]
    assert [interrupt_at(path, moment, "FedAvgM", rounds=12) for moment in moments] == moments  # all before the end
    assert_same(path, as_dict(play(path, STRATEGIES["FedAvgM"](), rounds=12)), expected)


class Server:
    """Sends requests to a process that runs killable_app.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self, path: Path, rounds: int, **options: float) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"path": str(path), "out": str(path.with_suffix(".json")), "rounds": rounds, **options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture
def server() -> Iterator[Server]:
    tests = HERE.parents[1]
    path = os.pathsep.join(map(str, (tests, tests.parent, tests.parent / "src")))
    environment = {**os.environ, "PYTHONPATH": path}
    program = [sys.executable, str(HERE / "killable_app.py")]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.thorough
def test_a_server_killed_at_random_moments_gives_the_same_result(folder: Path, server: Server) -> None:
    reference, rounds, kills, rng, fleets = folder / "reference.turnout", 15, 0, random.Random(11), count()
    assert server.play(reference, rounds) == 0
    expected = outcome_of(reference, json.loads(reference.with_suffix(".json").read_text()))
    while kills < KILLS:
        path = folder / f"fleet-{next(fleets)}.turnout"
        files, finished = RunFiles(path), False
        while not finished and kills < KILLS and (code := server.play(path, rounds, die_after=rng.uniform(0.02, 0.2))):
            assert code == -signal.SIGKILL
            kills += 1
            finished = files.last.exists()  # killed after the run, before its result was written
        if finished:
            assert turns_in(path) == expected[2]
            files.last.rename(files.model)
            saved = files.read()
            assert saved is not None
            assert weights(saved.arrays) == expected[0]["weights"]
            files.remove()
            continue
        assert server.play(path, rounds) == 0 if kills == KILLS else path.with_suffix(".json").exists()
        assert_same(path, json.loads(path.with_suffix(".json").read_text()), expected)
    assert [file.name for file in folder.iterdir() if ".run." in file.name] == []  # including temporary files


# Outcomes recorded before the restart


class Crash(Spy):
    """Interrupts the server in its first aggregation."""

    def aggregate_train(self, *_: Any) -> Any:
        raise Killed


def crash(scheduler: Scheduler, grid: InProcessGrid) -> None:
    with pytest.raises(Killed):
        train(scheduler, grid, Crash(), rounds=3)


def test_the_same_cohort_trains_again_and_no_turn_is_counted_twice(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(4, [1.0, 2.0, 3.0, 4.0]))
    crash(scheduler, grid)
    spy, again = Spy(), InProcessGrid(named_nodes(4, 5.0))
    train(scheduler, again, spy, rounds=3)
    assert again.asked("train")[0] == grid.asked("train")[0]
    assert spy.configured == [1, 2, 3]
    assert [turn.seconds for turn in scheduler.history(round=1)] == [1.0, 2.0]  # measured by the earlier server
    assert scheduler.round == 3
    assert sum(turns_of(scheduler).values()) == 6


@pytest.mark.parametrize(
    ("trouble", "is_gone", "why"),
    [("silent", True, "was not connected when the server restarted"), ("raises", False, "out of memory (code 2)")],
)
def test_a_client_that_is_gone_or_had_failed_does_not_train_after_the_restart(
    open_fleet: OpenFleet, trouble: str, is_gone: bool, why: str
) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    grid.client("c1").trouble = trouble
    crash(scheduler, grid)
    spy, again = Spy(), InProcessGrid(node for node in named_nodes(3) if not (is_gone and node.name == "c1"))
    train(scheduler, again, spy, rounds=1)
    assert again.asked("train") == [["c0", "c2"]]
    assert kinds_in(scheduler, 1) == {"c0": "arrived", "c1": "failed", "c2": "arrived"}
    assert [turn.why for turn in scheduler.history("c1")] == [why]
    assert spy.aggregated == [["0", "2"]]


def test_an_outcome_recorded_before_the_restart_is_not_changed_by_a_late_reply(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    crash(scheduler, grid)
    spy, again = Spy(), InProcessGrid(named_nodes(3, [5.0, 12.0, 5.0]))  # the reply of c1 arrives in the next round
    train(scheduler, again, spy, rounds=3)
    first = scheduler.history("c1")[0]
    assert (first.kind, first.seconds, first.late_seconds) == ("arrived", 1.0, None)
    assert spy.aggregated[0] == ["0", "2"]
    assert scheduler.round == 3


def test_if_the_whole_cohort_is_gone_after_the_restart_the_round_ends_and_the_next_works(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(2))

    def kill_after_the_queries(operation: str) -> None:
        if operation == "push" and grid.sent("query.turnout"):
            raise Killed

    grid.before = kill_after_the_queries
    with pytest.raises(Killed):
        train(scheduler, grid)
    spy, again = Spy(), InProcessGrid([named_node("c7", 500), named_node("c8", 501)])
    train(scheduler, again, spy, rounds=2)
    assert kinds_in(scheduler, 1) == {"c0": "failed", "c1": "failed"}
    assert kinds_in(scheduler, 2) == {"c7": "arrived", "c8": "arrived"}
    assert spy.configured == [2]


# Resume, extend, start a new run


def interrupt_after(path: Path, server_round: int, strategy: Strategy | None = None) -> None:
    """Plays a run that is interrupted at the end of this round."""

    def interrupt() -> None:
        raise Killed

    with Scheduler.open(path, **FLEET) as scheduler, pytest.raises(Killed):
        train(
            scheduler,
            InProcessGrid(named_nodes(4)),
            strategy or open_to_all(),
            arrays=model(1.0, -2.0),
            rounds=ROUNDS,
            evaluate_fn=after(server_round, interrupt),
        )


def resume_run(
    path: Path, strategy: Strategy | None = None, rounds: int = ROUNDS, **settings: Any
) -> tuple[Result, Spy, int]:
    """Resumes a run and returns its result, the spy that was its strategy, and the round of the fleet."""
    spy = Spy()
    with Scheduler.open(path, **FLEET) as scheduler:
        result = train(
            scheduler,
            InProcessGrid(named_nodes(4)),
            strategy or spy,
            arrays=model(1.0, -2.0),
            rounds=rounds,
            **settings,
        )
        return result, spy, scheduler.round


@pytest.mark.parametrize(
    ("stopped_after", "rounds", "trained"),
    [(4, ROUNDS, [5, 6]), (3, 8, [4, 5, 6, 7, 8]), (ROUNDS, ROUNDS, [])],
    ids=["resumed", "extended", "already trained"],
)
def test_a_restarted_server_resumes_after_the_last_round_and_logs_it(
    folder: Path, caplog: pytest.LogCaptureFixture, stopped_after: int, rounds: int, trained: list[int]
) -> None:
    path = folder / "fleet.turnout"
    interrupt_after(path, stopped_after)
    result, spy, fleet_round = resume_run(path, rounds=rounds)
    assert spy.configured == trained
    assert fleet_round == rounds
    assert list(result.train_metrics_clientapp) == list(range(1, rounds + 1))
    assert list(result.evaluate_metrics_clientapp) == list(range(1, rounds + 1))
    assert weights(result.arrays) != [1.0, -2.0]
    assert f"resuming after round {stopped_after} of {rounds}" in caplog.text
    logged = [int(number) for number in re.findall(rf"\[ROUND (\d+)/{rounds}\]", caplog.text)]
    assert logged[-len(trained) :] == trained or not trained  # Flower's log counts on


def test_after_a_finished_run_the_next_start_is_a_new_run_on_the_same_fleet(folder: Path) -> None:
    """Also with the same strategy object."""
    path, spy = folder / "fleet.turnout", Spy()
    first, _, fleet_round = resume_run(path, spy, rounds=3)
    assert fleet_round == 3
    assert not any(file.exists() for file in files_of(path))
    second, _, fleet_round = resume_run(path, spy, rounds=3)
    assert spy.configured == [1, 2, 3, 1, 2, 3]
    assert fleet_round == 6
    assert list(second.train_metrics_clientapp) == [1, 2, 3]
    assert first.train_metrics_clientapp[3]["turnout-fewest-turns"] == 1
    assert second.train_metrics_clientapp[3]["turnout-fewest-turns"] == 3


def test_resume_false_starts_a_new_run_on_the_same_fleet(folder: Path) -> None:
    path = folder / "fleet.turnout"
    interrupt_after(path, 4)
    result, spy, fleet_round = resume_run(path, resume=False, rounds=2)
    assert spy.configured == [1, 2]
    assert fleet_round == 6
    assert list(result.train_metrics_clientapp) == [1, 2]


def test_save_false_writes_nothing_and_keeps_existing_files(folder: Path) -> None:
    path, files = folder / "fleet.turnout", RunFiles(folder / "fleet.turnout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFiles, "write", pytest.fail)
        patch.setattr(RunFiles, "write_metrics", pytest.fail)
        resume_run(path, save=False)
    interrupt_after(folder / "other.turnout", 2)
    (folder / "other.turnout.run.npz").rename(files.model)
    before = files.model.read_bytes()
    _, spy, _ = resume_run(path, save=False, rounds=2)
    assert spy.configured == [1, 2]
    assert files.model.read_bytes() == before


def test_a_completed_evaluation_is_not_repeated_after_a_restart(folder: Path) -> None:
    path, rounds = folder / "fleet.turnout", list[int]()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
        rounds.append(number)
        return MetricRecord({"number": number})

    interrupt_after(path, 2)
    with Scheduler.open(path) as scheduler:
        result = train(
            scheduler, InProcessGrid(named_nodes(4)), arrays=model(1.0, -2.0), rounds=4, evaluate_fn=evaluate
        )
    assert rounds == [2, 3, 4]  # the earlier server was interrupted in its evaluation of round 2
    assert list(result.evaluate_metrics_serverapp) == [2, 3, 4]


# Runs that cannot be resumed


@pytest.mark.parametrize("other", [model(1.0), model(1.0, 2.0, 3.0), ArrayRecord({"other": Array(np.zeros(2))})])
def test_a_run_of_another_model_is_refused(folder: Path, other: ArrayRecord) -> None:
    path = folder / "fleet.turnout"
    interrupt_after(path, 2)
    with (
        Scheduler.open(path) as scheduler,
        pytest.raises(StateError, match=r"unfinished run of another model.*resume=False"),
    ):
        train(scheduler, InProcessGrid(named_nodes(4)), arrays=other)
    assert RunFiles(path).model.exists()


def test_a_damaged_run_is_an_error_and_is_not_overwritten(folder: Path) -> None:
    path = folder / "fleet.turnout"
    interrupt_after(path, 2)
    file, damaged = RunFiles(path).model, b"other content"
    file.write_bytes(damaged)
    with pytest.raises(StateError, match=r"cannot read the run in .*run.npz.*or start a new run with resume=False"):
        resume_run(path)
    assert file.read_bytes() == damaged
    _, spy, _ = resume_run(path, resume=False, rounds=1)
    assert spy.configured == [1]


def test_damaged_metrics_are_an_error_and_the_model_is_kept(folder: Path) -> None:
    path, files = folder / "fleet.turnout", RunFiles(folder / "fleet.turnout")
    interrupt_after(path, 2)
    files.metrics.write_text('["train", 1, 5]\n')
    with pytest.raises(StateError, match=r"cannot read the metrics in .*Restore or remove the file; the model is safe"):
        resume_run(path)
    files.metrics.unlink()
    result, spy, _ = resume_run(path)
    assert spy.configured == [3, 4, 5, 6]
    assert list(result.train_metrics_clientapp) == [2, 3, 4, 5, 6]  # those of the last round are computed again


def test_metrics_without_a_model_do_not_belong_to_the_next_run(folder: Path) -> None:
    path, files = folder / "fleet.turnout", RunFiles(folder / "fleet.turnout")
    files.append_metrics("evaluate", 9, {"accuracy": 0.5})  # of a run that was killed as it finished
    interrupt_after(path, 2)
    assert 9 not in read_metrics(files.metrics)["evaluate"]


def test_a_line_of_metrics_that_was_not_completed_is_left_out(folder: Path) -> None:
    path, files = folder / "fleet.turnout", RunFiles(folder / "fleet.turnout")
    interrupt_after(path, 2)
    with files.metrics.open("a") as file:
        file.write('["server", 2, {"los')  # the power failed
    result, _, _ = resume_run(path)
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]


def test_metrics_recovered_after_a_restart_belong_to_the_closed_round(folder: Path) -> None:
    path, grid = folder / "killed" / "fleet.turnout", InProcessGrid(named_nodes(4))
    path.parent.mkdir()

    def kill_in_the_fifth_round(operation: str) -> None:
        if operation == "push" and len(grid.sent("evaluate")) == 4:
            raise Killed

    grid.before = kill_in_the_fifth_round
    with Scheduler.open(path, **FLEET) as scheduler, pytest.raises(Killed):
        train(scheduler, grid, arrays=model(1.0, -2.0), rounds=ROUNDS)
    shutil.copytree(path.parent, folder / "copy")
    undamaged, _, _ = resume_run(folder / "copy" / "fleet.turnout")
    RunFiles(path).metrics.unlink()
    result, _, _ = resume_run(path)
    recovered = dict(result.train_metrics_clientapp[4])
    assert recovered == dict(undamaged.train_metrics_clientapp[4])
    assert isinstance(seconds := recovered["turnout-round-seconds"], float)
    assert seconds > 0
    assert {metrics["turnout-arrived"] for metrics in result.train_metrics_clientapp.values()} == {2}
    assert list(result.train_metrics_clientapp) == [4, 5, 6]


# Unusual strategies


class Growing(FedAvg):
    """Adds a weight to the model in each round, like boosted trees."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return model(*weights(arrays), float(server_round)), metrics


def test_a_run_with_a_growing_model_can_be_resumed(folder: Path) -> None:
    path = folder / "fleet.turnout"
    interrupt_after(path, 2, open_to_all(Growing))
    result, _, _ = resume_run(path, open_to_all(Growing))
    assert len(weights(result.arrays)) == 2 + ROUNDS


class Accountant:
    """Has a state that it saves and restores itself."""

    def __init__(self) -> None:
        self.spent = 0

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent, "orders": [1.5, 2.0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spent = state["spent"]


class Accounted(FedAvg):
    """Spends one unit of privacy budget in each round."""

    def __init__(self, accountant: Accountant | None) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.accountant = accountant

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if self.accountant is not None:
            self.accountant.spent += 1
        return super().aggregate_train(server_round, replies)


def test_the_state_of_a_privacy_accountant_is_restored(folder: Path) -> None:
    path, accountant = folder / "fleet.turnout", Accountant()
    interrupt_after(path, 3, Accounted(Accountant()))
    with pytest.raises(StateError, match=r"had a Accountant with state_dict\(\), which this NoneType does not match"):
        resume_run(path, Accounted(None))
    resume_run(path, Accounted(accountant))
    assert accountant.spent == ROUNDS
