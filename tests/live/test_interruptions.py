"""An exception at any moment of a change leaves memory and file in agreement, and the change can be repeated."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from killing import TORTURE, environment
from live.fleets import OpenFleet, exported, offered, packed, packed_from_disk, take_snapshot, turns_in
from live.forging import alter
from measuring import unmeasured
from turnout.errors import ReportError, StoreError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import session_of
from turnout.live.journal import turns as stored_turns
from turnout.live.journal.journal import Journal

#: After the commit, every line of these packages is a step; of the others, and before the commit, every 25th.
CLOSE = ("turnout/live", "turnout/storage")
#: The number of rounds of two fleets: enough for a few of each kind of change.
LIFETIME = 36
SETTINGS: dict[str, Any] = {
    "settings": {"cohort_size": 2, "guaranteed_rate": "1/8"},
    "keep_rounds": 6,
    "keep_offers": 4,
}

pytestmark = pytest.mark.files


@pytest.fixture(autouse=True)
def _few_late_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 3)


class Interrupted(BaseException):
    """Stands for Ctrl-C, a signal or a lack of memory."""


class Interruption:
    """Raises an exception at the n-th step of a call; steps are lines of code of the package."""

    def __init__(self, scheduler: Scheduler, step: int) -> None:
        self._connection = session_of(scheduler).journal.file.connection
        self._left, self._lines, self._is_committed, self.fired = step, 0, False, False

    def __enter__(self) -> Interruption:
        self._connection.set_trace_callback(self._on_statement)
        self._before = sys.gettrace()  # `make coverage` traces too
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._connection.set_trace_callback(None)

    def _on_statement(self, statement: str) -> None:
        self._is_committed |= statement == "COMMIT"

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if "turnout/" not in name or self.fired:
            return None
        if event == "line" and self._is_step(name):
            self._left -= 1
            if self._left == 0:
                self.fired = True
                raise Interrupted
        return self._trace

    def _is_step(self, name: str) -> bool:
        self._lines += 1
        return self._lines % 25 == 0 or (self._is_committed and any(part in name for part in CLOSE))


def call(scheduler: Scheduler, name: str, *arguments: Any, **options: Any) -> Any:
    """Calls a method, or takes a snapshot."""
    return take_snapshot(scheduler) if name == "snapshot" else getattr(scheduler, name)(*arguments, **options)


class Twins:
    """Plays the same on two fleets; the calls on the first are interrupted and repeated until they succeed.

    After some rounds they are compared and replaced by new ones, because forgetting redacts the whole history.
    """

    def __init__(self, open_fleet: OpenFleet) -> None:
        self._open_fleet, self._pairs = open_fleet, 0
        self.step, self.target, self.fired = 0, "", False
        self.replace()

    def replace(self) -> None:
        """Continues with two new fleets."""
        self._pairs += 1
        self.disturbed, self.undisturbed = (
            self._open_fleet(f"{name}-{self._pairs}.turnout", **SETTINGS) for name in ("disturbed", "undisturbed")
        )

    def compare(self) -> None:
        """Compares what the files of both fleets contain, and closes them."""
        assert events_of(self.disturbed) == events_of(self.undisturbed)
        assert turns_in(self.disturbed.path) == turns_in(self.undisturbed.path)
        assert packed_from_disk(self.disturbed.path) == packed(self.disturbed)
        assert self.disturbed.certificate().books_balance
        for scheduler in (self.disturbed, self.undisturbed):
            scheduler.close()

    def call(self, name: str, *arguments: Any, is_done: Callable[[Scheduler], bool] = lambda _: False, **o: Any) -> Any:
        """Calls a method on both fleets; on the first until it is done, with one interruption if it is the target."""
        expected = call(self.undisturbed, name, *arguments, **o)
        if name == self.target and not self.fired:
            with Interruption(self.disturbed, self.step) as interruption:
                try:
                    call(self.disturbed, name, *arguments, **o)
                except Interrupted:
                    pass
                else:
                    assert not interruption.fired  # an interruption is never swallowed
                    return expected
            self.fired = interruption.fired
            if is_done(self.disturbed):
                return expected
        call(self.disturbed, name, *arguments, **o)
        return expected

    def play_round(self, number: int) -> None:
        """Plays a round with every kind of change."""
        clients = ["a", "b", "c", "d", f"guest-{number}"]
        if self.target == "register" or number % 3 == 0:
            self.call("register", [f"member-{number}"])
        cohort = self.call("choose", offered(*clients))
        self.call("report", cohort[0], 2.0 + number % 3, loss=0.5)
        if self.target == "report_failure" or number % 4 == 0:
            self.call("report_failure", cohort[1], "its battery died")
        self.call("close_round", 9.0, is_done=lambda scheduler: scheduler.open_round is None)
        if number % 4 == 1 and self.target != "report_failure":
            self.call("report", cohort[1], 12.0, round=self.undisturbed.round)  # late
        if self.target == "retire" or (number % 3 == 1 and self.target != "forget"):
            self.call("retire", f"guest-{number}")
        if self.target == "forget" or number % 18 == 2:
            name = f"guest-{number}"
            self.call("forget", name, is_done=lambda scheduler: name not in scheduler.clients)
        if self.target == "snapshot" or number % 3 == 0:
            self.call("snapshot")
        if self.target == "amend" or number % 6 == 2:
            self.call("amend", deadline=10.0 + number, guaranteed_rate=f"1/{8 + number % 3}")
        if self.target == "compact" or number % 36 == 7:
            self.call("compact")
        if self.target == "abandon_round" or number % 5 == 0:
            self.call("choose", offered("a", "stranger"))
            self.call("abandon_round", is_done=lambda scheduler: scheduler.open_round is None)


def events_of(scheduler: Scheduler) -> list[dict[str, Any]]:
    events = exported(scheduler)
    for event in events:
        event.pop("opened", None), event.pop("closed", None), event.pop("at", None)
    return events


CHANGES = (
    "choose",
    "report",
    "report_failure",
    "close_round",
    "register",
    "retire",
    "forget",
    "snapshot",
    "abandon_round",
    "amend",
    "compact",
)


def next_step(change: str, step: int, *, thorough: bool) -> int:
    """Returns the step that is interrupted after this one; `make torture` leaves out few steps.

    Otherwise the first steps are all interrupted, and later ones are sampled: fewer in the short version.
    """
    is_long = change in ("forget", "compact")  # these read the whole history
    if not thorough:
        return step + max(1, step if is_long else step // 2)
    if step < (45 if TORTURE > 1 else 15):
        return step + 1
    if step < 45:
        return step + 2
    if is_long:
        return step + step // 2
    return step + (8 if TORTURE == 1 else 1)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["short", "long"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_exception_at_any_step_of_a_change_leaves_the_state_of_an_undisturbed_twin(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, change: str, thorough: bool
) -> None:
    monkeypatch.setattr(stored_turns, "BATCH", 30)  # so that these short histories are redacted in several steps too
    number, twins = 0, Twins(open_fleet)
    twins.target = change
    while True:
        twins.step = next_step(change, twins.step, thorough=thorough)
        twins.fired, rounds = False, 0
        while not twins.fired and rounds < 5:  # some changes are not part of every round
            number, rounds = number + 1, rounds + 1
            twins.play_round(number)
            assert packed(twins.disturbed) == packed(twins.undisturbed), f"step {twins.step} of {change}"
        if not twins.fired:
            break
        if number >= LIFETIME:
            twins.compare()
            twins.replace()
            number = 0
    assert twins.step > 25
    twins.compare()


def test_memory_is_loaded_again_even_if_loading_was_interrupted(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = open_fleet(**SETTINGS)
    scheduler.choose(offered("a", "b", "c"))
    with monkeypatch.context() as patch:
        patch.setattr("turnout.live.turns.rounds.state.RoundFleet.close", interrupt)
        with pytest.raises(Interrupted):
            scheduler.close_round(9.0)
        patch.setattr("turnout.live.serving.session.load", interrupt)
        for _ in range(2):
            with pytest.raises(Interrupted):
                scheduler.round  # noqa: B018
    assert scheduler.open_round is None
    assert scheduler.round == 1
    with pytest.raises(ReportError, match="no round is open"):
        scheduler.close_round()
    assert packed(scheduler) == packed_from_disk(scheduler.path)


def interrupt(*_: object, **__: object) -> None:
    raise Interrupted


# Blocks that an interruption left behind


@pytest.mark.parametrize("kind", ["reading", "writing"])
def test_a_block_that_was_left_behind_does_not_end_a_later_transaction(open_fleet: OpenFleet, kind: str) -> None:
    """Python ends such a block when it collects garbage, which may be in the middle of any transaction."""
    scheduler = open_fleet(**SETTINGS)
    scheduler.choose(offered("a", "b", "c"))
    scheduler.close_round(9.0)
    scheduler.close()
    with closing(Journal(scheduler.path)) as journal:
        abandoned = getattr(journal.file, kind)()
        abandoned.__enter__()  # and an interruption before the first statement of the block
        with journal.writing() as changes:
            changes.put_closed_round(77)
            del abandoned
            gc.collect()
            assert journal.file.connection.in_transaction
            changes.put_closed_round(1)
        with pytest.raises(StoreError, match="round 1 is not open in the file"), journal.writing() as changes:
            changes.drop_open_round(1)  # a round cannot be closed twice
    reopened = open_fleet()
    assert reopened.round == 1
    take_snapshot(reopened)
    assert packed(reopened) == packed_from_disk(scheduler.path)


# Random signals

PROGRAM = """
import random, signal, sys, threading, time, os
from live.test_interruptions import SETTINGS, offered
from live.fleets import take_snapshot
from turnout.live import Scheduler

armed = False
interruptions, least = 0, int(sys.argv[2])

def on_signal(*_):
    global armed, interruptions
    if armed:
        armed = False
        interruptions += 1
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, on_signal)

def call(scheduler, name, *arguments, is_done=lambda: False, **options):
    global armed
    while True:
        try:
            armed = interruptions < least  # so that a call that always takes longer than the timer ends at last
            take_snapshot(scheduler) if name == "snapshot" else getattr(scheduler, name)(*arguments, **options)
            armed = False
            return
        except BaseException as error:
            # A library may raise another error while it handles the interruption.
            cause = error
            while cause is not None and not isinstance(cause, KeyboardInterrupt):
                cause = cause.__context__
            if cause is None:
                raise
            if is_done():
                return

def play(path):
    rng = random.Random(7)
    with Scheduler.open(path, **{**SETTINGS, "keep_rounds": 10}) as scheduler:
        number = 0
        while number < 40 or interruptions < least:
            number += 1
            if least:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.008), rng.uniform(0.006, 0.03))
            call(scheduler, "register", [f"member-{number % 20}"])
            call(scheduler, "choose", offered("a", "b", "c", "d"))
            cohort = [scheduler.clients[row] for row in scheduler.open_round.rows]
            for client in cohort:
                call(scheduler, "report", client, 2.0 + number % 3)
            call(scheduler, "close_round", 9.0, is_done=lambda: scheduler.open_round is None)
            if number % 10 == 0:
                call(scheduler, "snapshot")
        signal.setitimer(signal.ITIMER_REAL, 0)
    return number

signal.signal(signal.SIGALRM, on_signal)
print(play(sys.argv[1]), interruptions)
"""


@pytest.mark.parametrize("least", [50, pytest.param(200, marks=pytest.mark.thorough)])
def test_random_interruptions_change_nothing(folder: Path, least: int) -> None:
    path = folder / "fleet.turnout"
    command = [sys.executable, "-c", PROGRAM, str(path), str(least)]
    played = subprocess.run(command, env=unmeasured(environment()), capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stderr
    rounds, interruptions = map(int, played.stdout.split())
    assert interruptions >= least
    with FleetReader(path) as scheduler:
        assert scheduler.round == rounds
        assert scheduler.certificate().turns.sum() == 2 * rounds
        assert scheduler.certificate().books_balance
        assert [event["round"] for event in exported(scheduler) if event["kind"] == "round"] == [
            *range(scheduler.summary().round + 1, rounds + 1)
        ]
        recorded = packed(scheduler)
    alter(path, "DELETE FROM snapshot")
    assert packed_from_disk(path) == recorded  # as computed from the first event
