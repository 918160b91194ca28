from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import fleets
from live.forging import alter
from turnout.errors import ReportError, StoreError
from turnout.live import ClientStatus, Scheduler
from turnout.policies.explain.explanation import Explanation

FAIR: dict[str, Any] = {"cohort_size": 3, "guaranteed_rate": 0.2}
WEIGHTED: dict[str, Any] = {**FAIR, "speed_weight": 1.0}
REASONS = {"fair-pace": ("usual ", "behind ", "price "), "rbcsf": ("owed ",)}
RBCSF: dict[str, Any] = {"policy": "rbcsf", "settings": WEIGHTED}


def play(scheduler: Scheduler, world: fleets.World, first: int, last: int, *, seed: int = 0) -> list[list[str]]:
    """Plays rounds in which clients are unavailable, fail or are late; returns the cohorts."""
    cohorts = []
    for round_ in range(first, last + 1):
        rng = random.Random(f"{seed} {round_}")
        statuses = {client: status for client, status in world.statuses(round_).items() if rng.random() < 0.8}
        cohorts.append(scheduler.choose(statuses))
        for client in cohorts[-1]:
            draw = rng.random()
            if draw < 0.85:
                scheduler.report(client, world.seconds(round_, client, statuses[client]))
            elif draw < 0.95:
                scheduler.report_failure(client, "its battery died")
        scheduler.close_round()
    return cohorts


def explain_all(scheduler: Scheduler, rounds: Iterable[int]) -> list[Explanation]:
    return [explanation for round_ in rounds for explanation in fleets.explain_round(scheduler, round_)]


@pytest.mark.parametrize(
    "settings",
    [
        RBCSF,
        {**RBCSF, "overcommit": 1.4},
        {**RBCSF, "overcommit": "auto"},
        {**RBCSF, "settings": {**WEIGHTED, "horizon": 50}},
        {**RBCSF, "settings": {**WEIGHTED, "prior": "fleet", "forgetting": 0.9}},
        {**RBCSF, "backoff_after": 1},
        {},
        {"overcommit": 1.4},
        {"overcommit": "auto"},
        {"settings": {**FAIR, "accrual": "always", "counts": "selected"}},
        {"settings": {**FAIR, "tolerance": 0.5, "exploration": 0.1, "forgetting": 0.9}},
        {"backoff_after": 1},
    ],
)
def test_every_client_of_every_round_is_explained_exactly(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("turnout.live.serving.rounds.SNAPSHOT_EVERY", 9)
    scheduler, world = open_fleet(**{"settings": FAIR, "deadline": 30.0, **settings}), fleets.World(12)
    cohorts = play(scheduler, world, 1, 12)
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM snapshot") == [(1,)]
    scheduler.choose(world.statuses(13))
    rounds = (1, 2, 8, 9, 10, 12, 13)
    explanations = explain_all(scheduler, rounds)
    assert all(explanation.exact for explanation in explanations)
    for round_ in rounds[:-1]:
        of_round = [explanation for explanation in explanations if explanation.round == round_]
        chosen = [explanation.client for explanation in of_round if explanation.outcome == "chosen"]
        assert sorted(chosen) == sorted(cohorts[round_ - 1])
    assert {"chosen", "not chosen", "not available"} <= {explanation.outcome for explanation in explanations}
    lacking = [explanation for explanation in explanations if explanation.outcome == "not chosen"]
    assert all(explanation.missing_units for explanation in lacking if explanation.unit == "turns")
    # If all that were chosen are urgent, no place was left to the others.
    crowded = set(rounds) - {
        explanation.round for explanation in explanations if explanation.outcome == "chosen" and not explanation.urgent
    }
    assert all(explanation.missing_units or explanation.round in crowded for explanation in lacking)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


@pytest.mark.parametrize("overcommit", [1.0, 1.4, "auto"])
@pytest.mark.parametrize("options", [{"settings": FAIR}, RBCSF], ids=["fair-pace", "rbcsf"])
def test_rounds_with_fewer_clients_than_places_are_explained_exactly(
    open_fleet: fleets.OpenFleet, options: dict[str, Any], overcommit: Any
) -> None:
    scheduler, world = open_fleet(deadline=30.0, overcommit=overcommit, **options), fleets.World(9)
    for round_, count in enumerate([9, 9, 9, 4, 2, 9, 4, 5], start=1):
        if round_ == 7:
            scheduler.amend(overcommit=2.0)  # explanations of earlier rounds use the former value
        statuses = dict(list(world.statuses(round_).items())[:count])
        fleets.play_round(scheduler, statuses, {c: world.seconds(round_, c, statuses[c]) for c in statuses})
    inexact = [explanation.sentence for explanation in explain_all(scheduler, range(1, 9)) if not explanation.exact]
    assert inexact == []


def test_clients_that_could_not_be_selected_are_explained(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2}, backoff_after=1)
    scheduler.register(["gone"])
    with pytest.raises(ReportError, match="there is no round 0 to explain: no round was opened yet"):
        scheduler.explain("gone")
    scheduler.retire("gone")
    fleets.play_round(scheduler, fleets.offered("a", "b", "c"), {"b": 2.0}, failed=["a"])
    fleets.play_round(scheduler, fleets.offered("a", "b", "c", "new"), 2.0)
    fleets.play_round(scheduler, fleets.offered("b", "c"), 2.0)
    backed_off, retired = scheduler.explain("a", 2), scheduler.explain("gone", 2)
    assert backed_off.outcome == "resting"
    assert backed_off.sentence == "a was backed off in round 2 after a miss, up to and including round 2."
    assert (retired.outcome, retired.sentence) == ("retired", "gone was retired before round 2.")
    assert scheduler.explain("b", 2).outcome in ("chosen", "not chosen")
    assert scheduler.explain("new", 1).sentence == "new had not joined the fleet before round 1."
    assert scheduler.explain("a").sentence == "a was not available in round 3."
    for round_ in (0, 4):
        with pytest.raises(ReportError, match=f"there is no round {round_} to explain: choose one from 1 to 3"):
            scheduler.explain("a", round_)
    with pytest.raises(ReportError, match="'unknown'"):
        scheduler.explain("unknown")


@pytest.mark.parametrize("policy", ["fair-pace", "rbcsf"])
def test_in_a_large_fleet_only_the_selected_clients_are_recorded(
    open_fleet: fleets.OpenFleet, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("turns.offering", "operation.explain"):
        monkeypatch.setattr(f"turnout.live.{module}.MAX_RECORDED_CLIENTS", 4)
    scheduler = open_fleet(policy=policy)
    fleets.play_round(scheduler, fleets.offered(*fleets.named(4)))
    chosen = fleets.play_round(scheduler, fleets.offered(*fleets.named(6)))
    assert scheduler.explain("c0", 1).exact
    (left_out, *_) = set(fleets.named(6)) - set(chosen)
    explanation = scheduler.explain(left_out, 2)
    assert not explanation.exact
    assert explanation.sentence == (
        f"{left_out} was not chosen in round 2; an exact explanation is not possible: the fleet has more than 4 "
        "clients, so only the selected clients are recorded."
    )
    explanation = scheduler.explain(chosen[0], 2)
    assert not explanation.exact
    assert explanation.sentence.startswith(f"{chosen[0]} was chosen in round 2 (optimistic")
    assert None not in (explanation.seconds, explanation.threshold, explanation.objective)
    assert all(reason in explanation.sentence for reason in REASONS[policy])
    assert explanation.margin is None
    sizes = fleets.rows_of(scheduler.path, "SELECT LENGTH(available) FROM offers")
    assert all(size < 20 for (size,) in sizes)


def test_an_abandoned_round_leaves_no_offer(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered(*fleets.named(4)))
    scheduler.choose(fleets.offered(*fleets.named(4), free_cpu=0.5))
    scheduler.abandon_round()
    assert fleets.rows_of(scheduler.path, "SELECT round FROM offers") == [(1,)]
    fleets.play_round(scheduler, fleets.offered(*fleets.named(4)))
    assert all(explanation.exact for explanation in explain_all(scheduler, range(1, 3)))


@pytest.mark.parametrize("options", [{"settings": FAIR}, RBCSF], ids=["fair-pace", "rbcsf"])
def test_forgetting_a_client_deletes_the_offers_in_which_it_was_available(
    open_fleet: fleets.OpenFleet, folder: Path, options: dict[str, Any]
) -> None:
    scheduler, world = open_fleet(**options), fleets.World(8)
    for round_ in range(1, 11):
        statuses = world.statuses(round_)
        if round_ in (4, 7):
            del statuses["c1"]
        fleets.play_round(scheduler, statuses, 4.0)
    scheduler.forget("c1")
    assert fleets.rows_of(folder / "fleet.turnout", "SELECT round FROM offers") == [(4,), (7,)]
    for round_ in range(11, 14):
        fleets.play_round(
            scheduler, {client: world.statuses(round_)[client] for client in fleets.named(8) if client != "c1"}, 4.0
        )
    assert all(scheduler.explain("c0", round_).exact for round_ in (11, 12, 13))
    fleets.take_snapshot(scheduler)  # so that explaining these rounds replays events before the last snapshot
    exact = {round_: scheduler.explain("c0", round_).exact for round_ in (4, 7, 11, 12, 13)}
    # FairPace learned the usual times of all clients from what the forgotten one had reported too.
    assert exact == dict.fromkeys(exact, options is RBCSF)
    explanation = scheduler.explain("c0", 5)
    assert not explanation.exact
    assert "a client of the offer was forgotten since" in explanation.sentence
    assert scheduler.explain("forgotten-1", 12).outcome == "retired"


def test_a_damaged_offer_prevents_only_the_explanation_of_its_round(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    for _ in range(3):
        fleets.play_round(scheduler, fleets.offered(*fleets.named(4)))
    alter(scheduler.path, "UPDATE offers SET data = (SELECT data FROM offers WHERE round = 1) WHERE round = 2")
    with pytest.raises(StoreError, match="the offer of round 2 does not match its digest"):
        scheduler.explain("c0", 2)
    assert scheduler.explain("c0", 3).exact


def test_rounds_whose_availability_was_dropped_are_not_explained_exactly(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.journal.changes.KEEP_AVAILABILITY_UP_TO", 3)
    scheduler = open_fleet()
    for _ in range(3):
        fleets.play_round(scheduler, fleets.offered(*fleets.named(4)))
    fleets.take_snapshot(scheduler)
    fleets.play_round(scheduler, fleets.offered(*fleets.named(4)))
    explanation = scheduler.explain("c0", 2)
    assert not explanation.exact
    assert "the availability of clients in a round is not stored any more" in explanation.sentence
    assert scheduler.explain("c0", 4).exact


def test_offers_are_kept_small(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    """A context takes 17 bytes (two floats, and one byte for the cold start), and a round 3 kB more."""
    scheduler, clients = open_fleet(settings={"cohort_size": 10}), 1000
    rng = np.random.default_rng(0)
    statuses = {f"c{row}": ClientStatus(rng.uniform(0.5, 2.0), rng.uniform(2.0, 4.0)) for row in range(clients)}
    fleets.play_round(scheduler, statuses)
    ((size,),) = fleets.rows_of(folder / "fleet.turnout", "SELECT LENGTH(data) + LENGTH(available) FROM offers")
    assert size < 17 * clients + 3500
