"""Fleets and runs without rounds on the dashboard."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.readings import FOREVER, assert_same_certificate, close_to
from dashboard.served import served, watching
from live.fleets import state_of
from live.turns.slots.played import fill, open_slots, play_turns, play_with_a_long_turn
from turnout.dashboard.app import view_data
from turnout.dashboard.sources.columns import RUNNING
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.run import RunSource
from turnout.dashboard.views.clients import client
from turnout.dashboard.views.comparing import Baselines, training
from turnout.dashboard.views.overview import RECENT_PER_SLOT, overview
from turnout.dashboard.views.rounds import _summary, round_detail, rounds
from turnout.dashboard.views.system import metrics
from turnout.dashboard.watch import Watch
from turnout.lab import RoundColumns, RunPlan, RunStore, SlotRun, play_into, play_plan
from turnout.lab.analysis.slots import slot_metrics, staleness
from turnout.live import FleetReader
from turnout.storage.training_log import TrainingLog
from turnout.web.prometheus import HELP


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A fleet without rounds, read completely; two of its turns are running, and a third was reported."""
    path = tmp_path_factory.mktemp("slots") / "fleet.turnout"
    with open_slots(path) as scheduler:
        play_turns(scheduler, 40)
        fill(scheduler, random.Random(1))
        scheduler.report(scheduler.running()[0].id, 4.0)
        with watching(path) as opened:
            with opened.locked_source() as source:
                source.catch_up(FOREVER)
            yield opened


def shown(watch: Watch, view: Any, **arguments: Any) -> dict[str, Any]:
    with watch.locked_source() as source:
        return view_data(view, watch, source, **arguments)


@pytest.mark.parametrize("counts", ["selected", "completed"])
@pytest.mark.parametrize("accrual", ["available", "always"])
def test_debts_and_promise_are_those_of_the_scheduler(tmp_path: Path, counts: str, accrual: str) -> None:
    settings = {"guaranteed_rate": "1/9", "tolerance": 1.0, "counts": counts, "accrual": accrual}
    with open_slots(tmp_path / "fleet.turnout", settings=settings, allow_infeasible=True) as scheduler:
        play_with_a_long_turn(scheduler)
        with closing(FleetSource(FleetReader(scheduler.path))) as source:
            source.catch_up(FOREVER)
            ledger, own = source.ledger, scheduler.certificate()
            assert_same_certificate(ledger.certificate(), own)
            present = state_of(scheduler).state()["clients.offered"]
            earning = ledger.counters["offered"]  # not while it has earned a whole turn with the one that is running
            assert np.flatnonzero(earning != present).tolist() == [3]
            assert earning[3] < present[3]


def test_debts_are_known_after_decisions_that_are_no_longer_kept(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout", keep_rounds=20) as scheduler:
        play_turns(scheduler, 40)
        scheduler.compact()
        with closing(FleetSource(FleetReader(scheduler.path))) as source:
            source.catch_up(FOREVER)
            ledger = source.ledger
            assert ledger.first_after > 0
            assert ledger.last_round == scheduler.round
            assert_same_certificate(ledger.certificate(), scheduler.certificate(), since=False)
            assert source.notices()[0].startswith(f"Decisions up to {ledger.first_after} are no longer kept")


@pytest.mark.parametrize(
    "plan",
    [
        RunPlan("fair-pace", 150, 1, {"tolerance": 1.0}, concurrency=6),
        # Late turns end at the deadline, many of them at the same time.
        RunPlan(
            "fair-pace",
            150,
            1,
            {"accrual": "always", "allow_infeasible": True},
            "traces",
            {"deadline": 60},
            concurrency=6,
        ),
        RunPlan("rbcsf", 150, 2, {"counts": "completed"}, concurrency=6),
    ],
    ids=lambda plan: f"{plan.policy} {plan.world}",
)
def test_a_run_is_read_as_it_was_played(tmp_path: Path, plan: RunPlan) -> None:
    played = plan.start()
    assert isinstance(played, SlotRun)
    records = list(played.play(plan.rounds))
    with RunStore(tmp_path / "runs.turnout") as store:
        run = play_into(store, plan, every=40)
        source = RunSource(store, store.info(run))
        source.catch_up(FOREVER)
        ledger = source.ledger
        assert ledger.policy is not None
        assert (ledger.slots, source.last_error, source.reading) == (6, None, None)
        assert RUNNING not in ledger.turn_column("kinds")
        reports = [record.report for record in records]
        times = [np.nan if report.with_outcome("failed")[0] else report.exchange_times[0] for report in reports]
        assert close_to(ledger.turn_column("times"), times)
        state = played.policy.state()
        for name, value in ledger.policy.state().items():
            assert np.array_equal(value, state[name]), name
        columns = store.columns(run)
        assert ledger.round_column("finished").tolist() == [record.report.metrics["finished"] for record in records]
        arrived = ledger.round_column("staleness")[np.argsort(ledger.round_column("finished"), kind="stable")]
        assert arrived[np.isfinite(arrived)].mean() == pytest.approx(staleness(columns).mean(), rel=0.05)


def test_the_overview_has_the_rate_of_updates_and_the_running_turns(watch: Watch) -> None:
    data = shown(watch, overview)
    with FleetReader(watch.path) as scheduler:
        running = [turn for _, turn in scheduler.running() if turn.kind is None]
        decisions = scheduler.round
    assert (data["about"]["unit"], data["about"]["slots"], data["round"]) == ("decision", 3, decisions)
    assert [row["outcome"] for row in data["running"]] == ["arrived", "out", "out"]
    assert [row["turn"] for row in data["running"][1:]] == [turn.round for turn in running]
    assert [row["id"] for row in data["running"][1:]] == [turn.id for turn in running]
    assert all(row["deadline"] == 100 and row["age"] >= 0 for row in data["running"])
    slots = data["slots"]
    assert slots["updates"] == data["outcomes"]["arrived"]
    assert slots["stale_in"] == "updates"
    assert 0 < slots["staleness"] <= slots["largest_staleness"]
    assert data["about"]["share_of"] == "the turns given while it was there"
    assert "round" not in " ".join(warning["text"] for warning in data["warnings"])


def test_the_rate_of_a_run_is_that_of_its_figures_and_is_compared_with_random_selection(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as store:
        play_into(store, RunPlan("random", 200, 1, concurrency=6))
        play_into(store, RunPlan("random", 200, 1))  # with rounds: another world
        run = play_into(store, RunPlan("fair-pace", 200, 1, {"tolerance": 1.0}, concurrency=6))
        figures = {info.id: slot_metrics(store.columns(info.id)) for info in store.runs() if info.id != 2}
    with watching(path) as watch, watch.locked_source(run) as source:
        source.catch_up(FOREVER)
        slots, random = view_data(overview, watch, source)["slots"], Baselines(watch).get(run)["random"]
    assert slots["rate"] == pytest.approx(figures[run].updates_per_second, rel=1e-5)
    assert random["ratio"] == pytest.approx(figures[1].seconds / figures[run].seconds, rel=1e-5)
    assert random["how"].startswith("mean of 1 run with random selection")
    assert close_to([slots["staleness"]], [figures[run].mean_staleness])


def test_a_decision_says_what_came_of_its_turn(watch: Watch) -> None:
    listed = shown(watch, rounds, page=1, size=500)["rows"]
    assert [row["round"] for row in listed] == list(range(len(listed), 0, -1))
    for outcome, part in {
        "arrived": "Its update arrived after",
        "failed": "It failed after",
        "out": "running since",
    }.items():
        row = next(row for row in listed if row["turn"]["outcome"] == outcome)
        detail = shown(watch, round_detail, number=row["round"])
        assert detail["summary"].startswith(
            f"{row['turn']['id']} was given a turn, as one of {row['available_count']} idle"
        )
        assert part in detail["summary"]
        assert (detail["is_open"], detail["rows"][0]["outcome"]) == (outcome == "out", outcome)


def test_only_the_time_of_a_failed_or_running_turn_is_unknown(watch: Watch) -> None:
    with FleetReader(watch.path) as reader:
        ended = {turn.id: np.nan if turn.kind == "failed" else turn.seconds for turn in reader.ended_turns()}
    with watch.locked_source() as source:
        times = source.ledger.turn_column("times")
        rounds_of_turns = source.ledger.round_column("rounds")
    assert 0 < sum(map(np.isnan, ended.values())) < len(ended)
    assert close_to(times, [ended.get(number, np.nan) for number in rounds_of_turns.tolist()])


def test_a_client_that_is_training_is_shown_as_such(watch: Watch) -> None:
    row = shown(watch, overview)["running"][-1]
    data = shown(watch, client, id=row["id"])
    assert data["next"].endswith(f"Its turn of decision {row['turn']} is running.")
    assert "round" not in data["next"]
    assert "out" not in data["times"]["outcome"]


def test_the_metrics_of_a_fleet_without_rounds(watch: Watch) -> None:
    values = {name: next(iter(samples.values())) for name, samples in metrics(watch).items()}
    assert (values["turnout_slots"], values["turnout_running_turns"], values["turnout_turns_reported"]) == (3, 2, 1)
    assert values["turnout_oldest_turn_seconds"] > 0
    assert values["turnout_updates_per_second"] > 0
    assert "turnout_open_round_seconds" not in values
    assert f"the last {RECENT_PER_SLOT} decisions" in HELP["turnout_updates_per_second"]


def test_the_stream_follows_a_live_fleet_without_rounds(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        play_turns(scheduler, 5)
        with served(scheduler.path) as server:
            server.wait_rounds(scheduler.round)
            before = scheduler.round
            play_turns(scheduler, 5, seed=2)
            assert scheduler.round > before
            server.wait_rounds(scheduler.round)
            name = server.json("/api/overview")["running"][0]["id"]
            explained = server.json(f"/api/explain?id={name}&round={scheduler.round}")
            assert explained["exact"]
            assert "round" not in f"{explained['sentence']}{explained['next']}"
            earlier, later = server.json("/api/overview")["running"][:2]
            training = server.json(f"/api/explain?id={earlier['id']}&round={later['turn']}")
            assert training["outcome"] == "training"
            assert training["sentence"] == f"{earlier['id']} was training, in its turn of decision {earlier['turn']}."


def test_the_guarantee_of_a_run_whose_record_does_not_fit_its_policy_is_hidden(tmp_path: Path) -> None:
    plan = RunPlan("fair-pace", 20, 3, {"tolerance": 1.0}, world_settings={"clients": 12}, concurrency=3)
    played = play_plan(plan)
    fields = {name: getattr(played, name) for name in RoundColumns.__slots__}
    other = RoundColumns(**{**fields, "contexts": np.ones((len(played.chosen), 2))})
    with RunStore(tmp_path / "runs.turnout") as store:
        run = store.write_run("other", plan.as_dict(), other, clients=12, code_version="1")
        source = RunSource(store, store.info(run))
        source.catch_up(FOREVER)
        assert source.last_error is not None
        assert source.last_error.startswith("The guarantee of this run is not shown because its record is incomplete: ")
        assert source.ledger.certificate() is None
        assert source.ledger.turn_column("chosen").tolist() == played.chosen.tolist()


def test_the_curve_of_a_fleet_without_rounds_is_drawn_at_the_times_of_its_turns(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        play_turns(scheduler, 5)
    TrainingLog(scheduler.path).write_metrics({"server": {0: {"accuracy": 0.1}, 3: {"accuracy": 0.4}}})
    with watching(scheduler.path) as watch:
        with watch.locked_source() as source:
            source.catch_up(FOREVER)
            started = source.ledger.round_column("started")
        (group,) = shown(watch, training, metric=None)["groups"]
    assert (group["rounds"], group["mean"]) == ([0, 3], [0.1, 0.4])
    assert close_to(group["seconds"], [0.0, started[2] - started[0]])


def test_a_decision_whose_client_was_late_says_when_its_deadline_passed() -> None:
    turn = {"id": "c1", "outcome": "late", "staleness": None, "predicted": None}
    row = {"turn": turn, "seconds": 30.0, "available_count": 4}
    assert _summary(row) == (
        "c1 was given a turn, as one of 4 idle clients. It was late: its deadline passed after 30.00 s."
    )
    row["turn"] = {**turn, "outcome": "arrived"}
    assert _summary(row) == ("c1 was given a turn, as one of 4 idle clients. Its update arrived after 30.00 s.")
