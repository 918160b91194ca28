from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout import make_policy
from turnout.errors import SelectionError, SettingError
from turnout.kernel.rounds import LateArrivals, RoundRecord, RoundReport, Selection
from turnout.simulator import PaperWorld, RunPlan, play, play_plan
from turnout.simulator.recorded import FittedTimes, FittedWorld, RecordedHistory, RecordedWorld
from turnout.store import RoundColumns

ROUNDS = 200
COLUMNS = play_plan(RunPlan("random", ROUNDS, seed=3, world_settings={"availability": [0.5, 0.9] * 20}))
PAST = RecordedHistory(COLUMNS, cold_start=1)


def records_of(world: FittedWorld, policy: str, rounds: int) -> list[RoundRecord]:
    return list(play(make_policy(policy, world.clients), world, rounds))


def means_by_client(columns: RoundColumns) -> Any:
    return np.bincount(columns.chosen, columns.exchange_times) / columns.turns


def test_a_fitted_world_has_the_times_of_the_record() -> None:
    world = FittedWorld(PAST)
    again = RoundColumns.from_records(records_of(world, "random", 1500), clients=40)
    assert again.exchange_times.mean() == pytest.approx(COLUMNS.exchange_times.mean(), rel=0.03)
    assert means_by_client(again) == pytest.approx(means_by_client(COLUMNS), rel=0.3)
    assert np.corrcoef(means_by_client(again), means_by_client(COLUMNS))[0, 1] > 0.98
    assert again.durations.mean() == pytest.approx(COLUMNS.durations.mean(), rel=0.05)


def test_a_fitted_world_has_the_availability_of_the_record() -> None:
    world = FittedWorld(PAST)
    masks = np.array([world.offer(round_).available for round_ in range(1, 3001)])
    recorded = PAST.available
    assert world.availability == pytest.approx(recorded.mean(axis=0))
    assert masks.mean(axis=0) == pytest.approx(recorded.mean(axis=0), abs=0.05)
    assert {row.tobytes() for row in masks} <= {row.tobytes() for row in recorded}  # who was there together still is


def test_without_noise_the_regressions_find_the_truth() -> None:
    world = PaperWorld(1, noise="none")
    past = RecordedHistory(
        RoundColumns.from_records(play(make_policy("random", 40), world, 400), clients=40), cold_start=1
    )
    fitted = FittedWorld(past)
    offer, rows = PaperWorld(9, noise="none").offer(1), np.arange(40)
    assert offer.expected_times is not None
    assert fitted.times.predict(rows, offer.contexts) == pytest.approx(offer.expected_times, rel=0.03)
    assert fitted.times.factors == pytest.approx(np.ones(len(past.columns.chosen)), abs=0.1)


def test_cold_starts_follow_from_who_was_chosen() -> None:
    world = FittedWorld(PAST)
    first = world.offer(1)
    assert first.contexts[:, 1].all()
    chosen = np.flatnonzero(first.available)[:3]
    world.play(first, Selection(1, chosen))
    assert np.flatnonzero(world.offer(2).contexts[:, 1] == 0).tolist() == chosen.tolist()


def test_the_same_seed_offers_the_same_to_every_policy_in_any_order() -> None:
    one, other = FittedWorld(PAST, 5), FittedWorld(PAST, 5)
    late = one.offer(70)
    assert np.array_equal(late.available, other.offer(70).available)
    assert np.array_equal(one.offer(2).contexts, other.offer(2).contexts)
    assert not np.array_equal(one.offer(2).contexts, FittedWorld(PAST, 6).offer(2).contexts)


def test_a_resumed_fitted_world_goes_on_as_it_would_have() -> None:
    whole, half = FittedWorld(PAST), FittedWorld(PAST)
    policy = make_policy("rbcsf", 40)
    list(play(policy, whole, 5))
    half.restore(whole.state())
    assert np.array_equal(half.offer(6).contexts, whole.offer(6).contexts)


def test_times_can_be_scaled() -> None:
    offer = FittedWorld(PAST).offer(1)
    rows = np.flatnonzero(offer.available)[:4]
    plain = FittedWorld(PAST).play(offer, Selection(1, rows)).exchange_times
    assert FittedWorld(PAST, scale=2.0).play(offer, Selection(1, rows)).exchange_times == pytest.approx(2 * plain)


def test_failures_and_deadlines_are_kept() -> None:
    outcomes = np.zeros(len(COLUMNS.chosen), dtype=np.uint8)
    outcomes[COLUMNS.chosen == 7] = 2
    world = FittedWorld(RecordedHistory(replace(COLUMNS, outcomes=outcomes), cold_start=1, deadline=15.0))
    reports = [record.report for record in records_of(world, "random", 100)]
    became = [
        (int(row), word)
        for one in reports
        if one.outcomes is not None
        for row, word in zip(one.clients, one.outcomes, strict=True)
    ]
    assert {word for row, word in became if row == 7} == {"failed"}
    assert "failed" not in {word for row, word in became if row != 7}
    assert "late" in {word for _, word in became}
    assert max(report.exchange_times[report.clients != 7].max() for report in reports) == 15.0


def test_the_true_time_of_a_late_client_is_learned() -> None:
    context = np.array([[1.0, 1.0, 1.0]])
    late = LateArrivals(np.array([1]), np.array([0]), context, np.array([5.0]), np.array([9.0]))
    mask = np.ones(2, dtype=np.bool_)
    told = [
        RoundReport(1, np.array([0]), context, np.array([5.0]), mask, ["late"]),
        RoundReport(2, np.array([1]), context, np.array([3.0]), mask, late_arrivals=late),
    ]
    columns = RoundColumns.from_records(
        [RoundRecord(Selection(one.round, one.clients), one) for one in told], clients=2
    )
    assert RecordedHistory(columns).true_times.tolist() == [9.0, 3.0]


def test_a_client_without_turns_is_taken_for_one_of_the_fleet() -> None:
    keep = COLUMNS.chosen != 5
    starts = np.concatenate([[0], np.cumsum(np.add.reduceat(keep, COLUMNS.starts[:-1]))])
    fewer = {name: getattr(COLUMNS, name)[keep] for name in ("chosen", "contexts", "exchange_times")}
    columns = RoundColumns(40, COLUMNS.rounds, starts, available=COLUMNS.available, **fewer)
    times = FittedTimes(RecordedHistory(columns, cold_start=1))
    assert not times.turns.own[5]
    seconds = times.predict(np.arange(40), np.tile([1.0, 1.0, 7.0], (40, 1)))
    assert seconds.min() < seconds[5] < seconds.max()


def test_the_recorded_world_offers_what_was_recorded() -> None:
    world = RecordedWorld(PAST)
    for round_ in (1, 50, ROUNDS):
        offer, own = world.offer(round_), slice(*COLUMNS.starts[round_ - 1 : round_ + 1])
        assert np.array_equal(offer.available, PAST.available[round_ - 1])
        assert np.array_equal(offer.contexts[COLUMNS.chosen[own], 0], COLUMNS.contexts[own, 0])
    with pytest.raises(SettingError, match="rounds 1 to 200, not 201"):
        world.offer(ROUNDS + 1)


def test_the_recorded_choices_have_the_recorded_times() -> None:
    world = RecordedWorld(PAST)
    again = RoundColumns.from_records(records_of(world, "random", ROUNDS), clients=40)
    assert not np.array_equal(again.chosen, COLUMNS.chosen)  # another seed
    world = RecordedWorld(PAST)
    reports = []
    for record in COLUMNS.records():
        offer = world.offer(record.round)
        reports.append(world.play(offer, record.selection))
    assert np.array_equal(np.concatenate([one.exchange_times for one in reports]), COLUMNS.exchange_times)
    assert world.known == world.told == len(COLUMNS.chosen)


def test_whole_offers_are_taken_as_they_are() -> None:
    offers = np.random.default_rng(0).uniform(0.5, 2.0, (ROUNDS, 40, 3))
    offers[np.repeat(np.arange(ROUNDS), np.diff(COLUMNS.starts)), COLUMNS.chosen] = COLUMNS.contexts
    world = RecordedWorld(RecordedHistory(COLUMNS, offers=offers))
    assert np.array_equal(world.offer(9).contexts, offers[8])
    assert np.isin(FittedWorld(RecordedHistory(COLUMNS, offers=offers)).offer(1).contexts, offers).all()
    assert RecordedHistory(COLUMNS, offers=offers).is_whole
    offers[8] = np.nan  # but for one round
    world = RecordedWorld(RecordedHistory(COLUMNS, offers=offers))
    assert not world.past.is_whole
    assert np.isfinite(world.offer(9).contexts).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RecordedHistory(RoundColumns.from_records([], clients=2)), "holds no turns"),
        (lambda: RecordedHistory(replace(COLUMNS, available=None)), "who was available"),
        (lambda: RecordedHistory(replace(COLUMNS, contexts=np.empty((len(COLUMNS.chosen), 0)))), "no contexts"),
        (lambda: RecordedHistory(COLUMNS, cold_start=3), "cold_start must be a feature below 3"),
        (lambda: RecordedHistory(COLUMNS, deadline=0.0), "deadline must be above 0"),
        (lambda: RecordedHistory(COLUMNS, offers=np.zeros((1, 40, 3))), "offers has shape"),
        (lambda: FittedWorld(PAST, scale=0.0), "scale must be above 0"),
        (lambda: FittedWorld(PAST).offer(0), "rounds count from 1"),
        (
            lambda: FittedTimes(
                RecordedHistory(replace(COLUMNS, outcomes=np.full(len(COLUMNS.chosen), 2, dtype=np.uint8)))
            ),
            "no turn that came back",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(make: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        make()


def test_who_is_away_cannot_be_chosen() -> None:
    world = FittedWorld(PAST)
    offer = world.offer(1)
    with pytest.raises(SelectionError, match="not available"):
        world.play(offer, Selection(1, np.flatnonzero(~offer.available)[:1]))
