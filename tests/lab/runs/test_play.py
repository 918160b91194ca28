"""Policies that play worlds, in rounds and without rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.examples import Spy
from turnout import FairPace, UniformRandom, make_policy
from turnout.errors import SettingError, StateError
from turnout.kernel.rounds import RoundOffer, RoundRecord, RoundReport, Selection
from turnout.kernel.slots.turns import FINISHED, STARTED
from turnout.lab import PaperWorld, RoundColumns, TraceWorld, play
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.runs.play import SlotRun
from turnout.lab.worlds.traces.data import AvailabilityTrace, Traces
from turnout.policies import FedCS


class InformedSpy(Spy):
    requires_expected_times = True


def test_only_policies_that_require_expected_times_receive_them() -> None:
    spy = Spy(40)
    list(play(spy, PaperWorld(), 5))
    assert [offer.expected_times for offer in spy.offers] == [None] * 5
    without_times, with_times = Spy(40), InformedSpy(40)
    assert list(play(without_times, PaperWorld(3), 10)) == list(play(with_times, PaperWorld(3), 10))
    assert without_times.offers == [offer.without_truth() for offer in with_times.offers]
    spy, world = InformedSpy(40), PaperWorld()
    list(play(spy, world, 5))
    for offer in spy.offers:
        assert offer.expected_times is not None
        np.testing.assert_allclose(offer.expected_times, (offer.contexts * world.theta).sum(axis=1))


def test_a_record_holds_the_selection_and_the_report() -> None:
    spy = Spy(40)
    records = list(play(spy, PaperWorld(), 20))
    assert all(isinstance(record, RoundRecord) for record in records)
    assert [record.round for record in records] == list(range(1, 21))
    assert [record.report for record in records] == spy.reports
    for record, offer in zip(records, spy.offers, strict=True):
        assert record.selection == UniformRandom(40).ask(offer)
        np.testing.assert_array_equal(record.report.clients, record.selection.clients)


def test_rounds_are_played_lazily() -> None:
    spy = Spy(40)
    rounds: Iterator[RoundRecord] = play(spy, PaperWorld(), 1_000_000_000)
    assert not spy.offers
    next(rounds)
    next(rounds)
    assert len(spy.offers) == len(spy.reports) == 2


def test_other_fleets_and_invalid_round_numbers_are_rejected() -> None:
    with pytest.raises(SettingError, match="the policy has 39 clients, but the world has 40"):
        next(play(Spy(39), PaperWorld(), 5))
    with pytest.raises(SettingError, match="first must be at least 1, not 0"):
        next(play(Spy(40), PaperWorld(), 5, first=0))
    with pytest.raises(SettingError, match="rounds must be a whole number"):
        next(play(Spy(40), PaperWorld(), 2.5))  # type: ignore[arg-type]  # the invalid value under test


@pytest.mark.parametrize("rounds", [0, 4])
def test_no_round_is_played_after_the_last_one(rounds: int) -> None:
    assert list(play(Spy(40), PaperWorld(), rounds, first=5)) == []


SLOTS = 8


def fair_pace(clients: int = 40, **settings: Any) -> FairPace:
    return FairPace(clients, cohort_size=1, **{"guaranteed_rate": "3/160", "tolerance": 1.0, **settings})


def clocks(records: list[RoundRecord], metric: str) -> np.ndarray:
    return np.array([record.report.metrics[metric] for record in records])


def test_no_more_turns_than_slots_are_running_and_nobody_has_two() -> None:
    records = list(SlotRun(fair_pace(), PaperWorld(3), SLOTS).play(200))
    assert [record.round for record in records] == list(range(1, 201))
    start, end = clocks(records, STARTED), clocks(records, FINISHED)
    clients = np.array([record.report.clients[0] for record in records])
    assert np.allclose(end - start, [record.report.exchange_times[0] for record in records])
    assert (np.diff(start) >= 0).all()
    for index in range(200):
        running = (start <= start[index]) & (end > start[index])
        running[index + 1 :] = False
        assert running.sum() <= SLOTS
        assert len(set(clients[running])) == running.sum()
    # From the first decisions on, all slots are filled at all times: each turn begins when an earlier one ends.
    assert start[SLOTS:].tolist() == sorted(end.tolist())[: 200 - SLOTS]


def test_the_record_contains_what_every_client_was_promised_and_got() -> None:
    policy = fair_pace()
    run = SlotRun(policy, PaperWorld(1), SLOTS)
    columns = RoundColumns.from_records(run.play(250), clients=40)
    counted = shortfalls(columns, "3/160", accrual="available", counts="selected", tolerance=1.0)
    certificate = policy.certificate()
    assert counted.certificate.turns.tolist() == certificate.turns.tolist()
    assert counted.certificate.promised.tolist() == certificate.promised.tolist()
    assert certificate.turns.sum() == 250
    assert counted.largest < 1.0


def test_a_long_turn_earns_one_turn_at_most() -> None:
    class OneIsEndless(PaperWorld):
        """Client 7 takes very long."""

        def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
            report = super().play(offer, selection)
            times = np.where(report.clients == 7, 1e4, report.exchange_times)
            return type(report).trusted(report.round, report.clients, report.contexts, times, report.available)

    policy = fair_pace(guaranteed_rate="1/50")
    run = SlotRun(policy, OneIsEndless(0), SLOTS)
    records = list(run.play(300))
    (begun,) = [record.round for record in records if record.report.clients[0] == 7]
    promised = policy.certificate().promised[7]
    # Until its turn, it earned when it was available; then with 50 decisions.
    before = sum(bool(record.report.available[7]) for record in records[:begun])  # type: ignore[index]
    assert promised == pytest.approx((before + 50) / 50)


@pytest.mark.thorough
def test_in_known_constant_times_updates_come_nearly_as_fast_as_they_can() -> None:
    # Four clients of 1, 1, 1 and 10 s with two slots: the last one can have at most 1/11 of the turns.
    class Constant(PaperWorld):
        def offer(self, round: int) -> RoundOffer:
            contexts = np.array([[1.0], [1.0], [1.0], [10.0]])
            return RoundOffer.trusted(round, np.ones(4, dtype=np.bool_), contexts, contexts[:, 0].copy())

        def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
            rows = selection.clients
            times = offer.contexts[rows, 0].copy()
            return RoundReport(offer.round, rows, offer.contexts[rows], times, available=offer.available)

    policy = FairPace(4, cohort_size=1, times="expected", guaranteed_rate="1/22", tolerance=1.0)
    records = list(SlotRun(policy, Constant(clients=4), 2).play(1100))
    share = np.bincount([int(record.report.clients[0]) for record in records], minlength=4) / 1100
    seconds = clocks(records, FINISHED).max()
    # The optimum gives the slow client its guaranteed share and not more: K / Σ share · time.
    optimum = 2 / ((1 - 1 / 22) * 1 + 10 / 22)
    assert share[3] == pytest.approx(1 / 22, rel=0.02)
    assert 1100 / seconds > 0.98 * optimum


@pytest.mark.parametrize("clock", ["rounds", "period"])
def test_a_world_with_a_clock_follows_the_turns(clock: Any) -> None:
    world = TraceWorld(0, clients=30, clock=clock)
    policy = FairPace(30, cohort_size=1, guaranteed_rate=0.01, tolerance=1.0)
    records = list(SlotRun(policy, world, 5).play(80))
    start, end = clocks(records, STARTED), clocks(records, FINISHED)
    again = TraceWorld(0, clients=30)
    training: dict[int, float] = {}
    for index, record in enumerate(records):
        training = {row: until for row, until in training.items() if until > start[index]}
        again.set_clock(start[index])
        there = again.offer(record.round).available
        client = int(record.report.clients[0])
        assert there[client]
        assert client not in training
        training[client] = end[index]
    outcomes = {str(outcome) for record in records for outcome in record.report.outcomes or ["arrived"]}
    assert outcomes == {"arrived", "failed"}


def test_policies_that_need_rounds_and_other_fleets_are_refused() -> None:
    with pytest.raises(SettingError, match="fedcs cannot give turns one at a time: play it in rounds"):
        SlotRun(FedCS(40), PaperWorld(), 4)
    with pytest.raises(SettingError, match="the policy has 12 clients, but the world has 40"):
        SlotRun(fair_pace(12), PaperWorld(), 4)
    with pytest.raises(SettingError, match="concurrency must be at least 1"):
        SlotRun(fair_pace(), PaperWorld(), 0)


def test_more_slots_than_clients_leave_slots_empty() -> None:
    records = list(SlotRun(make_policy("random", 5, cohort_size=1), PaperWorld(clients=5), 9).play(40))
    start, end = clocks(records, STARTED), clocks(records, FINISHED)
    for index in range(40):
        assert ((start[: index + 1] <= start[index]) & (end[: index + 1] > start[index])).sum() <= 5


def test_time_passes_while_nobody_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.lab.runs.play.MAX_EMPTY", 1500)
    run = SlotRun(make_policy("random", 3, cohort_size=1), PaperWorld(clients=3, availability=0.02), 2)
    assert len(list(run.play(20))) == 20
    never = SlotRun(make_policy("random", 3, cohort_size=1), PaperWorld(clients=3, availability=0.0), 2)
    with pytest.raises(StateError, match="no client was available in 1,500 offers in a row"):
        list(never.play(1))


def test_the_clock_of_a_world_advances_while_nobody_is_available() -> None:
    starts, stops = np.full(2, 2000.0), np.full(2, 9000.0)
    availability = AvailabilityTrace(("a", "b"), np.array([0, 1, 2]), starts, stops, stops)
    world = TraceWorld(0, traces=Traces(availability=availability), period=300.0)
    first = next(SlotRun(make_policy("random", 2, cohort_size=1), world, 2).play(1))
    assert first.report.metrics[STARTED] == 2100.0  # the first multiple of the period at which they are available


def test_a_policy_that_selects_nobody_for_a_slot_is_refused() -> None:
    class Idle(UniformRandom):
        """Selects nobody."""

        def ask(self, offer: RoundOffer) -> Selection:
            return replace(super().ask(offer), clients=np.empty(0, dtype=np.int64))

    run = SlotRun(Idle(40, cohort_size=1), PaperWorld(), 2)
    with pytest.raises(SettingError, match="random selected 0 clients for one slot: it cannot fill slots"):
        run.decide()


def test_a_run_whose_turns_have_ended_has_no_next_one_and_refuses_another_state() -> None:
    run = SlotRun(fair_pace(), PaperWorld(), 2)
    for _ in range(3):
        running_turn = run.next_end(3)
        run.end(running_turn, running_turn.record.report)
    with pytest.raises(StateError, match="all 3 turns of the run have ended"):
        run.next_end(3)
    run, again = (SlotRun(fair_pace(), PaperWorld(), 2) for _ in range(2))
    done = list(run.play(5))
    with pytest.raises(StateError, match="the saved state follows 5 records, but there are 4"):
        again.restore(run.state(), len(done) - 1)
    with pytest.raises(StateError):
        again.restore({**run.state(), "next": -1}, len(done))
    again.restore(run.state(), len(done))
