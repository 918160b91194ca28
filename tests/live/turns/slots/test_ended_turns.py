"""Readers of fleets without rounds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from live.fleets import state_of
from live.turns.slots.played import fill, open_slots, play_turns
from narrowing import known
from turnout.errors import SettingError
from turnout.live import FleetReader, Scheduler
from turnout.storage.encoding.packing import pack_snapshot


def test_ended_turns_are_read_in_the_order_in_which_their_results_were_learned(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        reported = play_turns(scheduler, 30)
        fill(scheduler, random.Random(2))  # learns the last reports
        with FleetReader(scheduler.path) as reader:
            ended = list(reader.ended_turns())
            filled = [event.filled for event in reader.events() if event.filled is not None]
            assert [turn.id for turn in ended] == [number for number, _, _ in reported]
            assert [turn.id for turn in ended] != sorted(turn.id for turn in ended)
            for turn, (number, kind, seconds) in zip(ended, reported, strict=True):
                event = next(event for event in filled if event.first <= number <= event.last)
                index = number - event.first
                assert (turn.kind, turn.client) == (kind, reader.clients[turn.row])
                assert turn.row == event.rows[index]
                assert kind == "failed" or (turn.seconds, turn.loss) == (seconds, 1.0 / number)
                assert turn.context is not None
                assert turn.present is not None
                assert turn.given is not None
                assert turn.context.tolist() == event.contexts[index].tolist()
                assert turn.present.tolist() == event.present.tolist()
                assert turn.given.isoformat(timespec="milliseconds") == event.at
                assert turn.decisions >= number
            assert reader.round == scheduler.round


def test_the_running_turns_and_the_offers_are_those_of_the_scheduler(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler, FleetReader(tmp_path / "fleet.turnout") as reader:
        given = fill(scheduler, random.Random(1))
        scheduler.report(given[1].id, 5.0)
        running = reader.running()
        assert [(running_turn.decision, turn.id, running_turn.deadline) for running_turn, turn in running] == [
            (turn.id, turn.client, turn.deadline) for turn in given
        ]
        assert [turn.kind for _, turn in running] == [None, "arrived", None]
        assert all(running_turn.elapsed >= 0 for running_turn, _ in running)
        assert [dict(running_turn.reasons) for running_turn, _ in running] == [dict(turn.reasons) for turn in given]
        first, second, third = (known(reader.offer(turn.id)) for turn in given)
        rows = [int(offer.rows[0]) for offer in (first, second, third)]
        assert [reader.clients[row] for row in rows] == [turn.client for turn in given]
        assert first.available[rows].all()
        assert third.available[rows].tolist() == [False, False, True]
        assert len(known(third.contexts)) == third.available.sum()
        assert reader.offer(4) is None
        assert [offer.round for offer in reader.offers()] == [1]


def test_a_follower_of_a_live_fleet_has_the_state_of_its_scheduler(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler, FleetReader(tmp_path / "fleet.turnout") as reader:
        follower = reader.follow()
        for seed in range(3):
            play_turns(scheduler, 10, seed=seed)
            for event in follower.poll():
                follower.apply(event)
            assert pack_snapshot({**follower.fleet.state(), "ids": ""}) == pack_snapshot(
                {**state_of(scheduler).state(), "ids": ""}
            )
            assert follower.fleet.ids == scheduler.clients


def test_turns_that_were_given_before_the_kept_events_are_read_without_their_contexts(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout", keep_rounds=20) as scheduler:
        play_turns(scheduler, 50)
        scheduler.compact()
        with FleetReader(scheduler.path) as reader:
            kept = reader.summary()
            assert kept.round > 0
            ended = list(reader.ended_turns())
            assert {turn.id > kept.round for turn in ended} == {True, False}
            for turn in ended:
                is_kept = turn.id > kept.round
                assert (turn.context is not None, turn.given is not None) == (is_kept, is_kept)


def test_a_reader_says_which_method_fits_the_fleet(tmp_path: Path) -> None:
    with open_slots(tmp_path / "slots.turnout") as scheduler, FleetReader(scheduler.path) as reader:
        with pytest.raises(SettingError, match="a fleet with no rounds: use ended_turns of its reader"):
            reader.closed_rounds()
        with pytest.raises(SettingError, match="use running"):
            reader.open_round()
    with Scheduler.open(tmp_path / "rounds.turnout") as scheduler, FleetReader(scheduler.path) as reader:
        with pytest.raises(SettingError, match="a fleet with rounds: use closed_rounds of its reader"):
            reader.ended_turns()
        with pytest.raises(SettingError, match="use open_round"):
            reader.running()
