"""The table of faults in docs/scheduling.md, row by row: real faults, and what must hold after each."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from killing import TORTURE, environment
from live import fleets, restless_server
from live.forging import alter
from live.serving import AFTER, BEFORE, EACH_PART, Server, read_everything
from narrowing import known
from postgres import copy_store, tables
from turnout.errors import InfeasiblePromise, OfferError, ReportError, StoreError
from turnout.live import ClientStatus, FleetReader, Reporter, Scheduler
from turnout.live._internals import session_of
from turnout.storage.files.lock import lock_path
from waiting import wait_until

HERE = Path(__file__).parent
#: The default policy, and rbcsf with a weight that suits the times of these tests.
BOTH = [pytest.param("fair-pace", {}, id="fair-pace"), pytest.param("rbcsf", {"speed_weight": 1.0}, id="rbcsf")]


# kill -9 anywhere, also between selection and report


@pytest.mark.parametrize(
    ("seed", "last", "target_size"),
    [(0, 12, 8), *(pytest.param(seed, 30, 40 * TORTURE, marks=pytest.mark.thorough) for seed in range(2))],
)
@pytest.mark.files
def test_a_scheduler_killed_at_random_moments_loses_nothing(
    folder: Path, server: Server, seed: int, last: int, target_size: int
) -> None:
    """It is mostly killed at work, sometimes while it opens the file."""
    uninterrupted, path, kills = folder / "uninterrupted.turnout", folder / "fleet.turnout", 0
    server.play(uninterrupted, last)
    rng = random.Random(seed)
    while kills < target_size:
        once_open = rng.random() < 0.8
        server.play(path, last, die_after=rng.expovariate(1 / 0.02), once_open=once_open)
        kills += server.killed
        if not server.killed:
            assert read_everything(path) == read_everything(uninterrupted)
            path.unlink()
    server.play(path, last)
    assert read_everything(path) == read_everything(uninterrupted)


@pytest.mark.parametrize("part", EACH_PART)
@pytest.mark.files
def test_a_scheduler_killed_at_any_write_of_three_rounds_loses_nothing(folder: Path, server: Server, part: int) -> None:
    """In these rounds clients join, leave, are forgotten and report late, and a round is abandoned."""
    before, after = folder / "before.turnout", folder / "after.turnout"
    server.play(before, BEFORE)
    shutil.copy(before, after)
    writes = server.play(after, AFTER)
    moments, expected = server.moments(writes, part), read_everything(after)
    assert writes > 150
    assert len(moments) > 10
    for write in moments:
        path = folder / f"{write}.turnout"
        shutil.copy(before, path)
        server.play(path, AFTER, die_at=write)
        assert server.killed
        server.play(path, AFTER)
        assert read_everything(path) == expected, f"killed before write {write}"


@pytest.mark.parametrize("part", EACH_PART)
@pytest.mark.files
def test_a_scheduler_killed_while_it_creates_the_file_loses_nothing(folder: Path, server: Server, part: int) -> None:
    uninterrupted = folder / "uninterrupted.turnout"
    writes = server.play(uninterrupted, 1)
    moments, expected = server.moments(writes, part), read_everything(uninterrupted)
    assert len(moments) > 6
    for write in moments:
        path = folder / f"{write}.turnout"
        server.play(path, 1, die_at=write)
        assert server.killed
        server.play(path, 1)
        assert read_everything(path) == expected, f"killed before write {write}"


# the same report twice / twice with different content


def test_the_same_report_has_no_effect_the_second_time(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    scheduler.choose(fleets.offered("a", "b", "c"))
    assert scheduler.report("a", 2.0)
    assert scheduler.report_failure("b", "its battery died")
    turns = fleets.turns_in(scheduler.path)
    assert not scheduler.report("a", 2.0)
    assert not scheduler.report_failure("b", "its battery died")
    assert scheduler.report_many({"a": 2.0}) == 0
    with Reporter(scheduler.path) as reporter:
        assert not reporter.report("a", 2, round=1)
        assert not reporter.report_failure("b", "its battery died")
    assert fleets.turns_in(scheduler.path) == turns
    scheduler.close_round()
    closed = fleets.packed(scheduler)
    assert not scheduler.report("a", 2.0)
    assert not scheduler.report_failure("b", "its battery died", round=1)
    assert not scheduler.report_failure("c", "lost")  # it is already known to be missing
    assert scheduler.report("c", 12.0)
    assert not scheduler.report("c", 12.0)
    assert fleets.packed(scheduler) == closed


def test_a_second_report_with_different_content_is_refused(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4})
    scheduler.choose(fleets.offered("a", "b", "c", "d"))
    scheduler.report("a", 2.0)
    scheduler.report_failure("b", "its battery died")
    turns = fleets.turns_in(scheduler.path)
    attempts: list[Callable[[], object]] = [
        lambda: scheduler.report("a", 3.0),
        lambda: scheduler.report_failure("a", "lost"),
        lambda: scheduler.report("b", 3.0),
        lambda: scheduler.report_failure("b", "out of memory"),
        lambda: scheduler.report_many({"c": 4.0, "a": 3.0}),  # all or none
    ]
    for attempt in attempts:
        with pytest.raises(ReportError, match=r"'[ab]' was reported before in round 1 .*: the first report is kept"):
            attempt()
    assert fleets.turns_in(scheduler.path) == turns
    scheduler.report("c", 4.0)
    scheduler.close_round()
    scheduler.report("d", 12.0)
    closed, turns = fleets.packed(scheduler), fleets.turns_in(scheduler.path)
    late: list[Callable[[], object]] = [
        lambda: scheduler.report("d", 13.0),
        lambda: scheduler.report("c", 5.0, round=1),
    ]
    for attempt in [*attempts[:4], *late]:
        with pytest.raises(ReportError, match="the first report is kept"):
            attempt()
    assert fleets.turns_in(scheduler.path) == turns
    assert fleets.packed(scheduler) == closed


def test_a_report_without_seconds_and_without_a_reason_is_refused(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2})
    scheduler.choose(fleets.offered("a", "b"))
    nothing: Any = None
    with Reporter(scheduler.path) as reporter:
        for attempt in (reporter.report, reporter.report_failure, scheduler.report_failure):
            with pytest.raises(ReportError, match="pass the seconds that 'a' took, or the reason why it failed"):
                attempt("a", nothing)
    with pytest.raises(ReportError, match="pass the seconds that 'b' took, or the reason why it failed"):
        scheduler.report_many({"a": 2.0, "b": nothing})
    assert [turn.kind for turn in scheduler.history()] == [None, None]


# report for an unknown round or client, or one not selected


def test_a_report_for_an_unknown_round_or_client_or_one_not_selected_is_refused(
    open_fleet: fleets.OpenFleet, folder: Path
) -> None:
    scheduler = open_fleet()
    path = folder / "fleet.turnout"
    with pytest.raises(ReportError, match="'a' was not selected in any round: check the id; nothing was recorded"):
        scheduler.report("a", 1.0)
    cohort = scheduler.choose(fleets.offered(*fleets.named(5)))
    (left_out, *_) = set(fleets.named(5)) - set(cohort)
    before, turns = fleets.packed(scheduler), fleets.turns_in(path)
    with Reporter(path) as reporter:
        for reporting in (scheduler, reporter):
            with pytest.raises(ReportError, match="'unknown' was not selected in any round"):
                reporting.report("unknown", 1.0)
            with pytest.raises(ReportError, match=f"'{left_out}' was not selected"):
                reporting.report_failure(left_out, "lost")
            with pytest.raises(ReportError, match=f"'{cohort[0]}' was not selected in round 7"):
                reporting.report(cohort[0], 1.0, round=7)
            with pytest.raises(ReportError, match="'unknown' was not selected"):
                reporting.report_many({cohort[0]: 1.0, "unknown": 1.0})
    with pytest.raises(ReportError, match=r"there is no client 'unknown' in .*: check the id"):
        scheduler.history("unknown")
    assert (fleets.packed(scheduler), fleets.packed_from_disk(path), fleets.turns_in(path)) == (before, before, turns)
    for open_missing in (lambda: Reporter(folder / "no"), lambda: FleetReader(folder / "no")):
        with pytest.raises(StoreError, match=r"there is no fleet at .*no"):
            open_missing()
    assert not (folder / "no").exists()


# late report, reports out of order


def test_the_order_of_reports_does_not_change_the_state(open_fleet: fleets.OpenFleet) -> None:
    """Late times within the window are learned, in whatever order they arrive."""
    in_order = open_fleet("in order", settings={"cohort_size": 6})
    for seed in range(6):
        shuffled = open_fleet(f"{seed}", settings={"cohort_size": 6})
        for scheduler in (in_order, shuffled)[seed > 0 :]:
            _play_three_rounds_with_late_clients(scheduler, random.Random(seed) if scheduler is shuffled else None)
        assert fleets.packed(shuffled) == fleets.packed(in_order)
        assert fleets.state_of(shuffled).state()["awaited.rows"].tolist() == []


def _play_three_rounds_with_late_clients(scheduler: Scheduler, rng: random.Random | None) -> None:
    world, late = fleets.World(6), dict.fromkeys(("c1", "c4"), 15.0)
    for round_ in (1, 2, 3):
        scheduler.choose(world.statuses(round_))
        reports = [(client, 2.0 + row, round_) for row, client in enumerate(world.clients) if client not in late]
        if round_ > 1:
            reports += [(client, seconds + round_, round_ - 1) for client, seconds in late.items()]
        if rng is not None:
            rng.shuffle(reports)
        for client, seconds, reported_round in reports:
            assert scheduler.report(client, seconds, round=reported_round)
        scheduler.close_round()
    for client, seconds in reversed(late.items()) if rng else late.items():
        scheduler.report(client, seconds + 4, round=3)
    fleets.play_round(scheduler, world.statuses(4), 5.0)


def test_a_late_report_after_its_window_is_refused(open_fleet: fleets.OpenFleet) -> None:
    """Rounds without any clients count as well."""
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered("a", "b"), {"a": 1.0})
    for _ in range(9):
        fleets.play_round(scheduler, {})
    assert scheduler.report("b", 20.0, round=1)
    fleets.play_round(scheduler, {})
    assert fleets.state_of(scheduler).state()["awaited.rows"].tolist() == []
    fleets.play_round(scheduler, fleets.offered("a"), {})
    for _ in range(10):
        fleets.play_round(scheduler, {})
    refusal = r"round 12 of 'a' was closed 10 rounds ago: its time can be learned within 10 only"
    with pytest.raises(ReportError, match=refusal):
        scheduler.report("a", 20.0, round=12)
    with Reporter(scheduler.path) as reporter, pytest.raises(ReportError, match=refusal):
        reporter.report("a", 20.0, round=12)
    fleets.play_round(scheduler, fleets.offered("a", "b"))


# client never returns; all of the cohort lost


@pytest.mark.parametrize(("policy", "weight"), BOTH)
def test_a_client_that_never_returns_gets_at_most_its_guaranteed_share(
    open_fleet: fleets.OpenFleet, policy: str, weight: dict[str, float]
) -> None:
    """Its debt grows in every round, but back-off limits its selections."""
    rounds, world = 100, fleets.World(10)
    settings = {"cohort_size": 3, "guaranteed_rate": 0.2, **weight}
    scheduler = open_fleet(policy=policy, settings=settings, deadline=30.0, backoff_after=3)
    for round_ in range(1, rounds + 1):
        statuses = world.statuses(round_)
        cohort = scheduler.choose(statuses)
        times = {client: world.seconds(round_, client, statuses[client]) for client in cohort if client != "c0"}
        scheduler.report_many(times)
        scheduler.close_round()
    history = scheduler.history("c0")
    assert 0 < len(history) <= 0.2 * rounds
    assert {(turn.kind, turn.seconds) for turn in history} == {("late", 30.0)}
    certificate, (row,) = scheduler.certificate(), fleets.client_rows(scheduler, ["c0"])
    assert certificate.books_balance
    assert (certificate.turns[row], certificate.statuses[row]) == (0, "broken")
    if policy == "fair-pace":  # the others do not pay for it
        assert set(np.delete(certificate.statuses, row).tolist()) <= {"kept", "behind"}
        assert certificate.worst == row


def test_a_round_with_a_missing_client_is_ready_after_its_deadline(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(deadline=0.05)
    scheduler.choose(fleets.offered("a", "b"))
    scheduler.report("a", 0.01)
    wait_until(lambda: scheduler.ready, "the deadline has passed")
    assert scheduler.status().out == ["b"]
    report = scheduler.close_round().report
    assert report.exchange_times.tolist() == [0.01, 0.05]
    assert list(known(report.outcomes)) == ["arrived", "late"]


# NaN, infinity, negative, zero, absurd context or time


@pytest.mark.parametrize(
    ("seconds", "requirement"),
    [
        (float("nan"), "must be finite, not nan"),
        (float("inf"), "must be finite, not inf"),
        (-1.0, "must be above 0, not -1"),
        (0.0, "must be above 0, not 0"),
        (1e12, r"must be at most 1e\+09, not 1e\+12"),
        ("3", "must be a number, not '3'"),
        (True, "must be a number, not True"),
    ],
)
def test_invalid_and_absurd_contexts_and_times_are_refused(
    open_fleet: fleets.OpenFleet, folder: Path, seconds: Any, requirement: str
) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    statuses = fleets.offered("a", "b")
    scheduler.choose(statuses)
    before, turns = fleets.packed(scheduler), fleets.turns_in(path)
    with Reporter(path) as reporter:
        for reporting in (scheduler, reporter):
            with pytest.raises(ReportError, match=f"seconds of 'b' {requirement}"):
                reporting.report("b", seconds)
            with pytest.raises(ReportError, match=f"seconds of 'b' {requirement}"):
                reporting.report_many({"a": 1.0, "b": seconds})
    assert (fleets.packed(scheduler), fleets.turns_in(path)) == (before, turns)
    scheduler.close_round()
    before = fleets.packed(scheduler)
    for name, unit in (
        ("free_cpu", "0.001 to 1000 cores"),
        ("bandwidth", "1e-06 to 1e\\+09 units of model_size per second"),
    ):
        absurd = {"free_cpu": 1.0, "bandwidth": 1.0, name: seconds}
        complaint = f"{name} of 'new' must be from {unit}, got .*: correct it, or leave the client out"
        if not isinstance(seconds, float):
            complaint = f"{name} of 'new' must be a number, got {seconds!r}"
        with pytest.raises(OfferError, match=complaint):
            scheduler.choose({**statuses, "new": absurd if name == "bandwidth" else ClientStatus(**absurd)})
    assert (fleets.packed(scheduler), fleets.packed_from_disk(path), scheduler.clients) == (before, before, ["a", "b"])
    assert scheduler.status().is_open is False


def test_contexts_computed_from_valid_statuses_must_be_in_range_too(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    with pytest.raises(OfferError, match=r"contexts\[0, 2\] = 20000000.0 must lie within ±1e\+06"):
        scheduler.choose(fleets.offered("a", bandwidth=1e-6))
    assert scheduler.clients == []


# fewer available clients than requested; no available clients


def test_rounds_with_too_few_or_no_available_clients_work(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 8})
    with pytest.raises(OfferError, match="the fleet has no clients: choose with the status of at least one, or regi"):
        scheduler.choose({})
    assert (scheduler.round, scheduler.status().clients) == (0, 0)
    assert fleets.play_round(scheduler, fleets.offered("a", "b", "c")) == ["a", "b", "c"]
    assert scheduler.choose({}) == []
    assert scheduler.choose(fleets.offered("a")) == []  # the open round is empty
    status = scheduler.status()
    assert (status.is_open, status.round, status.target_size, status.out) == (True, 2, 0, [])
    assert scheduler.ready
    record = scheduler.close_round()
    assert record.selection.clients.tolist() == record.report.clients.tolist() == []
    assert scheduler.certificate().promised_units.tolist() == [3] * 3  # nobody was available, so nobody accrued turns
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
    assert fleets.play_round(scheduler, fleets.offered("b")) == ["b"]


# clients join and leave; a client returns after many rounds

#: The rounds without them: 2,000 in `make torture`.
AWAY = 60 if TORTURE == 1 else 2000


@pytest.mark.parametrize(("policy", "weight"), BOTH)
def test_clients_that_return_after_many_rounds_get_their_share_but_not_all_turns(
    open_fleet: fleets.OpenFleet, policy: str, weight: dict[str, float]
) -> None:
    """Clients accrue nothing while they are unavailable, and new clients start without debt."""
    scheduler = open_fleet(policy=policy, settings={"cohort_size": 2, "guaranteed_rate": 0.15, **weight})
    everyone = fleets.named(10)
    absent, present = everyone[:5], everyone[5:]
    seconds = {client: 1.0 + row % 4 for row, client in enumerate(everyone)}
    for _ in range(30):
        fleets.play_round(scheduler, fleets.offered(*everyone), seconds)
    rows = fleets.client_rows(scheduler, absent)
    history, owed = scheduler.history("c0"), scheduler.certificate().owed[rows]
    for _ in range(AWAY):
        fleets.play_round(scheduler, fleets.offered(*present), seconds)
    assert scheduler.history("c0") == history
    np.testing.assert_array_equal(scheduler.certificate().owed[rows], owed)
    scheduler.register(["new"])
    assert scheduler.certificate().owed[-1] == 0
    selected = [
        client for _ in range(50) for client in fleets.play_round(scheduler, fleets.offered(*everyone), seconds)
    ]
    if policy == "rbcsf":
        assert min(selected.count(client) for client in everyone) >= 0.15 * 50 - 2
    else:  # what they had beyond their share before they left counts
        assert set(absent) <= set(selected)
    assert scheduler.certificate().books_balance
    if policy == "rbcsf":
        assert sum(client in absent for client in selected) / len(selected) < 0.6
        assert scheduler.certificate().owed.max() <= 10
    else:  # a fast client that stayed has a large surplus of turns, and may wait
        assert scheduler.certificate().behind.min() < -AWAY / 3
        assert scheduler.certificate().status == "kept"


# guarantee not feasible


def test_an_infeasible_guarantee_is_refused_before_the_first_round(open_fleet: fleets.OpenFleet) -> None:
    settings = {"cohort_size": 2, "guaranteed_rate": 0.5, "tolerance": 3}
    scheduler = open_fleet(settings=settings, allow_infeasible=False)
    with pytest.raises(
        InfeasiblePromise,
        match=r"the largest feasible rate is 0\.25 .*Use a guaranteed_rate of at most 0\.25.* less than 3\.625 turns",
    ) as refused:
        scheduler.choose(fleets.offered(*fleets.named(8)))
    assert (refused.value.largest_rate, refused.value.cohort_size) == (Fraction(1, 4), 4)
    assert (scheduler.clients, scheduler.round, scheduler.status().is_open) == ([], 0, False)
    assert fleets.turns_in(scheduler.path) == []
    assert scheduler.choose(fleets.offered(*fleets.named(4))) == ["c0", "c1"]
    assert len(open_fleet("other", settings=settings).choose(fleets.offered(*fleets.named(8)))) == 2


# clock steps


def test_steps_of_the_wall_clock_do_not_change_measured_times(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock of the process jumps by a day, forwards and backwards."""
    scheduler = open_fleet(settings={"cohort_size": 3}, deadline=43200.0)
    for days, client in zip((0, 1, -1), scheduler.choose(fleets.offered("a", "b", "c")), strict=True):
        monkeypatch.setattr("turnout.live.clock.datetime", fleets.changed_clock(days * 86400.0))
        assert scheduler.status().elapsed < 43200
        assert not scheduler.ready
        scheduler.report(client)
    assert all(0 < seconds < 43200 for seconds in scheduler.close_round().report.exchange_times)


def test_steps_of_the_wall_clock_between_two_processes_do_not_matter(open_fleet: fleets.OpenFleet) -> None:
    """The monotonic clock is the same for all processes until the machine is restarted."""
    scheduler = open_fleet(deadline=3600.0)
    scheduler.choose(fleets.offered("a", "b"))
    scheduler.close()
    for wall in ("2020-01-01T00:00:00.000+00:00", "2999-01-01T00:00:00.000+00:00"):
        _rewrite_open_round(scheduler.path, opened=wall)
        with FleetReader(scheduler.path) as reader:
            assert 0 < reader.status().elapsed < 3600
        with Scheduler.open(scheduler.path) as scheduler:
            assert not scheduler.ready
    earlier = (datetime.now(UTC) - timedelta(days=200)).isoformat(timespec="milliseconds")
    _rewrite_open_round(scheduler.path, opened=earlier, boot="another boot")
    with FleetReader(scheduler.path) as reader:
        assert reader.status().elapsed > 1e7
    with Scheduler.open(scheduler.path) as scheduler:
        assert scheduler.ready


def _rewrite_open_round(path: Path, **changes: str) -> None:
    from dataclasses import replace

    from turnout.live.turns.records import digest_of
    from turnout.live.turns.rounds.records import pack_open, unpack_open

    with tables(path) as db:
        (data,) = db.execute("SELECT data FROM open_round").fetchone()
        data = pack_open(replace(unpack_open(data), **changes))  # type: ignore[arg-type]
        db.execute("UPDATE open_round SET data = ?, digest = ?", (data, digest_of(b"", "1", data)))


# disk full


@contextmanager
def full_disk(scheduler: Scheduler, *, spare: int = 0) -> Iterator[None]:
    """Limits the file to its current size plus `spare` pages."""
    db = session_of(scheduler).journal.file.connection
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + spare}")
    try:
        yield
    finally:
        db.execute("PRAGMA max_page_count = 1000000")


def store_error(action: Callable[[], object]) -> str:
    """Returns the message of the StoreError that an action raises, or an empty string."""
    try:
        action()
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.files
def test_changes_on_a_full_disk_are_refused_as_a_whole_and_can_be_repeated(
    open_fleet: fleets.OpenFleet, folder: Path
) -> None:
    """After a refusal the state is that of the last commit; with free space the change succeeds."""
    scheduler, reference = (open_fleet(name, settings={"cohort_size": 60}) for name in ("fleet", "reference"))
    clients = [f"{'a long name ' * 40}{row}" for row in range(60)]
    new_clients = [f"{'another long name ' * 40}{row}" for row in range(60)]
    changes: list[Callable[[Scheduler], object]] = [
        lambda fleet: fleet.register(clients),
        lambda fleet: fleet.choose(fleets.offered(*clients, *new_clients)),
        lambda fleet: fleet.report_failure(clients[0], "a long reason " * 1000),
        lambda fleet: fleet.report_many(dict.fromkeys(clients[1:50], 2.0)),
        lambda fleet: fleet.close_round(),
        lambda fleet: fleets.take_snapshot(fleet),
        lambda fleet: fleet.report_many(dict.fromkeys(clients[50:], 20.0), round=1),
        lambda fleet: fleet.choose(fleets.offered(*clients)),
    ]
    refused = 0
    for change in changes:
        before, turns = fleets.packed(scheduler), fleets.turns_in(folder / "fleet")
        with full_disk(scheduler):
            error = store_error(lambda: change(scheduler))  # noqa: B023
            if not error:
                continue  # the change fitted into the existing pages
            refused += 1
            assert "disk is full): free some disk space and retry; nothing of the interrupted" in error
            assert (fleets.packed(scheduler), fleets.packed_from_disk(folder / "fleet")) == (before, before)
            assert fleets.turns_in(folder / "fleet") == turns
        change(scheduler)
    assert refused >= 6
    for change in changes:
        change(reference)
    assert fleets.packed(scheduler) == fleets.packed(reference) == fleets.packed_from_disk(folder / "fleet")
    assert fleets.turns_in(folder / "fleet") == fleets.turns_in(folder / "reference")


@pytest.mark.files
def test_a_round_is_closed_even_if_the_disk_is_too_full_for_a_snapshot(
    open_fleet: fleets.OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot is taken after a later round, when there is space."""
    scheduler = open_fleet(settings={"cohort_size": 1})
    scheduler.register([f"client {row}" for row in range(9000)])
    for _ in range(49):
        fleets.play_round(scheduler, fleets.offered("a"))
    scheduler.choose(fleets.offered("a"))
    with full_disk(scheduler, spare=4):
        scheduler.close_round()
    assert "no snapshot was written" in caplog.text
    assert fleets.rows_of(scheduler.path, "SELECT seq FROM snapshot") == []
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
    fleets.play_round(scheduler, fleets.offered("a"))
    assert len(fleets.rows_of(scheduler.path, "SELECT seq FROM snapshot")) == 1


# file truncated or bytes flipped


@pytest.fixture(scope="module")
def full_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet with a snapshot, later events, an open round and all kinds of turns."""
    path = tmp_path_factory.mktemp("full") / "fleet.turnout"
    restless_server.play(str(path), 14)
    with Scheduler.open(path) as scheduler:
        cohort = scheduler.choose(restless_server.statuses_of(15))
        scheduler.report(cohort[0], 3.0)
        scheduler.report_failure(cohort[1], "its battery died")
    return path


def _continue(path: Path) -> tuple[bytes, ...]:
    """Plays the open round and the next; returns the states before and after each."""
    with Scheduler.open(path) as scheduler:
        states = [fleets.packed(scheduler)]
        out = scheduler.status().out
        scheduler.report_many(dict.fromkeys(out[:2], 4.0))
        scheduler.close_round()
        states.append(fleets.packed(scheduler))
        fleets.play_round(scheduler, restless_server.statuses_of(16), 5.0)
        return (*states, fleets.packed(scheduler))


def _offsets(data: bytes, path: Path) -> Mapping[str, list[int]]:
    """Returns the offsets of the bytes of each part from which the state is computed."""
    parts: dict[str, list[bytes]] = {
        "ids": [client.encode() for (client,) in fleets.rows_of(path, "SELECT id FROM clients")],
        "events": [blob for (blob,) in fleets.rows_of(path, "SELECT data FROM events WHERE kind != 'close'")],
        "digests": [blob for (blob,) in fleets.rows_of(path, "SELECT digest FROM events")],
        "masks": [blob for (blob,) in fleets.rows_of(path, "SELECT data FROM masks")],
        "settings": [b'"cohort_size": 4', b'"deadline": 10.0', b'"backoff_after": 2', b'"fair-pace"'],
        "snapshot": [blob[:400] for (blob,) in fleets.rows_of(path, "SELECT data FROM snapshot")],
        "open round": [blob[:400] for (blob,) in fleets.rows_of(path, "SELECT data FROM open_round")],
        "turns": [b"its battery died", b"arrived", b"late"],
        "meta": [b"epoch", b"head", b"round0", b"seal"],
        "schema": [b"CREATE TABLE turns", b"late_seconds REAL", b"INTEGER NOT NULL"],
    }
    return {
        part: [start + index for value in values for start in _occurrences(data, value) for index in range(len(value))]
        for part, values in parts.items()
    }


def _occurrences(data: bytes, value: bytes) -> Iterator[int]:
    start = data.find(value)
    while start >= 0:
        yield start
        start = data.find(value, start + 1)


@pytest.mark.parametrize(
    ("seed", "times"), [(0, 1), *(pytest.param(seed, 4, marks=pytest.mark.thorough) for seed in range(2 * TORTURE))]
)
@pytest.mark.files
def test_flipped_bytes_are_refused_or_harmless(folder: Path, full_fleet: Path, seed: int, times: int) -> None:
    """Either the damage is refused when it is read, or the state and the following rounds are unchanged."""
    data, expected = full_fleet.read_bytes(), _continue(copy_store(full_fleet, folder / "intact.turnout"))
    rng = random.Random(seed)
    offsets = [
        rng.choice(of_part) for of_part in _offsets(data, full_fleet).values() if of_part for _ in range(2 * times)
    ]
    offsets += [rng.randrange(len(data)) for _ in range(15 * times)]
    refused = 0
    for number, offset in enumerate(offsets):
        flipped = bytearray(data)
        flipped[offset] ^= rng.choice([1, 2, 4, 8, 16, 32, 64, 128, 255])
        damaged = folder / f"{number}.turnout"
        damaged.write_bytes(flipped)
        try:
            assert _continue(damaged) == expected, f"byte {offset} flipped from {data[offset]} to {flipped[offset]}"
        except StoreError:
            refused += 1
    assert refused > 11 * times


@pytest.mark.files
def test_a_truncated_file_is_refused_and_left_as_it_is(folder: Path, full_fleet: Path) -> None:
    path, data = folder / "fleet.turnout", full_fleet.read_bytes()
    lengths = {0, 1, 99, 100, 511, 512, 4095, len(data) // 2, len(data) - 1, *range(4096, len(data), 8192)}
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"fleet\.turnout .*(restore it|choose another path|\.recover)"):
            Scheduler.open(path, **restless_server.SETTINGS)
        assert path.read_bytes() == data[:length]
    path.write_bytes(data)
    assert fleets.packed_from_disk(path)


STATEMENTS = [  # changes that the engine does not detect
    "UPDATE snapshot SET data = 5",
    "UPDATE snapshot SET data = 'text'",
    "UPDATE snapshot SET seq = (SELECT MAX(seq) FROM events)",
    "UPDATE snapshot SET seq = seq - 1",
    "DELETE FROM events WHERE seq = (SELECT MAX(seq) FROM events)",
    "UPDATE events SET digest = 7 WHERE seq = (SELECT MAX(seq) FROM events)",
    "UPDATE events SET digest = 7 WHERE seq = (SELECT MAX(seq) FROM snapshot)",
    "UPDATE events SET data = 7 WHERE seq = (SELECT MAX(seq) FROM events)",
    "UPDATE events SET kind = 'join' WHERE seq = (SELECT MAX(seq) FROM events)",
    "UPDATE masks SET data = 'text'",
    "UPDATE masks SET data = (SELECT data FROM masks ORDER BY seq LIMIT 1)",
    "DELETE FROM masks",
    "DELETE FROM open_round",
    "UPDATE open_round SET round = round + 1",
    "UPDATE open_round SET data = 3",
    "UPDATE meta SET value = replace(value, '10.0', '90.0') WHERE key = 'settings'",
    "UPDATE meta SET value = '12' WHERE key = 'round'",
    "UPDATE meta SET value = 'many' WHERE key = 'epoch'",
    "UPDATE meta SET value = '' WHERE key = 'head'",
    "DELETE FROM meta WHERE key = 'seal'",
    "UPDATE clients SET id = 'another' WHERE row = 3",
    "DELETE FROM clients WHERE row = (SELECT MAX(row) FROM clients)",
    "INSERT INTO clients VALUES (1000, 'additional')",
    "UPDATE turns SET seconds = 1.0 WHERE kind = 'arrived'",
    "UPDATE turns SET loss = 1.0 WHERE kind = 'arrived'",
    "UPDATE turns SET loss = NULL WHERE kind = 'arrived'",
    "UPDATE turns SET late_seconds = NULL WHERE round > 10 AND late_seconds IS NOT NULL",
    "UPDATE turns SET folded = NULL WHERE round > 10 AND folded IS NOT NULL",
    "DELETE FROM turns WHERE round = (SELECT MAX(round) FROM turns) AND kind IS NULL",
    "UPDATE turns SET kind = 'arrived' WHERE kind IS NULL",
]


def _of_a_file(statement: str) -> bool:
    """Returns whether a statement writes a value of another type, which only SQLite allows, or a file's own value."""
    return re.search(r"(data|digest) = (\d|'text')|'epoch'", statement) is not None


@pytest.mark.parametrize(
    "statement",
    [pytest.param(statement, marks=[pytest.mark.files] if _of_a_file(statement) else []) for statement in STATEMENTS],
)
def test_changes_that_the_engine_does_not_detect_are_refused(folder: Path, full_fleet: Path, statement: str) -> None:
    """Every row from which the state is computed has a checksum."""
    path = copy_store(full_fleet, folder / "fleet.turnout")
    alter(path, statement)
    with pytest.raises(StoreError, match=r"is damaged|restore"):
        Scheduler.open(path)


@pytest.mark.files
def test_flipped_bytes_in_the_log_of_a_killed_process_are_refused_or_harmless(folder: Path, server: Server) -> None:
    """SQLite itself would silently ignore all commits after the damage."""
    path = folder / "fleet.turnout"
    server.play(path, 2)
    server.play(path, 6, die_at=100)
    assert server.killed
    file, log = path.read_bytes(), (folder / "fleet.turnout-wal").read_bytes()
    acknowledged = lock_path(path).read_bytes()
    assert len(log) > 50_000

    def open_copy(name: str, log: bytes) -> bytes:
        (folder / name).write_bytes(file)
        (folder / f"{name}-wal").write_bytes(log)
        lock_path(folder / name).write_bytes(acknowledged)
        with Scheduler.open(folder / name) as scheduler:
            return fleets.packed(scheduler)

    expected, rng, refused = open_copy("intact", log), random.Random(1), 0
    for number in range(24):
        offset = rng.randrange(len(log)) if number else 5
        damaged = bytearray(log)
        damaged[offset] ^= 1 << rng.randrange(8)
        try:
            assert open_copy(str(number), bytes(damaged)) == expected, f"byte {offset}"
        except StoreError:
            refused += 1
    assert refused > 12


# two schedulers on one file


@contextmanager
def start_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a process of reporters.py and waits until it is ready."""
    program = [sys.executable, str(HERE / "reporters.py"), *arguments]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert json.loads(known(process.stdout).readline()) == "ready"
        yield process


def send_line(process: subprocess.Popen[str]) -> None:
    """Sends the line for which the process waits."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def result_of(process: subprocess.Popen[str]) -> Any:
    """Lets the process finish and returns its output."""
    output, _ = process.communicate("go\n")
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.files
def test_a_second_scheduler_is_refused_unless_it_takes_over(folder: Path, open_fleet: fleets.OpenFleet) -> None:
    """The refusal names the first process; after a takeover, the paused first process cannot write again."""
    path = folder / "fleet.turnout"
    open_fleet().close()
    with start_process("serve", str(path)) as first:
        with pytest.raises(StoreError, match=f"is being written by process {first.pid} on host .*: wait until it ends"):
            Scheduler.open(path)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreError, match=f"process {first.pid} on host"):
                Scheduler.open(path)
            second = open_fleet(takeover=True)
            assert second.choose({}) == ["a"]
            second.report("a", 3.0)
            second.close_round()
            before, turns = fleets.packed(second), fleets.turns_in(path)
        finally:
            os.kill(first.pid, signal.SIGCONT)
        for refusal in result_of(first):
            assert f"was taken over by process {os.getpid()} on host" in refusal
            assert "this scheduler can no longer write" in refusal
    assert (fleets.packed(second), fleets.packed_from_disk(path), fleets.turns_in(path)) == (before, before, turns)
    fleets.play_round(second, fleets.offered("a", "b"))
    with pytest.raises(StoreError, match=f"is being written by process {os.getpid()} on host"):
        Scheduler.open(path)  # the lock is that of the second process now
    second.close()
    assert open_fleet().round == 2


# eight processes report at once; dashboard reads meanwhile


def test_eight_processes_report_at_once_while_one_reads(open_fleet: fleets.OpenFleet) -> None:
    clients = fleets.named(48)
    scheduler = open_fleet(settings={"cohort_size": len(clients)})
    path = scheduler.path
    scheduler.choose(fleets.offered(*clients))
    own = [dict.fromkeys(clients[first::8], 1.0 + first) for first in range(8)]
    shares = [own[first] | own[(first + 1) % 8] for first in range(8)]  # two processes report each client
    with ExitStack() as stack:
        reader = stack.enter_context(start_process("read", str(path)))
        reporters = stack.enter_context(start_process("report", str(path), *map(json.dumps, shares)))
        send_line(reader)
        accepted = result_of(reporters)
        assert result_of(reader) > 0
    for client in clients:
        assert sum(reports.get(client, False) for reports in accepted) == 1
    report = scheduler.close_round().report
    assert report.with_outcome("arrived").all()
    assert report.exchange_times.tolist() == [1.0 + row % 8 for row in range(48)]
    assert fleets.packed(scheduler) == fleets.packed_from_disk(path)


# a client misreports its context


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("policy", "weight", "rounds"),
    [
        ("fair-pace", {}, 400),
        ("rbcsf", {"speed_weight": 1.0}, 160),
        pytest.param("rbcsf", {"speed_weight": 1.0}, 400, marks=pytest.mark.thorough),
    ],
)
def test_misreported_contexts_are_learned_or_flagged_and_turns_stay_fair(
    open_fleet: fleets.OpenFleet, policy: str, weight: dict[str, float], rounds: int
) -> None:
    """A constant factor is learned slowly, a changing one is flagged, and neither costs or earns turns.

    At first FairPace predicts times by a regression over the whole fleet, which wrong contexts impair: it may flag
    other clients until it has learned each client's own times, and the one with the constant factor now and then.
    """
    world = fleets.World(12)
    settings = {"cohort_size": 4, "guaranteed_rate": 0.25, **weight}
    scheduler = open_fleet(policy=policy, settings=settings, deadline=1000.0)
    flagged: list[set[str]] = []
    trained: list[str] = []
    for round_ in range(1, rounds + 1):
        statuses = world.statuses(round_)
        reported = dict(statuses)
        reported["c0"] = _scale_status(statuses["c0"], 3.0)
        reported["c1"] = _scale_status(statuses["c1"], 10.0 if round_ > rounds // 2 else 1.0)
        reported["c2"] = _scale_status(statuses["c2"], random.Random(round_).choice([0.1, 1.0, 10.0]))
        cohort = scheduler.choose(reported)
        times = {
            client: world.seconds(round_, client, statuses[client], cold=client not in trained) for client in cohort
        }
        scheduler.report_many(times)
        scheduler.close_round()
        trained = cohort
        flagged.append(set(scheduler.status().suspects))
    last_quarter = flagged[-(rounds // 4) :]
    assert all({"c1", "c2"} <= suspects <= {"c0", "c1", "c2"} for suspects in last_quarter)
    if policy == "rbcsf":
        assert set.union(*flagged) == {"c1", "c2"}
        assert flagged[rounds // 2 - 1] == set.union(*flagged[: rounds // 2]) == {"c2"}
    else:
        assert "c1" not in flagged[rounds // 2 - 1]
        assert sum("c0" in suspects for suspects in last_quarter) < len(last_quarter) / 2
    assert "no longer explain their times" in "".join(scheduler.status().notices)
    assert set(scheduler.status().suspects) == flagged[-1]
    model, row = fleets.state_of(scheduler).fleet.model, fleets.client_rows(scheduler, ["c0"])
    assert model is not None
    status = _scale_status(ClientStatus(1.0, 3.0), 3.0)
    predicted = model.predict([[1 / status.free_cpu, 1.0, 20 / status.bandwidth]], row)[0]
    assert predicted == pytest.approx(world.parameters["c0"] @ [1.0, 1.0, 20 / 3.0], rel=0.25)
    certificate = scheduler.certificate()
    assert certificate.books_balance
    assert (certificate.turns >= certificate.promised - 4)[fleets.client_rows(scheduler, ["c0", "c1", "c2"])].all()
    assert policy == "rbcsf" or certificate.holds


def _scale_status(status: ClientStatus, factor: float) -> ClientStatus:
    return ClientStatus(status.free_cpu * factor, status.bandwidth * factor)
