"""What the pages say in numbers, against other readings of the same record."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dashboard.readings import Audit, audit_of, close_to, fleet_ledger, made_up, run_source, write_made_up
from dashboard.served import Served, Stored, run_store, served, small_fleet
from scheduler.fleets import named, offered
from turnout.analysis.metrics import (
    gini_coefficient,
    jain_index,
    lorenz_curve,
    owed_after_each_round,
    replayed_estimates,
    summarise,
)
from turnout.analysis.statistics import mean_confidence_interval
from turnout.dashboard.views import common, overview
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError
from turnout.policies.rbcsf.policy import RBCSF
from turnout.scheduler import Scheduler
from turnout.simulator import RunPlan, play, play_into
from turnout.store import RoundColumns, RunStore

RATE = Fraction(1, 6)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def stored(place: Path) -> Stored:
    return run_store(place / "runs.turnout")


@pytest.fixture(scope="module")
def runs(place: Path, stored: Stored) -> Iterator[Served]:
    assert stored
    with served(place / "runs.turnout") as there:
        yield there


@pytest.fixture(scope="module")
def fleet(place: Path) -> Iterator[Served]:
    small_fleet(place / "fleet.turnout", rounds=60)
    with served(place / "fleet.turnout") as there:
        there.wait_read()
        yield there


@pytest.fixture(scope="module")
def audit(place: Path, fleet: Served) -> Audit:
    assert fleet
    return audit_of(place / "fleet.turnout", RATE, cap=210)


def columns_of(place: Path, run: int) -> RoundColumns:
    with RunStore(place / "runs.turnout", read_only=True) as store:
        return store.columns(run)


# Overview


def test_the_overview_of_a_run_in_numbers(place: Path, runs: Served, stored: Stored) -> None:
    for run in (stored.fast[0], stored.fair[1], stored.unfinished):
        told, columns = runs.json(f"/api/overview?run={run}"), columns_of(place, run)
        expected = summarise(columns, guaranteed_rate=0.15)
        seconds = columns.durations
        assert close_to(
            [told[word] for word in ("mean_round", "p95_round", "total_time", "least_share", "jain", "cohort")],
            [
                *(expected.mean_round, expected.p95_round, expected.total_time, expected.least_share, expected.jain),
                expected.mean_cohort,
            ],
        )
        assert close_to([told["recent_round"]], [seconds[-50:].mean()])
        assert told["recent_of"] == min(50, len(seconds))
        assert told["round"] == told["about"]["rounds"] == len(seconds)
        assert columns.available is not None
        assert close_to([told["volunteers"]], [columns.available.sum(axis=1).mean()])
        assert told["rounds"]["x"] == columns.rounds.tolist()
        for word in ("mean", "low", "high"):
            assert close_to(told["rounds"][word], seconds)
        debts = owed_after_each_round(columns, 0.15)
        assert close_to([told["worst"]["owed"]], [expected.worst_debt])
        assert debts[-1, int(told["worst"]["id"])] == debts[-1].max()
        assert close_to(told["debts"]["worst"], debts.max(axis=1))
        assert close_to(told["debts"]["mean"], debts.mean(axis=1))
        assert told["outcomes"] == {"arrived": len(columns.chosen)}
        assert columns.turns[int(told["least"]["id"])] == columns.turns.min()
        behind = told["behind"]
        assert close_to([one["owed"] for one in behind], np.sort(debts[-1])[::-1][: len(behind)])
        for one in behind:
            assert close_to([one["owed"], one["turns"]], [debts[-1, int(one["id"])], columns.turns[int(one["id"])]])
        assert len(behind) == min(8, int((debts[-1] > 0).sum()))
        assert told["certificate"]["holds"] is True
        assert f"at most {debts[-1].max():.2f} turns" in told["certificate"]["text"]


def test_a_promise_is_told_by_its_terms(runs: Served, stored: Stored, fleet: Served) -> None:
    assert runs.json(f"/api/overview?run={stored.fast[0]}")["about"]["promise"] == {
        "least": 0.15,
        "most": 0.15,
        "accrual": "always",
        "paid": "chosen",
        "cap": None,
    }
    promise = fleet.json("/api/overview")["about"]["promise"]
    assert close_to([promise["least"], promise["most"], promise["cap"]], [1 / 6, 1 / 6, 210])
    assert (promise["accrual"], promise["paid"]) == ("available", "contributed")
    assert runs.json(f"/api/overview?run={stored.random[0]}")["about"]["promise"] is None


def test_random_choice_is_a_run_of_it_where_the_store_has_one(place: Path, runs: Served, stored: Stored) -> None:
    """Of the same seed, over as many rounds; where that seed was not played, the mean of those that were."""
    for place_, run in enumerate(stored.fast):
        told = runs.json(f"/api/overview?run={run}")
        expected = columns_of(place, stored.random[place_]).durations.mean()
        assert close_to([told["random"]["mean_round"]], [expected])
        assert close_to([told["random"]["saved"]], [1 - told["mean_round"] / expected])
        assert (
            told["random"]["how"] == "mean of 1 run with random selection in this store, over the same number of rounds"
        )
    told = runs.json(f"/api/overview?run={stored.unfinished}")  # 30 rounds, of a seed that random was not played with
    both = [columns_of(place, run).durations[:30].mean() for run in stored.random]
    assert close_to([told["random"]["mean_round"]], [np.mean(both)])
    assert told["random"]["how"].startswith("mean of 2 runs")
    assert runs.json(f"/api/overview?run={stored.random[0]}")["random"] is None


def test_random_choice_is_estimated_from_the_times_that_are_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the mean over every cohort and every time of its clients, within the error of the drawing."""
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2, "speed_weight": 0.0}, allow_infeasible=True) as scheduler:
        for round_ in range(1, 13):
            chosen = scheduler.choose(offered(*named(6)))
            scheduler.report_many({one: 1.0 + 2.0 * int(one[1:]) + (round_ % 3) for one in chosen})
            scheduler.close_round()
        times: dict[str, list[float]] = {}
        for event in scheduler.export():
            for client, seconds in zip(event.get("clients", []), event.get("seconds", []), strict=False):
                times.setdefault(client, []).append(seconds)
    assert len(times) == 6
    slowest: list[tuple[float, float]] = []  # with how likely each is
    for one, other in itertools.combinations(times.values(), 2):
        slowest += [(max(a, b), 1 / (len(one) * len(other))) for a in one for b in other]
    total = sum(weight for _, weight in slowest)
    mean = sum(value * weight for value, weight in slowest) / total
    spread = math.sqrt(sum(weight * (value - mean) ** 2 for value, weight in slowest) / total)
    monkeypatch.setattr(overview, "DRAWS", 10_000)  # so that little is left to chance
    with served(path) as there:
        there.wait_read()
        told = there.json("/api/overview")
    assert abs(told["random"]["mean_round"] - mean) < 4 * spread / math.sqrt(10_000)
    assert told["random"]["how"] == "estimated from 10000 random cohorts of the 6 clients with known times"
    assert close_to([told["random"]["saved"]], [1 - told["mean_round"] / told["random"]["mean_round"]])


def test_the_overview_of_a_fleet_in_numbers(fleet: Served, audit: Audit) -> None:
    told = fleet.json("/api/overview")
    durations = np.array(audit.durations)
    assert close_to(
        [told["mean_round"], told["p95_round"], told["total_time"], told["jain"]],
        [durations.mean(), np.percentile(durations, 95), durations.sum(), jain_index(list(audit.turns.values()))],
    )
    assert told["outcomes"] == audit.outcomes
    assert set(audit.outcomes) == {"arrived", "surplus", "outrun", "late", "failed"}
    gone = "c9"
    shares = {one: audit.turns[one] / audit.volunteered[one] for one in audit.ids if one != gone}
    assert close_to([told["least_share"]], [min(shares.values())])
    assert shares[told["least"]["id"]] == min(shares.values())
    left_in = audit.left_in[gone]
    worst = [
        max(float(owed) for client, owed in debts.items() if client != gone or number <= left_in)
        for number, debts in enumerate(audit.debts, start=1)
    ]
    assert told["worst"]["id"] != gone
    assert close_to(told["debts"]["worst"], worst)
    assert close_to([told["volunteers"]], [np.mean([len(one) for one in audit.present])])
    assert close_to([told["cohort"]], [np.mean([len(one) for one in audit.cohorts])])


def test_the_open_round_is_told_as_it_stands(fleet: Served) -> None:
    told = fleet.json("/api/overview")["open"]
    assert (told["round"], told["deadline"], told["target_size"]) == (61, 10, 4)
    detail = fleet.json("/api/round")
    outcomes = Counter(row["outcome"] for row in detail["rows"])
    assert outcomes == {"arrived": 1, "failed": 1, "out": told["out"]}
    assert (told["back"], told["failed"]) == (1, 1)
    assert detail["is_open"]
    assert detail["number"] == detail["last"] == 61
    assert {row["why"] for row in detail["rows"]} == {None, "the battery ran out"}
    assert [row["loss"] for row in detail["rows"] if row["outcome"] == "arrived"] == [0.75]
    later = fleet.json("/api/overview")["open"]["elapsed"]
    assert later > told["elapsed"], "time goes on while a round is open"


# Fairness


def test_fairness_in_numbers(place: Path, runs: Served, stored: Stored) -> None:
    run = stored.fair[0]
    told, columns = runs.json(f"/api/fairness?run={run}"), columns_of(place, run)
    turns, rounds = columns.turns, len(columns)
    counted = sum(abs(one - other) for one in turns.tolist() for other in turns.tolist())
    assert close_to([told["gini"]], [counted / (2 * len(turns) ** 2 * turns.mean())])
    assert close_to([told["least_share"], told["jain"]], [turns.min() / rounds, jain_index(turns)])
    curve = lorenz_curve(turns)
    assert close_to(told["lorenz"]["x"], curve[:, 0])
    assert close_to(told["lorenz"]["y"], curve[:, 1])
    shares = turns / rounds
    edges, counts = told["shares"]["edges"], told["shares"]["counts"]
    assert sum(counts) == len(turns)
    assert close_to([edges[0], edges[-1]], [shares.min(), shares.max()])
    against = told["taken_vs_promised"]
    assert against["ids"] == [str(row) for row in range(len(turns))]
    assert against["turns"] == turns.tolist()
    assert close_to(against["promised"], np.full(len(turns), 0.15 * rounds))
    assert close_to(against["owed"], owed_after_each_round(columns, 0.15)[-1])
    over_time = told["worst_over_time"]
    least = (np.cumsum(columns.chosen_mask, axis=0) / columns.rounds[:, None]).min(axis=1)
    assert close_to(over_time["least_share"], least)
    assert over_time["promised"] == 0.15
    assert told["groups"] == []


def test_groups_stand_beside_what_they_were_promised(folder: Path) -> None:
    path, who = folder / "runs.turnout", list("aabbccaabbcc")
    settings = {"cohort_size": 4, "guaranteed_rate": 0.1, "groups": who, "group_rates": {"a": 1, "b": "1/2"}}
    plan = RunPlan("rbcsf", 40, settings=settings, world_settings={"clients": 12})
    with RunStore(path) as store:
        run = play_into(store, plan)
        columns = store.columns(run)
    policy, world = plan.build()
    list(play(policy, world, 40))
    assert isinstance(policy, RBCSF)
    expected = policy.group_certificate()
    with served(path) as there:
        told = there.json("/api/fairness")["groups"]
    assert [one["name"] for one in told] == ["a", "b"]
    assert [one["clients"] for one in told] == [4, 4]
    mine = [sum(int(columns.turns[row]) for row in range(12) if who[row] == name) for name in "ab"]
    assert [one["turns"] for one in told] == mine == expected.turns.tolist()
    assert close_to([one["promised"] for one in told], [40, 20])
    assert close_to([one["owed"] for one in told], expected.owed)
    assert close_to([one["share"] for one in told], np.array(mine) / 40)


# Queues, turns


def test_queues_in_numbers(place: Path, runs: Served, stored: Stored) -> None:
    run = stored.fast[0]
    debts = owed_after_each_round(columns_of(place, run), 0.15)
    for order in ("owed", "id", "turns"):
        told = runs.json(f"/api/queues?run={run}&order={order}")
        rows = [int(one) for one in told["ids"]]
        assert sorted(rows) == list(range(40))
        assert told["x"] == list(range(1, 61))
        for row, line in zip(rows, told["owed"], strict=True):
            assert close_to(line, debts[:, row])
        now = [debts[-1, row] for row in rows]
        if order == "owed":
            assert now == sorted(now, reverse=True)
        if order == "id":
            assert rows == list(range(40))
    assert close_to(told["curve"]["p95"], np.percentile(debts, 95, axis=1, method="lower"))
    assert sum(told["now"]["counts"]) == 40
    assert close_to([told["now"]["edges"][0], told["now"]["edges"][-1]], [debts[-1].min(), debts[-1].max()])


def test_queues_of_a_fleet_in_numbers(fleet: Served, audit: Audit) -> None:
    told = fleet.json("/api/queues?order=id")
    assert told["ids"] == audit.ids
    assert told["cap"] == 210
    for client, line in zip(told["ids"], told["owed"], strict=True):
        assert close_to(line, [float(debts.get(client, 0)) for debts in audit.debts])


def test_turns_in_numbers(fleet: Served, audit: Audit) -> None:
    told = fleet.json("/api/turns?order=turns")
    assert (told["width"], told["x"]) == (1, list(range(1, 61)))
    sums = [sum(line) for line in told["counts"]]
    assert sums == sorted(audit.turns.values(), reverse=True)
    for client, taken, there in zip(told["ids"], told["counts"], told["available"], strict=True):
        assert taken == [int(client in cohort) for cohort in audit.cohorts]
        assert there == [int(client in present) for present in audit.present]


def test_many_rounds_are_told_in_few_bins(folder: Path) -> None:
    """Nothing is lost in them: the turns add up, the extremes stay."""
    columns, path = made_up(1001, 7, seed=2, failures=0.1), folder / "runs.turnout"
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, columns)
    debts = owed_after_each_round(columns, 0.15)
    assert columns.available is not None
    with served(path) as there:
        there.wait_read()
        told = there.json("/api/turns?order=id")
        assert len(told["x"]) <= 160
        assert told["x"] == list(range(1, 1002, told["width"]))
        assert [sum(line) for line in told["counts"]] == columns.turns.tolist()
        width = told["width"]
        for row, line in enumerate(told["available"]):
            mine = columns.available[:, row]
            assert close_to(line, [mine[start : start + width].mean() for start in range(0, 1001, width)])
        told = there.json("/api/queues?order=id")
        assert len(told["x"]) <= 160
        for row, line in enumerate(told["owed"]):
            assert close_to(line, debts[np.array(told["x"]) - 1, row])
        assert told["x"][-1] == 1001
        told = there.json("/api/overview")["rounds"]
        assert len(told["x"]) <= 300
        assert close_to([min(told["low"]), max(told["high"])], [columns.durations.min(), columns.durations.max()])
        ends = told["x"]
        starts = [0, *ends[:-1]]
        means = [columns.durations[start:end].mean() for start, end in zip(starts, ends, strict=True)]
        assert close_to(told["mean"], means)
        client = there.json("/api/client?id=3")
        assert sum(client["strip"]["chosen"]) == columns.turns[3]
        assert client["debts"]["owed"][-1] == pytest.approx(debts[-1, 3], rel=1e-5)


# Rounds


def test_rounds_in_numbers_newest_first(place: Path, runs: Served, stored: Stored) -> None:
    run = stored.fast[0]
    columns, told = columns_of(place, run), runs.json(f"/api/rounds?run={run}&size=500")
    assert [row["round"] for row in told["rows"]] == list(range(60, 0, -1))
    assert columns.available is not None
    for row in told["rows"]:
        at = row["round"] - 1
        mine = slice(columns.starts[at], columns.starts[at + 1])
        times = columns.exchange_times[mine]
        assert close_to([row["seconds"]], [times.max()])
        assert int(row["bottleneck"]) == columns.chosen[mine][times.argmax()]
        assert (row["cohort"], row["back"], row["late"], row["failed"]) == (8, 8, 0, 0)
        assert row["volunteers"] == columns.available[at].sum()
        assert close_to(
            [row["threshold"], row["objective"]],
            [columns.cohort_reasons[word][at] for word in ("threshold", "objective")],
        )


def test_one_round_in_numbers(place: Path, runs: Served, stored: Stored) -> None:
    run = stored.fast[0]
    columns = columns_of(place, run)
    expected, known = replayed_estimates(columns), set[int]()
    for number in range(1, 61):
        told = runs.json(f"/api/round?run={run}&number={number}")
        mine = slice(columns.starts[number - 1], columns.starts[number])
        assert [int(row["id"]) for row in told["rows"]] == columns.chosen[mine].tolist()
        assert close_to([row["seconds"] for row in told["rows"]], columns.exchange_times[mine])
        assert close_to([row["optimistic"] for row in told["rows"]], columns.client_reasons["optimistic"][mine])
        assert close_to([row["owed"] for row in told["rows"]], columns.client_reasons["owed"][mine])
        predicted = [
            seconds if row in known else None
            for row, seconds in zip(columns.chosen[mine].tolist(), expected.predicted[mine].tolist(), strict=True)
        ]
        assert close_to([row["predicted"] for row in told["rows"]], np.array(predicted, dtype=float))
        for row in told["rows"]:
            if row["predicted"] is not None:
                assert row["low"] <= row["predicted"] <= row["high"]
        known |= set(columns.chosen[mine].tolist())
        slowest = [row["id"] for row in told["rows"] if row["bottleneck"]]
        assert slowest == [str(columns.chosen[mine][columns.exchange_times[mine].argmax()])]
        assert (told["first"], told["last"], told["number"]) == (1, 60, number)


def test_rounds_of_a_fleet_are_told_as_they_were(place: Path, fleet: Served, audit: Audit) -> None:
    with Scheduler.open(place / "fleet.turnout", read_only=True) as scheduler:
        events = {event["round"]: event for event in scheduler.export() if event["kind"] == "round"}
        turns = {number: {turn.id: turn for turn in scheduler.turns(number)} for number in events}
    listed = {row["round"]: row for row in fleet.json("/api/rounds?size=100")["rows"]}
    assert set(listed) == set(events)
    reasons = set()
    for number, event in events.items():
        told, row = fleet.json(f"/api/round?number={number}"), listed[number]
        outcomes = Counter(event["outcomes"])
        assert {one["id"]: one["outcome"] for one in told["rows"]} == dict(
            zip(event["clients"], event["outcomes"], strict=True)
        )
        assert row["back"] == outcomes["arrived"] + outcomes["surplus"]
        assert row["late"] == outcomes["late"] + outcomes["outrun"]
        assert row["failed"] == outcomes["failed"]
        assert close_to([told["seconds"], row["seconds"]], [audit.durations[number - 1]] * 2)
        assert row["volunteers"] == told["volunteers"] == event["available"]
        for one in told["rows"]:
            turn = turns[number][one["id"]]
            assert one["why"] == turn.why
            assert close_to([one["loss"]], [np.nan if turn.loss is None else turn.loss])
            reasons.add(one["why"])
            if one["bottleneck"]:
                assert close_to([one["seconds"]], [told["seconds"]])
                assert one["id"] == row["bottleneck"]
                assert one["outcome"] != "failed"
        assert told["opened"][:19] == event["opened"][:19]
        assert told["closed"][:19] == event["closed"][:19]
    assert reasons == {None, "no room on the disk"}


# Client


def test_one_client_in_numbers(place: Path, fleet: Served, audit: Audit) -> None:
    rows = {row["id"]: row for row in fleet.json("/api/clients?size=500")["rows"]}
    with Scheduler.open(place / "fleet.turnout", read_only=True) as scheduler:
        certificate, ids = scheduler.certificate(), scheduler.clients
        for row, client in enumerate(ids):
            told = fleet.json(f"/api/client?id={client}")
            assert (told["turns"], told["volunteered"]) == (audit.turns[client], audit.volunteered[client])
            assert told["last_round"] == (audit.last_round[client] or None)
            assert told["joined"] == audit.joined[client]
            assert close_to(
                [told["promised"], told["owed"], told["forfeited"], told["reliability"]],
                [
                    certificate.promised[row],
                    certificate.owed[row],
                    certificate.forfeited[row],
                    scheduler.reliability(client),
                ],
            )
            assert told["rank"] == 1 + int((certificate.owed > certificate.owed[row]).sum())
            history = [turn for turn in scheduler.history(client) if turn.round <= 60]
            assert told["times"]["round"] == [turn.round for turn in history]
            assert told["times"]["outcome"] == [turn.kind for turn in history]
            known = [np.nan if turn.kind == "failed" else turn.seconds for turn in history]
            assert close_to(told["times"]["seconds"], np.array(known, dtype=float))
            back = [turn.seconds for turn in history if turn.kind in ("arrived", "surplus")]
            assert close_to([told["mean_seconds"]], [float(np.mean([one or 0.0 for one in back])) if back else np.nan])
            assert told["strip"]["chosen"] == [int(client in cohort) for cohort in audit.cohorts]
            assert told["strip"]["available"] == [int(client in present) for present in audit.present]
            assert close_to(told["debts"]["owed"], [float(debts.get(client, 0)) for debts in audit.debts])
            assert ("retired" in told["flags"]) == (client == "c9")
            assert rows[client]["share"] == told["share"]
    assert "gets no more turns" in fleet.json("/api/client?id=c9")["next"]
    assert "one turn every 6.0 rounds in which it is available" in fleet.json("/api/client?id=c0")["next"]


def test_flags_are_the_schedulers(folder: Path) -> None:
    """Who rests after misses, who is seldom there, and whose word has stopped to explain its times."""
    path = folder / "fleet.turnout"
    rules = {"cohort_size": 3, "guaranteed_rate": 0.3, "accrual": "always", "paid": "chosen"}
    with Scheduler.open(path, settings=rules, deadline=50.0, allow_infeasible=True, rest_after=2) as scheduler:
        for round_ in range(1, 43):
            factor = float(np.exp(np.random.default_rng(round_).uniform(-2.3, 2.3)))
            there = {**offered("a", "b"), **offered("liar", free_cpu=factor, bandwidth=2.0 * factor)}
            there |= offered("rare") if round_ < 5 else {}
            there |= offered("shaky") if round_ > 38 else {}
            for client in scheduler.choose(there):
                if client == "shaky":
                    scheduler.report_failure(client, "no")
                else:
                    scheduler.report(client, 5.0)
            scheduler.close_round()
        status, doubted = scheduler.status(), scheduler.doubted()
        resting = set(status.resting)
        assert (resting, doubted) == ({"shaky"}, ["liar"]), "or the fleet shows too little"
    with served(path) as there_:
        there_.wait_read()
        rows = {row["id"]: set(row["flags"]) for row in there_.json("/api/clients")["rows"]}
        warnings = there_.json("/api/overview")["warnings"]
        flagged = there_.json("/api/speed")["flags"]
    assert {one for one, flags in rows.items() if "backing_off" in flags} == resting
    assert {one for one, flags in rows.items() if "context" in flags} == set(doubted)
    assert {one for one, flags in rows.items() if "rarely_available" in flags} == {"rare"}
    assert [one["id"] for one in warnings if "does not explain" in one["text"]] == ["liar"]
    assert [one["id"] for one in warnings if "available too rarely" in one["text"]] == ["rare"]
    assert [one["id"] for one in flagged if one["kind"] == "context"] == ["liar"]


def test_a_client_that_has_changed_is_flagged_for_a_while(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 3, "speed_weight": 0.0}, allow_infeasible=True) as scheduler:
        for round_ in range(1, 61):
            rng = np.random.default_rng(round_)
            chosen = scheduler.choose(offered("a", "b", "c", free_cpu=float(rng.uniform(0.5, 2.0))))
            usual = {one: float(rng.uniform(4.9, 5.1)) for one in chosen}
            scheduler.report_many({**usual, **({"b": 25.0} if round_ > 30 and "b" in chosen else {})})
            scheduler.close_round()
    with served(path) as there:
        there.wait_read()
        rows = {row["id"]: row["flags"] for row in there.json("/api/clients")["rows"]}
        (flag,) = (one for one in there.json("/api/speed")["flags"] if one["kind"] == "changed")
    assert {one for one, flags in rows.items() if "changed" in flags} == {"b"}
    assert flag["id"] == "b"
    assert 31 <= int(flag["text"].split()[-1]) <= 60


# Speed


def test_the_speed_model_in_numbers(place: Path, runs: Served, stored: Stored) -> None:
    for run in (stored.fast[0], stored.random[0]):
        told, columns = runs.json(f"/api/speed?run={run}"), columns_of(place, run)
        expected = replayed_estimates(columns)
        first = np.unique(columns.chosen, return_index=True)[1]
        known = np.setdiff1d(np.arange(len(columns.chosen)), first)
        error = (columns.exchange_times - expected.predicted)[known]
        assert told["known"] == len(first)
        assert close_to([told["mean_abs"], told["bias"]], [np.abs(error).mean(), error.mean()])
        assert close_to(told["points"]["actual"], columns.exchange_times[known])
        assert close_to(told["points"]["predicted"], expected.predicted[known])
        assert [int(one) for one in told["points"]["id"]] == columns.chosen[known].tolist()
        assert sum(told["residuals"]["counts"]) == len(known)
        rounds = np.repeat(columns.rounds, np.diff(columns.starts))[known]
        assert told["error"]["x"] == np.unique(rounds).tolist()
        assert close_to(told["error"]["mean_abs"], [np.abs(error[rounds == one]).mean() for one in np.unique(rounds)])
        assert 0.8 < told["inside"] < 1, "about nine in ten, in a world that does not change"
        band = told["band"]
        assert band["predicted"] == sorted(band["predicted"])
        assert all(low <= high for low, high in zip(band["low"], band["high"], strict=True))


def test_a_run_without_contexts_says_why_nothing_is_foretold(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        plan = RunPlan("rbcsf", 30, settings={"cohort_size": 3}, world_settings={"clients": 12}, keep="choices")
        columns = store.columns(play_into(store, plan))
    with served(path) as there:
        assert "without contexts" in there.json("/api/speed")["empty_reason"]
        told = there.json("/api/queues?order=id")
        debts = owed_after_each_round(columns, 0.15)
        for row, line in enumerate(told["owed"]):
            assert close_to(line, debts[:, row])
        assert there.json("/api/overview")["certificate"]["holds"] is True
        assert there.json("/api/overview")["warnings"] == []


def test_a_promise_that_cannot_be_counted_again_is_not_told_and_that_is_said(folder: Path) -> None:
    path = folder / "runs.turnout"
    settings = {"cohort_size": 3, "accrual": "available"}
    with RunStore(path) as store:
        play_into(store, RunPlan("rbcsf", 30, 0, settings, world_settings={"clients": 12}, keep="choices"))
    with served(path) as there:
        told = there.json("/api/overview")
        assert told["about"]["promise"] is None
        assert told["certificate"]["holds"] is None
        (warning,) = told["warnings"]
        assert "is not shown because its record is incomplete" in warning["text"]


# Training, compare


def test_training_curves_are_what_was_measured(place: Path, runs: Served, stored: Stored) -> None:
    rbcsf, random = (columns_of(place, run) for run in stored.training)
    told = runs.json(f"/api/training?run={stored.training[0]}")
    assert told["metric"] == "accuracy"
    assert set(told["metrics"]) == set(rbcsf.metrics)
    groups = {group["name"].split()[0]: group for group in told["groups"]}
    assert {name: group["is_current"] for name, group in groups.items()} == {"rbcsf": True, "random": False}
    for name, columns in (("rbcsf", rbcsf), ("random", random)):
        assert groups[name]["rounds"] == columns.rounds.tolist()
        assert close_to(groups[name]["mean"], columns.metrics["accuracy"])
        assert close_to(groups[name]["seconds"], np.cumsum(columns.durations))
        assert (groups[name]["runs"], groups[name]["half_width"]) == (1, None)
    assert rbcsf.losses is not None
    means = [np.nanmean(rbcsf.losses[start:end]) for start, end in itertools.pairwise(rbcsf.starts.tolist())]
    assert close_to(told["losses"]["mean"], means)
    other = next(name for name in told["metrics"] if name != "accuracy")
    told = runs.json(f"/api/training?run={stored.training[0]}&metric={other}")
    assert close_to(told["groups"][0]["mean"], rbcsf.metrics[other])
    refused = runs.get(f"/api/training?run={stored.training[0]}&metric=beauty")
    assert refused.status == 400
    assert b"metric must be one of accuracy, diverged, got 'beauty'" in refused.body
    assert runs.json(f"/api/training?run={stored.fast[0]}")["groups"] == []


def test_training_of_several_seeds_is_their_mean_and_band(folder: Path) -> None:
    path, small = folder / "runs.turnout", {"items": 50, "hidden": 8, "evaluate_every": 4, "world": {"clients": 12}}
    with RunStore(path) as store:
        for seed in range(3):
            plan = RunPlan("random", 20, seed, {"cohort_size": 3}, world="training", world_settings=small)
            play_into(store, plan)
        every = [store.columns(one.id) for one in store.runs()]
    with served(path) as there:
        (group,) = there.json("/api/training")["groups"]
    measured = [np.flatnonzero(np.isfinite(columns.metrics["accuracy"])) for columns in every]
    assert group["rounds"] == (measured[0] + 1).tolist()
    values = np.array([one.metrics["accuracy"][where] for one, where in zip(every, measured, strict=True)])
    mean, half = mean_confidence_interval(values)
    assert close_to(group["mean"], mean)
    assert close_to(group["half_width"], half)
    assert (group["runs"], group["is_current"]) == (3, True)


def test_compare_is_summarise_over_the_seeds(place: Path, runs: Served, stored: Stored) -> None:
    told = runs.json(f"/api/compare?run={stored.fair[0]}")
    assert told["reference_rate"] == 0.15
    groups = {tuple(group["runs"]): group for group in told["groups"]}
    assert set(groups) == {
        tuple(stored.fast),
        (stored.unfinished,),  # apart, as it has fewer rounds
        tuple(stored.fair),
        tuple(stored.random),
        tuple(stored.fedcs),
    }
    for mine in (stored.fair, stored.random, stored.fedcs):
        group = groups[tuple(mine)]
        found = [summarise(columns_of(place, run), guaranteed_rate=0.15) for run in mine]
        for word in ("mean_round", "p95_round", "total_time", "least_share", "jain", "worst_debt"):
            mean, half = mean_confidence_interval([getattr(one, word) for one in found])
            assert close_to([group[word]["mean"], group[word]["half"]], [float(mean), float(half)]), word
        assert group["accuracy"] is None
        assert group["rounds"] == 60
        (curve,) = (one for one in told["curves"] if one["name"] == group["name"])
        seconds = np.mean([np.cumsum(columns_of(place, run).durations) for run in mine], axis=0)
        assert close_to(curve["seconds"], seconds)
    order = [group["mean_round"]["mean"] for group in told["groups"]]
    assert order == sorted(order)
    assert told["front"] == [
        {
            "name": group["name"],
            "mean_round": group["mean_round"]["mean"],
            "least_share": group["least_share"]["mean"],
        }
        for group in told["groups"]
    ]
    assert told["empty_reason"] is None


def test_runs_of_other_worlds_are_not_compared(runs: Served, stored: Stored) -> None:
    told = runs.json(f"/api/compare?run={stored.training[0]}")
    assert sorted(run for group in told["groups"] for run in group["runs"]) == stored.training
    assert all(group["accuracy"] is not None for group in told["groups"])


def test_a_run_that_has_just_begun_is_not_counted_among_its_like(folder: Path) -> None:
    path, plan = folder / "runs.turnout", RunPlan("random", 20, 7, world_settings={"clients": 12})
    with RunStore(path) as store:
        done = [play_into(store, RunPlan("random", 20, seed, world_settings={"clients": 12})) for seed in range(2)]
        store.begin(plan.key, plan.as_dict(), clients=12, code_version="test")
    with served(path) as there:
        (group,) = there.json("/api/compare")["groups"]
    assert group["runs"] == done


# System


def test_the_system_page_tells_what_is_there(place: Path, fleet: Served, runs: Served) -> None:
    told = fleet.json("/api/system")
    path = place / "fleet.turnout"
    assert told["store"]["name"] == "fleet.turnout"
    assert told["store"]["bytes"] == path.stat().st_size
    assert told["store"]["writer"] is None
    assert told["reading"]["rounds"] == 60
    with Scheduler.open(path, read_only=True) as scheduler:
        events = [event for event in scheduler.export() if event["kind"] == "round"]
    moments = [(np.datetime64(one["opened"][:23]), np.datetime64(one["closed"][:23])) for one in events]
    second = np.timedelta64(1000, "ms")
    lasted = [(closed - opened) / second for opened, closed in moments]
    between = [(after[0] - before[1]) / second for before, after in itertools.pairwise(moments)]
    assert told["gaps"]["round_median"] == pytest.approx(np.median(lasted), abs=1e-5)
    assert told["gaps"]["between_median"] == pytest.approx(np.median(between), abs=1e-5)
    before = {one["route"]: one["count"] for one in told["requests"]}
    fleet.json("/api/fairness")
    after = {one["route"]: one["count"] for one in fleet.json("/api/system")["requests"]}
    assert after["/api/fairness"] == before.get("/api/fairness", 0) + 1
    assert runs.json("/api/system")["gaps"] is None


# The parts


@given(hnp.arrays(np.float64, st.integers(0, 200), elements=st.floats(-1e6, 1e6)))
def test_a_histogram_counts_everything_once(values: Any) -> None:
    told = common.histogram(values)
    assert sum(told["counts"]) == len(values)
    assert len(told["edges"]) == (len(told["counts"]) + 1 if len(values) else 0)
    assert told["edges"] == sorted(told["edges"])


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 1e6])
def test_values_that_differ_in_the_last_bit_are_counted_together(value: float) -> None:
    told = common.histogram(np.array([value, np.nextafter(value, 2e6), value]))
    assert sum(told["counts"]) == 3


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=700), st.integers(1, 60))
def test_bins_keep_the_extremes_and_all_rounds(values: list[float], most: int) -> None:
    rounds = np.arange(1, len(values) + 1)
    x, (mean, low, high) = common.bin_series(rounds, values, most)
    assert len(x) == len(mean) == len(low) == len(high)
    assert len(x) <= most
    if not values:
        return
    assert x[-1] == len(values)
    for start, end, one, least, largest in zip([0, *x[:-1]], x, mean, low, high, strict=True):
        known = [value for value in values[start:end] if not math.isnan(value)]
        if not known:
            assert not math.isfinite(one)
            assert common.json_number(least) is None
            assert common.json_number(largest) is None
            continue
        assert one == pytest.approx(sum(known) / len(known), abs=1e-6)
        assert (least, largest) == (min(known), max(known))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_gini_is_the_mean_difference(turns: list[int]) -> None:
    apart = sum(abs(one - other) for one in turns for other in turns)
    expected = apart / (2 * len(turns) * sum(turns)) if any(turns) else 0.0
    assert gini_coefficient(turns) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(math.nan, None), (math.inf, None), (None, None), (3.0, 3), (1 / 3, 0.333333), (1234567.8, 1234570.0), (0, 0)],
)
def test_numbers_for_json(value: Any, expected: Any) -> None:
    found = common.json_number(value)
    assert found == expected
    assert type(found) is type(expected)


def test_a_page_beyond_the_last_is_the_last() -> None:
    assert common.page_of(101, 99, 50) == (3, 3, 100, 101)
    assert common.page_of(0, 1, 50) == (1, 1, 0, 0)
    for page, size in ((0, 50), (1, 0), (1, 501), (-3, 50)):
        with pytest.raises(SettingError):
            common.page_of(10, page, size)


def test_a_promise_that_is_broken_is_an_error_in_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be broken by honest queues; so one that lies."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=20, is_open=False, eventful=False)
    source, ledger = fleet_ledger(path)
    with closing(source):
        certificate = ledger.certificate()
        assert certificate is not None
        worse = type(certificate)(
            certificate.turns,
            certificate.units_per_turn,
            certificate.promised_units + 2 * certificate.units_per_turn * (np.arange(ledger.clients) < 3) * 99,
            certificate.owed_units,
            certificate.forfeited_units,
        )
        monkeypatch.setattr(type(ledger.policy), "certificate", lambda _: worse)
        told = common.certificate(ledger)
        assert told == {
            "holds": False,
            "text": "3 clients got fewer turns than promised, beyond the turns owed and forfeited.",
        }
        watch = Watch(path)
        try:
            warnings = overview.overview(watch, source)["warnings"]
        finally:
            watch.stop()
        assert warnings[0] == {"level": "error", "text": told["text"], "id": None}


def test_a_large_fleet_is_shown_by_a_sample_that_has_the_most_owed(folder: Path) -> None:
    path, columns = folder / "runs.turnout", made_up(30, 2600, seed=1, cohort=40)
    with RunStore(path) as store:
        run = write_made_up(store, "rbcsf", {"cohort_size": 40, "guaranteed_rate": 0.01}, columns)
        ledger = run_source(store, run).ledger
    assert ledger.queues is not None
    debts = ledger.queues.owed
    with served(path) as there:
        there.wait_read()
        told = there.json("/api/fairness")["taken_vs_promised"]
        assert told["of"] == 2600
        assert len(told["ids"]) <= 2000
        assert len(set(told["ids"])) == len(told["ids"])
        shown = [int(one) for one in told["ids"]]
        assert close_to(told["owed"], debts[shown])
        assert max(told["owed"]) == pytest.approx(debts.max(), rel=1e-5)
        pages = there.json("/api/turns?order=id")["pages"]
        assert pages == math.ceil(2600 / common.SHOWN_ROWS)
        seen = [one for page in (1, 2, pages) for one in there.json(f"/api/turns?order=id&page={page}")["ids"]]
        assert seen[0] == "0"
        assert seen[-1] == "2599"
