from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from narrowing import known
from turnout import make_policy
from turnout.errors import SettingError
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundRecord, RoundReport, Selection
from turnout.lab import PaperWorld, RoundColumns, RunPlan, check_world, play, play_plan
from turnout.lab.worlds.recorded import FittedTimes, RecordedHistory, RecordedWorld

ROUNDS = 200
COLUMNS = play_plan(RunPlan("random", ROUNDS, seed=3, world_settings={"availability": [0.5, 0.9] * 20}))
HISTORY = RecordedHistory(COLUMNS, cold_start=1)


def records_of(world: RecordedWorld, policy: str, rounds: int) -> list[RoundRecord]:
    return list(play(make_policy(policy, world.clients), world, rounds))


def means_by_client(columns: RoundColumns) -> Any:
    return np.bincount(columns.chosen, columns.exchange_times) / columns.turns


def test_resampled_times_are_those_of_the_record() -> None:
    again = RoundColumns.from_records(records_of(RecordedWorld(HISTORY), "random", ROUNDS), clients=40)
    assert again.exchange_times.mean() == pytest.approx(COLUMNS.exchange_times.mean(), rel=0.05)
    assert np.corrcoef(means_by_client(again), means_by_client(COLUMNS))[0, 1] > 0.95
    assert RecordedWorld(HISTORY).availability == pytest.approx(HISTORY.available.mean(axis=0))


def test_a_recorded_world_keeps_the_contract_of_worlds() -> None:
    check_world(lambda seed: RecordedWorld(HISTORY, seed))


def test_without_noise_the_regressions_recover_the_expected_times() -> None:
    world = PaperWorld(1, noise="none")
    history = RecordedHistory(
        RoundColumns.from_records(play(make_policy("random", 40), world, 400), clients=40), cold_start=1
    )
    fitted = RecordedWorld(history)
    offer, rows = PaperWorld(9, noise="none").offer(1), np.arange(40)
    assert offer.expected_times is not None
    assert fitted.times.predict(rows, offer.contexts) == pytest.approx(offer.expected_times, rel=0.03)
    assert fitted.times.factors == pytest.approx(np.ones(len(history.columns.chosen)), abs=0.1)


def test_cold_starts_follow_from_the_selections() -> None:
    world = RecordedWorld(HISTORY)
    first = world.offer(1)
    assert first.contexts[:, 1].all()
    chosen = np.flatnonzero(first.available)[:3]
    world.play(first, Selection(1, chosen))
    assert np.flatnonzero(world.offer(2).contexts[:, 1] == 0).tolist() == chosen.tolist()


def test_failures_and_deadlines_of_the_record_are_reproduced() -> None:
    outcomes = np.where(COLUMNS.exchange_times > 15.0, OUTCOMES.index("late"), 0).astype(np.uint8)
    outcomes[COLUMNS.chosen == 7] = OUTCOMES.index("failed")
    times = np.minimum(COLUMNS.exchange_times, 15.0)
    columns = replace(COLUMNS, outcomes=outcomes, exchange_times=times)
    world = RecordedWorld(RecordedHistory(columns, cold_start=1, deadline=15.0))
    reports = [record.report for record in records_of(world, "random", 100)]
    results = [
        (int(row), outcome)
        for report in reports
        if report.outcomes is not None
        for row, outcome in zip(report.clients, report.outcomes, strict=True)
    ]
    assert {outcome for row, outcome in results if row == 7} == {"failed"}
    assert "failed" not in {outcome for row, outcome in results if row != 7}
    assert "late" in {outcome for _, outcome in results}
    assert max(report.exchange_times[report.clients != 7].max() for report in reports) == 15.0


def test_the_true_time_of_a_late_client_is_learned() -> None:
    context = np.array([[1.0, 1.0, 1.0]])
    late = LateArrivals(np.array([1]), np.array([0]), context, np.array([5.0]), np.array([9.0]))
    mask = np.ones(2, dtype=np.bool_)
    reports = [
        RoundReport(1, np.array([0]), context, np.array([5.0]), mask, ["late"]),
        RoundReport(2, np.array([1]), context, np.array([3.0]), mask, late_arrivals=late),
    ]
    columns = RoundColumns.from_records(
        [RoundRecord(Selection(report.round, report.clients), report) for report in reports], clients=2
    )
    assert RecordedHistory(columns).true_times.tolist() == [9.0, 3.0]


def test_a_client_without_turns_gets_the_fleet_wide_estimate() -> None:
    keep = COLUMNS.chosen != 5
    starts = np.concatenate([[0], np.cumsum(np.add.reduceat(keep, COLUMNS.starts[:-1]))])
    fewer = {name: getattr(COLUMNS, name)[keep] for name in ("chosen", "contexts", "exchange_times")}
    columns = RoundColumns(40, COLUMNS.rounds, starts, available=COLUMNS.available, **fewer)
    times = FittedTimes(RecordedHistory(columns, cold_start=1))
    assert not times.sampler.has_own_records[5]
    seconds = times.predict(np.arange(40), np.tile([1.0, 1.0, 7.0], (40, 1)))
    assert seconds.min() < seconds[5] < seconds.max()


def test_the_recorded_world_repeats_the_recorded_offers() -> None:
    world = RecordedWorld(HISTORY)
    for round_ in (1, 50, ROUNDS):
        offer, own = world.offer(round_), slice(*COLUMNS.starts[round_ - 1 : round_ + 1])
        assert np.array_equal(offer.available, HISTORY.available[round_ - 1])
        assert np.array_equal(offer.contexts[COLUMNS.chosen[own], 0], COLUMNS.contexts[own, 0])
    with pytest.raises(SettingError, match="recorded rounds, 1 to 200, not 201"):
        world.offer(ROUNDS + 1)


def test_the_recorded_selections_get_the_recorded_times() -> None:
    world = RecordedWorld(HISTORY)
    again = RoundColumns.from_records(records_of(world, "random", ROUNDS), clients=40)
    assert not np.array_equal(again.chosen, COLUMNS.chosen)  # another seed
    world = RecordedWorld(HISTORY)
    reports = []
    for record in COLUMNS.records():
        offer = world.offer(record.round)
        reports.append(world.play(offer, record.selection))
    assert np.array_equal(np.concatenate([report.exchange_times for report in reports]), COLUMNS.exchange_times)
    assert world.recorded_times == world.reported_times == len(COLUMNS.chosen)


@pytest.mark.parametrize("first", [0, 1])
def test_a_late_client_arrives_later_only_in_the_recorded_context(first: int) -> None:
    """In round 2, client 0 needs a cold start unless it was selected in round 1, as in the record."""
    cold, warm, mask = np.array([[1.0, 1.0]]), np.array([[1.0, 0.0]]), np.ones(2, dtype=np.bool_)
    late = LateArrivals(np.array([2]), np.array([0]), warm, np.array([5.0]), np.array([9.0]))
    reports = [
        RoundReport(1, np.array([0]), cold, np.array([4.0]), mask),
        RoundReport(2, np.array([0]), warm, np.array([5.0]), mask, ["late"]),
        RoundReport(3, np.array([1]), cold, np.array([3.0]), mask, late_arrivals=late),
    ]
    records = [RoundRecord(Selection(report.round, report.clients), report) for report in reports]
    history = RecordedHistory(RoundColumns.from_records(records, clients=2), cold_start=1, deadline=5.0)
    world = RecordedWorld(history)
    _, second, last = (
        world.play(world.offer(n), Selection(n, np.array([row]))) for n, row in enumerate((first, 0, 1), 1)
    )
    assert second.with_outcome("late").all()
    assert second.exchange_times.tolist() == [5.0]  # the deadline
    assert (last.late_arrivals is not None) == (first == 0)


def test_only_the_recorded_clients_have_their_recorded_losses() -> None:
    losses = np.arange(len(COLUMNS.chosen), dtype=float)
    world = RecordedWorld(RecordedHistory(replace(COLUMNS, losses=losses), cold_start=1))
    offer, own = world.offer(1), COLUMNS.chosen[: COLUMNS.starts[1]]
    others = np.setdiff1d(np.flatnonzero(offer.available), own)[:2]
    report = world.play(offer, Selection(1, np.concatenate([others, own[::-1]])))
    np.testing.assert_array_equal(known(report.losses), [np.nan, np.nan, *losses[: len(own)][::-1]])


def test_complete_offers_are_used_unchanged() -> None:
    offers = np.random.default_rng(0).uniform(0.5, 2.0, (ROUNDS, 40, 3))
    offers[np.repeat(np.arange(ROUNDS), np.diff(COLUMNS.starts)), COLUMNS.chosen] = COLUMNS.contexts
    world = RecordedWorld(RecordedHistory(COLUMNS, offers=offers))
    assert np.array_equal(world.offer(9).contexts, offers[8])
    assert RecordedHistory(COLUMNS, offers=offers).has_all_contexts
    offers[8] = np.nan  # one round was not recorded
    world = RecordedWorld(RecordedHistory(COLUMNS, offers=offers))
    assert not world.history.has_all_contexts
    assert np.isfinite(world.offer(9).contexts).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecordedHistory(RoundColumns.from_records([], clients=2)), "holds no turns"),
        (lambda: RecordedHistory(replace(COLUMNS, available=None)), "who was available"),
        (lambda: RecordedHistory(replace(COLUMNS, contexts=np.empty((len(COLUMNS.chosen), 0)))), "no contexts"),
        (lambda: RecordedHistory(COLUMNS, cold_start=3), "cold_start must be the index of a feature, below 3"),
        (lambda: RecordedHistory(COLUMNS, deadline=0.0), "deadline must be above 0"),
        (lambda: RecordedHistory(COLUMNS, offers=np.zeros((1, 40, 3))), "offers must have the shape"),
        (lambda: RecordedWorld(HISTORY).offer(0), "recorded rounds, 1 to 200, not 0"),
        (
            lambda: FittedTimes(
                RecordedHistory(replace(COLUMNS, outcomes=np.full(len(COLUMNS.chosen), 2, dtype=np.uint8)))
            ),
            "no successful turn",
        ),
    ],
)
def test_records_that_cannot_be_fitted_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()
