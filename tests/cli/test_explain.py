from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from cli.in_process import error_of, json_of, output_of
from turnout.live import ClientStatus, FleetReader, Scheduler

SETTINGS = {"cohort_size": 2, "guaranteed_rate": 0.2}


def play(scheduler: Scheduler) -> None:
    """Plays twelve rounds with six clients, and opens another one."""
    rng = random.Random(0)
    for _ in range(12):
        statuses = {f"[red]{n}": ClientStatus(rng.uniform(0.5, 2), 2.0 + n) for n in range(6)}
        for client in scheduler.choose(statuses):
            scheduler.report(client, rng.uniform(2, 20))
        scheduler.close_round()
    scheduler.choose(statuses)


@pytest.fixture(scope="module", params=["fair-pace", "rbcsf"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    with Scheduler.open(path, policy=request.param, settings=SETTINGS, deadline=30.0) as scheduler:
        play(scheduler)
    return path


def test_a_client_of_a_fleet_is_explained(fleet: Path) -> None:
    with FleetReader(fleet) as scheduler:
        for client in scheduler.clients:
            for number in (None, 3):
                explained = scheduler.explain(client, number)
                given = [] if number is None else ["--round", str(number)]
                answer = json_of("fleet", "explain", fleet, client, *given)
                assert answer == json.loads(
                    json.dumps({name: getattr(explained, name) for name in (*explained.__slots__, "verdict")})
                )
                assert answer["exact"]
                if number is None:
                    assert explained.sentence in output_of(
                        "fleet", "explain", fleet, client
                    )  # also with brackets in it
    assert explained.sentence in output_of("fleet", "explain", fleet, client, "--round", "3")
    assert "there is no client 'nobody'" in error_of("fleet", "explain", fleet, "nobody")
    assert "there is no round 99 to explain" in error_of("fleet", "explain", fleet, "[red]0", "--round", "99")


def test_a_price_is_explained_with_the_numbers_from_which_it_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        play(scheduler)
        explained = next(
            answer
            for client in scheduler.clients
            if (answer := scheduler.explain(client)).outcome == "not chosen" and not answer.urgent
        )
    output = output_of("fleet", "explain", path, explained.client)
    assert re.search(r"usually takes [\d.]+ s, now .* share of such a round is [\d.]+/1.4 = [\d.]+ s", output), output
    assert re.search(r"so a turn is worth [\d.]+ · [\d.]+/[\d.]+ = [\d.]+ s", output), output
    table = dict(re.findall(r"^│ (.+?) +│ (.+?) +│$", output, re.MULTILINE))
    assert table["its usual exchange time"] == f"{explained.usual:,.4g} s"
    assert table["turns behind, this round included"] == f"{explained.behind:,.4g}"
    assert table["turns that it may be behind"] == f"{explained.allowed:,.4g}"
    assert table["price of its turn"] == f"{explained.owed:,.4g} s"
    assert table["missing in its price"] == f"{explained.missing_turns:,.4g} s"
    assert "margin" not in table  # it is the same number
    first = output.splitlines()[0]
    assert first == explained.verdict
    assert re.fullmatch(rf"Round 13: {re.escape(explained.client)} was not selected\. It lacks [\d.]+ s\. If .+", first)
    assert not any(value.endswith("turns") for value in table.values())


def test_an_explanation_without_numbers_has_no_table(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 1}, deadline=30.0) as scheduler:
        (chosen,) = scheduler.choose(["a", "b"])
    assert output_of("fleet", "explain", path, chosen).splitlines() == [
        f"{chosen} was chosen in round 1; an exact explanation is not possible: random did not weigh seconds against "
        "turns owed in this round."
    ]
