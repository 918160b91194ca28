from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.fleets import OpenFleet, World, named, offered, packed, packed_from_disk, play_round, rows_of
from turnout.errors import ReportError, SettingError, StoreError
from turnout.kernel.rounds import RoundOffer
from turnout.policies.explain.explanation import Explanation
from turnout.scheduler import ClientStatus, Scheduler
from turnout.scheduler.audit.explain import explained
from turnout.scheduler.records import RecordedOffer

DATA = Path(__file__).parents[1] / "data"
SETTINGS: dict[str, Any] = {"cohort_size": 3, "guaranteed_rate": 0.2, "speed_weight": 1.0}


def play(scheduler: Scheduler, world: World, first: int, last: int, *, seed: int = 0) -> list[list[str]]:
    """Rounds in which some stay away, some fail and some are late; the cohorts."""
    cohorts = []
    for round_ in range(first, last + 1):
        chances = random.Random(f"{seed} {round_}")
        statuses = {one: status for one, status in world.statuses(round_).items() if chances.random() < 0.8}
        cohorts.append(scheduler.choose(statuses))
        for client in cohorts[-1]:
            fate = chances.random()
            if fate < 0.85:
                scheduler.report(client, world.seconds(round_, client, statuses[client]))
            elif fate < 0.95:
                scheduler.failed(client, "its battery died")
        scheduler.close_round()
    return cohorts


def all_told(scheduler: Scheduler, rounds: Iterable[int]) -> list[Explanation]:
    return [scheduler.explain(client, round_) for round_ in rounds for client in scheduler.clients]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"overcommit": 1.4},
        {"overcommit": "auto"},
        {"settings": {**SETTINGS, "horizon": 50}},
        {"settings": {**SETTINGS, "prior": "fleet", "forgetting": 0.9}},
        {"rest_after": 1},
    ],
)
def test_every_client_of_every_round_has_an_exact_answer(open_fleet: OpenFleet, more: dict[str, Any]) -> None:
    scheduler, world = open_fleet(**{"settings": SETTINGS, "deadline": 30.0, **more}), World(12)
    cohorts = play(scheduler, world, 1, 60)  # past a snapshot
    scheduler.choose(world.statuses(61))
    rounds = (1, 2, 9, 49, 50, 51, 60, 61)
    found = all_told(scheduler, rounds)
    assert all(one.exact for one in found)
    for round_ in rounds[:-1]:
        said = [one.client for one in found if one.round == round_ and one.standing == "chosen"]
        assert sorted(said) == sorted(cohorts[round_ - 1])
    assert {"chosen", "not chosen", "not available"} <= {one.standing for one in found}
    assert all(one.missing_units for one in found if one.standing == "not chosen")
    assert packed(scheduler) == packed_from_disk(scheduler.path)


def test_the_missing_turns_are_those_that_would_have_put_it_in(open_fleet: OpenFleet) -> None:
    scheduler, world = open_fleet(settings=SETTINGS), World(12)
    play(scheduler, world, 1, 20)
    scheduler.choose(world.statuses(21))
    kept = scheduler._journal.offered(21)
    assert kept is not None
    contexts = kept.whole_contexts()
    assert contexts is not None
    problem = scheduler.policy.cohort_problem(RoundOffer(21, kept.available, contexts))
    assert problem is not None
    looked = 0
    for row, client in enumerate(scheduler.clients):
        found = scheduler.explain(client)
        if found.standing != "not chosen":
            continue
        looked += 1
        assert found.missing_units is not None
        for more, inside in ((found.missing_units, True), (found.missing_units - 1, False)):
            units = problem.values.units.copy()
            units[row] += more
            changed = problem._replace(values=problem.values._replace(units=units))
            assert (row in changed.solve().rows) is inside
    assert looked > 3


def test_who_could_not_be_chosen(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2}, rest_after=1)
    scheduler.register(["gone"])
    scheduler.retire("gone")
    scheduler.choose(offered("a", "b", "c"))
    scheduler.failed("a", "its battery died")
    scheduler.report("b", 2.0)
    scheduler.close_round()
    play_round(scheduler, offered("a", "b", "c", "new"), 2.0)
    play_round(scheduler, offered("b", "c"), 2.0)
    told = {client: scheduler.explain(client, 2) for client in ("a", "gone", "b")}
    assert told["a"].standing == "resting"
    assert told["a"].sentence == "a rested in round 2, after a miss, up to and with round 2."
    assert (told["gone"].standing, told["gone"].sentence) == ("retired", "gone had left for good before round 2.")
    assert told["b"].standing in ("chosen", "not chosen")
    assert scheduler.explain("new", 1).sentence == "new had not joined yet in round 1."
    assert scheduler.explain("a").sentence == "a was not available in round 3."
    for wrong in (0, 4):
        with pytest.raises(ReportError, match=f"there is no round {wrong} to explain: the newest is 3"):
            scheduler.explain("a", wrong)
    with pytest.raises(ReportError, match="there is no client 'stranger'"):
        scheduler.explain("stranger")


def test_before_the_first_round_there_is_nothing_to_explain(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    scheduler.register(["a"])
    with pytest.raises(ReportError, match="there is no round 0 to explain: none was"):
        scheduler.explain("a")


def test_beyond_the_limit_only_the_chosen_are_on_record(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(record_offers_up_to=4)
    play_round(scheduler, offered(*named(4)))
    chosen = play_round(scheduler, offered(*named(6)))
    assert scheduler.explain("c0", 1).exact
    (left_out, *_) = set(named(6)) - set(chosen)
    found = scheduler.explain(left_out, 2)
    assert not found.exact
    assert found.sentence == (
        f"{left_out} was not chosen in round 2; an exact explanation is not possible: the fleet has more than 4 "
        "clients (record_offers_up_to), so only the chosen are on record."
    )
    known = scheduler.explain(chosen[0], 2)
    assert not known.exact
    assert known.sentence.startswith(f"{chosen[0]} was chosen in round 2 (optimistic")
    assert None not in (known.seconds, known.owed, known.threshold, known.objective)
    assert known.margin is None
    sizes = rows_of(folder / "fleet.turnout", "SELECT LENGTH(volunteers) FROM offers")
    assert all(size < 20 for (size,) in sizes)
    with pytest.raises(SettingError, match="record_offers_up_to"):
        open_fleet("other", record_offers_up_to=-1)


def test_an_abandoned_round_leaves_no_offer(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet()
    play_round(scheduler, offered(*named(4)))
    scheduler.choose(offered(*named(4), free_cpu=0.5))
    scheduler.abandon_round()
    assert rows_of(folder / "fleet.turnout", "SELECT round FROM offers") == [(1,)]
    play_round(scheduler, offered(*named(4)))
    assert all(one.exact for one in all_told(scheduler, range(1, 3)))


def test_forgetting_takes_the_offers_it_stood_in_with_it(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, world = open_fleet(settings=SETTINGS), World(8)
    for round_ in range(1, 11):
        statuses = world.statuses(round_)
        if round_ in (4, 7):
            del statuses["c1"]
        play_round(scheduler, statuses, 4.0)
    scheduler.forget("c1")
    assert rows_of(folder / "fleet.turnout", "SELECT round FROM offers") == [(4,), (7,)]
    for round_ in range(11, 14):
        play_round(scheduler, {one: world.statuses(round_)[one] for one in named(8) if one != "c1"}, 4.0)
    scheduler.snapshot()  # so that rounds since are no longer those after a snapshot
    assert all(scheduler.explain("c0", round_).exact for round_ in (4, 7, 11, 12, 13))
    lost = scheduler.explain("c0", 5)
    assert not lost.exact
    assert "a client that volunteered was forgotten since" in lost.sentence
    assert scheduler.explain("forgotten-1", 12).standing == "retired"


def test_a_choice_that_cannot_be_repeated_is_not_explained(open_fleet: OpenFleet) -> None:
    scheduler, world = open_fleet(settings=SETTINGS), World(8)
    play(scheduler, world, 1, 5)
    scheduler.choose(world.statuses(6))
    kept = scheduler._journal.offered(6)
    assert kept is not None
    assert kept.contexts is not None
    other = RecordedOffer(6, kept.rows, kept.reasons, kept.available, kept.contexts * 1.5)
    with scheduler._journal.writing() as db:
        scheduler._journal.drop_offered(db, 6)
        scheduler._journal.put_offered(db, other)
    found = scheduler.explain("c0")
    assert not found.exact
    assert "computing it again gives another selection" in found.sentence


def test_a_damaged_offer_is_refused_and_nothing_else_is(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet()
    for _ in range(3):
        play_round(scheduler, offered(*named(4)))
    with closing(sqlite3.connect(folder / "fleet.turnout")) as db:
        db.execute("UPDATE offers SET data = (SELECT data FROM offers WHERE round = 1) WHERE round = 2")
        db.commit()
    with pytest.raises(StoreError, match="what was offered in round 2 is not what was written"):
        scheduler.explain("c0", 2)
    assert scheduler.explain("c0", 3).exact


def test_a_large_fleet_that_dropped_its_masks_says_so(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.scheduler.journal.journal.KEEP_MASKS", 3)
    scheduler = open_fleet()
    for _ in range(3):
        play_round(scheduler, offered(*named(4)))
    scheduler.snapshot()
    play_round(scheduler, offered(*named(4)))
    assert "who was available in a round is gone" in scheduler.explain("c0", 2).sentence
    assert scheduler.explain("c0", 4).exact


def test_files_of_older_releases_are_explained_from_now_on(folder: Path) -> None:
    for old in sorted(DATA.glob("*.turnout")):
        path = folder / old.name
        shutil.copy(old, path)
        with Scheduler.open(path, read_only=True) as reader:
            found = reader.explain(reader.clients[0])
            assert found.exact or "an older turnout chose" in found.sentence
        with Scheduler.open(path) as scheduler:
            scheduler.close_round()
            play_round(scheduler, offered("one", "two", "three", "four", "five", "six"), 3.0)
            assert {scheduler.explain(client).exact for client in scheduler.clients} == {True}
            assert not scheduler.explain(scheduler.clients[0], 2).exact


def test_other_policies_say_what_they_can(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(policy="random")
    chosen = play_round(scheduler, offered(*named(4)))
    found = scheduler.explain(chosen[0])
    assert (found.standing, found.exact, found.policy) == ("chosen", False, "random")
    assert "random did not weigh seconds against turns owed" in found.sentence


def test_whoever_reads_may_ask_also_where_features_are_computed(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    scheduler.choose({"a": ClientStatus(1.0, 2.0), "b": ClientStatus(1.0, 3.0), "c": ClientStatus(0.5, 1.0)})
    with Scheduler.open(scheduler.path, read_only=True) as reader:
        assert [reader.explain(one) for one in "abc"] == [scheduler.explain(one) for one in "abc"]
        assert explained(reader._journal, reader._memory, reader.settings, reader.features, 0, 1).client == "a"


def test_offers_are_kept_small(open_fleet: OpenFleet, folder: Path) -> None:
    """About 8 bytes a number: 17 a client and round, as a cold start takes one, and 2 kB a round."""
    scheduler, clients = open_fleet(settings={"cohort_size": 10}), 1000
    rng = np.random.default_rng(0)
    statuses = {f"c{row}": ClientStatus(rng.uniform(0.5, 2.0), rng.uniform(2.0, 4.0)) for row in range(clients)}
    play_round(scheduler, statuses)
    ((size,),) = rows_of(folder / "fleet.turnout", "SELECT LENGTH(data) + LENGTH(volunteers) FROM offers")
    assert size < 17 * clients + 3000
