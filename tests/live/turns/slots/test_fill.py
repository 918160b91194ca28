"""Turns without rounds in a live fleet."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import fleets
from live.turns.slots.played import SLOTS, fill, open_slots, play_turns, play_with_a_long_turn
from narrowing import known
from turnout.errors import OfferError, ReportError, SettingError, StateError
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.live import Feature, Features, FleetReader, FleetStatus, Reporter, Scheduler, certify
from turnout.live._internals import verify as verifier
from turnout.live.features import PAPER_FEATURES
from turnout.live.journal.replay import fresh_fleet
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.records import LateTimes
from turnout.live.turns.slots.filling import ended_turns
from turnout.live.turns.slots.records import EndedTurns, FilledSlots
from turnout.live.turns.slots.state import SlotFleet
from turnout.storage.encoding.packing import pack_snapshot

SETTINGS: dict[str, Any] = {"guaranteed_rate": "1/20", "tolerance": 1.0}


def open_three(path: Path, **options: Any) -> Scheduler:
    return Scheduler.open(path, **{"concurrency": 3, "settings": SETTINGS, "deadline": 100.0, **options})


def test_every_free_slot_is_filled_also_after_reports_of_other_processes_and_nobody_has_two_turns(folder: Path) -> None:
    with open_three(folder / "fleet.turnout") as scheduler:
        turns = scheduler.fill(fleets.offered(*fleets.named(8)))
        assert [turn.id for turn in turns] == [1, 2, 3]
        assert len({turn.client for turn in turns}) == 3
        assert all(turn.deadline == 100.0 for turn in turns)
        assert scheduler.fill(fleets.offered(*fleets.named(8))) == []
        assert scheduler.report(turns[1].id, 4.0)
        assert not scheduler.report(turns[1].id, 4.0)  # the same report again
        assert scheduler.report_failure(turns[0].id, "no memory")
        new = scheduler.fill(fleets.offered(*fleets.named(8)))
        assert [turn.id for turn in new] == [4, 5]
        running = scheduler.running()
        assert [turn.id for turn in running] == [3, 4, 5]
        assert len({turn.client for turn in running}) == 3
        assert [turn.kind for turn in scheduler.history(turns[1].client)][:1] == ["arrived"]
        with Reporter(scheduler.path) as reporter:
            assert reporter.report(running[0].client, 3.0)
            assert reporter.report(running[1].client, 4.0, round=4)
        assert [turn.id for turn in scheduler.fill(fleets.offered(*fleets.named(8)))] == [6, 7]
        assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


@pytest.mark.parametrize("counts", ["selected", "completed"])
@pytest.mark.parametrize("accrual", ["available", "always"])
def test_the_certificate_equals_an_independent_recount(folder: Path, counts: str, accrual: str) -> None:
    settings = {**SETTINGS, "guaranteed_rate": "1/9", "counts": counts, "accrual": accrual}
    with open_three(folder / "fleet.turnout", settings=settings, allow_infeasible=True) as scheduler:
        play_with_a_long_turn(scheduler)
        certify(scheduler.path, folder / "proof.json", folder / "proof.jsonl")  # compares it with its own recount
    text, record = (folder / "proof.json").read_bytes(), (folder / "proof.jsonl").read_bytes().splitlines(True)
    forged = [line.replace(b'"outcome": "failed"', b'"outcome": "arrived"') for line in record]
    assert verifier.differences(text, forged) != []


def test_rounds_and_slots_are_not_confused_and_slots_need_clients(folder: Path) -> None:
    with open_three(folder / "fleet.turnout") as scheduler:
        with pytest.raises(SettingError, match="choose needs a fleet with rounds: use fill"):
            scheduler.choose(fleets.named(3))
        with pytest.raises(SettingError, match="close_round needs a fleet with rounds"):
            scheduler.close_round()
        with pytest.raises(ReportError, match="there is no turn 7"):
            scheduler.report(7, 1.0)
        with pytest.raises(OfferError, match="the fleet has no clients: fill with the status of at least one"):
            scheduler.fill(FleetStatus({}))
        assert scheduler.fill([]) == scheduler.fill({}) == []  # before any client has joined
        assert (scheduler.round, scheduler.clients, scheduler.running()) == (0, [], [])
        assert fleets.problems(scheduler.path) == []
        assert len(scheduler.fill(["a"])) == 1
    with (
        Scheduler.open(folder / "rounds.turnout") as rounds,
        pytest.raises(SettingError, match="fill needs a fleet with a concurrency"),
    ):
        rounds.fill(fleets.named(3))


def test_the_number_of_places_cannot_be_amended_and_a_missing_deadline_is_noticed(folder: Path) -> None:
    with open_three(folder / "fleet.turnout", deadline=None) as scheduler:
        with pytest.raises(SettingError, match="cohort_size must be 1, or left out"):
            scheduler.amend(cohort_size=4)
        with pytest.raises(SettingError, match="overcommit needs rounds"):
            scheduler.amend(overcommit=2.0)
        assert "no deadline is set: the slot of a client that never reports stays in use" in scheduler.status().notices
        assert scheduler.amend(deadline=30.0) == ["deadline"]
        (turn, *_) = scheduler.fill(fleets.offered(*fleets.named(5)))
        assert turn.deadline == 30.0


def test_statuses_that_are_refused_change_nothing(folder: Path) -> None:
    with open_three(folder / "fleet.turnout") as scheduler:
        play(scheduler, 10)
        scheduler.fill(fleets.offered(*fleets.named(8)))
        scheduler.report(scheduler.running()[0].id, 2.0)
        before = fleets.packed(scheduler)
        for statuses in ({"c1": {"free_cpu": -1.0, "bandwidth": 1.0}}, {"new": {"free_cpu": -1.0, "bandwidth": 1.0}}):
            with pytest.raises(OfferError):
                scheduler.fill(statuses)
        assert fleets.packed(scheduler) == before == fleets.packed_from_disk(scheduler.path)
        assert "new" not in scheduler.clients
        assert scheduler.fill(fleets.offered(*fleets.named(8)))


def play(scheduler: Scheduler, steps: int, seed: int = 1, clients: int = 8) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        scheduler.fill(fleets.offered(*(client for client in fleets.named(clients) if rng.random() < 0.8)))
        for turn in scheduler.running():
            if rng.random() < 0.5:
                scheduler.report(turn.id, 1.0 + int(turn.client[1:]) + rng.random(), loss=rng.random())


def test_retention_changes_neither_turns_nor_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.live.operation.upkeep.SNAPSHOT_EVERY", 15)
    keeping = open_three(folder / "all.turnout")
    dropping = open_three(folder / "some.turnout", keep_rounds=15, keep_offers=5)
    for scheduler in (keeping, dropping):
        play(scheduler, 60)
    assert fleets.summary_round(dropping) > 20
    assert fleets.packed_without_times(dropping) == fleets.packed_without_times(keeping)
    dropping.compact()
    assert fleets.packed(dropping) == fleets.packed_from_disk(dropping.path)
    assert fleets.problems(dropping.path) == []
    content = certify(dropping.path, folder / "proof.json", folder / "proof.jsonl")
    assert "summary" in content
    assert dropping.certificate().turns.tolist() == keeping.certificate().turns.tolist()
    play(dropping, 10, seed=2)
    keeping.close()
    dropping.close()


def test_a_turn_running_is_kept_as_long_as_it_lasts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.live.operation.upkeep.SNAPSHOT_EVERY", 5)
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 1)
    with open_three(folder / "fleet.turnout", keep_rounds=5) as scheduler:
        play(scheduler, 10)
        scheduler.fill(fleets.offered(*fleets.named(8)))
        long = scheduler.running()[0]
        for _ in range(20):
            for turn in scheduler.running():
                if turn.id != long.id:
                    scheduler.report(turn.id, 2.0)
            scheduler.fill(fleets.offered(*fleets.named(8)))
        assert 0 < fleets.summary_round(scheduler) < long.id < scheduler.round - 30
        scheduler.compact()
        assert fleets.summary_round(scheduler) < long.id
        turns = scheduler.certificate().turns[fleets.client_rows(scheduler, [long.client])]
        assert scheduler.report(long.id, 90.0)
        scheduler.fill(fleets.offered(*fleets.named(8)))
        (ended,) = scheduler.history(round=long.id)
        assert (ended.id, ended.kind, ended.seconds) == (long.client, "arrived", 90.0)
        assert (scheduler.certificate().turns[fleets.client_rows(scheduler, [long.client])] >= turns).all()
        assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
        assert fleets.problems(scheduler.path) == []


def test_a_forgotten_client_leaves_no_trace_and_cannot_be_training(folder: Path) -> None:
    with open_three(folder / "fleet.turnout") as scheduler:
        play(scheduler, 30)
        scheduler.fill(fleets.offered(*fleets.named(8)))
        training = scheduler.running()
        assert len(training) == 3
        with pytest.raises(ReportError, match="is training: report the result of turn"):
            scheduler.forget(training[0].client)
        idle = next(client for client in scheduler.clients if client not in {turn.client for turn in training})
        scheduler.forget(idle)
        assert idle not in scheduler.clients
        assert idle.encode() + b'"' not in scheduler.path.read_bytes()
        assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
        assert fleets.problems(scheduler.path) == []
        certify(scheduler.path, folder / "proof.json", folder / "proof.jsonl")
        scheduler.retire(training[0].client)
        scheduler.report(training[0].id, 3.0)
        assert training[0].client not in {turn.client for turn in scheduler.fill(fleets.offered(*fleets.named(8)[1:]))}
        certify(scheduler.path, folder / "proof.json", folder / "proof.jsonl")


def test_selections_are_explained_exactly(folder: Path) -> None:
    with open_three(folder / "fleet.turnout") as scheduler:
        play(scheduler, 10)
        for decision in range(1, scheduler.round + 1):
            (turn,) = scheduler.history(round=decision)
            explanation = scheduler.explain(turn.id, decision)
            assert explanation.outcome == "chosen"
            assert explanation.exact, explanation.sentence


def test_a_client_that_misses_its_deadline_is_late_and_its_true_time_is_learned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_three(folder / "fleet.turnout", deadline=5.0) as scheduler:
        (first, *_) = scheduler.fill(fleets.offered(*fleets.named(6)))
        elapsed = {"seconds": 2.0}
        monkeypatch.setattr("turnout.live.turns.slots.records.seconds_since", lambda *_: elapsed["seconds"])
        assert scheduler.fill(fleets.offered(*fleets.named(6))) == []
        elapsed["seconds"] = 6.0
        assert len(scheduler.fill(fleets.offered(*fleets.named(6)))) == 3
        (turn,) = scheduler.history(round=first.id)
        assert (turn.kind, turn.seconds) == ("late", 5.0)
        refusal = f"turn {first.id} is no longer running: pass the seconds that '{first.client}' took"
        with pytest.raises(ReportError, match=refusal):
            scheduler.report(first.id)
        assert scheduler.report(first.id, 9.0)
        elapsed["seconds"] = 1.0
        scheduler.report(scheduler.running()[0].id, 1.5)
        scheduler.fill(fleets.offered(*fleets.named(6)))
        (turn,) = scheduler.history(round=first.id)
        assert turn.late_seconds == 9.0
        assert turn.folded is not None
        assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_a_reporter_accepts_late_turns_for_as_many_decisions_as_the_window_has_for_all_slots(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed = {"seconds": 2.0}
    monkeypatch.setattr("turnout.live.turns.slots.records.seconds_since", lambda *_: elapsed["seconds"])
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 2)
    path = folder / "fleet.turnout"
    with open_three(path, deadline=5.0) as scheduler, Reporter(path) as reporter:
        clients = [turn.client for turn in scheduler.fill(fleets.offered(*fleets.named(8)))]
        elapsed["seconds"] = 6.0
        assert [turn.id for turn in scheduler.fill(fleets.offered(*fleets.named(8)))] == [4, 5, 6]
        assert reporter.report(clients[0], 9.0, round=1)  # 2 rounds of 3 turns
        elapsed["seconds"] = 2.0
        for turn in scheduler.running():
            scheduler.report(turn.id, 2.0)
        (turn, *_) = scheduler.fill(fleets.offered(*fleets.named(8)))
        assert turn.id == 7
        assert scheduler.history(round=1)[0].late_seconds == 9.0
        with pytest.raises(
            ReportError, match=f"round 2 of '{clients[1]}' was closed .*: its time can be learned within 6 only"
        ):
            reporter.report(clients[1], 9.0, round=2)


def test_a_turn_whose_time_is_unknown_is_reported_with_its_seconds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_three(folder / "fleet.turnout", deadline=None) as scheduler:
        (first, *_) = scheduler.fill(fleets.offered(*fleets.named(6)))
        with monkeypatch.context() as restarted:  # the machine was restarted, and its clock was changed
            restarted.setattr("turnout.live.turns.slots.records.seconds_since", lambda *_: math.nan)
            unknown = f"time since the selection is unknown.*: pass the seconds that '{first.client}' took"
            with pytest.raises(ReportError, match=unknown):
                scheduler.report(first.id)
            assert scheduler.history(round=first.id)[0].kind is None
            assert scheduler.report(first.id, 9.0)
            scheduler.fill(fleets.offered(*fleets.named(6)))
        (turn,) = scheduler.history(round=first.id)
        assert (turn.kind, turn.seconds) == ("arrived", 9.0)


def test_the_time_of_a_late_client_whose_status_is_unknown_is_counted_but_not_learned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "fleet.turnout"
    elapsed = {"seconds": 0.0}
    monkeypatch.setattr("turnout.live.turns.slots.records.seconds_since", lambda *_: elapsed["seconds"])
    with open_three(path, deadline=5.0, persist_statuses=False, backoff_after=1) as scheduler:
        late = scheduler.fill(fleets.offered(*fleets.named(3)))
    with open_three(path, deadline=5.0, persist_statuses=False, backoff_after=1) as scheduler:
        elapsed["seconds"] = 6.0
        scheduler.fill(["c3"])
        assert scheduler.status().backing_off.keys() == {turn.client for turn in late}
        before, learned = fleets.state_of(scheduler).state(), fleets.learned(scheduler)
        for turn in late:
            assert scheduler.report(turn.id, 9.0)
        elapsed["seconds"] = 1.0
        scheduler.fill(["c3"])
        after = fleets.state_of(scheduler).state()
        assert scheduler.status().backing_off == {}
        assert [scheduler.history(round=turn.id)[0].late_seconds for turn in late] == [9.0, 9.0, 9.0]
        assert all(scheduler.history(round=turn.id)[0].folded is not None for turn in late)
        assert len(before["awaited.rows"]) == 3
        assert len(after["awaited.rows"]) == 0
        assert fleets.learned(scheduler) == learned != {}


def test_predictions_are_judged_from_the_third_turn_of_a_client_on(folder: Path) -> None:
    with open_three(folder / "fleet.turnout", concurrency=1) as scheduler:
        errors = []
        for seconds in (4.0, 4.0, 8.0, 8.0):
            (turn,) = scheduler.fill(fleets.offered("only"))
            errors.append(float(fleets.state_of(scheduler).state()["clients.context_errors"][0]))
            scheduler.report(turn.id, seconds)
        scheduler.fill(fleets.offered("only"))
        errors.append(float(fleets.state_of(scheduler).state()["clients.context_errors"][0]))
    assert errors[:3] == [0.0, 0.0, 0.0]
    assert errors[3] > 0.4  # the third turn took twice as long as predicted
    assert errors[4] < errors[3]


def test_slots_stay_empty_if_the_policy_finds_nobody_eligible(folder: Path) -> None:
    settings = {"policy": "random", "settings": {}, "allowed": [0, 2]}
    with Scheduler.open(
        folder / "fleet.turnout", concurrency=3, policy="eligible", settings=settings, deadline=9.0
    ) as scheduler:
        assert {turn.client for turn in scheduler.fill(fleets.offered(*fleets.named(5)))} == {"c0", "c2"}
        assert scheduler.fill(fleets.offered(*fleets.named(5))) == []
        assert (scheduler.round, len(scheduler.running())) == (2, 2)
        assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_the_status_names_the_clients_that_train(folder: Path) -> None:
    with open_three(folder / "fleet.turnout") as scheduler:
        scheduler.register(fleets.named(3))
        assert "training" not in str(scheduler.status())
        given = [turn.client for turn in scheduler.fill(fleets.offered("c0", "c1"))]
        text = str(scheduler.status())
    assert "turns      2 were given; 2 of 3 slots are in use" in text
    assert f"training   {', '.join(given)}" in text


POLICIES: dict[str, dict[str, Any]] = {
    "fair-pace": {"guaranteed_rate": "1/20"},
    "rbcsf": {"guaranteed_rate": "1/20", "speed_weight": 0.5},
    "random": {},
    "round-robin": {},
    "oort": {},
    "power-of-choice": {},
    "ucb-cs": {},
    "with-guarantee": {"policy": "random", "settings": {}, "guaranteed_rate": "1/20", "urgency": 1.0},
    "warm-up": {"policy": "fair-pace", "settings": {"guaranteed_rate": "1/20"}, "rounds": 5},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_that_fills_slots_continues_after_a_restart(folder: Path, policy: str) -> None:
    path = folder / "fleet.turnout"
    with open_three(path, policy=policy, settings=POLICIES[policy]) as scheduler:
        play(scheduler, 14)
        before, given, fleet = fleets.packed(scheduler), scheduler.round, fleets.state_of(scheduler).fleet
        is_promised = policy not in ("random", "round-robin", "oort", "power-of-choice", "ucb-cs")
        assert (fleet.certificate() is not None) == is_promised
        scheduler.forget(next(name for name in fleets.named(8) if name not in training_of(scheduler)))
    with open_three(path, policy=policy, settings=POLICIES[policy]) as scheduler:
        assert given == scheduler.round > 14
        assert before != fleets.packed(scheduler) == fleets.packed_from_disk(path)
        play(scheduler, 6, seed=3)
        assert scheduler.round > given
        if is_promised:
            certify(path, folder / "proof.json", folder / "proof.jsonl")
    assert fleets.problems(path) == []


def training_of(scheduler: Scheduler) -> set[str]:
    """Returns the clients whose turns have not ended, also if their results were reported."""
    rows = fleets.state_of(scheduler).state()["running.started"].nonzero()[0].tolist()
    return {scheduler.clients[row] for row in rows}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_goes_on_after_a_restart_that_lost_the_statuses_of_running_turns(
    folder: Path, policy: str
) -> None:
    path = folder / "fleet.turnout"
    with open_three(path, policy=policy, settings=POLICIES[policy], persist_statuses=False) as scheduler:
        play(scheduler, 6)
        running = [turn.id for turn in scheduler.running()]
        assert running
    with Scheduler.open(path) as scheduler:
        assert [turn.id for turn in scheduler.running()] == running
        learned = fleets.learned(scheduler)
        for number in running:
            scheduler.report(number, 4.0, loss=0.5)
        assert len(scheduler.fill(fleets.offered(*fleets.named(8)))) == 3
        assert fleets.learned(scheduler) == learned
        assert [scheduler.history(round=number)[0].kind for number in running] == ["arrived"] * len(running)
        assert fleets.packed_without_contexts(scheduler) == fleets.packed_from_disk(path)
        play(scheduler, 3)
        assert (fleets.learned(scheduler) == learned) == (policy not in ("fair-pace", "rbcsf", "warm-up"))
    assert fleets.problems(path) == []


def test_statuses_that_are_not_persisted_change_no_turn(folder: Path) -> None:
    with (
        open_three(folder / "all.turnout") as keeping,
        open_three(folder / "some.turnout", persist_statuses=False) as dropping,
    ):
        for scheduler in (keeping, dropping):
            play(scheduler, 16)
        assert fleets.packed_without_times(dropping) == fleets.packed_without_times(keeping)
        assert [turn.id for number in range(1, 20) for turn in dropping.history(round=number)] == [
            turn.id for number in range(1, 20) for turn in keeping.history(round=number)
        ]


def test_messages_speak_of_decisions_not_of_rounds(folder: Path) -> None:
    with open_three(folder / "fleet.turnout", settings={**SETTINGS, "guaranteed_rate": "1/8"}) as scheduler:
        scheduler.register(["c0"])
        with pytest.raises(ReportError, match="there is no decision 1 to explain: no turn was given yet"):
            scheduler.explain("c0", 1)
        play(scheduler, 5)
        scheduler.retire("c7")
        scheduler.fill(fleets.offered(*fleets.named(7)))
        for _ in range(12):  # the turns of all but one client end, and that one is never there
            for turn in scheduler.running():
                scheduler.report(turn.id, 2.0)
            scheduler.fill(fleets.offered(*fleets.named(8)[1:]))
        assert "was retired before decision" in scheduler.explain("c7").sentence
    always = {**SETTINGS, "guaranteed_rate": "1/8", "accrual": "always"}
    with open_three(folder / "always.turnout", settings=always) as scheduler:
        scheduler.register(["c0"])
        for _ in range(12):
            scheduler.fill(fleets.offered(*fleets.named(8)[1:]))
            for turn in scheduler.running():
                scheduler.report(turn.id, 2.0)
        (notice,) = [notice for notice in scheduler.status().notices if "the promise is broken" in notice]
        assert "c0 is" in notice
        assert "since decision" in notice
        assert "cohort_size" not in notice
        assert "since decision" in str(scheduler.status())


@pytest.mark.parametrize("persist_statuses", [True, False])
def test_running_turns_when_the_features_are_amended_count_but_teach_no_times(
    folder: Path, persist_statuses: bool
) -> None:
    with open_three(folder / "fleet.turnout", persist_statuses=persist_statuses) as scheduler:
        first, second, third = scheduler.fill(fleets.offered(*fleets.named(8)))
        scheduler.report(first.id, 4.0)
        scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
        scheduler.report(second.id, 5.0)
        statuses = {client: {"battery": 0.5} for client in fleets.named(8)}
        new = scheduler.fill(statuses)
        assert [turn.id for turn in new] == [4, 5]
        fleets.take_snapshot(scheduler)
        scheduler.report(third.id, 6.0)
        scheduler.report(new[0].id, 7.0)
        assert [turn.id for turn in scheduler.fill(statuses)] == [6, 7]
        assert fleets.state_of(scheduler).state()["clients.arrived"].sum() == 4
        rows = {turn.client: scheduler.history(turn.client)[0].row for turn in (first, second, third, new[0])}
        model = known(fleets.state_of(scheduler).fleet.policy.time_model)
        learned = ExchangeTimeModel(8, features=1, ridge=8.0, prior="fleet", relative_ridge=True)
        learned.learn(np.array([rows[new[0].client]]), np.array([[0.5]]), np.array([7.0]))
        np.testing.assert_allclose(model.coefficients, learned.coefficients)
        in_memory = fleets.packed if persist_statuses else fleets.packed_without_contexts
        assert in_memory(scheduler) == fleets.packed_from_disk(scheduler.path)
    assert fleets.problems(scheduler.path) == []


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
                {**fleets.state_of(scheduler).state(), "ids": ""}
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


IDS = ["a", "b", "c", "d"]
NOBODY, NONE = np.empty(0, dtype=np.int64), np.empty(0)


def new_fleet() -> SlotFleet:
    """Returns a fleet with four clients, of which two train."""
    fleet = fresh_fleet(SchedulerSettings(**SLOTS), PAPER_FEATURES)
    assert isinstance(fleet, SlotFleet)
    fleet.join(IDS)
    fleet.fill(filled(1, [2, 0]))
    return fleet


def filled(first: int, rows: list[int], ended: EndedTurns | None = None) -> FilledSlots:
    """Returns a call of `fill` in which all clients are present."""
    return FilledSlots(
        first=first,
        rows=np.array(rows, dtype=np.int64),
        contexts=np.ones((len(rows), 3)),
        present=np.ones(len(IDS), dtype=np.bool_),
        ended=ended_turns({}, [])[0] if ended is None else ended,
        late=LateTimes.of([]),
        at="2026-01-01T00:00:00.000+00:00",
    )


def ended_turn(decision: int, row: int) -> EndedTurns:
    return EndedTurns(np.array([decision]), np.array([row]), np.array([4.0]), np.array([0]), np.array([np.nan]))


@pytest.mark.parametrize("first", [2, 4])
def test_a_decision_that_is_missing_or_doubled_is_refused(first: int) -> None:
    fleet = new_fleet()
    before = pack_snapshot(fleet.state())
    with pytest.raises(StateError, match=f"decision {first} follows decision 2: one is missing or was doubled"):
        fleet.fill(filled(first, [1]))
    assert pack_snapshot(fleet.state()) == before
    fleet.fill(filled(3, [1]))
    assert fleet.training() == {1: 2, 2: 0, 3: 1}


@pytest.mark.parametrize(("decision", "row"), [(1, 0), (2, 1), (9, 2)])
def test_only_the_client_of_a_turn_can_end_it(decision: int, row: int) -> None:
    fleet = new_fleet()
    with pytest.raises(ReportError, match=f"client {row} has no turn of decision {decision}"):
        fleet.fill(filled(3, [], ended_turn(decision, row)))
    assert fleet.history.arrived.sum() == 0
    fleet = new_fleet()
    fleet.fill(filled(3, [], ended_turn(1, 2)))
    assert fleet.history.arrived.tolist() == [0, 0, 1, 0]


def test_a_late_time_that_no_turn_waits_for_is_refused() -> None:
    fleet = new_fleet()
    late = replace(filled(3, []), late=LateTimes(np.array([1]), np.array([2]), np.array([150.0])))
    with pytest.raises(StateError, match="the late time of client 2 in turn 1 was learned before, or it was not late"):
        fleet.fill(late)


def add_a_context(state: dict[str, Any]) -> None:
    state["running_turns.decisions"] = np.array([1, 2, 3])
    state["running_turns.contexts"] = np.ones((3, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(clients=3), "the saved state has 3 clients, but 4 ids were given"),
        (
            lambda state: state.update(given=state["given"][:3]),
            "the saved state has 3 times of turns, but 4 ids were given",
        ),
        (
            lambda state: state.update({"running_turns.decisions": np.array([1, 3])}),
            "the saved state has other contexts than running turns",
        ),
        (add_a_context, "the saved state has other contexts than running turns"),
    ],
)
def test_a_state_whose_parts_contradict_each_other_is_refused(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    fleet, restored = new_fleet(), fresh_fleet(SchedulerSettings(**SLOTS), PAPER_FEATURES)
    state = fleet.state()
    restored.restore(state, IDS)
    assert pack_snapshot(restored.state()) == pack_snapshot(state)
    change(state)
    with pytest.raises(StateError, match=message):
        restored.restore(state, IDS)
