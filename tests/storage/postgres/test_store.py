"""A store in PostgreSQL: its lease, its commits, and what it does when connections or commits are lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("psycopg")

from postgres import CRASHING, Cluster, Proxy, running_cluster, running_replica
from turnout.errors import InterruptedCallError, OtherWriterError, StoreError
from turnout.storage.address import DatabaseAddress
from turnout.storage.opening import create_store, open_store, store_exists
from turnout.storage.postgres import lease
from turnout.storage.postgres.connection import LEASE_SECONDS
from turnout.storage.postgres.store import PostgresStore
from turnout.storage.store import Access, Connection, StoreKind, single_value
from waiting import wait_until

KIND = StoreKind(
    "notebook", 1, 1, "CREATE TABLE facts (number INTEGER PRIMARY KEY, text TEXT NOT NULL, data BLOB, value REAL)"
)
Open = Callable[..., PostgresStore]


@pytest.fixture
def address(cluster: Cluster, request: pytest.FixtureRequest) -> DatabaseAddress:
    """Returns the address of a new store."""
    address = cluster.address(f"t{abs(hash(request.node.nodeid))}")
    create_store(address, KIND, lambda _: None)
    return address


@pytest.fixture
def open_(address: DatabaseAddress) -> Iterator[Open]:
    """Opens stores, by default the new one, and closes them after the test."""
    with ExitStack() as opened:

        def open_(access: Access = "write", at: DatabaseAddress = address, **options: Any) -> PostgresStore:
            opened_store = open_store(at, KIND, access, **options)
            assert isinstance(opened_store, PostgresStore)
            return opened.enter_context(closing(opened_store))

        yield open_


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with TemporaryDirectory() as folder, closing(Proxy(cluster.folder, Path(folder))) as proxy:
        yield proxy


def note(opened: PostgresStore, text: str = "a") -> None:
    with opened.writing() as db:
        db.execute("INSERT INTO facts SELECT COALESCE(MAX(number), 0) + 1, ? FROM facts", (text,))


def note_twice(opened: PostgresStore) -> None:
    """Fails after a change."""
    with opened.writing() as db:
        for text in ("undone", "refused"):
            db.execute("INSERT INTO facts VALUES (99, ?)", (text,))


def notes(opened: PostgresStore) -> list[str]:
    with opened.reading() as db:
        return [text for (text,) in db.execute("SELECT text FROM facts ORDER BY number")]


def stop_renewing(opened: PostgresStore) -> None:
    """Makes a writer look like one that was stopped or cut off: it renews its lease no more."""
    assert opened._keeper is not None
    opened._keeper.stop()


def let_expire(cluster: Cluster, address: DatabaseAddress) -> None:
    cluster.execute(f"UPDATE \"{address.schema}\".control SET expires = clock_timestamp() - interval '1 hour'")


# The lease


def test_a_second_writer_is_refused_while_the_first_renews_its_lease(open_: Open) -> None:
    first = open_()
    note(first)
    with pytest.raises(StoreError, match=f"is being written by process {os.getpid()} on host .* open it as a standby"):
        open_()
    note(first)
    assert notes(first) == ["a", "a"]


def test_the_lease_of_a_writer_that_was_killed_expires_and_the_next_one_opens(open_: Open) -> None:
    first = open_()
    note(first)
    stop_renewing(first)
    second = open_()
    note(second, "b")
    assert notes(second) == ["a", "b"]


def test_a_writer_that_was_replaced_is_refused_at_its_next_transaction_and_can_still_read(
    cluster: Cluster, address: DatabaseAddress, open_: Open
) -> None:
    first = open_()
    stop_renewing(first)
    let_expire(cluster, address)
    second = open_()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"was taken over by process \d+ on host .*: this scheduler can no longer"):
            note(first)
        with pytest.raises(OtherWriterError):
            first.check_writer()
    second.check_writer()
    note(second, "b")
    assert notes(first) == ["b"]


def test_a_writer_whose_lease_has_expired_goes_on_if_nobody_has_taken_it(
    cluster: Cluster, address: DatabaseAddress, open_: Open
) -> None:
    first = open_()
    stop_renewing(first)
    let_expire(cluster, address)
    note(first)
    with open_("read").reading() as db:
        assert single_value(db, "SELECT expires > clock_timestamp() FROM control")


def test_a_takeover_replaces_a_writer_that_renews_its_lease(open_: Open) -> None:
    first, second = open_(), open_(takeover=True)
    note(second, "b")
    with pytest.raises(StoreError, match="was taken over"):
        note(first)
    assert notes(second) == ["b"]


def test_a_closed_store_is_handed_over_at_once(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the second writer waits"))
    open_().close()
    assert open_("read").writer is None
    second = open_()
    assert second.writer == f"process {os.getpid()} on host {os.uname().nodename}"


def test_a_standby_waits_while_the_lease_is_renewed_and_takes_over_when_it_expires(open_: Open) -> None:
    first = open_()
    note(first)
    waiting: list[PostgresStore] = []
    thread = threading.Thread(target=lambda: waiting.append(open_(standby=True)))
    thread.start()
    renewed = [first._read_lease().expires]
    wait_until(lambda: first._read_lease().expires > renewed[0])
    assert not waiting
    stop_renewing(first)
    thread.join(timeout=60)
    note(waiting[0], "b")
    with pytest.raises(StoreError, match="was taken over"):
        note(first)


def test_the_clock_of_the_client_decides_nothing(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_()
    now = time.time
    for hours in (-1, 1):
        monkeypatch.setattr(time, "time", lambda hours=hours: now() + 3600 * hours)
        with pytest.raises(StoreError, match="is being written by"):
            open_()
        note(first)
    assert notes(first) == ["a", "a"]


def test_of_many_processes_that_open_a_store_at_once_one_becomes_the_writer(open_: Open) -> None:
    def attempt(_: int) -> PostgresStore | str:
        try:
            return open_()
        except StoreError as error:
            return str(error)

    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(attempt, range(6)))
    (writer,) = [result for result in results if isinstance(result, PostgresStore)]
    assert len([result for result in results if isinstance(result, str) and "is being written by" in result]) == 5
    note(writer)


@pytest.mark.thorough
def test_a_long_transaction_keeps_the_lease_and_is_not_ended_while_its_process_computes(
    cluster: Cluster, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "IDLE_SECONDS", 2.0)
    first = open_()
    with first.writing() as db:
        db.execute("INSERT INTO facts VALUES (1, 'a')")
        cluster.execute("SELECT pg_sleep(5)")  # longer than the lease, and than a transaction may be idle
    assert notes(first) == ["a"]
    with pytest.raises(StoreError, match="is being written by"):
        open_()


@pytest.mark.parametrize("in_pipeline", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_writer_that_is_stopped_inside_a_transaction_is_replaced_and_stores_nothing(
    address: DatabaseAddress, open_: Open, in_pipeline: bool
) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            with open_store(address, KIND, "write").writing() as db, ExitStack() as stack:
                if in_pipeline:
                    stack.enter_context(db.raw.pipeline())
                db.raw.execute("INSERT INTO facts VALUES (1, 'of the stopped process')")
                os.write(writer, b"!")
                os.kill(os.getpid(), signal.SIGSTOP)
            code = 0
        except StoreError:
            code = 1
        finally:
            os._exit(code)
    assert os.read(reader, 1) == b"!"
    try:
        second = open_(standby=True)
        note(second, "b")
    finally:
        os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert notes(second) == ["b"]


def test_a_forked_child_must_open_the_store_itself_and_does_not_end_the_lease_of_its_parent(open_: Open) -> None:
    first = open_()
    note(first)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            note(first, "of the child")
        except StoreError as error:
            code = 0 if "open it again in this process" in str(error) else 1
            first.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    note(first, "b")
    assert notes(first) == ["a", "b"]


# Processes beside the writer


def test_processes_beside_the_writer_report_without_a_lease_and_readers_cannot_write(open_: Open) -> None:
    writer, reporter, reader = open_(), open_("report"), open_("read")
    note(reporter, "r")
    note(writer, "w")
    note(reporter, "r")
    assert notes(reader) == ["r", "w", "r"]
    assert reader.commits == reporter.commits == writer.commits == 4  # one was that which took the lease
    with pytest.raises(StoreError, match="was opened read-only"):
        note(reader)


def test_a_reader_sees_one_state_for_the_whole_transaction(open_: Open) -> None:
    writer, reader = open_(), open_("read")
    note(writer)
    with reader.reading():
        assert notes(reader) == ["a"]
        before = reader.changes
        note(writer, "b")
        assert notes(reader) == ["a"]
        assert reader.changes == before
    assert notes(reader) == ["a", "b"]
    assert reader.changes > before


def test_a_group_is_committed_once_and_its_failed_parts_alone_are_undone(open_: Open) -> None:
    writer = open_()
    before = writer.commits
    with writer.grouping():
        note(writer, "a")
        with pytest.raises(StoreError):
            note_twice(writer)
        note(writer, "c")
    assert notes(writer) == ["a", "c"]
    assert writer.commits == before + 1
    with writer.grouping():
        pass
    assert writer.commits == before + 1


# Connections that are lost


@pytest.mark.parametrize("text", [b"BEGIN", b"INSERT INTO facts", b"COMMIT"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_transaction_whose_connection_is_cut_is_stored_exactly_if_that_is_said(
    address: DatabaseAddress, open_: Open, proxy: Proxy, text: bytes, when: str
) -> None:
    writer = open_(at=proxy.address(address.name))
    note(writer)
    proxy.cut_at(text, when)
    try:
        note(writer, "b")
        stored = ["a", "b"]
    except InterruptedCallError:
        stored = ["a"]
    assert stored == (["a"] if text == b"INSERT INTO facts" or (text, when) == (b"COMMIT", "before") else ["a", "b"])
    note(writer, "c")
    assert notes(writer) == [*stored, "c"]
    assert notes(open_("read")) == [*stored, "c"]


def test_the_fate_of_a_commit_is_found_although_further_connections_are_cut(
    address: DatabaseAddress, open_: Open, proxy: Proxy
) -> None:
    writer = open_(at=proxy.address(address.name))
    cuts = [(b"COMMIT", "after"), (b"FOR UPDATE", "before"), (b"FOR UPDATE", "after"), (b"search_path", "before")]
    proxy.rule = lambda message: cuts.pop(0)[1] if cuts and cuts[0][0] in message else None
    note(writer)
    assert not cuts
    assert notes(writer) == ["a"]


def test_a_commit_whose_fate_cannot_be_found_is_reported_as_unknown_and_not_as_undone(
    address: DatabaseAddress, open_: Open, proxy: Proxy
) -> None:
    writer = open_(at=proxy.address(address.name))
    writer.wait_at_most(0.2)
    is_cut = [False]

    def cut_from_commit_on(message: bytes) -> str | None:
        is_cut[0] |= b"COMMIT" in message
        return "after" if is_cut[0] else None

    proxy.rule = cut_from_commit_on
    with pytest.raises(StoreError, match="it is unknown whether this call was stored") as caught:
        note(writer)
    assert not isinstance(caught.value, InterruptedCallError)
    proxy.rule = lambda _: None
    note(writer, "b")
    assert notes(writer) == ["a", "b"]


@pytest.mark.thorough
def test_a_commit_whose_connection_is_lost_is_acknowledged_only_when_the_synchronous_replica_has_it() -> None:
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with running_replica(synchronous=True) as (primary, replica):
        address = primary.address("phones")
        create_store(address, KIND, lambda _: None)
        with closing(PostgresStore(address, KIND, "write")) as writer:
            replica.stop()
            thread = threading.Thread(target=note, args=(writer,))
            thread.start()
            (first,) = wait_until(lambda: primary.execute(waiting))
            primary.execute("SELECT pg_terminate_backend(%s)", first)
            wait_until(lambda: not thread.is_alive() or primary.execute(waiting) not in ([], [first]))
            is_acknowledged = not thread.is_alive()
            replica.start()
            thread.join()
            assert not is_acknowledged
            assert notes(writer) == ["a"]


def test_an_earlier_transaction_is_not_taken_for_one_whose_fate_is_searched(
    address: DatabaseAddress, open_: Open, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_(at=proxy.address(address.name))
    with monkeypatch.context() as patch:  # an interruption after the commit, before the process has noted it
        commit = PostgresStore._commit

        def interrupted(self: PostgresStore, db: Any) -> None:
            own, seen = self._own, self._seen
            commit(self, db)
            self._own, self._seen = own, seen
            raise KeyboardInterrupt

        patch.setattr(PostgresStore, "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            note(writer)
    proxy.cut_at(b"COMMIT", "before")
    with pytest.raises(InterruptedCallError):
        note(writer, "b")
    assert notes(writer) == ["a"]


def test_a_connection_that_the_server_ends_between_two_transactions_is_made_again(
    cluster: Cluster, open_: Open
) -> None:
    writer = open_()
    note(writer)
    cluster.execute("SELECT pg_terminate_backend(?)".replace("?", "%s"), (writer.connection.raw.info.backend_pid,))
    note(writer, "b")
    assert notes(writer) == ["a", "b"]


def test_calls_wait_while_the_database_restarts_and_an_end_of_the_wait_says_what_to_check() -> None:
    with running_cluster(CRASHING) as own:
        address = own.address("phones")
        create_store(address, KIND, lambda _: None)
        with closing(PostgresStore(address, KIND, "write")) as writer:
            note(writer)
            for how in (signal.SIGINT, signal.SIGQUIT):  # an orderly end, and a crash
                own.stop(how)
                waiting = threading.Thread(target=note, args=(writer, "b"))
                waiting.start()
                wait_until(lambda: not writer.connection.is_usable)
                own.start()
                waiting.join()
            assert notes(writer) == ["a", "b", "b"]
            own.stop()
            writer._wait = 0.3
            with pytest.raises(InterruptedCallError, match=r"cannot be reached .* Check that the database runs"):
                note(writer, "c")
            own.start()
            note(writer, "d")
            assert notes(writer) == ["a", "b", "b", "d"]


# Commits that are lost


@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("access", ["write", "report"])
def test_a_database_that_has_lost_commits_is_noticed_and_refused(
    cluster: Cluster, address: DatabaseAddress, open_: Open, access: Access, is_connected: bool
) -> None:
    opened = open_(access)
    note(opened)
    note(opened)
    schema = address.schema
    cluster.execute(f'UPDATE "{schema}".control SET commits = commits - 1')
    cluster.execute(f'UPDATE "{schema}".sessions SET number = number - 1')
    cluster.execute(f'DELETE FROM "{schema}".facts WHERE number = 2')
    if not is_connected:
        opened.connection.close()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"has lost 1 of \d commits that were acknowledged: perhaps a replica"):
            note(opened)
    opened.close()
    again = open_()
    note(again, "b")
    assert notes(again) == ["a", "b"]


def test_lost_commits_are_noticed_although_others_have_committed_more_since(
    cluster: Cluster, address: DatabaseAddress, open_: Open
) -> None:
    opened = open_("report")
    note(opened)
    cluster.execute(f'UPDATE "{address.schema}".control SET commits = commits + 10')
    cluster.execute(f'DELETE FROM "{address.schema}".sessions')
    opened.connection.close()
    with pytest.raises(StoreError, match="has lost 1 of 1 commits"):
        note(opened)


def test_a_process_that_accepts_an_older_state_goes_on_with_it(
    cluster: Cluster, address: DatabaseAddress, open_: Open, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_("write", accept_older=True)
    note(opened)
    cluster.execute(f'UPDATE "{address.schema}".control SET commits = commits - 1')
    note(opened, "b")
    assert "The older state was accepted" in caplog.text
    assert notes(opened) == ["a", "b"]


def test_a_replica_that_has_taken_the_place_of_the_database_is_mentioned(
    cluster: Cluster, address: DatabaseAddress, open_: Open, caplog: pytest.LogCaptureFixture
) -> None:
    open_().close()
    open_().close()
    assert "a replica has taken the place" not in caplog.text
    cluster.execute(f"UPDATE \"{address.schema}\".control SET timeline = '00000099'")
    open_().close()
    assert "a replica has taken the place of the database" in caplog.text
    caplog.clear()
    open_().close()
    assert "a replica has taken the place" not in caplog.text


# Formats


def test_a_store_of_a_newer_format_or_another_kind_is_refused(address: DatabaseAddress, open_: Open) -> None:
    create = replace(KIND, format=2)
    newer = replace(address, name="newer")
    newer = DatabaseAddress.parse(f"{address.conninfo}&fleet={address.name}-newer")
    create_store(newer, create, lambda _: None)
    accesses: tuple[Access, ...] = ("read", "report", "write")
    for access in accesses:
        with pytest.raises(StoreError, match=r"has notebook format 2, .* reads format 1: install a newer version"):
            open_(access, at=newer)
    with closing(PostgresStore(newer, create, "write")) as again:  # the refused writer has left no lease
        note(again)
    with pytest.raises(StoreError, match="is a notebook, not a fleet: choose another name"):
        PostgresStore(address, replace(KIND, name="fleet"), "write")


# What a store contains


def test_several_stores_of_one_database_are_independent(address: DatabaseAddress) -> None:
    others = [DatabaseAddress.parse(f"{address.conninfo}&fleet={address.name}{suffix}") for suffix in (".", "-B", "_b")]
    for other in others:
        create_store(other, KIND, lambda _: None)
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(PostgresStore(other, KIND, "write"))) for other in others]
        for number, each in enumerate(opened):
            note(each, str(number))
        assert [notes(each) for each in opened] == [["0"], ["1"], ["2"]]


def test_processes_that_create_a_store_at_once_fill_it_once(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    address = cluster.address(f"new{abs(hash(request.node.nodeid))}")
    assert not store_exists(address)
    fills: list[int] = []

    def create(number: int) -> None:
        def fill(db: Connection) -> None:
            fills.append(number)
            db.execute("INSERT INTO facts VALUES (1, 'filled')")

        create_store(address, KIND, fill)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(create, range(6)))
    assert len(fills) == 1
    with closing(PostgresStore(address, KIND, "read")) as reader:
        assert notes(reader) == ["filled"]


def test_a_creation_that_fails_leaves_nothing(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    address = cluster.address(f"failed{abs(hash(request.node.nodeid))}")

    def fail(db: Connection) -> None:
        db.execute("INSERT INTO facts VALUES (1, 'filled')")
        raise RuntimeError("no settings")

    with pytest.raises(RuntimeError, match="no settings"):
        create_store(address, KIND, fail)
    assert not store_exists(address)


def test_a_database_or_a_server_that_does_not_exist_is_named(cluster: Cluster, tmp_path: Path) -> None:
    missing = DatabaseAddress.parse(cluster.conninfo.replace("/postgres?", "/nothing?") + "&fleet=phones")
    with pytest.raises(StoreError, match='database "nothing" does not exist'):
        store_exists(missing)
    nowhere = DatabaseAddress.parse(f"postgresql:///postgres?host={tmp_path}&fleet=phones")
    with pytest.raises(InterruptedCallError, match="cannot be reached"):
        store_exists(nowhere)


def test_a_text_with_a_null_character_is_refused_and_nothing_of_its_transaction_is_stored(open_: Open) -> None:
    writer = open_()
    with pytest.raises(StoreError, match="cannot contain NUL"):
        note(writer, "a\0b")
    note(writer, "b")
    assert notes(writer) == ["b"]


def test_large_and_unusual_values_are_returned_as_they_were_written(open_: Open) -> None:
    writer = open_()
    data = os.urandom(40 * 2**20)
    rows = [
        (1, "ä\x1f%s?'\"\\\n\U0001f600", data, 0.1 + 0.2),
        (2, "", b"", 5e-324),
        (3, "?", b"\0", 1.7976931348623157e308),
        (2**63 - 1, "-", None, None),
    ]
    with writer.writing() as db:
        db.executemany("INSERT INTO facts VALUES (?, ?, ?, ?)", rows)
    with open_("read").reading() as db:
        assert db.execute("SELECT * FROM facts ORDER BY number").fetchall() == rows


def test_deleted_data_is_gone_from_the_files_of_the_database_after_a_vacuum(cluster: Cluster, open_: Open) -> None:
    marks = [f"mark-{number}-{os.getpid()}" for number in range(2)]
    writer = open_()
    for mark in marks:
        note(writer, mark)
    with writer.writing() as db:
        db.execute("DELETE FROM facts WHERE text = ?", (marks[0],))
    writer.vacuum()
    cluster.execute("CHECKPOINT")
    content = b"".join(path.read_bytes() for path in (cluster.data / "base").rglob("*") if path.is_file())
    assert marks[0].encode() not in content
    assert marks[1].encode() in content
    assert notes(writer) == [marks[1]]


def test_the_names_of_the_constants_agree_with_what_is_promised() -> None:
    assert LEASE_SECONDS < lease.IDLE_SECONDS <= LEASE_SECONDS + 5
