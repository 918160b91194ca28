from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from live.fleets import (
    LIVE,
    OpenFleet,
    World,
    client_rows,
    exported,
    fresh_model,
    named,
    offered,
    packed,
    packed_from_disk,
    play_round,
    predicted_seconds,
    problems,
    reliability_of,
    rows_of,
    state_of,
    take_snapshot,
    turns_in,
)
from live.forging import alter
from narrowing import known
from postgres import stored_bytes
from turnout.errors import OfferError, ReportError, SettingError, StateError, StoreError
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import RoundReport
from turnout.live import ClientStatus, FleetReader, FleetStatus, Reporter, Scheduler
from turnout.live import scheduler as scheduler_module
from turnout.live._internals import FleetSession
from turnout.live.turns.clients import probability_at_least


@pytest.fixture
def scheduler(open_fleet: OpenFleet) -> Scheduler:
    return open_fleet()


def outcomes_of(report: RoundReport) -> list[str]:
    return list(known(report.outcomes))


def model_of(scheduler: Scheduler) -> ExchangeTimeModel:
    return known(state_of(scheduler).fleet.model)


# Rounds


def test_choose_returns_the_same_cohort_while_a_round_is_open(scheduler: Scheduler) -> None:
    cohort = scheduler.choose(offered(*named(5)))
    assert cohort == ["c0", "c1"]
    assert scheduler.choose(offered("c3", "c4")) == scheduler.choose({}) == cohort
    scheduler.report("c0", 1.0)
    assert scheduler.choose({"nobody": {"nonsense": 1.0}}) == cohort
    assert scheduler.clients == named(5)


def test_an_open_round_survives_a_restart(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, undisturbed = open_fleet(), open_fleet("undisturbed")
    for fleet in (scheduler, undisturbed):
        play_round(fleet, offered(*named(3)), 2.0)
        fleet.report(fleet.choose(offered(*named(5)))[0], 3.0)
    before, cohort = scheduler.status().elapsed, undisturbed.choose({})
    scheduler.close()
    again = open_fleet()
    assert again.choose(offered("c0")) == cohort
    assert again.status().elapsed > before
    assert (again.round, again.status().is_open, again.status().arrived) == (2, True, cohort[:1])
    assert packed(again) == packed(undisturbed)
    for fleet in (again, undisturbed):
        fleet.report(fleet.status().out[0], 4.0)
        fleet.close_round()
    assert packed(again) == packed(undisturbed) == packed_from_disk(folder / "undisturbed")
    assert turns_in(folder / "fleet.turnout") == turns_in(folder / "undisturbed")


def test_abandoning_a_round_restores_the_state_and_removes_its_new_clients(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play_round(scheduler, offered(*named(3)))
    before, turns = packed(scheduler), turns_in(path)
    cohort = scheduler.choose(offered(*named(3), "new"))
    assert "new" in scheduler.clients
    scheduler.abandon_round()
    assert (packed(scheduler), packed_from_disk(path), turns_in(path)) == (before, before, turns)
    assert (scheduler.clients, scheduler.round, scheduler.status().is_open) == (named(3), 1, False)
    assert scheduler.choose(offered(*named(3), "new")) == cohort
    scheduler.report(cohort[0], 1.0)
    with pytest.raises(ReportError, match=f"round 2 cannot be abandoned: '{cohort[0]}' has reported. Close it instead"):
        scheduler.abandon_round()
    assert scheduler.status().is_open


def test_methods_that_need_an_open_or_a_closed_round_raise_otherwise(scheduler: Scheduler) -> None:
    for attempt in (scheduler.close_round, scheduler.abandon_round, lambda: scheduler.report("a")):
        with pytest.raises(ReportError, match="no round is open: choose first"):
            attempt()
    assert not scheduler.ready
    scheduler.choose(offered("a"))
    attempts: list[Callable[[], object]] = [
        lambda: scheduler.register(["b"]),
        lambda: scheduler.retire("a"),
        lambda: scheduler.forget("a"),
        lambda: scheduler.amend(deadline=20.0),
        lambda: take_snapshot(scheduler),
    ]
    for not_now in attempts:
        with pytest.raises(ReportError, match="round 1 is open: close or abandon it before you "):
            not_now()


def test_a_round_is_ready_when_all_outcomes_are_known_or_enough_updates_arrived(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(overcommit=2.0, deadline=None)
    scheduler.choose(offered(*named(4)))
    scheduler.report("c0", 1.0)
    scheduler.report_failure("c1", "its battery died")
    assert not scheduler.ready
    scheduler.report("c2", 1.0)
    assert scheduler.ready
    scheduler.close_round()
    scheduler.choose(offered("c0"))
    scheduler.report_failure("c0", "its battery died")
    assert scheduler.ready


def test_seconds_are_measured_from_the_selection_unless_given(scheduler: Scheduler) -> None:
    scheduler.choose(offered("a", "b"))
    earlier = scheduler.status().elapsed
    scheduler.report("a")
    (turn,) = scheduler.history("a")
    assert earlier < known(turn.seconds) < scheduler.status().elapsed
    scheduler.close_round()
    scheduler.choose(offered("a"))
    with pytest.raises(ReportError, match="'b' was not selected in round 2"):
        scheduler.report("b")  # the time since this selection is not the time of its earlier turn
    with pytest.raises(ReportError, match="round 2 is open: pass the seconds that 'b' took in round 1"):
        scheduler.report("b", round=1)


@pytest.mark.parametrize("number", [3, np.float64(3), np.float32(3), np.int64(3), 3.0])
def test_numbers_and_strings_of_any_type_are_stored_as_plain_values(open_fleet: OpenFleet, number: float) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    scheduler.choose({np.str_(client): ClientStatus(1, 2) for client in "abc"})
    scheduler.report(np.str_("a"), number)
    scheduler.report_failure("b", OSError("lone surrogate \ud800"))  # type: ignore[arg-type]
    scheduler.close_round(after=np.float32(20))  # type: ignore[arg-type]
    scheduler.report("c", number + 10)
    play_round(scheduler, offered("a"), 1.0)
    assert [turn.seconds for client in "abc" for turn in scheduler.history(client)] == [3.0, 1.0, None, 10.0]
    assert scheduler.history("b")[0].why == "lone surrogate ?"
    assert scheduler.history("c")[0].late_seconds == 13.0
    assert packed(scheduler) == packed_from_disk(scheduler.path)


# Deadlines


def test_missing_clients_are_learned_with_the_fixed_deadline(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(deadline=7.5)
    assert scheduler.status().notices == []
    scheduler.choose(offered("a", "b"))
    assert scheduler.status().deadline == 7.5
    scheduler.report("a", 2.0)
    assert scheduler.close_round(after=1.0).report.exchange_times.tolist() == [2.0, 7.5]
    expected = fresh_model(2)
    expected.learn([0, 1], [[1.0, 1.0, 10.0]] * 2, [2.0, 7.5])
    assert model_of(scheduler).bank.tobytes() == expected.bank.tobytes()


@pytest.mark.parametrize(("deadline", "after"), [(6, None), (None, 6)], ids=["deadline", "after"])
def test_a_client_that_misses_a_whole_number_of_seconds_leaves_a_sound_file(
    open_fleet: OpenFleet, deadline: int | None, after: int | None
) -> None:
    scheduler = open_fleet(deadline=deadline)
    scheduler.choose(["a", "b", "c", "d"])
    scheduler.close_round(after=after)
    assert {(turn.kind, turn.seconds) for turn in scheduler.history(round=1)} == {("late", 6.0)}


def test_an_update_after_the_deadline_counts_while_the_round_is_open(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(deadline=5.0, settings={"cohort_size": 3})
    scheduler.choose(offered("a", "b", "c"))
    scheduler.report("a", 8.0)
    report = scheduler.close_round().report
    assert report.exchange_times.tolist() == [8.0, 8.0, 8.0]  # the others had not arrived after 8 seconds
    assert outcomes_of(report) == ["arrived", "late", "late"]


def test_times_are_predicted_from_the_first_turn_on(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2})
    scheduler.choose(offered("a", "b"))
    assert predicted_seconds(scheduler) == {}
    scheduler.report("a", 3.0)
    scheduler.report_failure("b", "battery")
    scheduler.close_round()
    scheduler.choose(offered("a", "b"))
    assert predicted_seconds(scheduler).keys() == {"a"}


def test_forgetting_leaves_others_as_much_time_as_it_takes_itself(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2})
    play_round(scheduler, offered("a", "b"))
    durations, paused, clock = iter([0.004, 3.0]), list[float](), [0.0]

    def steps(*_: object) -> Iterator[None]:
        for seconds in durations:
            clock[0] += seconds
            yield

    monkeypatch.setattr(FleetSession, "forget_in_steps", steps)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", paused.append)
    scheduler.forget("a")
    monkeypatch.undo()
    assert paused == pytest.approx([0.004, scheduler_module.MAX_PAUSE])


@pytest.mark.parametrize(("unit", "ceiling", "deadline"), [(1.0, 3600.0, None), (0.01, 3600.0, 1.0), (1.0, 2.5, 2.5)])
def test_an_automatic_deadline_is_a_multiple_of_the_slowest_prediction(
    open_fleet: OpenFleet, unit: float, ceiling: float, deadline: float | None
) -> None:
    scheduler = open_fleet(deadline="auto", deadline_ceiling=ceiling)
    seconds = {"a": 4.0 * unit, "b": 6.0 * unit, "c": 5.0 * unit}
    for _ in range(5):
        scheduler.choose(offered("a", "b"))
        assert scheduler.status().round > 1 or scheduler.status().deadline == ceiling  # no time was measured yet
        scheduler.report_many({client: seconds[client] for client in scheduler.status().out})
        scheduler.close_round()
    scheduler.choose(offered("a", "b"))
    contexts = [[1.0, 0.0, 10.0]] * 2
    slowest = float(model_of(scheduler).predict(contexts, [0, 1]).max())
    assert scheduler.status().deadline == pytest.approx(3.0 * slowest if deadline is None else deadline)
    assert slowest == pytest.approx(6.0 * unit, rel=0.1)
    scheduler.abandon_round()
    scheduler.choose(offered("c"))
    assert scheduler.status().deadline == ceiling


def test_an_automatic_deadline_is_the_ceiling_if_the_policy_learns_no_times(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="random", deadline="auto", deadline_ceiling=60.0)
    for _ in range(3):
        play_round(scheduler, offered("a"))
    scheduler.choose(offered("a"))
    assert scheduler.status().deadline == 60.0


def test_a_missing_deadline_is_logged_as_a_warning(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = open_fleet(deadline=None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no deadline is set: a round in which a client never reports stays open" in caplog.text
    assert len(scheduler.status().notices) == 1
    assert "no deadline" in str(scheduler.status())
    scheduler.choose(offered("a", "b"))
    assert not scheduler.ready
    assert scheduler.close_round(after=7.0).report.exchange_times.tolist() == [7.0, 7.0]
    scheduler.choose(offered("a", "b"))
    elapsed = scheduler.status().elapsed
    times = scheduler.close_round().report.exchange_times
    assert (times > elapsed).all()
    scheduler.choose(offered("a"))
    for wrong in (0, -1.0, float("nan"), "soon"):
        with pytest.raises(ReportError, match="after must be"):
            scheduler.close_round(after=wrong)  # type: ignore[arg-type]
    caplog.clear()
    FleetReader(scheduler.path).close()
    assert caplog.text == ""  # readers get no warning


# Failures


def test_consecutive_failures_double_the_back_off_which_the_status_shows(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(backoff_after=2)
    invited = []
    for round_ in range(1, 30):
        cohort = scheduler.choose(offered("weak", "strong"))
        if "weak" in cohort:
            invited.append(round_)
            scheduler.report_failure("weak", "its battery died")
        else:
            assert "weak until round" in str(scheduler.status())
            assert scheduler.status().backing_off["weak"] >= round_
        scheduler.report("strong", 1.0)
        scheduler.close_round()
    # Two misses, then back-offs of 1, 2, 4 and 8 rounds.
    assert invited == [1, 2, 4, 7, 12, 21]
    assert scheduler.status().backing_off == {"weak": 37}


def test_in_a_small_cohort_a_client_that_missed_its_turn_steps_aside_while_others_fill_its_place(
    open_fleet: OpenFleet,
) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline=60.0)
    clients = ["a", "b", "c", "d"]
    assert scheduler.choose(clients) == ["a", "b"]
    for client in ("a", "b"):
        scheduler.report_failure(client, "it raises an error")
    scheduler.close_round()
    assert scheduler.choose(clients) == ["c", "d"]
    assert "was backed off in round 2 after a miss" in scheduler.explain("a").sentence
    scheduler.abandon_round()
    few = clients[:3]  # too few are left without those that step aside
    assert len(scheduler.choose(few)) == 2
    assert all(scheduler.explain(client).outcome in ("chosen", "not chosen") for client in few)
    scheduler.abandon_round()


@pytest.mark.parametrize("late", [False, True])
def test_a_report_ends_the_back_off(open_fleet: OpenFleet, late: bool) -> None:
    scheduler = open_fleet(backoff_after=2)
    for _ in range(2):
        play_round(scheduler, offered("a"), {})
    assert scheduler.status().backing_off == {"a": 3}
    if late:
        scheduler.report("a", 20.0, round=1)
        assert scheduler.choose(offered("a")) == []
        scheduler.close_round()  # the late report is learned now
    else:
        play_round(scheduler, offered("a"), {})
        play_round(scheduler, offered("a"))
    assert scheduler.status().backing_off == {}
    play_round(scheduler, offered("a"), {}, failed=["a"])
    assert scheduler.status().backing_off == {}  # this is the first consecutive miss again


# Late arrivals


@pytest.mark.parametrize("forgetting", [1.0, 0.8])
def test_late_times_are_learned_as_if_they_had_been_known_at_once(open_fleet: OpenFleet, forgetting: float) -> None:
    world = World(4)
    scheduler = open_fleet(
        policy="rbcsf",  # whose clients are learned independently of each other, so that corrections are exact
        settings={"cohort_size": 4, "forgetting": forgetting},
        backoff_after=100,
    )
    truth: dict[tuple[int, str], float] = {}
    for round_ in range(1, 13):
        statuses = world.statuses(round_)
        scheduler.choose(statuses)
        for client in world.clients:
            truth[round_, client] = 6.0 + (7 * round_ + int(client[1])) % 9
            if truth[round_, client] < 10.0:
                scheduler.report(client, truth[round_, client])
        for client in world.clients:  # reported one, two or three rounds later
            earlier = round_ - 1 - int(client[1]) % 3
            if truth.get((earlier, client), 0.0) >= 10.0:
                assert scheduler.report(client, truth[earlier, client], round=earlier)
        scheduler.close_round()
    for client in world.clients:
        for round_ in (10, 11, 12):
            if truth[round_, client] >= 10.0:
                scheduler.report(client, truth[round_, client], round=round_)
    play_round(scheduler, {}, {})
    expected = ExchangeTimeModel(4, forgetting=forgetting)
    for event in exported(scheduler):
        if event["kind"] == "round" and event["clients"]:
            seconds = [truth[event["round"], client] for client in event["clients"]]
            expected.learn(client_rows(scheduler, event["clients"]), event["contexts"], seconds)
    assert sum(seconds >= 10.0 for seconds in truth.values()) > 20
    np.testing.assert_allclose(model_of(scheduler).bank, expected.bank, atol=1e-9)


def test_a_report_in_transit_at_the_close_counts_as_taking_until_the_close(scheduler: Scheduler) -> None:
    play_round(scheduler, offered("a", "b"), {})
    before = model_of(scheduler).bank.copy()
    assert scheduler.report("a", 9.9)
    assert not scheduler.report("a", 9.9)
    with pytest.raises(ReportError, match=r"'a' was reported before in round 1 .*: the first report is kept"):
        scheduler.report("a", 11.0)
    play_round(scheduler, {})
    assert scheduler.history("a")[0].late_seconds == 9.9  # what was reported
    assert model_of(scheduler).bank.tobytes() == before.tobytes()


# Over-selection


def test_over_selection_keeps_the_first_updates_and_breaks_ties_by_row(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": "1/5"}, overcommit=2.5)
    assert scheduler.choose(offered(*named(8))) == named(5)
    scheduler.report_many({"c4": 2.0, "c3": 2.0, "c2": 2.0, "c1": 9.0})
    report = scheduler.close_round().report
    assert outcomes_of(report) == ["late", "late", "arrived", "arrived", "late"]
    kinds = [scheduler.history(client)[0].kind for client in named(5)]
    assert kinds == ["cut_off", "redundant", "arrived", "arrived", "redundant"]
    # A missing client took at least as long as the last one kept; the time of a surplus client is learned as it is.
    assert report.exchange_times.tolist() == [2.0, 9.0, 2.0, 2.0, 2.0]
    with FleetReader(scheduler.path) as reader:
        (recorded,) = reader.closed_rounds()
    assert recorded.duration == 2.0, "the server did not wait for the surplus client"
    certificate = scheduler.certificate()
    assert certificate.turns.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert certificate.owed.tolist() == [0.2, 0.2, 0, 0, 0.2, 0.2, 0.2, 0.2]
    expected = fresh_model(8)
    expected.learn(range(5), [[1.0, 1.0, 10.0]] * 5, report.exchange_times)
    assert model_of(scheduler).bank.tobytes() == expected.bank.tobytes()
    assert [reliability_of(scheduler, client) for client in ("c0", "c1", "c5")] == [1 / 2, 2 / 3, 1 / 2]


@pytest.mark.parametrize(("factor", "target_size", "invited"), [(1.0, 3, 3), (1.1, 3, 4), (1.1, 100, 110), (1.5, 4, 6)])
def test_an_overcommit_factor_is_rounded_up_without_floating_point_surprises(
    open_fleet: OpenFleet, factor: float, target_size: int, invited: int
) -> None:
    scheduler = open_fleet(settings={"cohort_size": target_size}, overcommit=factor)
    assert len(scheduler.choose(offered(*named(200)))) == invited
    assert scheduler.status().target_size == target_size


def test_automatic_overcommit_invites_enough_clients_for_the_confidence(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3}, overcommit="auto", backoff_after=100)
    sizes = []
    for round_ in range(40):
        cohort = scheduler.choose(offered(*named(20)))
        chances = np.array([reliability_of(scheduler, client) for client in cohort])
        assert probability_at_least(3, chances) >= 0.9
        sizes.append(len(cohort))
        back = cohort if round_ > 5 else cohort[::2]
        scheduler.report_many(dict.fromkeys(back, 1.0))
        scheduler.close_round()
    assert max(sizes) > min(sizes[-5:]) >= 3
    assert scheduler.choose(offered("c0", "c1")) == ["c0", "c1"]  # only two clients are available


# Fairness


@pytest.mark.parametrize(("speed_weight", "cap"), [(0.0, 10), (1.5, 25)])
def test_debts_are_capped_by_default_at_ten_turns_above_those_that_outweigh_the_deadline(
    open_fleet: OpenFleet, speed_weight: float, cap: int
) -> None:
    settings = {"cohort_size": 1, "guaranteed_rate": 1, "speed_weight": speed_weight}
    scheduler = open_fleet(policy="rbcsf", settings=settings)
    for _ in range(2 * cap):
        play_round(scheduler, offered("a", "b", "c"))
    assert scheduler.certificate().owed.max() == cap
    assert scheduler.certificate().books_balance
    assert "3 clients have forfeited turns to the cap: raise max_owed" in "".join(scheduler.status().notices)


def test_a_cut_off_client_has_no_miss_and_its_actual_time_is_learned(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="rbcsf", settings={"cohort_size": 1}, overcommit=2.0, backoff_after=1)
    play_round(scheduler, offered("slow", "fast"), {"fast": 2.0})
    assert scheduler.history("slow")[0].kind == "cut_off"
    assert scheduler.status().backing_off == {}
    assert reliability_of(scheduler, "slow") == 1 / 2
    assert scheduler.report("slow", 8.0)
    play_round(scheduler, {})
    expected = ExchangeTimeModel(1)
    expected.learn([0], [[1.0, 1.0, 10.0]], [8.0])
    row = int(client_rows(scheduler, ["slow"])[0])
    np.testing.assert_allclose(model_of(scheduler).bank[:, [row]], expected.bank, atol=1e-12)


# Clients that leave


SECRET = "the client of Mrs. Smith"


@pytest.mark.files
def test_a_forgotten_client_leaves_no_trace_in_the_file(open_fleet: OpenFleet, folder: Path) -> None:
    """Its id, times and contexts are in no byte; the sums of the certificate stay."""
    scheduler, path = open_fleet(backoff_after=100), folder / "fleet.turnout"
    secret_seconds = [11.0625, 3.1415926535, 23.75, 2.7182818284]
    for round_, seconds in enumerate(secret_seconds):
        chosen = scheduler.choose({**offered("a"), **offered(SECRET, free_cpu=0.7310585786 + round_)})
        assert SECRET in chosen
        scheduler.report("a", 1.0)
        if seconds < 10:
            scheduler.report(SECRET, seconds)
        scheduler.close_round()
        if seconds > 10:
            scheduler.report(SECRET, seconds, round=round_ + 1)
    scheduler.choose(offered("a", SECRET))
    scheduler.report_failure(SECRET, "Mrs. Smith has left")
    scheduler.close_round()
    take_snapshot(scheduler)
    kept = scheduler.certificate()
    secret_contexts = [1 / (0.7310585786 + round_) for round_ in range(4)]
    numbers = [np.float64(value).tobytes() for value in (*secret_seconds, *secret_contexts)]
    assert all(secret in stored_bytes(path) for secret in (SECRET.encode(), b"Mrs. Smith has left", *numbers[1:]))

    scheduler.forget(SECRET)
    data = stored_bytes(path)
    for secret in (SECRET.encode(), b"Smith", *numbers, *(number[::-1] for number in numbers)):
        assert secret not in data
    assert SECRET not in "".join(json.dumps(event) for event in exported(scheduler))
    after = scheduler.certificate()
    for kind in ("turns", "promised_units", "owed_units", "forfeited_units"):
        np.testing.assert_array_equal(getattr(after, kind), getattr(kept, kind))
    assert scheduler.clients == ["a", "forgotten-1"]
    assert [turn.kind for turn in scheduler.history("forgotten-1")] == ["late", "arrived", "late", "arrived", "failed"]
    assert problems(path) == []
    assert packed(scheduler) == packed_from_disk(path)
    with pytest.raises(ReportError, match="was not selected in any round"):
        scheduler.report(SECRET, 30.0)


def test_a_forgotten_id_that_returns_is_a_new_client(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="rbcsf")
    for _ in range(3):
        play_round(scheduler, offered("a", "b"), 4.0)
    scheduler.forget("a")
    cohort = play_round(scheduler, offered("a", "b"), 4.0)
    assert scheduler.clients == ["forgotten-0", "b", "a"]
    assert sorted(cohort) == ["a", "b"]
    assert [turn.round for turn in scheduler.history("a")] == [4]
    assert scheduler.certificate().turns.tolist() == [3, 4, 1]
    fresh = ExchangeTimeModel(1)
    fresh.learn([0], [[1.0, 1.0, 10.0]], [4.0])
    assert model_of(scheduler).bank[:, [2]].tobytes() == fresh.bank.tobytes()
    assert packed(scheduler) == packed_from_disk(scheduler.path)


def test_a_client_may_already_have_the_name_of_a_forgotten_one(scheduler: Scheduler) -> None:
    scheduler.register(["a", "forgotten-0"])
    scheduler.forget("a")
    scheduler.forget("forgotten-0")
    assert len(set(scheduler.clients)) == 2
    assert scheduler.status().retired == 2


def test_a_late_time_of_a_forgotten_client_is_not_learned(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="rbcsf")
    play_round(scheduler, offered("a", "b"), {})
    scheduler.report_many({"a": 20.0, "b": 30.0})
    scheduler.forget("a")
    play_round(scheduler, offered("b"), 2.0)
    assert model_of(scheduler).bank[:, 0].tobytes() == ExchangeTimeModel(1).bank[:, 0].tobytes()
    expected = ExchangeTimeModel(1)
    expected.learn([0], [[1.0, 1.0, 10.0]], [30.0])
    expected.learn([0], [[1.0, 1.0, 10.0]], [2.0])
    np.testing.assert_allclose(model_of(scheduler).bank[:, [1]], expected.bank, atol=1e-12)
    assert packed(scheduler) == packed_from_disk(scheduler.path)


def test_register_counts_new_clients_and_refuses_invalid_ids(scheduler: Scheduler) -> None:
    assert scheduler.register(["a", "b", "a"]) == 2
    assert scheduler.register(client for client in ("b", "c")) == 1  # type: ignore[arg-type]
    assert scheduler.register([]) == 0
    for wrong in ("", "with\0zero", 5, None, "lone surrogate \ud800"):
        with pytest.raises(OfferError, match="client ids must be non-empty strings without null characters, got"):
            scheduler.register(["d", wrong])  # type: ignore[list-item]
        with pytest.raises(OfferError, match="client ids must be non-empty strings without null characters, got"):
            scheduler.choose({wrong: ClientStatus(1.0, 1.0)})  # type: ignore[dict-item]
    for wrong in ("abc", 5):
        with pytest.raises(OfferError, match=f"ids must be a list of strings, got {wrong!r}"):
            scheduler.register(wrong)  # type: ignore[arg-type]
    assert scheduler.clients == ["a", "b", "c"]
    with pytest.raises(ReportError, match="there is no client 'd'"):
        scheduler.history("d")


def test_how_often_a_client_was_available_is_judged_by_the_20_or_more_rounds_since_it_joined(
    open_fleet: OpenFleet,
) -> None:
    """Both were available in 8 of the last 20 rounds; the rate of 0.3 requires 6 of these, but 15 of all 50."""
    settings = {"cohort_size": 1, "guaranteed_rate": 0.3, "accrual": "always", "counts": "selected"}
    scheduler = open_fleet(settings=settings, backoff_after=100)

    def named_as_rare() -> list[str]:
        (notice,) = (note for note in scheduler.status().notices if "fewer rounds than they are guaranteed" in note)
        return re.findall(r"\bc\d\b", notice)

    scheduler.register(["c0", "c1"])  # c1 is never available before round 31
    for _ in range(30):
        play_round(scheduler, offered("c0"))
    scheduler.register(["c2"])
    for round_ in range(31, 51):
        play_round(scheduler, offered("c0", "c1", "c2") if round_ <= 38 else offered("c0"))
    assert named_as_rare() == ["c1"]
    scheduler.register(["c3"])
    for _ in range(19):
        play_round(scheduler, offered("c0"))
    assert named_as_rare() == ["c1", "c2"], "c3 is not judged yet"
    play_round(scheduler, offered("c0"))
    assert named_as_rare() == ["c1", "c2", "c3"]


# Statuses as arrays


def test_a_fleet_status_is_equivalent_to_single_statuses(open_fleet: OpenFleet) -> None:
    single, arrays = open_fleet("single"), open_fleet("arrays")
    world = World(12)
    for scheduler in (single, arrays):
        scheduler.register(world.clients)
    rng = np.random.default_rng(0)
    for round_ in range(1, 15):
        available = world.clients if round_ % 3 == 0 else rng.permutation(world.clients)[:7].tolist()
        statuses = world.statuses(round_)
        columns = {
            name: np.array([getattr(statuses[client], name) for client in available])
            for name in ("free_cpu", "bandwidth")
        }
        fleet_status = FleetStatus(columns, None if available is world.clients else client_rows(arrays, available))
        play_round(single, {client: statuses[client] for client in available}, 5.0)
        play_round(arrays, fleet_status, 5.0)
        assert packed(single) == packed(arrays)


def test_the_status_of_the_whole_fleet_offers_no_client_that_is_backed_off_or_retired(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4}, backoff_after=1)
    scheduler.register(named(4))
    whole = FleetStatus({"free_cpu": np.ones(4), "bandwidth": np.full(4, 2.0)})
    play_round(scheduler, whole, dict.fromkeys(("c0", "c1", "c3"), 1.0))
    scheduler.retire("c3")
    assert scheduler.status().backing_off == {"c2": 2}
    assert scheduler.choose(whole) == ["c0", "c1"]
    scheduler.report_many({"c0": 1.0, "c1": 1.0})
    available = known(scheduler.close_round().report.available)
    assert available.tolist() == [True, True, False, False]
    assert scheduler.choose(whole) == ["c0", "c1", "c2"], "the back-off is over"


@pytest.mark.parametrize(
    ("columns", "rows", "complaint"),
    [
        ({"free_cpu": [1.0] * 3}, None, "the status must have a column 'bandwidth', got free_cpu: add it"),
        ({}, None, "a column 'free_cpu', got no columns: add it"),
        (
            {"free_cpu": [1.0] * 2, "bandwidth": [1.0] * 3},
            None,
            r"free_cpu must have .* shape \(3,\), got shape \(2,\)",
        ),
        (
            {"free_cpu": [1.0] * 3, "bandwidth": [[1.0]] * 3},
            None,
            r"bandwidth must have .* shape \(3,\), got shape \(3, 1\)",
        ),
        ({"free_cpu": ["1"] * 3, "bandwidth": [1.0] * 3}, None, "free_cpu must hold numbers, not <U1"),
        (
            {"free_cpu": [1.0, 1e9], "bandwidth": [1.0] * 2},
            [2, 1],
            r"free_cpu of 'b' must be from 0.001 to 1000 cores, got 1e\+09",
        ),
        (
            {"free_cpu": [1.0, 1.0, np.nan], "bandwidth": [1.0] * 3},
            None,
            "free_cpu of 'c' must be from 0.001 to 1000 cores, got nan: correct it",
        ),
        ({"free_cpu": [1.0], "bandwidth": [1.0]}, [-1], r"rows\[0\] = -1 must be a row"),
        ({"free_cpu": [1.0], "bandwidth": [1.0]}, [3], r"rows\[0\] = 3 is unknown: there are 3 clients"),
        ({"free_cpu": [1.0] * 2, "bandwidth": [1.0] * 2}, [0, 0], r"rows\[1\] = 0 is a duplicate"),
        ({"free_cpu": [1.0], "bandwidth": [1.0]}, [0.0], "rows must hold rows"),
    ],
)
def test_an_invalid_fleet_status_is_refused_with_the_column_or_client(
    scheduler: Scheduler, columns: dict[str, Any], rows: list[int] | None, complaint: str
) -> None:
    scheduler.register(["a", "b", "c"])
    before = packed(scheduler)
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose(FleetStatus(columns, None if rows is None else np.array(rows)))
    assert packed(scheduler) == before
    assert not scheduler.status().is_open


# Queries


def test_the_history_of_a_client_contains_the_outcome_of_each_turn(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(backoff_after=100)
    play_round(scheduler, offered("a", "b"), {"a": 2.0, "b": 3.0})
    play_round(scheduler, offered("a"), {}, failed=["a"])
    play_round(scheduler, offered("a"), {})
    scheduler.report("a", 12.0)
    play_round(scheduler, offered("a", "b"), {})
    scheduler.choose(offered("a", "b"))
    history = [(t.round, t.kind, t.seconds, t.why, t.late_seconds, t.folded) for t in scheduler.history("a")]
    assert history == [
        (1, "arrived", 2.0, None, None, None),
        (2, "failed", None, "its battery died", None, None),
        (3, "late", 10.0, None, 12.0, 4),
        (4, "late", 10.0, None, None, None),
        (5, None, None, None, None, None),
    ]
    assert [turn.round for turn in scheduler.history("b")] == [1, 4, 5]
    assert [(turn.id, turn.kind) for turn in scheduler.history(round=1)] == [("a", "arrived"), ("b", "arrived")]
    assert [(turn.id, turn.kind) for turn in scheduler.history()] == [("a", None), ("b", None)]
    assert scheduler.history(round=99) == []


def test_the_status_is_printed_as_aligned_lines(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3, "guaranteed_rate": 1}, backoff_after=1)
    assert "clients    0" in str(scheduler.status())
    assert scheduler.status().promise is None
    for _ in range(3):
        scheduler.choose(offered(*named(5)))
        scheduler.report(scheduler.status().out[0], 1.5)
        scheduler.close_round()
    scheduler.choose(offered(*named(5), "new"))
    out = scheduler.status().out
    scheduler.report(out[0], 1.5)
    scheduler.report_failure(out[1], "its battery died")
    status = scheduler.status()
    assert (status.round, status.is_open, status.target_size, status.clients) == (4, True, 3, 6)
    assert (status.arrived, status.failed, status.out) == ([out[0]], {out[1]: "its battery died"}, out[2:])
    assert status.promise == scheduler.certificate().summary()
    assert status.behind == dict.fromkeys(("c1", "c2", "c3", "c4"), 2.0)
    text = str(status)
    for line in (
        "round      4, open for 0.",
        "deadline after 10.0 s, 3 required",
        f"reported   1: {out[0]}",
        f"pending    1: {out[2]}",
        f"failed     {out[1]} (its battery died)",
        "behind     ",
        "back-off   ",
        "promise    behind: c1 is 2.00 turns behind, within the tolerance of 2; 4 of 6 clients are one turn or more",
        "; 1 client was there for too few rounds to be served",
    ):
        assert line in text
    scheduler.close_round()
    assert "round      4 is closed, no round is open" in str(scheduler.status())


def test_the_export_contains_every_event_and_can_be_written_as_json(scheduler: Scheduler) -> None:
    scheduler.register(["a", "b"])
    play_round(scheduler, offered("a", "b", "c"), {"a": 2.0})
    scheduler.report("b", 20.0)
    scheduler.retire("c")
    play_round(scheduler, offered("a"), 3.0)
    scheduler.forget("c")
    for _ in range(24):
        play_round(scheduler, offered("a"), 3.0)
    events = [json.loads(json.dumps(event, allow_nan=False)) for event in exported(scheduler)]
    assert [event["event"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events[:7]] == ["join", "join", "round", "retire", "round", "forget", "round"]
    assert events[0]["clients"] == ["a", "b"]
    assert events[1]["clients"] == ["forgotten-2"]
    first, second = events[2], events[4]
    assert (first["round"], first["target_size"], first["available"]) == (1, 2, 3)
    assert (first["clients"], first["outcomes"], first["seconds"]) == (["a", "b"], ["arrived", "late"], [2.0, 10.0])
    assert first["contexts"] == [[1.0, 1.0, 10.0], [1.0, 1.0, 10.0]]
    assert first["opened"] < first["closed"]
    assert second["late"] == [{"client": "b", "round": 1, "seconds": 20.0}]
    assert events[3]["client"] == events[5]["client"] == "forgotten-2"
    assert sum(event["kind"] == "round" for event in events) == scheduler.round


# Settings


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"deadline": 11.0},
            r"was created with deadline=10.0, got 11.0: open it without deadline, or create a new file",
        ),
        ({"policy": "random"}, "was created with policy='fair-pace', got 'random'"),
        ({"settings": {"cohort_size": 3}}, r"was created with settings=\{'cohort_size': 2\}"),
        ({"dedline": 10.0}, r"there is no setting 'dedline' \(did you mean 'deadline'\?\); the settings are policy"),
    ],
)
def test_settings_that_differ_from_those_in_the_file_are_refused(
    open_fleet: OpenFleet, folder: Path, given: dict[str, Any], complaint: str
) -> None:
    open_fleet().close()
    with pytest.raises(SettingError, match=complaint):
        Scheduler.open(folder / "fleet.turnout", **given)
    assert open_fleet(deadline=10, policy="fair-pace").settings.deadline == 10.0  # the lock was released


def test_the_stored_settings_are_accepted_again_in_equivalent_types(folder: Path) -> None:
    given: dict[str, Any] = {
        "policy": "with-guarantee",
        "settings": {
            "policy": "e3cs",
            "settings": {"cohort_size": 2, "quota": ((1, 0.2), (9, 1.0))},
            "guaranteed_rate": "1/8",
        },
        "deadline": np.float64(10),
        "backoff_after": 2,
    }
    for _ in range(2):
        with Scheduler.open(folder / "fleet.turnout", **given) as scheduler:
            assert scheduler.settings.backoff_after == 2
    with Scheduler.open(folder / "fleet.turnout") as scheduler:
        assert scheduler.settings.settings["guaranteed_rate"] == "1/8"
        scheduler.choose(offered(*named(4)))
        assert state_of(scheduler).fleet.policy.cohort_size == 2


# Policies


def test_a_policy_that_cannot_grow_raises_and_leaves_the_fleet_unchanged(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="skewed", settings={"cohort_size": 2})
    scheduler.register(["a", "b", "c"])
    play_round(scheduler, offered("a", "b", "c"))
    before = packed(scheduler)
    for attempt in (lambda: scheduler.register(["d"]), lambda: scheduler.choose(offered("a", "d"))):
        with pytest.raises(SettingError, match="skewed draws the weights of all clients at once: 1 more cannot join"):
            attempt()
    assert packed(scheduler) == packed_from_disk(scheduler.path) == before
    assert scheduler.clients == ["a", "b", "c"]
    play_round(scheduler, offered("a", "b", "c"))
    scheduler.close()
    assert open_fleet().round == 2


def test_a_certificate_needs_a_client_and_a_policy_with_a_guarantee(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="random")
    with pytest.raises(StateError, match="the fleet has no clients yet"):
        scheduler.certificate()
    play_round(scheduler, offered("a", "b"))
    assert "promise    " not in str(scheduler.status())
    with pytest.raises(SettingError, match="the policy random guarantees nothing: use fair-pace for a certificate"):
        scheduler.certificate()


# Snapshots


def test_snapshots_are_written_automatically_and_do_not_change_the_state(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.serving.rounds.SNAPSHOT_EVERY", 20)
    often, never = open_fleet("often"), open_fleet("never")
    for round_ in range(1, 48):
        for scheduler in (often, never):
            play_round(scheduler, offered(*named(4)), 2.0 + round_ % 3)
        if round_ % 7 == 0:
            take_snapshot(often)
    assert packed(often) == packed(never) == packed_from_disk(folder / "often") == packed_from_disk(folder / "never")
    (seq,) = rows_of(folder / "never", "SELECT seq FROM snapshot")
    assert seq == (41,)  # the fortieth round, after one event for the clients that joined
    never.close()
    alter(folder / "never", "DELETE FROM snapshot")
    assert packed_from_disk(folder / "never") == packed(often)  # replayed from the first event


# Threads and processes


@pytest.mark.parametrize("beside", [False, True], ids=["scheduler", "reporter"])
def test_eight_threads_can_report_concurrently_to_one_scheduler_or_reporter(
    open_fleet: OpenFleet, beside: bool
) -> None:
    clients = named(64)
    scheduler = open_fleet(settings={"cohort_size": len(clients)})
    scheduler.choose(offered(*clients))
    with Reporter(scheduler.path) as reporter, ThreadPoolExecutor(8) as threads:
        report = reporter.report if beside else scheduler.report
        new = [threads.submit(report, client, 1.0 + row) for row, client in enumerate(clients) for _ in range(2)]
        while not all(each.done() for each in new):
            assert set(scheduler.status().arrived) <= set(clients)
    assert [first.result() + second.result() for first, second in zip(new[::2], new[1::2], strict=True)] == [1] * 64
    assert scheduler.close_round().report.exchange_times.tolist() == [1.0 + row for row in range(64)]


@pytest.mark.files
def test_a_forked_child_must_open_the_fleet_itself(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler.choose(["a"])
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StoreError, match=r"was opened by process \d+: open it again in this process"):
            scheduler.report("a", 1.0)
    assert scheduler.report("a", 2.0)
    assert [turn.seconds for turn in scheduler.history("a")] == [2.0]


# Invariants


def pick(clients: list[str], number: int) -> str | None:
    return clients[number % len(clients)] if clients else None


def step(scheduler: Scheduler, action: str, number: int, seconds: float, offered_to: set[str]) -> None:
    """Performs one action on a fleet, if it is possible now."""
    status = scheduler.status()
    if action == "choose" and not status.is_open:
        chosen = [f"c{row}" for row in range(12) if number >> row & 1]
        offered_to.clear()
        offered_to.update(chosen)
        with suppress(OfferError):  # the fleet has no clients yet
            scheduler.choose(offered(*chosen, free_cpu=seconds / 5))
    elif action in ("report", "fail") and status.is_open:
        client = pick(status.out, number)
        if client is not None:
            is_new = (
                scheduler.report(client, seconds) if action == "report" else scheduler.report_failure(client, "lost")
            )
            assert is_new
    elif action == "late":
        client = pick([client for client in scheduler.clients if not client.startswith("forgotten")], number)
        for turn in scheduler.history(client) if client else []:
            if turn.kind == "late":
                with suppress(ReportError):  # outside the window, or recorded before
                    scheduler.report(turn.id, 10.0 + seconds, round=turn.round)
    elif action == "close" and status.is_open:
        scheduler.close_round()
    elif action == "abandon" and status.is_open:
        with suppress(ReportError):  # a client has reported
            scheduler.abandon_round()
    elif not status.is_open:
        client = pick(scheduler.clients, number)
        if action == "join":
            scheduler.register([f"c{number % 15}"])
        elif action == "snapshot":
            take_snapshot(scheduler)
        elif action == "retire" and client:
            scheduler.retire(client)
        elif action == "forget" and client:
            scheduler.forget(client)


ACTIONS = ["choose"] * 4 + ["report"] * 6 + ["close"] * 4 + ["fail", "fail", "late", "late", "join", "abandon"]
steps = st.tuples(
    st.sampled_from([*ACTIONS, "retire", "forget", "snapshot"]),
    st.integers(0, 2**12 - 1),
    st.floats(0.5, 12.0, allow_nan=False),
)


@given(st.lists(steps, min_size=5, max_size=60), st.sampled_from([1.0, 1.6, "auto"]))
@settings(max_examples=15, deadline=None)
def test_any_sequence_of_actions_keeps_the_certificate_and_the_stored_state(
    script: list[tuple[str, int, float]], overcommit: float
) -> None:
    given = {"settings": {"cohort_size": 3, "guaranteed_rate": "1/3", "max_owed": 2}, "backoff_after": 2}
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        path, offered_to = Path(name) / "fleet.turnout", set[str]()
        with Scheduler.open(path, **{**LIVE, **given}, overcommit=overcommit) as scheduler:
            for action, number, seconds in script:
                backing_off = set(scheduler.status().backing_off)
                gone = {client for client, flag in zip(scheduler.clients, retired(scheduler), strict=True) if flag}
                step(scheduler, action, number, seconds, offered_to)
                if action == "choose" and scheduler.status().is_open:
                    cohort = scheduler.choose({})
                    assert set(cohort) <= offered_to
                    assert not set(cohort) & (backing_off | gone)
                if scheduler.clients:
                    certificate = scheduler.certificate()
                    assert certificate.books_balance
                    assert ((certificate.owed >= 0) & (certificate.owed <= 2)).all()
                assert packed(scheduler) == packed_from_disk(path)


def retired(scheduler: Scheduler) -> list[int]:
    flags: list[int] = state_of(scheduler).state()["clients.retired"].tolist()
    return flags


def test_times_in_milliseconds_are_questioned_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Scheduler.open(tmp_path / "fleet.turnout", settings={"cohort_size": 1}, deadline=60.0) as scheduler:
        for seconds in (59.0, 60_000.0, 61_000.0):
            (client,) = scheduler.choose(["a"])
            scheduler.report(client, seconds)
            scheduler.close_round()
    questioned = [record.message for record in caplog.records if "milliseconds" in record.message]
    assert len(questioned) == 1
    assert "a reported 60000 s, a thousand times the deadline of 60 s" in questioned[0]
