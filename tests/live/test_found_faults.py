"""Faults that an adversarial test of the scheduler found, and what must hold instead."""

from __future__ import annotations

import itertools
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from killing import TORTURE, environment
from live import fleets, restless_server
from live.journal.test_one_file import OPENINGS
from live.serving import AFTER, BEFORE, EACH_PART, PARTS, Server, read_everything, running_server
from postgres import copy_store, stored_bytes
from syncs import COMPILER, preloaded
from turnout.errors import OfferError, ReportError, StoreError
from turnout.lab.runs.store import RunStore
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.live.audit.doctor import examine
from turnout.live.journal import turns as stored_turns
from turnout.live.journal.journal import Journal
from turnout.storage.files import database
from turnout.storage.files.database import log_path
from turnout.storage.files.lock import lock_path
from waiting import wait_until

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed: apt install gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library that stops or kills a process inside a flush of its log."""
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def preloaded_server(library: Path) -> Iterator[Server]:
    """A restless server that can be killed inside a flush of its log."""
    with running_server(preloaded(library)) as started:
        yield started


# Killed inside the flush of a commit, while other processes have the file open

LAST = AFTER if TORTURE == 1 else 3 * AFTER


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, preloaded_server: Server) -> tuple[Path, int, Any]:
    """A fleet before its last rounds, the number of flushes in these rounds, and what it contains after them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    before, after = folder / "before.turnout", folder / "after.turnout"
    preloaded_server.play(before, BEFORE)
    shutil.copy(before, after)
    preloaded_server.play(after, LAST)
    return before, preloaded_server.syncs, read_everything(after)


@needs_compiler
@pytest.mark.parametrize("part", EACH_PART)
@pytest.mark.parametrize("reports", [False, True], ids=["silent reporters", "busy reporters"])
@pytest.mark.files
def test_a_writer_killed_inside_a_flush_beside_a_reader_and_reporters_loses_nothing(
    folder: Path, preloaded_server: Server, undisturbed: tuple[Path, int, Any], reports: bool, part: int
) -> None:
    before, syncs, expected = undisturbed
    assert syncs >= 40
    # Each flush once: the odd ones with silent reporters, the even ones with busy ones; `make torture` tests all.
    numbers = range(2 if reports else 1, syncs + 1, 2) if TORTURE == 1 else range(1, syncs + 1)
    for number in numbers[part::PARTS]:
        path = folder / f"{number}.turnout"
        shutil.copy(before, path)
        with FleetReader(path) as reader, ExitStack() as attached:
            reporters = [attached.enter_context(Reporter(path)) for _ in range(3)]
            preloaded_server.play(path, LAST, die_at_sync=number)
            assert preloaded_server.killed
            Scheduler.open(path).close()  # its short commits overwrite a part of the one that was killed
            if reports:
                report_the_open_round(reader, reporters)
            preloaded_server.play(path, LAST)
            assert reader.round == LAST
        assert read_everything(path) == expected, f"killed inside flush {number}"
        path.unlink()


def report_the_open_round(reader: FleetReader, reporters: list[Reporter]) -> None:
    """Reports, in turn by each reporter, what the clients of the open round would have reported to the server."""
    result = reader.open_round()
    if result is None:
        return
    opened, turns = result
    for index, turn in enumerate(turns):
        if turn.kind is None and turn.id != restless_server.ABANDONED_CLIENT:
            outcome, seconds, _ = restless_server.scripted_outcome(opened.round, turn.id)
            reporter = reporters[index % len(reporters)]
            if outcome == "arrived":
                reporter.report(turn.id, seconds, loss=restless_server.loss_of(opened.round, turn.id))
            elif outcome == "failed":
                reporter.report_failure(turn.id, "its battery died")


# Damage of the log, which any kind of access must notice


@pytest.fixture(scope="module")
def killed_fleet(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """A fleet whose writer was killed, so that its log has commits that the file itself does not have."""
    path = tmp_path_factory.mktemp("killed") / "fleet.turnout"
    server.play(path, BEFORE, die_at=250)
    assert server.killed
    assert log_path(path).stat().st_size > 10_000
    return path


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory, server: Server, killed_fleet: Path) -> tuple[Any, ...]:
    """What the same fleet contains after its last rounds: with its log, nothing is lost."""
    path = tmp_path_factory.mktemp("continued") / killed_fleet.name
    copy_fleet(killed_fleet, path)
    server.play(path, BEFORE)
    return read_everything(path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (lambda path: flip(log_path(path)), "its log fleet.turnout-wal was truncated or damaged"),
    "half a log": (
        lambda path: os.truncate(log_path(path), log_path(path).stat().st_size // 2),
        "its log fleet.turnout-wal was truncated or damaged",
    ),
    "an empty log": (lambda path: os.truncate(log_path(path), 0), "its log fleet.turnout-wal is missing or empty"),
    "no log": (lambda path: log_path(path).unlink(), "its log fleet.turnout-wal is missing or empty"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.files
def test_every_kind_of_access_refuses_a_damaged_log_and_changes_nothing(
    folder: Path, server: Server, killed_fleet: Path, continued: tuple[Any, ...], damage: str
) -> None:
    path = folder / killed_fleet.name
    copy_fleet(killed_fleet, path)
    damage_it, message = DAMAGES[damage]
    damage_it(path)
    damaged = {file: file.read_bytes() for file in (path, log_path(path)) if file.exists() and file.stat().st_size}
    for name in ("scheduler", "reporter", "reader", "certify"):
        with pytest.raises(StoreError, match=r"has lost [\d,]+ of [\d,]+ commits that were acknowledged: ") as refusal:
            OPENINGS[name](path)
        assert message in str(refusal.value), name
        assert {file: file.read_bytes() for file in damaged} == damaged, name
    assert next(finding.part for finding in examine(path) if finding.ok is False) == "log"
    with Scheduler.open(path, accept_older=True) as scheduler:  # the older state can be accepted
        older = scheduler.round
    server.play(path, BEFORE)
    assert older <= BEFORE
    assert read_everything(path) == continued


def copy_fleet(path: Path, copy: Path) -> None:
    """Copies a fleet with its log and its lock file."""
    for source, target in ((path, copy), (log_path(path), log_path(copy)), (lock_path(path), lock_path(copy))):
        shutil.copy(source, target)


@pytest.mark.files
def test_reports_after_the_scheduler_ended_are_not_lost_in_a_copy_without_its_log(
    open_fleet: fleets.OpenFleet, folder: Path
) -> None:
    scheduler, copy = open_fleet(), folder / "copy.turnout"
    cohort = scheduler.choose(fleets.offered("a", "b", "c"))
    scheduler.close()
    with FleetReader(scheduler.path), Reporter(scheduler.path) as reporter:
        reporter.report(cohort[0], 2.0)
        shutil.copy(scheduler.path, copy)
        with pytest.raises(StoreError, match="is a copy of a file in use"):
            FleetReader(copy)
    shutil.copy(scheduler.path, copy)  # the reporter has moved the log into the file: a copy of it is complete
    assert fleets.packed_from_disk(copy) == fleets.packed_from_disk(scheduler.path)
    assert [turn[3] for turn in fleets.turns_in(copy)] == [turn[3] for turn in fleets.turns_in(scheduler.path)]


@pytest.mark.files
def test_an_older_backup_in_place_of_the_fleet_is_refused_unless_accepted_and_a_new_fleet_is_not(
    open_fleet: fleets.OpenFleet, folder: Path
) -> None:
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered("a", "b", "c"))
    scheduler.close()
    shutil.copy(scheduler.path, folder / "backup")
    newer = open_fleet()
    fleets.play_round(newer, fleets.offered("a", "b", "c"))
    newer.close()
    shutil.copy(folder / "backup", scheduler.path)
    with pytest.raises(StoreError, match=r"has lost \d+ of \d+ commits that were acknowledged"):
        Scheduler.open(scheduler.path)
    with Scheduler.open(scheduler.path, accept_older=True) as older:
        assert older.round == 1
    scheduler.path.unlink()
    assert open_fleet().round == 0


def test_a_store_of_runs_whose_log_is_missing_is_refused(folder: Path) -> None:
    path = folder / "runs.turnout"
    program = (
        "import os, sys; from turnout.lab.runs.store import RunStore; store = RunStore(sys.argv[1]); "
        "[store.begin(str(key), {}, clients=3, code_version='1') for key in range(3)]; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, env=environment())
    with RunStore(path, read_only=True) as store:
        assert len(store.runs()) == 3
    log_path(path).unlink()
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"has lost 3 of 4 commits .*: its log runs\.turnout-wal is missing"):
            RunStore(path, read_only=read_only)
    with RunStore(path, accept_older=True) as store:
        assert store.runs() == []


# Takeover while the writer is stopped inside a commit

STOPPED_PROGRAM = """
import signal, sys
from syncs import arm_sync
from turnout.live import Scheduler
scheduler = Scheduler.open(sys.argv[1])
cohort = scheduler.choose(["a", "b", "c"])
print(*cohort, flush=True)
sys.stdin.readline()
arm_sync(1, signal.SIGSTOP)
scheduler.report(cohort[0], 1.0)
"""


@contextmanager
def stopped_writer(path: Path, library: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Starts a scheduler that is stopped inside the commit of its first report."""
    command = [sys.executable, "-c", STOPPED_PROGRAM, str(path)]
    with subprocess.Popen(
        command,
        env=preloaded(library),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        cohort = process.stdout.readline().split()
        process.stdin.write("\n")
        process.stdin.flush()
        state = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        yield process, cohort
        if process.poll() is None:
            process.kill()


@needs_compiler
@pytest.mark.files
def test_a_takeover_of_a_writer_stopped_inside_a_commit_names_the_process_to_end(
    folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TAKEOVER_WAIT_SECONDS", 0.01)
    path = folder / "fleet.turnout"
    Scheduler.open(path, **fleets.LIVE).close()
    with stopped_writer(path, library) as (process, cohort):
        with pytest.raises(StoreError, match=f"process {process.pid} is inside a transaction") as refusal:
            Scheduler.open(path, takeover=True)
        assert "end that process and retry" in str(refusal.value)
        process.kill()
        process.wait()
        with Scheduler.open(path, takeover=True) as scheduler:
            assert scheduler.choose(["a", "b", "c"]) == cohort


# Odd values


def test_numbers_of_rounds_may_be_numpy_integers(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    a, b, c = scheduler.choose(["a", "b", "c"])
    assert scheduler.report(a, np.float32(1.5), round=np.int64(1))  # type: ignore[arg-type]
    assert not scheduler.report(a, 1.5, round=1)
    with Reporter(scheduler.path) as reporter:
        assert reporter.report_failure(b, "lost", round=np.uint8(1))  # type: ignore[arg-type]
    assert scheduler.report(np.str_(c), 1.0)
    assert scheduler.history(round=np.int32(1)) == scheduler.history(round=1)  # type: ignore[arg-type]


@pytest.fixture
def slots(folder: Path) -> Iterator[Scheduler]:
    """A fleet with two running turns."""
    options: dict[str, Any] = {"settings": {"guaranteed_rate": 0.1}, "concurrency": 2, "deadline": 10.0}
    with Scheduler.open(folder / "slots.turnout", allow_infeasible=True, **options) as scheduler:
        assert [turn.id for turn in scheduler.fill(["a", "b", "c"])] == [1, 2]
        yield scheduler


@pytest.mark.parametrize(
    "turn", [2**70, 10**400, -1, 0, 99, True, np.True_, 1.0, None, [1]], ids=lambda turn: repr(turn)[:9]
)
def test_odd_ids_of_turns_are_refused_clearly_and_numpy_integers_are_accepted(slots: Scheduler, turn: Any) -> None:
    complaint = r"^(there is no turn|the id of a turn must be) "
    with pytest.raises(ReportError, match=complaint):
        slots.report(turn, 5.0)
    with pytest.raises(ReportError, match=complaint):
        slots.report_failure(turn, "lost")
    assert len(slots.running()) == 2
    assert slots.report(np.int64(1), 5.0)  # type: ignore[arg-type]
    assert slots.report_failure(np.uint8(2), "lost")  # type: ignore[arg-type]
    assert slots.running() == []


LONG = "x" * 10_000_000
REFUSED: dict[str, Callable[[Scheduler], object]] = {
    "a huge round": lambda scheduler: scheduler.report("a", 1.0, round=2**70),
    "an absurd round": lambda scheduler: scheduler.report("a", 1.0, round=10**400),
    "half a round": lambda scheduler: scheduler.report("a", 1.0, round=1.5),  # type: ignore[arg-type]
    "absurd seconds": lambda scheduler: scheduler.report("a", 10**400),
    "an absurd loss": lambda scheduler: scheduler.report("a", 1.0, loss=10**400),
    "seconds as text": lambda scheduler: scheduler.report("a", "1.0"),  # type: ignore[arg-type]
    "a list as id": lambda scheduler: scheduler.report(["a"], 1.0),  # type: ignore[arg-type]
    "bytes as id": lambda scheduler: scheduler.report_failure(b"a", "lost"),  # type: ignore[arg-type]
    "a long id": lambda scheduler: scheduler.report(LONG, 1.0),
    "a lone surrogate": lambda scheduler: scheduler.report("\udc80", 1.0),
    "an explanation of a huge round": lambda scheduler: scheduler.explain("a", 2**70),
    "the turns of a huge round": lambda scheduler: scheduler.history(round=2**70),
    "the history of a list": lambda scheduler: scheduler.history(["a"]),  # type: ignore[arg-type]
    "an absurd time of closing": lambda scheduler: scheduler.close_round(after=10**400),
}
REFUSED_WHEN_CLOSED: dict[str, Callable[[Scheduler], object]] = {
    "a list among ids": lambda scheduler: scheduler.choose(["a", ["b"]]),  # type: ignore[list-item]
    "a long id among ids": lambda scheduler: scheduler.choose(["a", LONG]),
    "a long new id": lambda scheduler: scheduler.register([LONG]),
    "a list as a new id": lambda scheduler: scheduler.register([["b"]]),  # type: ignore[list-item]
    "an absurd status": lambda scheduler: scheduler.choose({"a": {"free_cpu": 10**400, "bandwidth": 1.0}}),
    "the retirement of a list": lambda scheduler: scheduler.retire(["a"]),  # type: ignore[arg-type]
    "forgetting a list": lambda scheduler: scheduler.forget(["a"]),  # type: ignore[arg-type]
}


def test_odd_values_are_refused_clearly_and_change_nothing(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 1})
    scheduler.choose(["a"])
    for attempts in (REFUSED, REFUSED_WHEN_CLOSED):
        before, turns = fleets.packed(scheduler), fleets.turns_in(scheduler.path)
        for name, attempt in attempts.items():
            with pytest.raises((ReportError, OfferError)) as refusal:
                attempt(scheduler)
            assert len(str(refusal.value)) < 500, name
        assert (fleets.packed(scheduler), fleets.turns_in(scheduler.path)) == (before, turns)
        if scheduler.open_round is not None:
            assert scheduler.report_failure("a", "y" * 50_000_000)  # a very long reason is cut off
            assert not scheduler.report_failure("a", "y" * 50_000_000)
            scheduler.close_round()
    (turn,) = scheduler.history(round=1)
    assert turn.why == "y" * 2000 + "… (50,000,000 characters)"


# The file is deleted or replaced while it is in use


@pytest.mark.parametrize("victim", ["file", "log"])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.files
def test_nothing_is_acknowledged_into_a_deleted_or_replaced_file(
    open_fleet: fleets.OpenFleet, folder: Path, victim: str, replaced: bool
) -> None:
    scheduler = open_fleet()
    a, b = scheduler.choose(["a", "b"])
    with Reporter(scheduler.path) as reporter:
        reporter.report(a, 1.0)
        path = scheduler.path if victim == "file" else log_path(scheduler.path)
        path.rename(folder / "moved")
        if replaced:
            shutil.copy(folder / "moved", path)
        for report in (scheduler.report, reporter.report):
            with pytest.raises(StoreError, match="was deleted or replaced while it was in use"):
                report(b, 1.0)
        path.unlink(missing_ok=True)
        (folder / "moved").rename(path)
        assert reporter.report(b, 1.0)
    assert [turn.kind for turn in scheduler.history()] == ["arrived", "arrived"]


# A clock that was changed while the machine restarted


@pytest.mark.parametrize("offset", [-3600.0, 100 * 365 * 86400.0], ids=["set back", "a century ahead"])
@pytest.mark.parametrize("deadline", [None, 30.0])
def test_an_unknown_time_is_said_and_the_round_can_be_closed(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, offset: float, deadline: float | None
) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3}, deadline=deadline)
    cohort = scheduler.choose(["a", "b", "c"])
    scheduler.report(cohort[0], 2.0)
    path = scheduler.path
    scheduler.close()
    monkeypatch.setattr("turnout.live.clock.datetime", fleets.changed_clock(offset))
    monkeypatch.setattr("turnout.live.clock.boot_id", lambda: "another boot")
    scheduler = Scheduler.open(path)
    assert math.isnan(scheduler.status().elapsed)
    assert any("time since the selection is unknown" in notice for notice in scheduler.status().notices)
    assert "open for an unknown time" in str(scheduler.status())
    assert scheduler.ready == (deadline is not None)
    with pytest.raises(ReportError, match=f"time since the selection is unknown.*pass the seconds that '{cohort[1]}'"):
        scheduler.report(cohort[1])
    scheduler.report(cohort[1], 3.0)
    scheduler.close_round()
    kinds = [turn.kind for turn in scheduler.history(round=1)]
    learned = fleets.state_of(scheduler).fleet.counters.learned.tolist()
    if deadline is None:
        assert kinds == ["arrived", "arrived", "failed"]  # and nothing was learned of the time of the third
        assert learned == [1, 1, 0]
    else:
        assert kinds == ["arrived", "arrived", "late"]
        assert scheduler.history(round=1)[2].seconds == deadline
    fleets.play_round(scheduler, ["a", "b", "c"])
    scheduler.close()


# Forgetting a client in a long history


def long_history(open_fleet: fleets.OpenFleet, played: Path, folder: Path) -> Scheduler:
    copy_store(played, folder / "fleet.turnout")
    return open_fleet()


#: The number of rows that a step redacts in these tests, so that a short history needs several.
BATCH = 18


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of a closed fleet with a long history."""
    path = tmp_path_factory.mktemp("played") / "fleet.turnout"
    with Scheduler.open(path, **{**fleets.LIVE, "settings": {"cohort_size": 3}}) as scheduler:
        for _ in range(36):
            fleets.play_round(scheduler, ["secret-phone", "b", "c"])
    return path


def traces(scheduler: Scheduler) -> int:
    """Returns how often the forgotten id is in the store."""
    return stored_bytes(scheduler.path).count(b"secret-phone")


@pytest.mark.files
def test_others_can_report_while_a_client_is_forgotten(
    open_fleet: fleets.OpenFleet, played: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is a short transaction, and after each of them the file is valid."""
    monkeypatch.setattr(stored_turns, "BATCH", BATCH)
    scheduler = long_history(open_fleet, played, folder)
    twin = fleets.packed(scheduler)
    steps: list[list[str]] = []
    redact = Journal.redact
    with Reporter(scheduler.path) as reporter, FleetReader(scheduler.path) as reader:

        def observed(journal: Journal) -> bool:
            changed: list[str] = []
            journal.file.connection.set_trace_callback(
                lambda statement: changed.append(statement) if statement.startswith(("UPDATE", "DELETE")) else None
            )
            is_left = redact(journal)
            steps.append(changed)
            with pytest.raises(ReportError, match=r"was reported before|was closed \d+ rounds ago"):
                reporter.report("b", 77.0)  # refused by its content, not by a lock
            assert len(list(reader.events())) == reader.last_event
            shown = [
                *map(str, reader.events()),
                *(str(reader.history(round=round_)) for round_ in range(1, reader.round + 1)),
            ]
            assert not any("secret-phone" in text for text in shown)  # readers never see what is not redacted yet
            assert fleets.problems(scheduler.path) == []
            return is_left

        monkeypatch.setattr(Journal, "redact", observed)
        scheduler.forget("secret-phone")
    assert len(steps) > 5
    assert max(map(len, steps)) <= BATCH + 10
    assert traces(scheduler) == 0
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path) != twin


def test_forgetting_that_was_interrupted_is_completed_later(
    open_fleet: fleets.OpenFleet, played: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_turns, "BATCH", BATCH)
    scheduler = long_history(open_fleet, played, folder)
    whole, redact, count = folder / "whole.turnout", Journal.redact, itertools.count()
    scheduler.close()
    copy_store(scheduler.path, whole)
    with Scheduler.open(whole) as undisturbed:
        undisturbed.forget("secret-phone")
    for interrupted_after in (0, 1, 2, 5):
        path = copy_store(scheduler.path, folder / f"{interrupted_after}.turnout")
        count = itertools.count()

        def interrupt(journal: Journal) -> bool:
            if next(count) >= interrupted_after:  # noqa: B023
                raise KeyboardInterrupt
            return redact(journal)

        with Scheduler.open(path) as disturbed, monkeypatch.context() as patch:
            patch.setattr(Journal, "redact", interrupt)
            with pytest.raises(KeyboardInterrupt):
                disturbed.forget("secret-phone")
            assert disturbed.clients[0] == "forgotten-0"
            fleets.play_round(disturbed, ["b", "c"])  # new events follow from digests that will be computed again
        with Scheduler.open(path) as reopened:
            assert traces(reopened) == 0
            assert fleets.problems(path) == []
    with Scheduler.open(whole) as undisturbed:
        fleets.play_round(undisturbed, ["b", "c"])
    assert read_everything(path) == read_everything(whole)


# Ids in logs


def test_ids_and_reasons_are_escaped_in_logs_and_in_the_status(
    open_fleet: fleets.OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "turnout")
    hostile = "phone\nWARNING round 9 closed\x1b[2J\u202e"
    scheduler = open_fleet(settings={"cohort_size": 1, "guaranteed_rate": 1, "tolerance": 1.5}, allow_infeasible=True)
    for _ in range(4):
        scheduler.choose([hostile, "b"])
        scheduler.report_failure(scheduler.status().out[0], "no\nreason\x07")
        text = str(scheduler.status())
        scheduler.close_round()
        assert "\x1b" not in text
        assert all(line.startswith(KEYS) for line in text.splitlines()), text
    assert any(r"phone\nWARNING round 9 closed\x1b[2J\u202e" in record.getMessage() for record in caplog.records)
    for record in caplog.records:
        assert record.getMessage().isprintable(), record


KEYS = ("clients ", "round ", "reported ", "pending ", "failed ", "behind ", "back-off ", "promise ", "note ")
