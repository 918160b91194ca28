from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from cli.in_process import error_of, json_of, run
from turnout.lab import RoundColumns, RunStore
from turnout.lab.analysis.explain import explain_run
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.sweep import sweep
from turnout.live import ClientStatus, FleetReader, Scheduler

SETTINGS = {"cohort_size": 2, "guaranteed_rate": 0.2}


@pytest.fixture(scope="module", params=["fair-pace", "rbcsf"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("fleet") / "fleet.turnout", random.Random(0)
    with Scheduler.open(path, policy=request.param, settings=SETTINGS, deadline=30.0) as scheduler:
        for _ in range(12):
            statuses = {f"[red]{n}": ClientStatus(rng.uniform(0.5, 2), 2.0 + n) for n in range(6)}
            for client in scheduler.choose(statuses):
                scheduler.report(client, rng.uniform(2, 20))
            scheduler.close_round()
        scheduler.choose(statuses)
    return path


PLANS = [
    RunPlan("rbcsf", 40, seed=1),
    RunPlan("fair-oracle", 40, seed=1, world_settings={"cold_start": "participants"}),
    RunPlan("rbcsf", 40, settings={"horizon": 40}, keep="choices"),
    RunPlan("random", 20),
    RunPlan(
        "rbcsf",
        15,
        world="traces",
        settings={"speed_weight": 0.1, "allow_infeasible": True},
        world_settings={"clients": 12},
    ),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "runs.turnout"
    with RunStore(path) as store:
        assert sweep(PLANS, store, workers=1) == [1, 2, 3, 4, 5]
    return path


def test_a_client_of_a_fleet_is_explained(fleet: Path) -> None:
    with FleetReader(fleet) as scheduler:
        for client in scheduler.clients:
            for number in (None, 3):
                found = scheduler.explain(client, number)
                given = [] if number is None else ["--round", str(number)]
                answer = json_of("fleet", "explain", fleet, client, *given)
                assert answer == json.loads(json.dumps({name: getattr(found, name) for name in found.__slots__}))
                assert answer["exact"]
                if number is None:
                    output, errors, code = run("fleet", "explain", fleet, client)
                    assert (errors, code) == ("", 0)
                    assert found.sentence in output  # also with brackets in it
    output, errors, code = run("fleet", "explain", fleet, client, "--round", "3")
    assert (errors, code) == ("", 0)
    assert found.sentence in output
    assert "there is no client 'nobody'" in error_of("fleet", "explain", fleet, "nobody")
    assert "there is no round 99 to explain" in error_of("fleet", "explain", fleet, "[red]0", "--round", "99")
    assert "is a live fleet, which has no runs" in error_of("fleet", "explain", fleet, "[red]0", "--run", "1")


def test_a_price_is_explained_with_the_numbers_from_which_it_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as store:
        sweep([RunPlan("fair-pace", 40, seed=1)], store, workers=1)
        found = next(
            answer
            for row in range(40)
            if (answer := explain_run(store, 1, row, 40)).outcome == "not chosen" and not answer.urgent
        )
    output, errors, code = run("fleet", "explain", path, found.client.removeprefix("client "))
    assert (errors, code) == ("", 0)
    assert f"{found.client} " in output
    assert re.search(r"usually takes [\d.]+ s, and its share of such a round is [\d.]+/6.4 = [\d.]+ s", output), output
    assert re.search(r"so a turn is worth [\d.]+ · [\d.]+/[\d.]+ = [\d.]+ s", output), output
    table = dict(re.findall(r"^│ (.+?) +│ (.+?) +│$", output, re.MULTILINE))
    assert table["its usual exchange time"] == f"{found.usual:,.4g} s"
    assert table["turns behind, this round included"] == f"{found.behind:,.4g}"
    assert table["turns that it may be behind"] == f"{found.allowed:,.4g}"
    assert table["price of its turn"] == f"{found.owed:,.4g} s"
    assert table["margin"] == f"{found.margin:,.4g} s"
    assert not any(value.endswith("turns") for value in table.values())


@pytest.mark.parametrize("run_", [1, 2, 3, 5])
def test_every_client_of_a_run_is_explained(runs: Path, run_: int) -> None:
    with RunStore(runs, read_only=True) as store:
        columns = store.columns(run_)
        for number in (1, 2, len(columns)):
            chosen = columns.chosen[columns.starts[number - 1] : columns.starts[number]]
            for row in range(0, columns.clients, 3):
                found = explain_run(store, run_, row, number)
                assert found.exact, found.sentence
                assert (found.outcome == "chosen") == (row in chosen)
                assert found.client == f"client {row}"


def test_a_run_is_explained_by_its_row(runs: Path) -> None:
    answer = json_of("fleet", "explain", runs, "17", "--run", "1", "--round", "30")
    assert (answer["client"], answer["round"], answer["exact"]) == ("client 17", 30, True)
    assert json_of("fleet", "explain", runs, "c17", "--run", "1", "--round", "30") == answer
    assert json_of("fleet", "explain", runs, "17", "--run", "1")["round"] == 40
    assert not json_of("fleet", "explain", runs, "17", "--run", "4")["exact"]
    assert "holds 5 runs: select one. Try: --run NUMBER" in error_of("fleet", "explain", runs, "17")
    assert "there is no run 9" in error_of("fleet", "explain", runs, "17", "--run", "9")
    assert "there is no round 41 in run 1" in error_of("fleet", "explain", runs, "17", "--run", "1", "--round", "41")
    assert "there is no client 40 in run 1" in error_of("fleet", "explain", runs, "40", "--run", "1")
    assert "identified by their rows" in error_of("fleet", "explain", runs, "phone", "--run", "1")


def test_a_run_that_replays_differently_is_not_explained(tmp_path: Path) -> None:
    plan = RunPlan("rbcsf", 10)
    with RunStore(tmp_path / "runs.turnout") as store:
        (run_,) = sweep([plan], store, workers=1)
        columns = store.columns(run_)
        times = np.array(columns.exchange_times)
        times[3] += 1.0
        fields = {name: getattr(columns, name) for name in RoundColumns.__slots__}
        other = RoundColumns(**{**fields, "exchange_times": times})
        run_ = store.write_run("other", plan.as_dict(), other, clients=40, code_version="0")
        found = explain_run(store, run_, 0, 5)
        assert not found.exact
        assert "the replay of round 1 differs from the record" in found.sentence
        assert explain_run(store, run_, 0, 1).exact


def test_an_explanation_without_numbers_has_no_table(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 1}, deadline=30.0) as scheduler:
        (chosen,) = scheduler.choose(["a", "b"])
    done = run("fleet", "explain", path, chosen)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{chosen} was chosen in round 1; an exact explanation is not possible: random did not weigh seconds against "
        "turns owed in this round."
    ]
