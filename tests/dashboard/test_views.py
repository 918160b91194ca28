"""The data of the pages compared with independent computations from the same record."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cli import in_process
from dashboard.readings import Audit, audit_of, close_to, predictions, random_columns, write_random_run
from dashboard.served import Served, Stored, run_store, served, served_fleet, served_run
from lab.analysis.records import columns_of as columns_with_cohorts
from live.fleets import offered, play_round
from narrowing import known
from turnout.dashboard.views import common, comparing, rounds
from turnout.lab import RoundColumns, RunPlan, RunStore, play_into
from turnout.lab.analysis.metrics import jain_index, lorenz_curve, summarise
from turnout.lab.analysis.promise import owed_after_each_round
from turnout.lab.analysis.statistics import mean_confidence_interval
from turnout.live import FleetReader, Scheduler
from turnout.policies.rbcsf import RBCSF

RATE = Fraction(1, 6)


@pytest.fixture(scope="module")
def stored(directory: Path) -> Stored:
    return run_store(directory / "runs.turnout")


@pytest.fixture(scope="module")
def runs(directory: Path, stored: Stored) -> Iterator[Served]:
    assert stored
    with served(directory / "runs.turnout") as server:
        yield server


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Served]:
    with served_fleet(directory, 60) as server:
        yield server


@pytest.fixture(scope="module")
def audit(directory: Path, fleet: Served) -> Audit:
    assert fleet
    return audit_of(directory / "fleet.turnout", RATE, cap=210)


def columns_of(directory: Path, run: int) -> RoundColumns:
    with RunStore(directory / "runs.turnout", read_only=True) as store:
        return store.columns(run)


def turns_behind(columns: RoundColumns, rate: float) -> Any:
    """Returns promised turns minus turns of each client after each round, if it earns in all rounds."""
    return rate * columns.rounds[:, None] - np.cumsum(columns.chosen_mask, axis=0)


def status_of(behind: float, tolerance: float = 2.0) -> str:
    """Returns the status of a client that is this far behind; rates of 0.15 are exact to 1e-9."""
    return "broken" if behind > tolerance + 1e-9 else "kept" if behind < 1 - 1e-9 else "behind"


# Overview


def test_overview_of_a_run(directory: Path, runs: Served, stored: Stored) -> None:
    for run in (stored.fast[0], stored.fair[1], stored.unfinished):
        data, columns = runs.json(f"/api/overview?run={run}"), columns_of(directory, run)
        expected = summarise(columns, guaranteed_rate=0.15)
        seconds = columns.durations
        assert close_to(
            [data[name] for name in ("mean_round", "p95_round", "total_time", "least_share", "jain", "cohort")],
            [
                *(expected.mean_round, expected.p95_round, expected.total_time, expected.least_share, expected.jain),
                expected.mean_cohort,
            ],
        )
        assert close_to([data["recent_round"]], [seconds[-50:].mean()])
        assert data["recent_of"] == min(50, len(seconds))
        assert data["round"] == data["about"]["rounds"] == len(seconds)
        assert close_to([data["available_count"]], [known(columns.available).sum(axis=1).mean()])
        assert data["rounds"]["x"] == columns.rounds.tolist()
        for name in ("mean", "low", "high"):
            assert close_to(data["rounds"][name], seconds)
        behind_by_round = turns_behind(columns, 0.15)
        behind_now = behind_by_round[-1]
        assert close_to([data["worst"]["behind"]], [behind_now.max()])
        assert int(data["worst"]["id"]) == behind_now.argmax()
        assert close_to(data["shortfall"]["largest"], behind_by_round.max(axis=1))
        assert close_to([data["shortfall"]["ever"]], [behind_by_round.max()])
        assert data["shortfall"]["tolerance"] == 2
        assert data["about"]["clock"] is None, "rounds of a simulation have no time of the day"
        assert data["outcomes"] == {"arrived": len(columns.chosen)}
        assert columns.turns[int(data["least"]["id"])] == columns.turns.min()
        behind = data["behind"]
        assert close_to([entry["behind"] for entry in behind], np.sort(behind_now)[::-1][: len(behind)])
        for entry in behind:
            row = int(entry["id"])
            assert close_to(
                [entry["behind"], entry["turns"], entry["promised"]],
                [behind_now[row], columns.turns[row], 0.15 * len(columns)],
            )
            assert entry["status"] == status_of(behind_now[row])
        assert len(behind) == min(8, int((behind_now > 1e-9).sum()))
        certificate, broken = data["about"]["certificate"], int((behind_now > 2 + 1e-9).sum())
        assert certificate["status"] == status_of(behind_now.max())
        assert certificate["text"].startswith(f"{certificate['status']}: ")
        assert (f"; {broken} of {len(behind_now)} clients" in certificate["text"]) == (broken > 0)


def test_only_clients_that_are_behind_are_listed_as_behind(folder: Path) -> None:
    """After two rounds with a rate of 1/2, client 0 has a surplus, 1 and 2 have exactly their share, 3 is behind."""
    with served_run(
        folder,
        {"cohort_size": 2, "guaranteed_rate": "1/2", "allow_infeasible": True},
        columns_with_cohorts([[0, 1], [0, 2]], clients=4, contexts=np.ones((2, 2, 3))),
    ) as server:
        behind = server.json("/api/overview")["behind"]
    assert [(entry["id"], entry["behind"]) for entry in behind] == [("3", 1)]


def test_the_terms_of_the_guarantee(runs: Served, stored: Stored, fleet: Served) -> None:
    assert runs.json(f"/api/overview?run={stored.fast[0]}")["about"]["promise"] == {
        "least": 0.15,
        "most": 0.15,
        "of": "all rounds",
        "counts": "selected",
        "tolerance": 2,
        "cap": None,
    }
    promise = fleet.json("/api/overview")["about"]["promise"]
    assert close_to([promise["least"], promise["most"], promise["cap"]], [1 / 6, 1 / 6, 210])
    assert (promise["of"], promise["counts"]) == ("the rounds it was available for", "completed")
    assert runs.json(f"/api/overview?run={stored.random[0]}")["about"]["promise"] is None


def test_the_random_baseline_comes_from_runs_of_the_store(directory: Path, runs: Served, stored: Stored) -> None:
    """Uses the run with the same seed, or the mean of all runs if there is none, over the same number of rounds."""
    for run in (*stored.fast, stored.unfinished):
        runs.json(f"/api/overview?run={run}")  # the page asks for a comparison when it has read the run
    for seed, run in enumerate(stored.fast):
        data = runs.json(f"/api/baseline?run={run}")["random"]
        expected = columns_of(directory, stored.random[seed]).durations.mean()
        assert close_to([data["value"]], [expected])
        assert close_to([data["ratio"]], [columns_of(directory, run).durations.mean() / expected])
        assert data["how"] == "mean of 1 run with random selection in this store, over the same number of rounds"
    data = runs.json(f"/api/baseline?run={stored.unfinished}")["random"]  # 30 rounds; no random run has its seed
    both = [columns_of(directory, run).durations[:30].mean() for run in stored.random]
    assert close_to([data["value"]], [np.mean(both)])
    assert data["how"].startswith("mean of 2 runs")
    assert runs.json(f"/api/baseline?run={stored.random[0]}") == {"random": None, "reason": None}


def test_without_runs_of_random_selection_the_baseline_is_that_of_a_replay(folder: Path) -> None:
    with served_fleet(folder, 15) as server:
        printed = in_process.json_of("fleet", "replay", server.path, "--policy", "random")
        figure = printed["figures"]["mean_round"]
        data = server.json("/api/baseline")["random"]
    assert close_to([data["value"], data["half"]], [figure["replayed"], figure["half_width"]])
    assert close_to([data["ratio"]], [figure["recorded"] / figure["replayed"]])
    assert data["how"] == "a replay of 15 rounds"


@pytest.mark.parametrize(
    ("rare", "named_clients"),
    [
        (2, "rare0, rare1"),
        (3, "rare0, rare1, rare2"),
        (4, "rare0, rare1, rare2 and 1 more"),
        (6, "rare0, rare1, rare2 and 3 more"),
    ],
)
def test_a_warning_names_three_clients_and_counts_the_others(folder: Path, rare: int, named_clients: str) -> None:
    """The rare clients are there in the first of 20 rounds only, and are promised 3 of 10 rounds."""
    path = folder / "fleet.turnout"
    rules = {"cohort_size": 2, "guaranteed_rate": 0.3, "accrual": "always", "counts": "selected"}
    with Scheduler.open(path, policy="rbcsf", settings=rules, allow_infeasible=True) as scheduler:
        play_round(scheduler, offered("a", "b", *(f"rare{index}" for index in range(rare))))
        for _ in range(19):
            play_round(scheduler, offered("a", "b"))
    with served(path) as server:
        warnings = server.json("/api/overview")["warnings"]
    assert [(warning["text"], warning["id"]) for warning in warnings if "too rarely" in warning["text"]] == [
        (
            f"{named_clients} are available too rarely for their guarantees: lower guaranteed_rate, "
            "or set accrual='available'.",
            None,
        )
    ]


def test_overview_of_a_fleet(fleet: Served, audit: Audit) -> None:
    data = fleet.json("/api/overview")
    durations = np.array(audit.durations)
    assert close_to(
        [data["mean_round"], data["p95_round"], data["total_time"], data["jain"]],
        [durations.mean(), np.percentile(durations, 95), durations.sum(), jain_index(list(audit.turns.values()))],
    )
    assert data["outcomes"] == audit.outcomes
    assert set(audit.outcomes) == {"arrived", "redundant", "cut_off", "late", "failed"}
    retired = "c9"
    stay = [client for client in audit.ids if client != retired]
    shares = {client: audit.counted[client] / audit.offered[client] for client in stay}
    assert close_to([data["least_share"]], [min(shares.values())])
    assert shares[data["least"]["id"]] == min(shares.values())
    behind = {client: float(RATE * audit.offered[client] - audit.counted[client]) for client in stay}
    assert data["worst"]["id"] == max(behind, key=lambda client: behind[client])
    assert data["about"]["certificate"]["status"] == status_of(max(behind.values()))
    left_in = audit.left_in[retired]
    worst = [
        max(float(owed) for client, owed in debts.items() if client != retired or number <= left_in)
        for number, debts in enumerate(audit.debts, start=1)
    ]
    assert close_to(fleet.json("/api/queues")["curve"]["worst"], worst)
    assert close_to([data["available_count"]], [np.mean([len(present) for present in audit.present])])
    assert close_to([data["cohort"]], [np.mean([len(cohort) for cohort in audit.cohorts])])


# Fairness


def test_fairness_figures(directory: Path, runs: Served, stored: Stored) -> None:
    run = stored.fair[0]
    data, columns = runs.json(f"/api/fairness?run={run}"), columns_of(directory, run)
    turns, rounds = columns.turns, len(columns)
    differences = sum(abs(first - other) for first in turns.tolist() for other in turns.tolist())
    assert close_to([data["gini"]], [differences / (2 * len(turns) ** 2 * turns.mean())])
    assert close_to([data["least_share"], data["jain"]], [turns.min() / rounds, jain_index(turns)])
    curve = lorenz_curve(turns)
    assert close_to(data["lorenz"]["x"], curve[:, 0])
    assert close_to(data["lorenz"]["y"], curve[:, 1])
    shares = turns / rounds
    edges, counts = data["shares"]["edges"], data["shares"]["counts"]
    assert sum(counts) == len(turns)
    assert close_to([edges[0], edges[-1]], [shares.min(), shares.max()])
    comparison = data["taken_vs_promised"]
    assert comparison["ids"] == [str(row) for row in range(len(turns))]
    assert comparison["turns"] == turns.tolist()
    assert close_to(comparison["promised"], np.full(len(turns), 0.15 * rounds))
    assert close_to(comparison["owed"], owed_after_each_round(columns, 0.15)[-1])
    behind = turns_behind(columns, 0.15)[-1]
    assert close_to(comparison["behind"], behind)
    assert comparison["status"] == [status_of(value) for value in behind.tolist()]
    assert comparison["tolerance"] == 2
    over_time = data["worst_over_time"]
    least = (np.cumsum(columns.chosen_mask, axis=0) / columns.rounds[:, None]).min(axis=1)
    assert close_to(over_time["least_share"], least)
    assert over_time["promised"] == 0.15


# Queues, turns


def test_queues_of_a_run(directory: Path, runs: Served, stored: Stored) -> None:
    run = stored.fast[0]
    debts, data = owed_after_each_round(columns_of(directory, run), 0.15), runs.json(f"/api/queues?run={run}")
    assert data["curve"]["x"] == list(range(1, 61))
    assert close_to(data["curve"]["p95"], np.percentile(debts, 95, axis=1, method="lower"))
    assert sum(data["now"]["counts"]) == 40
    assert close_to([data["now"]["edges"][0], data["now"]["edges"][-1]], [debts[-1].min(), debts[-1].max()])


@pytest.mark.thorough
def test_many_rounds_are_binned_without_losing_turns_or_extremes(folder: Path) -> None:
    """The turns of the bins add up, and the extremes are preserved."""
    columns = random_columns(1001, 7, seed=2, failures=0.1)
    assert columns.available is not None
    with served_run(folder, {"cohort_size": 3}, columns) as server:
        data = server.json("/api/turns?order=id")
        assert len(data["x"]) <= 160
        assert data["x"] == list(range(1, 1002, data["width"]))
        assert [sum(line) for line in data["counts"]] == columns.turns.tolist()
        width = data["width"]
        for row, line in enumerate(data["available"]):
            mine = columns.available[:, row]
            assert close_to(line, [mine[start : start + width].mean() for start in range(0, 1001, width)])
        data = server.json("/api/overview")["rounds"]
        assert len(data["x"]) <= 300
        assert close_to([min(data["low"]), max(data["high"])], [columns.durations.min(), columns.durations.max()])
        ends = data["x"]
        means = [columns.durations[start:end].mean() for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        assert close_to(data["mean"], means)
        assert sum(server.json("/api/client?id=3")["strip"]["chosen"]) == columns.turns[3]


# Rounds


def test_the_list_of_rounds_is_newest_first(directory: Path, runs: Served, stored: Stored) -> None:
    run = stored.fast[0]
    columns, data = columns_of(directory, run), runs.json(f"/api/rounds?run={run}&size=500")
    assert [row["round"] for row in data["rows"]] == list(range(60, 0, -1))
    assert columns.available is not None
    for row in data["rows"]:
        at = row["round"] - 1
        mine = slice(columns.starts[at], columns.starts[at + 1])
        times = columns.exchange_times[mine]
        assert close_to([row["seconds"]], [times.max()])
        assert int(row["bottleneck"]) == columns.chosen[mine][times.argmax()]
        assert (row["cohort"], row["back"], row["late"], row["failed"]) == (8, 8, 0, 0)
        assert row["available_count"] == columns.available[at].sum()
        assert close_to(
            [row["threshold"], row["objective"]],
            [columns.cohort_reasons[name][at] for name in ("threshold", "objective")],
        )


def test_details_of_a_round(directory: Path, runs: Served, stored: Stored) -> None:
    run = stored.fast[0]
    columns = columns_of(directory, run)
    (expected, uncertainty), known = predictions(columns), set[int]()
    for number in range(1, 61):
        data = runs.json(f"/api/round?run={run}&number={number}")
        mine = slice(columns.starts[number - 1], columns.starts[number])
        assert [int(row["id"]) for row in data["rows"]] == columns.chosen[mine].tolist()
        assert close_to([row["seconds"] for row in data["rows"]], columns.exchange_times[mine])
        assert close_to([row["optimistic"] for row in data["rows"]], columns.client_reasons["optimistic"][mine])
        assert close_to([row["owed"] for row in data["rows"]], columns.client_reasons["owed"][mine])
        predicted = [
            seconds if row in known else None
            for row, seconds in zip(columns.chosen[mine].tolist(), expected[mine].tolist(), strict=True)
        ]
        assert close_to([row["predicted"] for row in data["rows"]], np.array(predicted, dtype=float))
        returned = np.array([row["predicted"] is not None for row in data["rows"]])
        highest = np.where(returned, expected[mine] + 0.1 * uncertainty[mine], np.nan)
        assert close_to([row["high"] for row in data["rows"]], highest)
        known |= set(columns.chosen[mine].tolist())
        slowest = [row["id"] for row in data["rows"] if row["bottleneck"]]
        assert slowest == [str(columns.chosen[mine][columns.exchange_times[mine].argmax()])]
        assert (data["first"], data["last"], data["number"]) == (1, 60, number)


def test_rounds_of_a_fleet_equal_the_exported_events(directory: Path, fleet: Served, audit: Audit) -> None:
    with FleetReader(directory / "fleet.turnout") as scheduler:
        events = {event["round"]: event for event in scheduler.export() if event["kind"] == "round"}
        turns = {number: {turn.id: turn for turn in scheduler.history(round=number)} for number in events}
    listed = {row["round"]: row for row in fleet.json("/api/rounds?size=100")["rows"]}
    assert set(listed) == set(events)
    reasons = set()
    for number, event in events.items():
        data, row = fleet.json(f"/api/round?number={number}"), listed[number]
        outcomes = Counter(event["outcomes"])
        assert {entry["id"]: entry["outcome"] for entry in data["rows"]} == dict(
            zip(event["clients"], event["outcomes"], strict=True)
        )
        assert row["back"] == outcomes["arrived"] + outcomes["redundant"]
        assert row["late"] == outcomes["late"] + outcomes["cut_off"]
        assert row["failed"] == outcomes["failed"]
        assert close_to([data["seconds"], row["seconds"]], [audit.durations[number - 1]] * 2)
        assert row["available_count"] == data["available_count"] == event["available"]
        for entry in data["rows"]:
            turn = turns[number][entry["id"]]
            assert entry["why"] == turn.why
            assert close_to([entry["loss"]], [np.nan if turn.loss is None else turn.loss])
            reasons.add(entry["why"])
            if entry["bottleneck"]:
                assert entry["id"] == row["bottleneck"]
                assert row["bottleneck_failed"] == (entry["outcome"] == "failed")
                if entry["outcome"] == "failed":
                    assert f"waited for {entry['id']}, which failed" in data["summary"]
                else:
                    assert close_to([entry["seconds"]], [data["seconds"]])
        assert data["opened"][:19] == event["opened"][:19]
        assert data["closed"][:19] == event["closed"][:19]
    assert reasons == {None, "disk full"}


# Client


def test_the_client_page_equals_the_scheduler(directory: Path, fleet: Served, audit: Audit) -> None:
    rows = {row["id"]: row for row in fleet.json("/api/clients?size=500")["rows"]}
    with FleetReader(directory / "fleet.turnout") as scheduler:
        certificate, ids = scheduler.certificate(), scheduler.clients
        for row, client in enumerate(ids):
            data = fleet.json(f"/api/client?id={client}")
            assert (data["turns"], data["offered"]) == (audit.turns[client], audit.offered[client])
            assert data["last_round"] == (audit.last_round[client] or None)
            assert data["joined"] == audit.joined[client]
            for name in ("promised", "behind", "owed", "forfeited"):
                assert close_to([data[name]], [getattr(certificate, name)[row]]), name
            assert data["counted"] == certificate.turns[row]
            assert close_to([data["reliability"]], [scheduler.state().fleet.history.reliability[row]])
            assert data["rank"] == 1 + int((certificate.owed > certificate.owed[row]).sum())
            history = [turn for turn in scheduler.history(client) if turn.round <= 60]
            assert data["times"]["round"] == [turn.round for turn in history]
            assert data["times"]["outcome"] == [turn.kind for turn in history]
            known = [np.nan if turn.kind == "failed" else turn.seconds for turn in history]
            assert close_to(data["times"]["seconds"], np.array(known, dtype=float))
            back = [turn.seconds for turn in history if turn.kind in ("arrived", "redundant")]
            assert close_to(
                [data["mean_seconds"]], [float(np.mean([seconds or 0.0 for seconds in back])) if back else np.nan]
            )
            assert data["strip"]["chosen"] == [int(client in cohort) for cohort in audit.cohorts]
            assert data["strip"]["available"] == [int(client in present) for present in audit.present]
            assert ("retired" in data["flags"]) == (client == "c9")
            assert rows[client]["share"] == data["share"]
            assert data["status"] == rows[client]["status"] == certificate.statuses[row]
            assert data["promise_text"].startswith(
                f"{data['status']}: {client} is {abs(certificate.behind[row]):.2f} turns "
            )
            assert ("all the same" in data["promise_text"]) == (certificate.behind[row] < 0 < certificate.owed[row])
    assert "gets no more turns" in fleet.json("/api/client?id=c9")["next"]
    assert "one turn every 6.0 rounds in which it is available" in fleet.json("/api/client?id=c0")["next"]


def test_flags_agree_with_the_scheduler(folder: Path) -> None:
    """Covers clients that back off, are rarely available, and whose context does not explain their times."""
    path = folder / "fleet.turnout"
    options: Any = {
        "policy": "rbcsf",
        "settings": {"cohort_size": 3, "guaranteed_rate": 0.3, "accrual": "always", "counts": "selected"},
        "deadline": 50.0,
        "allow_infeasible": True,
        "backoff_after": 2,
    }
    with Scheduler.open(path, **options) as scheduler:
        for round_ in range(1, 43):
            factor = float(np.exp(np.random.default_rng(round_).uniform(-2.3, 2.3)))
            statuses = {**offered("a", "b"), **offered("liar", free_cpu=factor, bandwidth=2.0 * factor)}
            statuses |= offered("rare") if round_ < 5 else {}
            statuses |= offered("shaky") if round_ > 38 else {}
            for client in scheduler.choose(statuses):
                if client == "shaky":
                    scheduler.report_failure(client, "no")
                else:
                    scheduler.report(client, 5.0)
            scheduler.close_round()
        backing_off, suspects = set(scheduler.status().backing_off), scheduler.status().suspects
        assert (backing_off, suspects) == ({"shaky"}, ["liar"]), "the fleet must show both flags"
    with served(path) as server:
        rows = {row["id"]: set(row["flags"]) for row in server.json("/api/clients")["rows"]}
        warnings = server.json("/api/overview")["warnings"]
        flagged = server.json("/api/speed")["flags"]
    assert {client for client, flags in rows.items() if "backing_off" in flags} == backing_off
    assert {client for client, flags in rows.items() if "context" in flags} == set(suspects)
    assert {client for client, flags in rows.items() if "rarely_available" in flags} == {"rare"}
    assert [warning["id"] for warning in warnings if "does not explain" in warning["text"]] == ["liar"]
    assert [warning["id"] for warning in warnings if "available too rarely" in warning["text"]] == ["rare"]
    assert [flag["id"] for flag in flagged if flag["kind"] == "context"] == ["liar"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_client_with_changed_times_is_flagged_unless_it_is_late(folder: Path, is_late: bool) -> None:
    """What is known about the time of a late client is the deadline, which says nothing about a change."""
    path = folder / "fleet.turnout"
    rules = {"cohort_size": 3, "speed_weight": 0.0}
    options: Any = {"policy": "rbcsf", "settings": rules, "deadline": 50.0, "allow_infeasible": True}
    with Scheduler.open(path, **options, backoff_after=1000) as scheduler:
        for round_ in range(1, 61):
            rng = np.random.default_rng(round_)
            statuses = offered("a", "b", "c", free_cpu=float(rng.uniform(0.5, 2.0)))
            times = {client: float(rng.uniform(4.9, 5.1)) for client in "abc"}
            if round_ > 30:
                times |= {"b": 60.0 if is_late else 25.0}
            play_round(scheduler, statuses, {client: seconds for client, seconds in times.items() if seconds < 50})
    with served(path) as server:
        rows = {row["id"]: row["flags"] for row in server.json("/api/clients")["rows"]}
        flags = [flag for flag in server.json("/api/speed")["flags"] if flag["kind"] == "changed"]
        outcomes = server.json("/api/overview")["outcomes"]
    assert outcomes == ({"arrived": 150, "late": 30} if is_late else {"arrived": 180})
    assert [flag["id"] for flag in flags] == ([] if is_late else ["b"])
    assert {client for client, own in rows.items() if "changed" in own} == {flag["id"] for flag in flags}
    assert all(31 <= int(flag["text"].split()[-1]) <= 60 for flag in flags)


# Speed


def test_the_speed_model_equals_a_replay(directory: Path, runs: Served, stored: Stored) -> None:
    for run in (stored.fast[0], stored.random[0]):
        data, columns = runs.json(f"/api/speed?run={run}"), columns_of(directory, run)
        expected, _ = predictions(columns)
        first = np.unique(columns.chosen, return_index=True)[1]
        known = np.setdiff1d(np.arange(len(columns.chosen)), first)
        error = (columns.exchange_times - expected)[known]
        assert data["known"] == len(first)
        assert close_to([data["mean_abs"], data["bias"]], [np.abs(error).mean(), error.mean()])
        assert close_to(data["points"]["actual"], columns.exchange_times[known])
        assert close_to(data["points"]["predicted"], expected[known])
        assert [int(client) for client in data["points"]["id"]] == columns.chosen[known].tolist()
        assert sum(data["residuals"]["counts"]) == len(known)
        rounds = np.repeat(columns.rounds, np.diff(columns.starts))[known]
        assert data["error"]["x"] == np.unique(rounds).tolist()
        assert close_to(
            data["error"]["mean_abs"], [np.abs(error[rounds == number]).mean() for number in np.unique(rounds)]
        )
        assert 0.8 < data["inside"] < 1, "close to 90 % in a stationary world"
        band = data["band"]
        assert band["predicted"] == sorted(band["predicted"])
        assert all(low <= high for low, high in zip(band["low"], band["high"], strict=True))


def test_predictions_are_compared_with_the_times_of_returned_clients_only(folder: Path) -> None:
    """The time of a late client is its deadline, and a failed one has none. The errors of a round are averaged."""
    columns = random_columns(30, 6, seed=5, failures=0.4)
    times_before = iter(predictions(columns)[0].tolist())
    returned, late_with_prediction = set[int](), 0
    points: list[tuple[str, int]] = []
    times: list[tuple[float, float]] = []
    errors: dict[int, list[float]] = {}
    for record in columns.records():
        report, newly_returned = record.report, set[int]()
        assert report.outcomes is not None
        for row, seconds, outcome in zip(
            report.clients.tolist(), report.exchange_times.tolist(), report.outcomes, strict=True
        ):
            predicted = next(times_before)
            late_with_prediction += outcome == "late" and row in returned
            if outcome == "arrived" and row in returned:
                points.append((str(row), report.round))
                times.append((predicted, seconds))
                errors.setdefault(report.round, []).append(abs(seconds - predicted))
            if outcome == "arrived":
                newly_returned.add(row)
        returned |= newly_returned
    assert late_with_prediction > 5
    assert {len(values) for values in errors.values()} == {1, 2, 3}
    with served_run(folder, {"cohort_size": 3}, columns) as server:
        data = server.json("/api/speed")
    shown = data["points"]
    assert list(zip(shown["id"], shown["round"], strict=True)) == points
    assert close_to(shown["predicted"], [predicted for predicted, _ in times])
    assert close_to(shown["actual"], [seconds for _, seconds in times])
    assert data["error"]["x"] == list(errors)
    assert close_to(data["error"]["mean_abs"], [sum(values) / len(values) for values in errors.values()])


def test_the_errors_of_a_suspect_client_are_shown_in_per_cent(folder: Path) -> None:
    """The contexts of a client vary by a factor of 100, and its times by a tenth.

    An error is the ratio of the larger to the smaller time, minus 1, and at most 9. It is averaged from the third time
    on; a new value has a weight of at least 0.2 in the averages of the errors and of the times.
    """
    rounds = 30
    rng = np.random.default_rng(0)
    contexts = np.exp(rng.uniform(-2.3, 2.3, (rounds, 1))) * np.ones(3)
    times = rng.uniform(5.0, 5.5, rounds).tolist()
    columns = columns_with_cohorts(
        [[0]] * rounds, clients=1, times=[[seconds] for seconds in times], contexts=contexts[:, None]
    )
    context_error = typical_error = typical = 0.0
    for index, (seconds, predicted) in enumerate(zip(times, predictions(columns)[0].tolist(), strict=True)):
        if index >= 2:
            weight = max(0.2, 1 / (index - 1))
            ratios = [max(seconds, value) / max(min(seconds, value), 1e-9) for value in (predicted, typical)]
            context_error += weight * (min(ratios[0] - 1, 9) - context_error)
            typical_error += weight * (min(ratios[1] - 1, 9) - typical_error)
        typical += max(0.2, 1 / (index + 1)) * (seconds - typical)
    with served_run(folder, {"cohort_size": 1}, columns) as server:
        (flag,) = server.json("/api/speed")["flags"]
    assert (flag["id"], flag["kind"]) == ("0", "context")
    match = re.fullmatch(
        r"its context predicts its times with an error of (\d+) %, its own typical time with (\d+) %", flag["text"]
    )
    assert match is not None
    assert context_error > 1.2, "one per cent of the error must be more than what rounding can hide"
    assert abs(int(match[1]) - 100 * context_error) < 0.501
    assert abs(int(match[2]) - 100 * typical_error) < 0.501


def test_the_band_reaches_from_the_5th_to_the_95th_percentile_of_the_older_half() -> None:
    """The older half has errors of 0, 1, …, 100 at a prediction of 50, and the same three times larger at 500.

    The newer half has one error at each end of each band, and one just beyond each end.
    """
    errors = np.arange(101.0)
    predicted = np.concatenate([np.full(101, 50.0), np.full(101, 500.0)])
    actual = predicted + np.concatenate([errors, 3 * errors])
    newer_errors = np.array([5.0, 95.0, 4.9, 95.1, 15.0, 285.0, 14.7, 285.3])
    newer_predicted = np.repeat([50.0, 500.0], 4)
    repeated = np.resize(np.arange(8), 202)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "BAND_PARTS", 2)
        band, inside = rounds._band(
            np.concatenate([predicted, newer_predicted[repeated]]),
            np.concatenate([actual, (newer_predicted + newer_errors)[repeated]]),
        )
    assert common.plain(band) == {"predicted": [50, 500], "low": [55, 515], "high": [145, 785]}
    assert inside == pytest.approx(np.isin(repeated, [0, 1, 4, 5]).mean(), rel=1e-5)


@pytest.mark.parametrize(("turns", "parts"), [(79, 0), (80, 2), (119, 2), (120, 3), (399, 9), (400, 10), (600, 10)])
def test_a_band_needs_40_older_turns_and_has_at_most_10_parts_of_20_or_more(turns: int, parts: int) -> None:
    rng = np.random.default_rng(turns)
    predicted = rng.uniform(1.0, 9.0, turns)
    band, inside = rounds._band(predicted, predicted + rng.normal(size=turns))
    assert (0 if band is None else len(band["low"])) == parts
    assert (inside is None) == (parts == 0)


def test_a_run_without_contexts_has_debts_but_no_predictions(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        settings = {"cohort_size": 3, "tolerance": 5}
        plan = RunPlan("rbcsf", 30, settings=settings, world_settings={"clients": 12}, keep="choices")
        columns = store.columns(play_into(store, plan))
    with served(path) as server:
        assert "without contexts" in server.json("/api/speed")["empty_reason"]
        curve = server.json("/api/queues")["curve"]
        assert close_to(curve["worst"], owed_after_each_round(columns, 0.15).max(axis=1))
        worst = turns_behind(columns, 0.15)[-1].max()
        assert server.json("/api/overview")["about"]["certificate"]["status"] == status_of(worst, 5) == "behind"
        assert server.json("/api/overview")["warnings"] == []


def test_a_guarantee_that_cannot_be_recomputed_is_hidden_with_a_note(folder: Path) -> None:
    path = folder / "runs.turnout"
    settings = {"cohort_size": 3, "accrual": "available"}
    with RunStore(path) as store:
        play_into(store, RunPlan("rbcsf", 30, 0, settings, world_settings={"clients": 12}, keep="choices"))
    with served(path) as server:
        data = server.json("/api/overview")
        assert data["about"]["promise"] is None
        assert data["about"]["certificate"] == {"status": None, "text": "The promise cannot be judged."}
        (warning,) = data["warnings"]
        assert "is not shown because its record is incomplete" in warning["text"]


def test_turns_that_were_forfeited_are_a_warning(folder: Path) -> None:
    settings = {"cohort_size": 3, "guaranteed_rate": 0.15, "max_owed": 0.5}
    columns = random_columns(40, 10, seed=5, failures=0.0)
    policy = RBCSF(10, **settings)  # type: ignore[arg-type]
    for record in columns.records():
        policy.tell(record.report)
    forfeiting = int((known(policy.debts).forfeited >= 1).sum())
    assert forfeiting > 1
    with served_run(folder, settings, columns) as server:
        texts = [warning["text"] for warning in server.json("/api/overview")["warnings"]]
    assert f"{forfeiting} clients forfeited turns above the cap: raise max_owed, or lower guaranteed_rate." in texts


@pytest.mark.parametrize(
    ("bottleneck", "has_failed", "ending"),
    [
        (None, False, "The round took 4.00 s."),
        ("a", False, "The round took 4.00 s and ended with a, the slowest client."),
        ("a", True, "The round took 4.00 s: the server waited for a, which failed."),
    ],
)
def test_the_summary_of_a_round_names_the_client_that_ended_it_if_it_is_known(
    bottleneck: str | None, has_failed: bool, ending: str
) -> None:
    counts = {"cohort": 2, "available_count": 5, "back": 1, "late": 0, "failed": 1, "seconds": 4.0}
    row = {**counts, "turn": None, "bottleneck": bottleneck, "bottleneck_failed": has_failed, "threshold": None}
    assert rounds._summary(row) == f"2 clients chosen of 5 available: 1 returned, 1 failed. {ending}"


# Training, compare


def test_training_curves_equal_the_recorded_metrics(directory: Path, runs: Served, stored: Stored) -> None:
    rbcsf, random = (columns_of(directory, run) for run in stored.training)
    data = runs.json(f"/api/training?run={stored.training[0]}")
    assert data["metric"] == "accuracy"
    assert set(data["metrics"]) == set(rbcsf.metrics)
    groups = {group["name"].split()[0]: group for group in data["groups"]}
    assert {name: group["is_current"] for name, group in groups.items()} == {"rbcsf": True, "random": False}
    for name, columns in (("rbcsf", rbcsf), ("random", random)):
        assert groups[name]["rounds"] == columns.rounds.tolist()
        assert close_to(groups[name]["mean"], columns.metrics["accuracy"])
        assert close_to(groups[name]["seconds"], np.cumsum(columns.durations))
        assert (groups[name]["runs"], groups[name]["low"], groups[name]["high"]) == (1, None, None)
    means = [np.nanmean(known(rbcsf.losses)[start:end]) for start, end in itertools.pairwise(rbcsf.starts.tolist())]
    assert close_to(data["losses"]["mean"], means)
    other = next(name for name in data["metrics"] if name != "accuracy")
    data = runs.json(f"/api/training?run={stored.training[0]}&metric={other}")
    assert close_to(data["groups"][0]["mean"], rbcsf.metrics[other])
    refused = runs.get(f"/api/training?run={stored.training[0]}&metric=beauty")
    assert refused.status == 400
    assert b"metric must be one of accuracy, diverged, got 'beauty'" in refused.body
    assert runs.json(f"/api/training?run={stored.fast[0]}")["groups"] == []


def test_training_curves_of_several_seeds_are_averaged(folder: Path) -> None:
    path, small = folder / "runs.turnout", {"items": 50, "hidden": 8, "evaluate_every": 4, "world": {"clients": 12}}
    with RunStore(path) as store:
        for seed in range(3):
            plan = RunPlan("random", 20, seed, {"cohort_size": 3}, world="training", world_settings=small)
            play_into(store, plan)
        recorded = [store.columns(info.id) for info in store.runs()]
    with served(path) as server:
        (group,) = server.json("/api/training")["groups"]
    measured = [np.flatnonzero(np.isfinite(columns.metrics["accuracy"])) for columns in recorded]
    assert group["rounds"] == (measured[0] + 1).tolist()
    values = np.array(
        [columns.metrics["accuracy"][indices] for columns, indices in zip(recorded, measured, strict=True)]
    )
    mean, half = mean_confidence_interval(values)
    assert close_to(group["mean"], mean)
    assert close_to(group["low"], np.maximum(mean - half, 0.0))
    assert close_to(group["high"], np.minimum(mean + half, 1.0))
    assert (group["runs"], group["is_current"]) == (3, True)


def test_compare_averages_the_summaries_over_seeds(directory: Path, runs: Served, stored: Stored) -> None:
    data = runs.json(f"/api/compare?run={stored.fair[0]}")
    assert data["reference_rate"] == 0.15
    groups = {tuple(group["runs"]): group for group in data["groups"]}
    assert set(groups) == {
        tuple(stored.fast),
        (stored.unfinished,),  # a group of its own, because it has fewer rounds
        tuple(stored.fair),
        tuple(stored.random),
        tuple(stored.fedcs),
    }
    for group_runs in (stored.fair, stored.random, stored.fedcs):
        group = groups[tuple(group_runs)]
        summaries = [summarise(columns_of(directory, run), guaranteed_rate=0.15) for run in group_runs]
        figures = {
            name: [getattr(summary, name) for summary in summaries]
            for name in ("mean_round", "p95_round", "total_time", "least_share", "jain")
        }
        figures["shortfall"] = [max(turns_behind(columns_of(directory, run), 0.15).max(), 0) for run in group_runs]
        for name, values in figures.items():
            mean, half = mean_confidence_interval(values)
            assert close_to([group[name]["mean"], group[name]["half"]], [float(mean), float(half)]), name
        assert group["accuracy"] is None
        assert group["rounds"] == 60
        seconds = np.mean([np.cumsum(columns_of(directory, run).durations) for run in group_runs], axis=0)
        assert close_to(group["curve"]["seconds"], seconds)
    order = [group["mean_round"]["mean"] for group in data["groups"]]
    assert order == sorted(order)
    assert data["empty_reason"] is None


def test_runs_of_other_worlds_are_not_compared(runs: Served, stored: Stored) -> None:
    data = runs.json(f"/api/compare?run={stored.training[0]}")
    assert sorted(run for group in data["groups"] for run in group["runs"]) == stored.training
    assert all(group["accuracy"] is not None for group in data["groups"])


def test_runs_of_different_lengths_are_compared_over_the_rounds_that_all_have(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        done = [
            play_into(store, RunPlan("random", rounds, seed, world_settings={"clients": 12}))
            for seed, rounds in {0: 30, 1: 20, 2: 25}.items()
        ]
        durations = [store.columns(run).durations[:20] for run in done]
        empty = RunPlan("random", 20, 7, world_settings={"clients": 12})  # without rounds, it is not compared
        store.begin(empty.key, empty.as_dict(), clients=12, code_version="test")
    with served(path) as server:
        data = server.json("/api/compare")
    (group,) = data["groups"]
    curve = group["curve"]
    assert (group["runs"], group["rounds"]) == (done, 20)
    assert curve["x"] == list(range(1, 21))
    assert close_to(curve["seconds"], np.mean(np.cumsum(durations, axis=1), axis=0))


@pytest.mark.parametrize(
    ("runs", "most", "current", "shown"),
    [
        *((27, 400, current, [*range(23), max(current, 23)]) for current in (0, 22, 23, 24, 26)),  # at most 24 groups
        *((5, 2, current, shown) for current, shown in ((0, [0, 3, 4]), (3, [3, 4]), (4, [3, 4]))),  # the newest runs
    ],
)
def test_the_current_run_is_compared_if_there_are_too_many_groups_or_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runs: int, most: int, current: int, shown: list[int]
) -> None:
    monkeypatch.setattr(comparing, "MAX_RUNS", most)
    path, columns = folder / "runs.turnout", columns_with_cohorts([[0]], clients=30, contexts=np.ones((1, 1, 3)))
    with RunStore(path) as store:
        ids = [write_random_run(store, "rbcsf", {"cohort_size": size}, columns) for size in range(1, runs + 1)]
    with served(path) as server:
        groups = server.json(f"/api/compare?run={ids[current]}")["groups"]
    assert sorted(group["runs"] for group in groups) == [[ids[index]] for index in shown]
    assert [group["runs"] for group in groups if group["is_current"]] == [[ids[current]]]


# System


def test_the_system_page(directory: Path, fleet: Served, runs: Served) -> None:
    data = fleet.json("/api/system")
    path = directory / "fleet.turnout"
    assert data["store"]["name"] == "fleet.turnout"
    assert data["store"]["bytes"] == path.stat().st_size
    assert data["store"]["writer"] is None
    with FleetReader(path) as scheduler:
        events = [event for event in scheduler.export() if event["kind"] == "round"]
    timestamps = [(np.datetime64(event["opened"][:23]), np.datetime64(event["closed"][:23])) for event in events]
    second = np.timedelta64(1000, "ms")
    durations = [(closed - opened) / second for opened, closed in timestamps]
    between = [(after[0] - before[1]) / second for before, after in itertools.pairwise(timestamps)]
    assert data["gaps"]["round_median"] == pytest.approx(np.median(durations), abs=1e-5)
    assert data["gaps"]["between_median"] == pytest.approx(np.median(between), abs=1e-5)
    assert runs.json("/api/system")["gaps"] is None


# Helpers


@given(hnp.arrays(np.float64, st.integers(0, 200), elements=st.floats(-1e6, 1e6)))
def test_a_histogram_counts_every_value_once(values: Any) -> None:
    data = common.plain(common.histogram(values))
    assert sum(data["counts"]) == len(values)
    assert len(data["edges"]) == (len(data["counts"]) + 1 if len(values) else 0)
    assert data["edges"] == sorted(data["edges"])


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 1e6])
def test_values_that_differ_by_one_bit_share_a_bin(value: float) -> None:
    assert sum(common.histogram(np.array([value, np.nextafter(value, 2e6), value]))["counts"]) == 3


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=700), st.integers(1, 60))
def test_bins_keep_means_extremes_and_the_last_round(values: list[float], limit: int) -> None:
    x, (mean, low, high) = common.bin_series(np.arange(1, len(values) + 1), values, limit)
    assert len(x) == len(mean) == len(low) == len(high)
    assert len(x) <= limit
    if not values:
        return
    assert x[-1] == len(values)
    for start, end, bin_mean, least, largest in zip([0, *x[:-1]], x, mean, low, high, strict=True):
        known = [value for value in values[start:end] if not math.isnan(value)]
        if not known:
            assert not math.isfinite(bin_mean)
            assert common.plain([least, largest]) == [None, None]
            continue
        assert bin_mean == pytest.approx(sum(known) / len(known), abs=1e-6)
        assert (least, largest) == (min(known), max(known))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((math.nan, None), (math.inf, None), (None, None), (3.0, 3), (1 / 3, 0.333333), (1234567.8, 1234570.0)),
        *((0, 0), (True, True), (Fraction(1, 3), 0.333333), (np.float64("nan"), None), (np.int64(3), 3)),
        *((np.array([[1, 2]]), [[1, 2]]), ({"a": (np.array([0.5, np.nan]), "b")}, {"a": [[0.5, None], "b"]})),
    ],
)
def test_values_for_json(value: Any, expected: Any) -> None:
    result = common.plain(value)
    assert result == expected
    assert type(result) is type(expected)


def test_a_large_fleet_is_sampled_with_the_200_clients_that_are_furthest_behind(folder: Path) -> None:
    """200 random clients of 2,600 got no turn, so that an even sample would miss many of them."""
    without = set(np.random.default_rng(0).permutation(2600)[:200].tolist())
    cohort = [row for row in range(2600) if row not in without]
    settings = {"cohort_size": len(cohort), "guaranteed_rate": 0.5}
    columns = columns_with_cohorts([cohort], clients=2600, contexts=np.ones((1, len(cohort), 3)))
    with served_run(folder, settings, columns) as server:
        data = server.json("/api/fairness")["taken_vs_promised"]
        assert data["of"] == 2600
        shown = [int(client) for client in data["ids"]]
        assert 1800 < len(set(shown)) == len(shown) <= 2000
        assert data["behind"] == [0.5 if row in without else -0.5 for row in shown]
        assert without <= set(shown)
        pages = server.json("/api/turns?order=id")["pages"]
        assert pages == math.ceil(2600 / common.SHOWN_ROWS)
        seen = [client for page in (1, 2, pages) for client in server.json(f"/api/turns?order=id&page={page}")["ids"]]
        assert (seen[0], seen[-1]) == ("0", "2599")


@pytest.mark.parametrize(
    ("reading", "policy", "clients", "text"),
    [
        (0.5, None, 3, "The promise is judged when the records have been read."),
        (0.5, "random", 3, "This policy guarantees no turns."),
        (None, None, 0, "No client has joined yet."),
        (None, "random", 3, "This policy guarantees no turns."),
    ],
)
def test_why_there_is_nothing_to_judge(reading: float | None, policy: str | None, clients: int, text: str) -> None:
    ledger: Any = SimpleNamespace(policy=policy, clients=clients)
    source: Any = SimpleNamespace(
        last_error=None, reading=reading, ledger=ledger, no_clients="No client has joined yet."
    )
    assert common._nothing_to_judge(source) == text


def test_clients_that_are_owed_turns_although_they_are_ahead_of_their_promise() -> None:
    unused: Any = np.zeros(4)
    promises = common.ClientPromises(*[unused] * len(common.ClientPromises._fields))._replace(
        behind=np.array([-1.0, 0.0, 1.0, -1.0]), owed=np.array([2.0, 2.0, 2.0, 0.0])
    )
    assert promises.owed_with_surplus.tolist() == [True, False, False, False]
