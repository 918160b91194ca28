"""Settings that change in mid-life: promises before count at the old rate, later ones at the new."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from live import fleets
from narrowing import known
from postgres import tables
from turnout.errors import InfeasiblePromise, SettingError, StoreError
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.live import Feature, Features, FleetReader, Scheduler, certify
from turnout.live._internals import examine
from turnout.live._internals import verify as verifier
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.turns.records import settings_digest

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "fair-pace": {"policy": "fair-pace", "settings": {"cohort_size": 2, "guaranteed_rate": "1/6"}},
    "fair-pace always": {
        "policy": "fair-pace",
        "settings": {"cohort_size": 2, "guaranteed_rate": "1/6", "accrual": "always", "counts": "selected"},
    },
    "rbcsf": {"policy": "rbcsf", "settings": {"cohort_size": 2, "guaranteed_rate": "1/6", "max_owed": 1.5}},
    "with-guarantee": {
        "policy": "with-guarantee",
        "settings": {"policy": "random", "guaranteed_rate": "1/6", "settings": {"cohort_size": 2}},
    },
    "cool-down": {
        "policy": "cool-down",
        "settings": {"policy": "fair-pace", "settings": {"cohort_size": 2, "guaranteed_rate": "1/6"}},
    },
}


rates = st.sampled_from(["1/6", "1/4", 0.1, "2/7", "3/20", 0, "1/3", 0.123, 0.5, 0.6])
actions = (
    st.one_of(
        st.tuples(st.just("rounds"), st.integers(1, 6)),
        st.tuples(st.just("amend"), st.fixed_dictionaries({}, optional={
            "guaranteed_rate": rates,
            "tolerance": st.sampled_from([0.6, 1.0, 2.0, 3.5]),
            "cohort_size": st.integers(1, 4),
            "deadline": st.sampled_from([None, 20.0, 60.0, "auto"]),
            "overcommit": st.sampled_from([1.0, 1.5, "auto"]),
        })),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("retire"), st.integers(0, 7)),
        st.tuples(st.just("forget"), st.integers(0, 7)),
    )
)  # fmt: skip


class Life:
    """Plays the life of a fleet, and counts it again after each step."""

    def __init__(self, path: Path, name: str, seed: int) -> None:
        options = POLICIES[name]
        self.path, self.world, self.seed = path, fleets.World(8, seed=seed), seed
        self.scheduler = Scheduler.open(path, **options, deadline=50.0, allow_infeasible=True, backoff_after=10_000)
        self.terms = {"guaranteed_rate": Fraction(1, 6), "tolerance": Fraction(2)}
        self.gone: set[str] = set()

    def rounds(self, count: int) -> None:
        """Plays rounds in which clients come and go, fail and are late."""
        for _ in range(count):
            number = self.scheduler.round + 1
            rng = np.random.default_rng([self.seed, number])
            statuses = self.world.statuses(number)
            there = {client for client in statuses if rng.random() < 0.7} | {"c7"} - self.gone
            cohort = self.scheduler.choose({client: statuses[client] for client in sorted(there - self.gone)})
            for client in cohort:
                luck = rng.random()
                if luck < 0.8:
                    self.scheduler.report(client, self.world.seconds(number, client, statuses[client]))
                elif luck < 0.9:
                    self.scheduler.report_failure(client, "no power")
            self.scheduler.close_round(after=40.0)

    def amend(self, changes: dict[str, Any]) -> None:
        """Amends the fleet; a tolerance that does not exceed the rate is refused by fair-pace, and changes nothing."""
        rate, tolerance = (
            Fraction(changes.get(name, term)).limit_denominator(10**9) for name, term in self.terms.items()
        )
        if tolerance <= rate and self.scheduler.settings.policy in ("fair-pace", "cool-down"):
            before = fleets.packed(self.scheduler)
            with pytest.raises(SettingError, match="tolerance must exceed"):
                self.scheduler.amend(**changes)
            assert fleets.packed(self.scheduler) == before
            return
        self.scheduler.amend(**changes)
        self.terms = {"guaranteed_rate": rate, "tolerance": tolerance}

    def reopen(self, _: None) -> None:
        """Closes the file and opens it again."""
        before = fleets.packed(self.scheduler)
        self.scheduler.close()
        self.scheduler = Scheduler.open(self.path)
        assert fleets.packed(self.scheduler) == before

    def snapshot(self, _: None) -> None:
        fleets.take_snapshot(self.scheduler)

    def retire(self, row: int) -> None:
        self._leave(row, "retire")

    def forget(self, row: int) -> None:
        self._leave(row, "forget")

    def _leave(self, row: int, how: str) -> None:
        client = f"c{row}"
        if client not in self.scheduler.clients or client in self.gone or len(self.gone) > 4:
            return
        {"retire": self.scheduler.retire, "forget": self.scheduler.forget}[how](client)
        self.gone.add(client)

    def check(self) -> None:
        """Compares the scheduler's counts with those of the verifier, which counts every event at its own terms."""
        content = certify(self.path, self.path.with_suffix(".json"), self.path.with_suffix(".jsonl"))
        assert content["books_balance"]
        assert content["events"] == fleets.rows_of(self.path, "SELECT MAX(seq) FROM events")[0][0]


#: A life with several amendments of each kind, with rounds and departures between them.
EVENTFUL: list[tuple[str, Any]] = [
    ("amend", {"guaranteed_rate": "2/7", "tolerance": 3.5}),
    ("rounds", 4),
    ("snapshot", None),
    ("amend", {"guaranteed_rate": 0.123, "cohort_size": 3, "deadline": "auto"}),
    ("rounds", 3),
    ("retire", 2),
    ("reopen", None),
    ("amend", {"tolerance": 1.0, "overcommit": 1.5}),
    ("forget", 3),
    ("rounds", 4),
    ("amend", {"guaranteed_rate": 0.5, "tolerance": 0.6}),
    ("rounds", 4),
]


@pytest.mark.parametrize("lives", [1, pytest.param(20, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", POLICIES)
def test_every_life_with_amendments_has_the_certificate_of_an_independent_count(name: str, lives: int) -> None:
    @settings(max_examples=lives, deadline=None, suppress_health_check=list(HealthCheck))
    @example(plan=EVENTFUL, seed=1)
    @given(plan=st.lists(actions, min_size=3, max_size=12), seed=st.integers(0, 1000))
    def check(plan: list[tuple[str, Any]], seed: int) -> None:
        check_life(name, plan, seed)

    check()


def check_life(name: str, plan: list[tuple[str, Any]], seed: int) -> None:
    """Plays a life and checks the certificate after each step."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.turnout"
        life = Life(path, name, seed)
        life.rounds(2)
        for step, argument in plan:
            getattr(life, step)(argument)
            life.check()
        life.rounds(2)
        life.reopen(None)
        life.check()
        life.scheduler.close()
        assert all(finding.ok is not False for finding in examine(path))
        check_follower(path)


def check_follower(path: Path) -> None:
    """Checks that following the events from the first one gives the state that the scheduler has."""
    with FleetReader(path) as reader:
        follower = reader.follow()
        for event in follower.poll():
            follower.apply(event)
        result, expected = follower.fleet.certificate(), reader.state().fleet.certificate()
        assert result is not None
        assert expected is not None
        assert np.array_equal(result.promised_units, expected.promised_units)
        assert np.array_equal(result.owed_units, expected.owed_units)


# What an amendment changes, and what it leaves


@pytest.fixture
def scheduler(open_fleet: fleets.OpenFleet) -> Scheduler:
    return open_fleet()


def test_a_fleet_whose_rate_was_amended_to_its_own_selects_like_one_that_never_was(
    open_fleet: fleets.OpenFleet,
) -> None:
    amended, plain = open_fleet("amended"), open_fleet("plain")
    for scheduler in (amended, plain):
        fleets.play_world(scheduler, 5)
    amended.amend(guaranteed_rate=0.1)
    amended.amend(guaranteed_rate=0.15)  # the default: the same promise, but counted with a base
    for scheduler in (amended, plain):
        fleets.play_world(scheduler, 20)
    assert [turn.id for round_ in range(1, 26) for turn in amended.history(round=round_)] == [
        turn.id for round_ in range(1, 26) for turn in plain.history(round=round_)
    ]
    assert amended.certificate().behind.tolist() == plain.certificate().behind.tolist()


def test_settings_belong_to_the_policy_inside_that_has_them(open_fleet: fleets.OpenFleet) -> None:
    inner = {"policy": "random", "settings": {"cohort_size": 2}}
    scheduler = open_fleet(policy="cool-down", settings={"policy": "with-guarantee", "settings": inner})
    fleets.play_world(scheduler, 3)
    scheduler.amend(cohort_size=3, guaranteed_rate=0.2)
    assert scheduler.settings.settings == {
        "policy": "with-guarantee",
        "settings": {"policy": "random", "settings": {"cohort_size": 3}, "guaranteed_rate": 0.2},
    }
    assert fleets.state_of(scheduler).fleet.policy.cohort_size == 3
    with pytest.raises(SettingError, match="with-guarantee around random has no setting 'speed_weight'"):
        scheduler.amend(speed_weight=2.0)


def test_a_wrapper_that_repeats_the_cohort_size_goes_on_agreeing_with_it(open_fleet: fleets.OpenFleet) -> None:
    inner = {"policy": "random", "settings": {"cohort_size": 2}}
    scheduler = open_fleet(policy="warm-up", settings={**inner, "cohort_size": 2, "rounds": 5})
    fleets.play_world(scheduler, 2)
    scheduler.amend(cohort_size=4)
    assert scheduler.settings.settings["cohort_size"] == 4
    assert len(scheduler.choose(fleets.offered(*fleets.named(8)))) == 4


QUOTA = {
    "policy": "fair-pace",
    "settings": {"cohort_size": 2, "guaranteed_rate": 0.05},
    "groups": [],
    "least": {"north": 1},
}


def test_the_groups_of_a_quota_follow_the_clients_that_join(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(policy="quota", settings=QUOTA)
    seconds = {"c0": 9.0, "c1": 1.0, "c2": 1.0, "c3": 1.0, "c4": 30.0}
    for _ in range(3):
        fleets.play_round(scheduler, fleets.offered(*fleets.named(4)), seconds)
    assert scheduler.amend(groups={"c0": "north", "c3": "south"}) == ["groups"]
    assert scheduler.amend(groups={"c0": "north", "c2": None}) == []
    cohorts = [fleets.play_round(scheduler, fleets.offered(*fleets.named(4)), seconds) for _ in range(6)]
    assert all("c0" in cohort for cohort in cohorts)
    scheduler.register(["c4"])
    assert scheduler.amend(groups={"c4": "north", "c0": None}) == ["groups"]
    assert scheduler.settings.settings["groups"] == [None, None, None, "south", "north"]
    sentence = (
        "amended after round 9: groups from those of 2 clients (north, south) to those of 2 clients (north, south)"
    )
    assert fleets.amendments_of(scheduler)[-1].sentence() == sentence
    state = fleets.packed(scheduler)
    scheduler.close()
    # A server that does not know the groups opens the fleet with the settings with which it was created.
    with Scheduler.open(scheduler.path, policy="quota", settings=QUOTA) as reopened:
        assert fleets.packed(reopened) == state
        cohorts = [fleets.play_round(reopened, fleets.offered(*fleets.named(5)), seconds) for _ in range(6)]
        assert all("c4" in cohort for cohort in cohorts)
        assert "c0" not in cohorts[0]
    with pytest.raises(SettingError, match="was amended in round 9 and has settings="):
        Scheduler.open(scheduler.path, settings={**QUOTA, "least": {"north": 2}})


def test_groups_that_were_never_amended_are_compared(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(policy="quota", settings={**QUOTA, "groups": ["north"]})
    scheduler.close()
    with pytest.raises(SettingError, match="was created with settings="):
        Scheduler.open(scheduler.path, settings=QUOTA)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"c9": "north"}, "groups has the unknown client 'c9': register it first"),
        ({"c1": 4}, "the group of 'c1' must be a string or None, got 4"),
        ({"c1": "\ud800"}, "the group of 'c1' cannot be stored as UTF-8"),
        (["north"], "groups must be a mapping from client ids to groups, got .'north'."),
    ],
)
def test_invalid_groups_are_refused(open_fleet: fleets.OpenFleet, groups: Any, message: str) -> None:
    scheduler = open_fleet(policy="quota", settings=QUOTA)
    scheduler.register(fleets.named(3))
    with pytest.raises(SettingError, match=message):
        scheduler.amend(groups=groups)
    assert fleets.amendments_of(scheduler) == []


def test_groups_for_which_places_are_reserved_but_that_are_empty_are_named(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(policy="quota", settings={**QUOTA, "least": {"north": 1, "south": 0, "west": 1}})
    scheduler.register(fleets.named(3))
    (notice,) = [text for text in scheduler.status().notices if "reserved" in text]
    assert notice == "places are reserved for 'north', 'west', but no client is in this group: amend the groups"
    scheduler.amend(groups={"c0": "north", "c1": "west"})
    assert not any("reserved" in text for text in scheduler.status().notices)


def test_an_amendment_before_the_first_client_counts(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    scheduler.amend(guaranteed_rate="1/4", cohort_size=3)
    scheduler.close()
    scheduler = open_fleet()
    fleets.play_world(scheduler, 4)
    assert scheduler.certificate().promised.tolist() == [1.0] * 8
    assert len(scheduler.history(round=1)) == 3


def test_the_settings_it_has_already_are_no_amendment(scheduler: Scheduler) -> None:
    fleets.play_world(scheduler, 1)
    assert scheduler.amend(deadline=10.0, cohort_size=2) == []
    assert fleets.amendments_of(scheduler) == []
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM events WHERE kind = 'amend'") == [(0,)]


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backoff_after": 3}, "'backoff_after' cannot be amended; what can be amended is deadline, overcommit"),
        ({"dead_line": 3.0}, "'dead_line' cannot be amended .did you mean 'deadline'"),
        ({"deadline": -1.0}, "deadline must be"),
        ({"overcommit": 0.5}, "overcommit must be"),
        ({"cohort_size": 0}, "cohort_size must be"),
        ({"guaranteed_rate": 1.5}, "guaranteed_rate must lie"),
        ({"guaranteed_rate": [0.1, 0.2]}, "guaranteed_rate must be one value for all clients"),
        ({"guaranteed_rate": "1/999999937"}, "common denominator of 19999998740"),
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"tolerance": 0.1}, "tolerance must exceed the guaranteed rate"),
        ({"speed_weight": 1.0}, "the policy fair-pace has no setting 'speed_weight'"),
        ({"groups": {"c0": "north"}}, "the policy fair-pace has no setting 'groups'"),
        ({"self": 1}, "'self' cannot be amended"),
        ({"deadline": 1e-320}, "deadline must be at least"),
        ({"tolerance": 1e-320}, "tolerance must be at least"),
        ({"guaranteed_rate": True}, "guaranteed_rate must lie"),
        ({"guaranteed_rate": 1e-320}, "guaranteed_rate must be 0 or at least 1e-09"),
        ({"tolerance": [[1, 2], {"a": 3}]}, "tolerance must be one value for all clients"),
    ],
)
def test_what_cannot_be_amended_is_refused_and_changes_nothing(
    scheduler: Scheduler, changes: dict[str, Any], message: str
) -> None:
    fleets.play_world(scheduler, 3)
    before, settings_before = fleets.packed(scheduler), scheduler.settings
    with pytest.raises(SettingError, match=message):
        scheduler.amend(**changes)
    assert fleets.packed(scheduler) == before == fleets.packed_from_disk(scheduler.path)
    assert scheduler.settings == settings_before
    assert fleets.amendments_of(scheduler) == []
    fleets.play_world(scheduler, 2)


@pytest.mark.parametrize("written", ["0.08", "2/25", Fraction(2, 25), 0.08])
def test_an_amended_rate_is_the_same_however_it_is_written(open_fleet: fleets.OpenFleet, written: Any) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.1})
    fleets.play_world(scheduler, 2)
    scheduler.amend(guaranteed_rate=written)
    scheduler.close()
    for rate in (0.08, "0.08", "2/25"):
        with Scheduler.open(scheduler.path, settings={"cohort_size": 2, "guaranteed_rate": rate}) as reopened:
            guarantee = known(fleets.state_of(reopened).fleet.policy.guarantee)
            assert guarantee.queues(2).guaranteed_rates.tolist() == [0.08, 0.08]
    with pytest.raises(SettingError, match="was amended in round 2"):
        Scheduler.open(scheduler.path, settings={"cohort_size": 2, "guaranteed_rate": 0.1})


def test_all_options_from_before_amendments_are_named_and_can_be_kept_as_amended(open_fleet: fleets.OpenFleet) -> None:
    old: Any = {"settings": {"cohort_size": 2, "guaranteed_rate": 0.1}, "deadline": 10.0}
    scheduler = open_fleet(**old)
    fleets.play_world(scheduler, 2)
    scheduler.amend(deadline=20.0)
    fleets.play_world(scheduler, 3)
    scheduler.amend(guaranteed_rate=0.08)
    scheduler.close()
    with pytest.raises(SettingError, match=r"was amended in round 2 and has deadline=20.0 since, got 10.0: open it "):
        Scheduler.open(scheduler.path, deadline=10.0)
    with pytest.raises(SettingError, match=r"was amended in round 5 and has settings=") as caught:
        Scheduler.open(scheduler.path, **old)
    for part in (
        "has settings={",
        "got {'cohort_size': 2, 'guaranteed_rate': 0.1}",
        "has deadline=20.0 since, got 10.0",
    ):
        assert part in str(caught.value)
    with Scheduler.open(scheduler.path, **old, amended="keep") as kept:
        assert (kept.settings.deadline, kept.settings.settings["guaranteed_rate"]) == (20.0, 0.08)
    Scheduler.open(scheduler.path, settings={"cohort_size": 2}, deadline=20.0).close()  # leaves out what was amended
    with pytest.raises(SettingError, match=r"was amended in round 5 and has settings=.*got .'cohort_size': 3"):
        Scheduler.open(scheduler.path, settings={"cohort_size": 3}, amended="keep")
    with pytest.raises(SettingError, match="amended must be 'refuse' or 'keep', got 'ignore'"):
        Scheduler.open(scheduler.path, amended="ignore")  # type: ignore[arg-type]


def test_an_error_while_writing_leaves_the_fleet_as_it_was(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets.play_world(scheduler, 5)
    before = fleets.packed(scheduler)
    for changes in ({"guaranteed_rate": 0.2, "deadline": 99.0}, {"features": Features.of(BATTERY)}):
        with monkeypatch.context() as patched:
            patched.setattr("turnout.live.serving.session.write_amendment", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                scheduler.amend(**changes)
        assert fleets.packed(scheduler) == before
        assert (scheduler.settings.deadline, fleets.amendments_of(scheduler)) == (10.0, [])
    assert scheduler.amend(guaranteed_rate=0.2, deadline=99.0) == ["guaranteed_rate", "deadline"]
    fleets.play_world(scheduler, 2)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_an_error_after_writing_leaves_the_fleet_amended(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    fleets.play_world(scheduler, 5)
    original = Journal.writing

    @contextmanager
    def interrupted(journal: Journal) -> Iterator[Changes]:
        with original(journal) as db:
            yield db
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "writing", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scheduler.amend(guaranteed_rate=0.2, features=Features.of(BATTERY))
    assert scheduler.settings.settings["guaranteed_rate"] == 0.2
    assert scheduler.amend(guaranteed_rate=0.2, features=Features.of(BATTERY)) == []
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
    fleets.play_round(scheduler, {client: {"battery": 0.5} for client in fleets.named(8)})
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


# Feasibility


def test_settings_that_are_infeasible_for_the_fleet_are_refused(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(allow_infeasible=False)
    fleets.play_world(scheduler, 4)
    before = fleets.packed(scheduler)
    with pytest.raises(InfeasiblePromise, match=r"0.5 is too much for a cohort_size of 2") as error:
        scheduler.amend(guaranteed_rate=0.5)
    assert (error.value.largest_rate, error.value.cohort_size) == (Fraction(1, 4), 4)
    assert fleets.packed(scheduler) == before
    assert scheduler.status().notices == []
    scheduler.amend(guaranteed_rate=0.5, cohort_size=4)
    scheduler.amend(cohort_size=3, allow_infeasible=True)
    (notice,) = scheduler.status().notices
    assert "use a guaranteed_rate of at most 0.375, or a cohort_size of at least 4, or pass allow_infeasible" in notice


def test_a_fleet_that_is_rarely_available_can_be_promised_more(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(allow_infeasible=False)
    for number in range(20):
        fleets.play_round(scheduler, fleets.offered(f"c{number % 8}", f"c{(number + 1) % 8}"))
    scheduler.amend(guaranteed_rate=0.7)  # two of eight clients are available for two places
    with pytest.raises(InfeasiblePromise):
        scheduler.amend(cohort_size=1)


def test_a_fleet_that_outgrows_its_promise_is_told_so_once(
    open_fleet: fleets.OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    scheduler = open_fleet(allow_infeasible=False)

    def logged() -> int:
        return sum("the guaranteed_rate cannot be kept" in record.message for record in caplog.records)

    fleets.play_world(scheduler, 4, clients=12)
    assert (scheduler.status().notices, logged()) == ([], 0)
    fleets.play_world(scheduler, 1, clients=16)
    assert "a guaranteed_rate of at most 0.125, or a cohort_size of at least 3" in "".join(scheduler.status().notices)
    fleets.play_world(scheduler, 4, clients=16)
    assert logged() == 1
    for client in ("c13", "c14", "c15"):
        scheduler.retire(client)
    assert scheduler.status().notices == []
    fleets.play_world(scheduler, 1, clients=13)
    scheduler.register(["d1", "d2", "d3"])
    assert logged() == 2


# The default cap of debts, which follows the deadline


def test_debts_are_forfeited_to_the_cap_of_the_time(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    options: dict[str, Any] = {
        "policy": "rbcsf",
        "settings": {"cohort_size": 1, "guaranteed_rate": 1, "speed_weight": 0.01},
    }
    scheduler = open_fleet(**options, deadline=100.0)
    seconds = {"a": 1.0, "b": 20.0, "c": 30.0, "d": 90.0}
    caps = {100.0: 11, 1500.0: 25, 300.0: 13, 3000.0: 40}  # 10 turns more than outweigh the deadline
    for deadline, cap in caps.items():
        scheduler.amend(deadline=deadline, guaranteed_rate=0.9 if deadline == 300.0 else 1)
        for _ in range(40):
            fleets.play_round(scheduler, fleets.offered(*seconds), seconds)
        assert scheduler.certificate().owed.max() == cap
    assert scheduler.certificate().forfeited.min() > 10
    certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


# Certificates


def test_forged_amendments_are_found_by_the_verifier(scheduler: Scheduler, folder: Path) -> None:
    fleets.play_world(scheduler, 6)
    scheduler.amend(guaranteed_rate="1/7")
    fleets.play_world(scheduler, 6)
    certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    text, lines = (folder / "c.json").read_bytes(), (folder / "c.jsonl").read_bytes().splitlines(keepends=True)
    assert verifier.differences(text, lines) == []
    assert json.loads(lines[0])["settings"]["settings"] == {"cohort_size": 2}
    assert json.loads(text)["settings"]["settings"] == {"cohort_size": 2, "guaranteed_rate": "1/7"}
    (at,) = (index for index, line in enumerate(lines) if b'"amend"' in line)
    event = json.loads(lines[at])

    def forged(**terms: Any) -> list[str]:
        changed = {**event, "terms": {**event["terms"], **terms}}
        return verifier.differences(text, [*lines[:at], f"{json.dumps(changed)}\n".encode(), *lines[at + 1 :]])

    for terms in ({"rate_units": 10}, {"tolerance": "100"}, {"units_per_turn": 30}, {"accrual": "always"}):
        assert "of the terms" in forged(**terms)[0], terms


# Explanations, readers and damage


def test_a_past_round_is_explained_with_the_settings_of_that_round(scheduler: Scheduler) -> None:
    fleets.play_world(scheduler, 8)
    before = {(client, number): scheduler.explain(client, number) for client in fleets.named(8) for number in (3, 8)}
    scheduler.amend(cohort_size=4, guaranteed_rate=0.3, tolerance=0.5)
    fleets.play_world(scheduler, 3)
    for (client, number), explanation in before.items():
        assert scheduler.explain(client, number) == explanation
    later = [scheduler.explain(client, 11) for client in fleets.named(8)]
    assert sum(explanation.outcome == "chosen" for explanation in later) == 4
    assert all(explanation.exact for explanation in later)


def test_readers_see_the_present_settings_and_every_event(scheduler: Scheduler) -> None:
    fleets.play_world(scheduler, 2)
    with FleetReader(scheduler.path) as reader:
        assert reader.settings.deadline == 10.0
        scheduler.amend(deadline=None, tolerance=3.0)
        assert reader.settings.deadline is None
        assert reader.stored_settings(0)["deadline"] == 10.0
        (amendment,) = reader.amendments
        assert amendment.sentence() == (
            "amended after round 2: deadline from 10.0 to none, tolerance from the default to 3.0"
        )
        event = list(reader.events())[-1]
        assert (event.kind, event.clients) == ("amended", ())
    newest = fleets.exported(scheduler)[-1]
    assert (newest["kind"], newest["round"], newest["changes"]) == ("amend", 2, {"deadline": None, "tolerance": 3.0})
    assert newest["before"] == {"deadline": 10.0, "tolerance": None}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE meta SET value = replace(value, '10.0', '11.0') WHERE key = 'initial_settings'",
        "DELETE FROM meta WHERE key = 'initial_settings'",
    ],
)
def test_damaged_settings_at_creation_are_found(scheduler: Scheduler, damage: str) -> None:
    fleets.play_world(scheduler, 3)
    scheduler.amend(deadline=20.0)
    scheduler.close()
    with tables(scheduler.path) as db:
        db.execute(damage)
    findings = {finding.part: finding.message for finding in examine(scheduler.path) if finding.ok is False}
    assert any("the settings at creation" in message for message in findings.values()), findings


@pytest.mark.parametrize("open_it", [Scheduler.open, FleetReader])
def test_settings_that_are_not_those_of_the_last_amendment_are_found_and_refused(
    scheduler: Scheduler, open_it: Callable[[Path], Scheduler | FleetReader]
) -> None:
    fleets.play_world(scheduler, 3)
    scheduler.amend(deadline=20.0)
    settings = scheduler.settings
    scheduler.close()
    with tables(scheduler.path) as db:
        (text,) = db.execute("SELECT value FROM meta WHERE key = 'settings'").fetchone()
        changed = text.replace('"deadline": 20.0', '"deadline": 21.0')
        assert changed != text
        values = [(changed, "settings"), (settings_digest(changed), "seal")]
        db.executemany("UPDATE meta SET value = ? WHERE key = ?", values)
    (finding,) = [finding for finding in examine(scheduler.path) if finding.part == "state"]
    assert finding.ok is False
    assert "the settings are not those of the last amendment" in finding.message
    with (
        pytest.raises(StoreError, match="the settings are not those of the last amendment"),
        open_it(scheduler.path) as opened,
    ):
        opened.status()
    with tables(scheduler.path) as db:
        db.executemany("UPDATE meta SET value = ? WHERE key = ?", [(text, "settings"), (settings_digest(text), "seal")])
    with open_it(scheduler.path) as again:
        assert again.settings == settings


# New features


BATTERY = Feature("battery", 0.0, 1.0)


def test_new_features_restart_the_learning_of_times_and_leave_turns_and_debts(scheduler: Scheduler) -> None:
    fleets.play_world(scheduler, 12)
    before = fleets.state_of(scheduler).state()
    assert scheduler.amend(features=Features.of(BATTERY)) == ["features"]
    after = fleets.state_of(scheduler).state()
    for key in before:
        if key.startswith(("policy.turns", "policy.queues")) or key in (
            "clients.arrived",
            "clients.lost",
            "clients.typical_seconds",
        ):
            assert np.array_equal(before[key], after[key]), key
    assert not any(np.any(value) for key, value in after.items() if key.startswith("policy.usual"))
    assert not np.any(after["clients.learned"])
    for _ in range(20):
        fleets.play_round(scheduler, {client: {"battery": 0.5} for client in fleets.named(8)}, 2.0)
    assert scheduler.status().suspects == []
    assert all(seconds > 0 for seconds in predictions(scheduler))
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def predictions(scheduler: Scheduler) -> list[float]:
    """Returns the predicted times of the next cohort, and cancels the round."""
    scheduler.choose({client: {"battery": 0.5} for client in fleets.named(8)})
    predicted = list(fleets.predicted_seconds(scheduler).values())
    scheduler.abandon_round()
    assert len(predicted) == 2
    return predicted


def test_a_true_time_that_arrives_after_new_features_is_counted_but_not_learned(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(deadline=5.0)
    fleets.play_round(scheduler, fleets.offered("a", "b", "c"), {"a": 1.0})
    scheduler.amend(features=Features.of(BATTERY))
    scheduler.report("b", 30.0, round=1)
    fleets.play_round(scheduler, {client: {"battery": 1.0} for client in "abc"})
    model = known(fleets.state_of(scheduler).fleet.policy.time_model)
    learned = ExchangeTimeModel(3, features=1, ridge=8.0, prior="fleet", relative_ridge=True)
    for turn in scheduler.history(round=2):
        learned.learn(np.array([turn.row]), np.array([[1.0]]), np.array([1.0]))
    np.testing.assert_allclose(model.coefficients, learned.coefficients)
    assert [turn.folded for turn in scheduler.history("b") if turn.round == 1] == [2]
    fleets.take_snapshot(scheduler)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
    scheduler.close()
    assert all(finding.ok is not False for finding in examine(scheduler.path))


def test_a_fleet_is_opened_with_its_amended_features(scheduler: Scheduler) -> None:
    fleets.play_world(scheduler, 3)
    computed = Features.of(BATTERY, compute=lambda columns: [columns["battery"], 1.0], outputs=2)
    scheduler.amend(features=computed)
    scheduler.close()
    with pytest.raises(SettingError, match="was amended in round 3 and has features that a function computes"):
        Scheduler.open(scheduler.path)
    with pytest.raises(SettingError, match="was amended in round 3 and has other features"):
        Scheduler.open(scheduler.path, features=Features())
    with Scheduler.open(scheduler.path, features=computed) as again:
        fleets.play_round(again, {client: {"battery": 0.5} for client in fleets.named(8)})
        assert again.amend(features=computed) == []
        assert again.amend(features=Features.of(BATTERY)) == ["features"]
        fleets.play_round(again, {client: {"battery": 0.5} for client in fleets.named(8)})
        assert [explanation.exact for explanation in (again.explain("c1", 2), again.explain("c1", 4))] == [True, True]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "rbcsf", "settings": {"cohort_size": 2}},
        {"policy": "fedcs", "settings": {"estimates": "learned", "deadline": 100.0}},
        {"policy": "oort", "settings": {"cohort_size": 2}},
        {"policy": "with-guarantee", "settings": {"policy": "rbcsf", "settings": {"cohort_size": 2}}},
    ],
)
def test_other_policies_continue_with_new_features(open_fleet: fleets.OpenFleet, options: dict[str, Any]) -> None:
    scheduler = open_fleet(**options)
    fleets.play_world(scheduler, 6)
    scheduler.amend(features=Features.of(BATTERY, Feature("heat", 0.0, 9.0)))
    for _ in range(5):
        fleets.play_round(scheduler, {client: {"battery": 0.5, "heat": 2.0} for client in fleets.named(8)}, 2.0)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


@pytest.mark.parametrize(
    "policy", ["fair-pace", "oort", "tifl", "refl", "e3cs", "ucb-cs", "round-robin", "cs-ucb", "cs-ucb-q"]
)
def test_every_policy_with_a_cohort_keeps_what_it_learned_and_continues_with_another_size_and_deadline(
    open_fleet: fleets.OpenFleet, policy: str
) -> None:
    scheduler = open_fleet(policy=policy)
    fleets.play_world(scheduler, 12)
    before = fleets.state_of(scheduler).state()
    tolerance: dict[str, Any] = {"tolerance": 1.5} if policy == "fair-pace" else {}
    scheduler.amend(cohort_size=3, overcommit=1.5, deadline=None, **tolerance)
    after = fleets.state_of(scheduler).state()
    assert before.keys() == after.keys()
    for key, value in after.items():
        assert np.array_equal(value, before[key]), key
    assert len(scheduler.choose(fleets.offered(*fleets.named(8)))) == 5  # 3 · 1.5, rounded up
    opened = known(scheduler.open_round)
    assert (opened.target_size, opened.deadline) == (3, None)
    scheduler.abandon_round()
    fleets.play_world(scheduler, 4)
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
