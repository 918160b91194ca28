"""Many calls in one transaction, and answers that are stored with what they changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from live import fleets
from live.forging import alter
from narrowing import known
from turnout.errors import InterruptedGroupError, OfferError, ReportError, SettingError, StoreError
from turnout.live import Reporter, Scheduler, Wait
from turnout.live._internals import StoredAnswer, examine, session_of
from turnout.live.journal import answers as answers_module
from turnout.live.journal.changes import Changes

SLOTS: dict[str, Any] = {"concurrency": 2, "settings": {"guaranteed_rate": "1/20", "tolerance": 1.0}, "deadline": None}


@pytest.fixture
def scheduler(open_fleet: fleets.OpenFleet) -> Scheduler:
    return open_fleet()


def commits(scheduler: Scheduler) -> int:
    return scheduler.metrics().commits


@contextmanager
def failing_commit(scheduler: Scheduler) -> Iterator[None]:
    """Fails the commit of the group inside."""
    with (
        patch.object(session_of(scheduler).journal.file, "_commit", side_effect=StoreError("disk I/O error")),
        pytest.raises(StoreError, match="disk I/O error"),
    ):
        yield


@contextmanager
def left_group(scheduler: Scheduler, error: type[BaseException], message: str | None = None) -> Iterator[None]:
    """Opens a group that is left by this exception."""
    with pytest.raises(error, match=message), scheduler.group():
        yield


def store(scheduler: Scheduler, key: str, text: str = "{}", at: float = 1000.0) -> None:
    """Stores an answer, as the service does."""
    session_of(scheduler).store_answer(StoredAnswer(key.encode(), b"request", text, at))


def stored_in(scheduler: Scheduler, key: bytes) -> StoredAnswer | None:
    return session_of(scheduler).stored_answer(key)


def test_all_calls_of_a_group_share_one_commit(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 8})
    chosen = scheduler.choose(fleets.offered(*fleets.named(10)))
    before = commits(scheduler)
    with scheduler.group():
        for client in chosen:
            assert scheduler.report(client, 1.5)
        assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM turns WHERE kind IS NOT NULL") == [(0,)]
    assert commits(scheduler) == before + 1
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM turns WHERE kind IS NOT NULL") == [(8,)]


def test_a_call_that_is_refused_changes_nothing_and_the_others_go_on(
    open_fleet: fleets.OpenFleet, folder: Path
) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with scheduler.group():
        chosen = scheduler.choose(fleets.offered("a", "b", "c"))
        scheduler.report(chosen[0], 1.0)
        with pytest.raises(ReportError, match="was reported before"):
            scheduler.report(chosen[0], 2.0)
        with pytest.raises(ReportError, match="was not selected"):
            scheduler.report("nobody", 2.0)
        scheduler.report(chosen[1], 3.0)
        scheduler.close_round()
        with pytest.raises(ReportError, match="no round is open"):
            scheduler.close_round()
        with pytest.raises(OfferError):
            scheduler.choose({"a": {"free_cpu": -1.0, "bandwidth": 1.0}})
    assert scheduler.round == 1
    assert fleets.packed(scheduler) == fleets.packed_from_disk(path)
    assert fleets.problems(path) == []


def test_a_call_that_fails_inside_its_change_is_undone_alone(scheduler: Scheduler) -> None:
    with scheduler.group():
        fleets.play_round(scheduler, fleets.offered("a", "b"))
        with patch.object(Changes, "put_offer", side_effect=MemoryError), pytest.raises(MemoryError):
            scheduler.choose(fleets.offered("a", "b", "new"))
        assert scheduler.clients == ["a", "b"]  # loaded from the file again, inside the transaction
        assert scheduler.round == 1
        fleets.play_round(scheduler, fleets.offered("a", "b"))
    assert scheduler.round == 2
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, None])
def test_a_group_that_is_left_by_an_exception_or_whose_commit_fails_stores_nothing(
    scheduler: Scheduler, error: type[BaseException] | None
) -> None:
    fleets.play_round(scheduler, fleets.offered("a", "b"))
    before = fleets.packed(scheduler)
    if error is None:
        with failing_commit(scheduler), scheduler.group():
            scheduler.choose(fleets.offered("a", "b", "c"))
    else:
        with left_group(scheduler, error):
            fleets.play_round(scheduler, fleets.offered("a", "b", "c"))
            raise error
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path) == before
    assert scheduler.clients == ["a", "b"]
    fleets.play_round(scheduler, fleets.offered("a", "b", "c"))
    assert scheduler.round == 2


def test_a_group_that_sqlite_has_undone_is_not_taken_for_stored(scheduler: Scheduler) -> None:
    fleets.play_round(scheduler, fleets.offered("a", "b"))
    before = fleets.packed(scheduler)

    def full(changes: Changes, *_: object) -> None:
        changes.db.execute("ROLLBACK")  # as SQLite does if the disk is full
        raise StoreError("database or disk is full")

    with left_group(scheduler, StoreError, "nothing of it was stored"):
        chosen = scheduler.choose(fleets.offered("a", "b", "c"))
        with patch.object(Changes, "put_turns", full), pytest.raises(StoreError, match="is full"):
            scheduler.report(chosen[0], 1.0)
        with pytest.raises(StoreError, match="nothing of it was stored"):
            scheduler.report(chosen[1], 1.0)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path) == before


def test_an_interrupted_part_is_never_committed_with_its_group(scheduler: Scheduler) -> None:
    before = fleets.packed(scheduler)
    unfinished = session_of(scheduler).journal.writing()  # a block that is entered and not left
    with left_group(scheduler, StoreError, "nothing of it was stored"):
        unfinished.__enter__().add_clients(0, ["ghost"])
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path) == before
    with pytest.raises(StoreError):
        unfinished.__exit__(None, None, None)


def test_groups_are_not_nested_and_refuse_what_needs_transactions_of_its_own(scheduler: Scheduler) -> None:
    fleets.play_round(scheduler, fleets.offered("a", "b", "c"))
    with scheduler.group():
        with pytest.raises(SettingError, match="forget writes more than one transaction"):
            scheduler.forget("a")
        with pytest.raises(SettingError, match="compact writes more than one transaction"):
            scheduler.compact()
    with pytest.raises(StoreError, match="open already"), scheduler.group(), scheduler.group():
        pass
    scheduler.forget("a")
    scheduler.compact()


def test_abandoning_amending_retiring_and_snapshots_work_in_a_group(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with scheduler.group():
        scheduler.register(["a", "b", "c"])
        scheduler.choose(fleets.offered("a", "b", "new"))
        scheduler.abandon_round()
        assert scheduler.clients == ["a", "b", "c"]
        scheduler.amend(deadline=20.0)
        scheduler.retire("c")
        for _ in range(60):  # more rounds than between two snapshots
            fleets.play_round(scheduler, fleets.offered("a", "b"))
        fleets.take_snapshot(scheduler)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(path)
    scheduler.close()
    reopened = open_fleet()
    assert (reopened.round, reopened.settings.deadline, reopened.clients) == (60, 20.0, ["a", "b", "c"])
    assert fleets.problems(path) == []


def test_a_fleet_without_rounds_serves_check_ins_in_a_group(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**SLOTS)
    before = commits(scheduler)
    with scheduler.group():
        for client in fleets.named(6):
            scheduler.check_in(client)
        first, second = scheduler.running()
        scheduler.report(first.id, 1.0)
        scheduler.fill([])
    assert commits(scheduler) == before + 1
    assert [turn.id for turn in scheduler.running()] == [second.id, 3]
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_check_ins_of_a_group_that_was_not_stored_are_not_kept(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**SLOTS)
    scheduler.fill(["a", "b"])  # all slots are in use
    with failing_commit(scheduler), scheduler.group():
        scheduler.check_in("new")  # it joins, but waits
    scheduler.report(1, 1.0)
    assert [turn.client for turn in scheduler.fill(["c"])] == ["c"]  # "new" is not in the fleet
    assert scheduler.clients == ["a", "b", "c"]
    scheduler.check_in("new")
    assert scheduler.clients == ["a", "b", "c", "new"]
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_an_amendment_of_a_group_that_was_not_stored_has_no_effect(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**SLOTS, status_ttl=40.0)
    scheduler.fill(["a", "b"])
    with failing_commit(scheduler), scheduler.group():
        scheduler.amend(status_ttl=4.0, deadline=7.0)
    assert (scheduler.settings.status_ttl, scheduler.settings.deadline) == (40.0, None)
    waited = scheduler.check_in("c")
    assert isinstance(waited, Wait)
    assert waited.seconds == pytest.approx(10.0)  # a quarter of status_ttl


def test_a_group_without_changes_is_not_a_commit(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**SLOTS)
    scheduler.fill(fleets.named(4))
    scheduler.check_in("c3")
    before = commits(scheduler)
    with scheduler.group():
        assert len(scheduler.running()) == 2
        scheduler.check_in("c3")
    assert commits(scheduler) == before


def test_other_threads_and_reporters_wait_until_the_group_ends(scheduler: Scheduler) -> None:
    chosen = scheduler.choose(fleets.offered("a", "b"))
    seen: list[int] = []
    started = threading.Event()

    def read() -> None:
        started.set()
        seen.append(sum(turn.kind is not None for turn in scheduler.history()))

    thread = threading.Thread(target=read)
    with scheduler.group():
        thread.start()
        started.wait()
        for client in chosen:
            scheduler.report(client, 1.0)
        assert seen == []
    thread.join()
    assert seen == [len(chosen)]
    with Reporter(scheduler.path) as reporter:
        assert not reporter.report(chosen[0], 1.0)


# Answers


def test_an_answer_is_stored_with_the_change_or_not_at_all(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    assert stored_in(scheduler, b"key") is None
    with left_group(scheduler, RuntimeError):
        scheduler.register(["a"])
        store(scheduler, "key", '{"new":1}')
        raise RuntimeError
    assert (scheduler.clients, stored_in(scheduler, b"key")) == ([], None)
    with scheduler.group():
        scheduler.register(["a"])
        store(scheduler, "key", '{"new":1}')
    scheduler.close()
    stored = known(stored_in(open_fleet(), b"key"))
    assert (stored.request, stored.answer) == (b"request", '{"new":1}')


def test_a_key_has_one_answer_and_old_ones_and_those_beyond_a_number_are_deleted(scheduler: Scheduler) -> None:
    for answer in ("1", "2"):
        store(scheduler, "key", answer)
        assert known(stored_in(scheduler, b"key")).answer == answer
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM answers") == [(1,)]
    for number in range(3):
        store(scheduler, f"new-{number}", at=1000.0 + answers_module.KEPT_SECONDS + 1)
    assert [stored_in(scheduler, key) is None for key in (b"key", b"new-0", b"new-1", b"new-2")] == [True] + [False] * 3
    with patch.object(answers_module, "MAX_ANSWERS", 5):
        for number in range(20):
            store(scheduler, f"key-{number}")
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM answers") == [(5,)]
    assert stored_in(scheduler, b"key-19") is not None


def test_answers_about_a_forgotten_client_are_deleted(scheduler: Scheduler, folder: Path) -> None:
    fleets.play_round(scheduler, fleets.offered("phone-1", "phone-10", 'é"x'))
    for key, client in (("1", "phone-1"), ("10", "phone-10"), ("quoted", 'é\\"x')):
        store(scheduler, key, f'{{"cohort":["{client}"]}}')
    scheduler.forget("phone-1")
    assert [stored_in(scheduler, key) is not None for key in (b"1", b"10", b"quoted")] == [False, True, True]
    scheduler.forget('é"x')
    assert stored_in(scheduler, b"quoted") is None
    scheduler.close()
    content = b"".join(path.read_bytes() for path in folder.glob("fleet.turnout*"))
    assert 'é\\"x'.encode() not in content


def test_a_damaged_answer_is_found(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    store(scheduler, "key", '{"new":1}')
    scheduler.close()
    intact = {finding.part: finding.ok for finding in examine(path)}
    assert intact["answers"] is True
    alter(path, "UPDATE answers SET answer = '{\"new\":2}'")
    with pytest.raises(StoreError, match="does not match its checksum"):
        stored_in(open_fleet(), b"key")
    assert {finding.part for finding in examine(path) if finding.ok is False} == {"answers"}


# Snapshots of fleets whose statuses are not persisted

UNPERSISTED: dict[str, Any] = {**SLOTS, "persist_statuses": False}


def test_the_calls_of_a_group_share_one_snapshot(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    scheduler, written = open_fleet(**UNPERSISTED), []
    put_snapshot = Changes.put_snapshot

    def count(changes: Changes, event: int, *arguments: Any) -> None:
        written.append(event)
        put_snapshot(changes, event, *arguments)

    with patch.object(Changes, "put_snapshot", count), scheduler.group():
        for client, other in (("a", "b"), ("c", "d"), ("e", "f")):
            for turn in scheduler.fill(fleets.offered(client, other)):
                scheduler.report(turn.id, 2.0)
        scheduler.retire("a")
    assert len(written) == 1
    assert fleets.packed_without_contexts(scheduler) == fleets.packed_from_disk(folder / "fleet.turnout")
    assert fleets.problems(folder / "fleet.turnout") == []


def test_a_group_that_needs_no_snapshot_writes_none(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**UNPERSISTED)
    turn = scheduler.fill(fleets.offered("a"))[0]
    with patch.object(Changes, "put_snapshot", side_effect=AssertionError), scheduler.group():
        scheduler.report(turn.id, 2.0)


def test_a_call_that_fails_after_a_postponed_snapshot_undoes_the_group(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**UNPERSISTED)
    scheduler.fill(fleets.offered("a"))
    before = fleets.packed_without_contexts(scheduler)
    with left_group(scheduler, InterruptedGroupError):
        scheduler.fill(fleets.offered("b"))
        scheduler.report("a", 2.0)
        with patch.object(Changes, "put_closed_round", side_effect=MemoryError), pytest.raises(MemoryError):
            scheduler.fill(fleets.offered("c"))
        with pytest.raises(InterruptedGroupError, match="retry"):
            scheduler.fill(fleets.offered("d"))
    assert fleets.packed(scheduler) == before == fleets.packed_from_disk(scheduler.path)
    with scheduler.group():
        assert [turn.client for turn in scheduler.fill(fleets.offered("b"))] == ["b"]
    assert fleets.packed_without_contexts(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_an_outcome_that_another_process_reports_in_between_is_noticed(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**{**UNPERSISTED, "concurrency": 1})
    first = scheduler.check_in("a")
    assert isinstance(scheduler.check_in("b"), Wait)
    assert isinstance(scheduler.check_in("b"), Wait)
    with Reporter(scheduler.path) as reporter:
        reporter.report("a", 2.0)
    second = scheduler.check_in("b")
    assert not isinstance(first, Wait)
    assert not isinstance(second, Wait)
    assert (second.id, second.client) == (first.id + 1, "b")


def test_a_report_of_a_group_that_was_undone_does_not_free_a_slot(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**{**UNPERSISTED, "concurrency": 1})
    scheduler.check_in("a")
    with left_group(scheduler, RuntimeError):
        scheduler.report("a", 2.0)
        assert not isinstance(scheduler.check_in("b"), Wait)
        raise RuntimeError
    assert isinstance(scheduler.check_in("b"), Wait)
    scheduler.report("a", 3.0)
    assert not isinstance(scheduler.check_in("b"), Wait)
