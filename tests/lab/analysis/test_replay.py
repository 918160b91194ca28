"""Replays of recorded runs and fleets, with rounds and without, also if their settings were amended."""

from __future__ import annotations

import heapq
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live.fleets import World, named, play_round
from live.turns.slots.played import open_slots
from narrowing import known
from turnout.dashboard.sources import recording
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import SettingError, StoreError
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import OUTCOMES
from turnout.lab import RunPlan, RunStore, play_into, play_plan
from turnout.lab.analysis.metrics import summarise
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.replay.recording import Recording
from turnout.lab.analysis.replay.replay import FIGURES, ReplayResult, replay
from turnout.live import ClientStatus, Feature, Features, FleetReader, Scheduler
from turnout.live._internals import KINDS, is_fleet
from turnout.version import __version__

SETTINGS = {"cohort_size": 3, "guaranteed_rate": 0.2, "speed_weight": 5.0}
PLAN = RunPlan("rbcsf", 60, seed=2, settings={"speed_weight": 5.0})
ROUNDS = 60
DEADLINE = 14.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run of the paper's world."""
    path = tmp_path_factory.mktemp("store") / "runs.turnout"
    with RunStore(path) as runs:
        play_into(runs, PLAN)
    return path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rounds of ten phones, phone-9 the slowest; some turns fail, and some late clients report later."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    rng = random.Random(0)
    with Scheduler.open(path, policy="rbcsf", settings=SETTINGS, deadline=DEADLINE, allow_infeasible=True) as scheduler:
        for round_ in range(ROUNDS):
            draws = round_rng(0, "status", round_).uniform(0.5, 2.0, (10, 2))
            statuses = {
                f"phone-{n}": ClientStatus(*map(float, draws[n])) for n in range(10) if n == 0 or rng.random() < 0.8
            }
            for client in scheduler.choose(statuses):
                seconds = (1 + int(client[-1])) / statuses[client].free_cpu * rng.uniform(0.8, 1.2)
                if rng.random() < 0.03:
                    scheduler.report_failure(client, "battery")
                elif seconds <= DEADLINE:
                    scheduler.report(client, seconds)
            scheduler.close_round()
            for turn in scheduler.history(round=scheduler.round):
                if turn.kind == "late":
                    scheduler.report(turn.id, 25.0, round=turn.round)
    return path


def assert_unchanged(result: ReplayResult) -> None:
    """Asserts that the replay is exact and equals the record."""
    for figure in result.figures:
        assert figure.exact, figure.name
        assert figure.half_width == 0
        assert figure.replayed == figure.recorded, figure.name
    assert result["other_choices"].replayed == result["other_rounds"].replayed == 0


def test_the_same_policy_reproduces_a_simulated_run_exactly(store: Path) -> None:
    record = read_recording(store)
    assert_unchanged(replay(record, "rbcsf", {}))
    assert record.past.columns.rounds.tolist() == list(range(1, 61))


def test_the_same_policy_reproduces_a_fleet_exactly(fleet: Path) -> None:
    """The policy selects from the complete offers in every round; the recorded selections are not copied."""
    record = read_recording(fleet)
    assert record.past.has_all_contexts
    result = replay(record, "rbcsf", {"speed_weight": 5}, draws=2)
    assert_unchanged(result)
    assert result.draws == 2


@pytest.mark.parametrize("policy", ["rbcsf", "random", "fedcs"])
def test_another_policy_in_a_simulated_world_is_exact(store: Path, policy: str) -> None:
    given = {"speed_weight": 50.0} if policy == "rbcsf" else {}
    result = replay(read_recording(store), policy, given)
    expected = play_plan(RunPlan(policy, 60, seed=2, settings=given))
    assert all(figure.exact for figure in result.figures)
    assert result["mean_round"].replayed == expected.durations.mean()
    assert result["least_share"].replayed == expected.turns.min() / 60
    shortfall = shortfalls(expected, 0.15)
    assert result["largest_shortfall"].replayed == shortfall.largest
    assert result["shortfall_at_end"].replayed == shortfall.at_end
    assert result.statuses == {shortfall.certificate.status: 1}
    assert result.share_of == "of all rounds"
    assert result["other_choices"].replayed > 0


def test_a_fleet_under_another_weight_is_estimated(fleet: Path) -> None:
    result = replay(read_recording(fleet), "rbcsf", {"speed_weight": 0.1}, draws=5)
    assert [figure.name for figure in result.figures] == list(FIGURES)
    assert not result["mean_round"].exact
    assert result["mean_round"].half_width > 0
    assert result["mean_round"].replayed > result["mean_round"].recorded  # fairer, and slower
    assert result["worst_debt"].replayed < result["worst_debt"].recorded
    assert 0 < result.known_times < 1
    assert "complete offers were recorded" in result.notes[0]
    # Figures that happen to be equal in all draws are not exact either.
    result = replay(read_recording(fleet), "rbcsf", {"speed_weight": 0.1}, draws=2)
    assert {"p95_round", "least_share"} <= {figure.name for figure in result.figures if figure.half_width == 0}
    assert not any(figure.exact for figure in result.figures)


def test_a_policy_without_contexts_is_exact_except_for_times(fleet: Path) -> None:
    result = replay(read_recording(fleet), "random", {}, draws=4)
    assert result.settings["cohort_size"] == 3  # inherited from the recorded policy
    assert all(result[name].exact for name in ("jain", "other_choices", "other_rounds"))
    # Only updates that arrive in time count as turns, and this depends on times.
    assert not any(result[name].exact for name in ("mean_round", "p95_round", "least_share"))
    assert result["least_share"].half_width > 0


def test_fair_pace_replays_a_fleet_that_broke_its_promise(fleet: Path) -> None:
    record = read_recording(fleet)
    result = replay(record, "fair-pace", {}, draws=3)
    assert result.settings == {"cohort_size": 3, "guaranteed_rate": 0.2}  # the recorded promise
    assert result.promise.startswith("0.2 of the rounds it was available for, at most 2 turns behind")
    assert result.recorded_status == "broken"
    assert result.recorded_promise.startswith("broken: phone-9 is ")
    assert result["largest_shortfall"].replayed < result["largest_shortfall"].recorded
    assert result["least_share"].replayed > result["least_share"].recorded
    assert sum(result.statuses.values()) == 3
    assert result.status != "broken"
    assert result.replayed_promise.startswith(f"{result.status}: ")


def test_the_recorded_figures_are_those_of_the_fleets_own_certificate(fleet: Path) -> None:
    result = replay(read_recording(fleet), "rbcsf", {}, draws=2)
    with FleetReader(fleet) as scheduler:
        certificate = scheduler.certificate()
        assert (
            result.recorded_promise.split(",")[0]
            == certificate.summary().sentence(lambda row: scheduler.clients[row]).split(",")[0]
        )
    assert result["shortfall_at_end"].recorded == certificate.behind.max()
    assert result.recorded_status == certificate.status


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rounds of a fleet with over-selection: clients fail, are late, cut_off, or return after enough others."""
    path = tmp_path_factory.mktemp("crowded") / "fleet.turnout"
    rng = random.Random(3)
    with Scheduler.open(path, policy="rbcsf", settings=SETTINGS, deadline=DEADLINE, overcommit=2.0) as scheduler:
        for _ in range(40):
            chosen = scheduler.choose({f"phone-{n}": ClientStatus(1.0, 1.0) for n in range(10)})
            for client in chosen:
                seconds = (1 + int(client[-1])) * rng.uniform(0.5, 1.5)
                if rng.random() < 0.3:
                    scheduler.report_failure(client, "battery")
                elif seconds <= DEADLINE and rng.random() < 0.8:
                    scheduler.report(client, seconds)
            scheduler.close_round()
    return path


def test_metrics_replay_and_tuning_have_the_same_mean_round(crowded: Path) -> None:
    waited, kinds = [], set()
    with FleetReader(crowded) as reader:
        for closed in reader.closed_rounds():
            names = [KINDS[kind] for kind in closed.kinds]
            kinds |= set(names)
            waited.append(
                max(seconds for seconds, kind in zip(closed.seconds, names, strict=True) if kind != "redundant")
            )
            if "late" in names or "arrived" not in names:
                assert waited[-1] == DEADLINE  # the server waited in vain
            elif "failed" in names and "cut_off" not in names:
                assert (closed.seconds[closed.kinds == KINDS.index("failed")] == 0).all()  # and for nobody else
            assert closed.duration == waited[-1]
    assert kinds == set(KINDS)
    mean = float(np.mean(waited))
    record = read_recording(crowded)
    assert record.columns.durations.tolist() == waited
    assert summarise(record.columns, guaranteed_rate=0.2).mean_round == mean
    assert replay(record, "rbcsf", {}, draws=2)["mean_round"].recorded == mean
    assert replay(record, "random", {}, draws=2)["mean_round"].recorded == mean


def test_a_replay_waits_for_clients_that_were_not_needed(crowded: Path) -> None:
    """Over-selection is not replayed, so a client that returned after enough others arrives at its own time."""
    record = read_recording(crowded)
    assert any("the server waits for all" in note for note in record.notes)
    later = record.past.columns.exchange_times > record.columns.exchange_times
    assert later.any()
    assert record.columns.outcomes is not None
    assert record.past.columns.outcomes is not None
    assert (record.columns.outcomes[later] == OUTCOMES.index("late")).all()
    assert (record.past.columns.outcomes[later] == OUTCOMES.index("arrived")).all()


def test_all_turns_of_a_fleet_are_read(fleet: Path) -> None:
    record = read_recording(fleet)
    columns = record.past.columns
    with FleetReader(fleet) as scheduler:
        rounds = [scheduler.history(round=round_) for round_ in range(1, ROUNDS + 1)]
    turns = [turn for of_round in rounds for turn in of_round]
    lasted = []
    for of_round in rounds:  # a failed turn has no seconds: the server waited for it with others, or not at all
        kinds = {turn.kind for turn in of_round}
        waited = DEADLINE if "late" in kinds or "arrived" not in kinds else 0.0
        lasted += [waited if turn.seconds is None else turn.seconds for turn in of_round]
    assert sorted(columns.exchange_times.tolist()) == sorted(lasted)
    assert columns.clients == 10
    assert record.past.deadline == DEADLINE
    assert record.past.cold_start == 1
    late = [turn for turn in turns if turn.folded]
    assert late
    assert (record.past.true_times == 25.0).sum() == len(late)


def test_a_run_that_cannot_be_rebuilt_is_estimated_from_its_record(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as runs:  # rounds of another seed than the plan's, as an older version might have written
        columns = play_plan(RunPlan("rbcsf", 60, seed=9))
        runs.write_run(PLAN.key, PLAN.as_dict(), columns, clients=40, code_version=__version__)
    result = replay(read_recording(path), "random", {}, draws=3)
    assert not result["mean_round"].exact
    assert result["mean_round"].replayed == pytest.approx(14.5, abs=3)


def test_a_run_in_a_world_that_is_not_installed_is_estimated_from_its_record(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    plan = {**PLAN.as_dict(), "world": "no_such_module:World"}
    with RunStore(path) as runs:
        runs.write_run("elsewhere", plan, play_plan(PLAN), clients=40, code_version=__version__)
    record = read_recording(path)
    result = replay(record, "rbcsf", {"speed_weight": 6.0}, draws=3)
    assert not result["mean_round"].exact
    assert result["mean_round"].recorded == pytest.approx(record.columns.durations.mean())
    with pytest.raises(SettingError, match="fastest requires the true expected times, which were not recorded"):
        replay(record, "fastest", {})


def test_without_complete_offers_or_if_they_are_too_many_to_load_contexts_are_resampled(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = known(read_recording(fleet).past.offers)
    monkeypatch.setattr(recording, "MAX_CONTEXT_VALUES", complete.size)
    np.testing.assert_array_equal(known(read_recording(fleet).past.offers), complete)
    monkeypatch.setattr(recording, "MAX_CONTEXT_VALUES", complete.size - 1)
    record = read_recording(fleet)
    assert record.past.offers is None
    result = replay(record, "rbcsf", {"speed_weight": 0.1}, draws=3)
    assert any("resampled from their turns" in note for note in result.notes)
    assert not result["least_share"].exact
    assert_unchanged(replay(record, "rbcsf", {}))


def test_the_notes_name_clients_that_joined_later_and_deadlines_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    settings = {"cohort_size": 2, "guaranteed_rate": 0.1, "accrual": "always"}
    with Scheduler.open(path, settings=settings, deadline=30.0, allow_infeasible=True) as scheduler:
        for clients in (["a", "b", "c"], ["a", "b", "c", "d"]):
            play_round(scheduler, clients, 3.0)
            scheduler.amend(deadline=20.0)
    notes = read_recording(path).notes
    assert "resampled times meet the present deadline, 20.0, in all rounds" in notes
    assert "clients that joined later are promised turns from the first round on, because accrual is always" in notes


def test_fleets_are_recognised_by_their_content_and_invalid_replays_are_rejected(
    store: Path, fleet: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("hello")
    assert [is_fleet(path) for path in (fleet, store, tmp_path / "text")] == [True, False, False]
    with pytest.raises(StoreError, match="there is no file"):
        read_recording(tmp_path / "nowhere.turnout")
    with pytest.raises(SettingError, match="omit run"):
        read_recording(fleet, 1)
    with pytest.raises(StoreError, match="no run 7"):
        read_recording(store, 7)
    with pytest.raises(SettingError, match="unknown policy"):
        replay(read_recording(store), "rbscf", {})
    with pytest.raises(SettingError, match="true expected times"):
        replay(read_recording(fleet), "fastest", {})
    with pytest.raises(SettingError, match="draws must be at least 2"):
        replay(read_recording(fleet), "random", {}, draws=1)
    with RunStore(tmp_path / "empty.turnout"):
        pass
    with pytest.raises(SettingError, match="holds 0 runs"):
        read_recording(tmp_path / "empty.turnout")
    Scheduler.open(tmp_path / "new.turnout").close()
    with pytest.raises(SettingError, match="no closed round"):
        read_recording(tmp_path / "new.turnout")
    with open_slots(tmp_path / "slots.turnout") as scheduler:
        scheduler.fill(named(8))
    with pytest.raises(SettingError, match="holds no turn that has ended, with its context"):
        read_recording(scheduler.path)


def test_the_same_policy_learns_the_recorded_signals_in_a_replay(tmp_path: Path) -> None:
    path, clients = tmp_path / "signals.turnout", [f"phone-{n}" for n in range(8)]
    settings = {"cohort_size": 2, "guaranteed_rate": 0.05, "value": "utility", "value_weight": 3.0}
    with Scheduler.open(path, settings=settings, signals={"utility": (0, 10)}, deadline=50.0) as scheduler:
        for _ in range(30):
            cohort = scheduler.choose({client: ClientStatus(1.0, 2.0) for client in clients})
            signals = {client: {"utility": 9.0 if client >= "phone-5" else 1.0} for client in cohort}
            scheduler.report_many({client: 1.0 + int(client[-1]) for client in cohort}, signals=signals)
            scheduler.close_round()
    record = read_recording(path)
    assert record.past.has_all_contexts
    again = replay(record, "fair-pace", {}, draws=2)
    assert_unchanged(again)
    assert (again.status, again.known_times) == (again.recorded_status, 1)
    other = replay(record, "fair-pace", {"value": None}, draws=2)
    assert other["other_choices"].replayed > 0


CLIENTS = 12


@pytest.fixture(scope="module")
def slots_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of twelve clients, of which every third takes five times as long; slots are filled at once."""
    rng, now, ends = random.Random(3), 0.0, list[tuple[float, int, float]]()
    path = tmp_path_factory.mktemp("slots") / "fleet.turnout"
    with open_slots(path, settings={"guaranteed_rate": "1/20", "tolerance": 1.0}) as scheduler:
        for step in range(120):
            there = [name for name in named(CLIENTS) if rng.random() < 0.9]
            for turn in scheduler.fill({name: ClientStatus(1 + rng.random(), 2 + rng.random()) for name in there}):
                seconds = (10.0 if int(turn.client[1:]) % 3 == 0 else 2.0) * rng.uniform(0.8, 1.2)
                heapq.heappush(ends, (now + seconds, turn.id, seconds))
            now, turn_id, seconds = heapq.heappop(ends)
            if step % 20 == 19:
                scheduler.report_failure(turn_id, "lost")
            else:
                scheduler.report(turn_id, seconds, loss=1.0)
    return path


def test_the_record_has_the_turns_that_have_ended_in_slots_that_are_never_empty(slots_fleet: Path) -> None:
    record = read_recording(slots_fleet)
    with FleetReader(slots_fleet) as reader:
        ended = sorted(reader.ended_turns(), key=lambda turn: turn.id)
        running = len(reader.running())
    columns = record.columns
    assert record.slots == 3
    assert columns.chosen.tolist() == [turn.row for turn in ended]
    assert columns.exchange_times.tolist() == [turn.seconds for turn in ended]
    started, finished = columns.metrics["started"], columns.metrics["finished"]
    assert (np.diff(started) >= 0).all()
    busy = [int(((started <= moment) & (finished > moment)).sum()) for moment in started.tolist()]
    assert max(busy) == 3
    for row in range(CLIENTS):
        own = columns.chosen == row
        assert (started[own][1:] >= finished[own][:-1]).all(), "nobody is in two slots"
    assert f"running turns are left out: {running}" in record.notes


def test_the_same_policy_repeats_the_record(slots_fleet: Path) -> None:
    result = replay(read_recording(slots_fleet), "fair-pace", {})
    assert all(
        figure.exact and figure.recorded == figure.replayed for figure in result.figures if "other" not in figure.name
    )
    assert (result["other_choices"].replayed, result.slots, result.status) == (0, 3, result.recorded_status)


def test_a_replay_with_nearly_the_same_settings_is_about_as_fast_as_the_record(slots_fleet: Path) -> None:
    result = replay(read_recording(slots_fleet), "fair-pace", {"tolerance": 1.001}, draws=3)
    rate = result["updates_per_second"]
    assert not rate.exact
    assert rate.replayed == pytest.approx(rate.recorded, rel=0.15)
    assert 0 < result.known_times < 1


def test_another_policy_meets_the_recorded_clients_and_gives_as_many_turns(slots_fleet: Path) -> None:
    result = replay(read_recording(slots_fleet), "random", {}, draws=3)
    assert result["updates_per_second"].replayed < 0.9 * result["updates_per_second"].recorded
    assert result["other_choices"].replayed > 0
    assert result.promise.startswith("0.05 of the turns given while it was there, at most 1 turn behind")
    assert "round" not in f"{result.promise}{result.recorded_promise}{result.replayed_promise}"


def test_all_decisions_have_the_present_settings(tmp_path: Path) -> None:
    rng = random.Random(1)
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        for step in range(30):
            scheduler.fill(named(8))
            for turn in scheduler.running():
                if rng.random() < 0.6:
                    scheduler.report(turn.id, 1.0 + rng.random())
            if step == 15:
                amended = scheduler.round
                scheduler.amend(tolerance=2.0)
    record = read_recording(scheduler.path)
    assert record.amended_after == amended
    result = replay(record, "fair-pace", {"tolerance": 1.5}, draws=2)
    assert result.rounds == len(record.columns)
    assert any(note.startswith(f"the settings were amended after decision {amended}:") for note in result.notes)


def test_a_simulated_run_without_rounds_is_replayed_exactly_in_its_world(tmp_path: Path) -> None:
    plan = RunPlan("fair-pace", 80, 1, {"tolerance": 1.0}, world_settings={"clients": 12}, concurrency=3)
    with RunStore(tmp_path / "runs.turnout") as store:
        play_into(store, plan)
    record = read_recording(tmp_path / "runs.turnout")
    result, other = replay(record, "fair-pace", {}), replay(record, "random", {})
    assert all(figure.exact for figure in (*result.figures, *other.figures))
    assert result["updates_per_second"].replayed == result["updates_per_second"].recorded
    assert other["updates_per_second"].replayed < result["updates_per_second"].replayed


def test_the_notes_count_the_turns_that_are_left_out(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        for battery in (False, True):
            if battery:
                scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
            statuses = {name: {"battery": 0.5} if battery else ClientStatus(1.0, 2.0) for name in named(8)}
            for turn in scheduler.fill(statuses):
                scheduler.report(turn.id, 2.0)
        scheduler.fill({})
    record = read_recording(scheduler.path)
    assert len(record.columns) == 3
    assert "only 3 turns are used: the others, 3, are not stored completely" in record.notes
    assert not any(note.startswith("running turns are left out") for note in record.notes)


def play(scheduler: Scheduler, rounds: int) -> None:
    world = World(9)
    for _ in range(rounds):
        number = scheduler.round + 1
        statuses = {
            client: status for client, status in world.statuses(number).items() if (number + int(client[1:])) % 3
        }
        play_round(
            scheduler, statuses, {client: world.seconds(number, client, statuses[client]) for client in statuses}
        )


def amended_fleet(path: Path, **options: Any) -> Recording:
    with Scheduler.open(path, deadline=500.0, allow_infeasible=True, **options) as scheduler:
        play(scheduler, 1)
        scheduler.register([f"c{row}" for row in range(9)])
        play(scheduler, 14)
        scheduler.amend(guaranteed_rate="1/3", cohort_size=3, tolerance=1.0)
        play(scheduler, 10)
        scheduler.amend(guaranteed_rate=0.1)
        play(scheduler, 5)
    return read_recording(path)


def test_all_rounds_have_the_present_settings(tmp_path: Path) -> None:
    record = amended_fleet(tmp_path / "fleet.turnout", settings={"cohort_size": 2, "guaranteed_rate": 0.15})
    assert (len(record.columns), record.amended_after) == (30, 25)
    assert "the settings were amended after round 25: all rounds have the present ones" in record.notes
    result = replay(record, record.policy, {}, draws=2)
    assert result.promise.startswith("0.1 of the rounds it was available for, at most 1 turn behind")
    assert result.settings == {"cohort_size": 3, "guaranteed_rate": 0.1, "tolerance": 1.0}
    assert result["other_rounds"].replayed >= 15  # the first rounds had smaller cohorts
    assert result["mean_round"].recorded == record.columns.durations.mean()
    other = replay(record, "random", {}, draws=2)
    assert other.promise == result.promise
    assert other["shortfall_at_end"].recorded == result["shortfall_at_end"].recorded


def test_rounds_before_an_amendment_of_the_features_are_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=500.0, allow_infeasible=True) as scheduler:
        play(scheduler, 6)
        scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
        for number in range(5):
            play_round(scheduler, {f"c{row}": {"battery": (row + number) % 9 / 9} for row in range(9)}, 2.0)
    record = read_recording(path)
    assert (len(record.columns), record.columns.contexts.shape[1]) == (5, 1)
    assert record.amended_after == 0
    assert "only the last 5 of 11 rounds are used: the features were amended before them" in record.notes
    assert replay(record, "fair-pace", {}, draws=2).rounds == 5
