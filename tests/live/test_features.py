"""Cold starts: an exchange that includes starts and imports takes longer, and tells nothing about the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from benchmarks.cold_starts import FLEET, Who, play
from live.fleets import (
    OpenFleet,
    World,
    exported,
    named,
    packed,
    packed_from_disk,
    play_round,
    predicted_seconds,
    problems,
    state_of,
    take_snapshot,
)
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import OfferError, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.live import ClientStatus, Feature, Features, FleetReader, FleetStatus, Scheduler, features
from turnout.live._internals import examine
from turnout.live.features import BANDWIDTH_RANGE, PAPER_FEATURES, Columns, paper_contexts
from turnout.storage.encoding.packing import pack_snapshot

BATTERY = Feature("battery", 0.0, 1.0, "of capacity")
TEMPERATURE = Feature("temperature", -40.0, 90.0, "°C")


def warm_contexts(columns: Columns) -> Sequence[FloatArray]:
    """Computes two features from two declared values and from what the server knows."""
    return columns["battery"] * columns["model_size"], columns["temperature"] + 100 * columns["needs_cold_start"]


WARM = Features.of(BATTERY, TEMPERATURE, compute=warm_contexts, outputs=2)


def contexts_in(scheduler: Scheduler) -> list[list[list[float]]]:
    return [event["contexts"] for event in exported(scheduler) if event["kind"] == "round"]


def test_the_default_features_are_those_of_the_paper(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(model_size=30.0)
    for _ in range(2):
        play_round(scheduler, {"a": ClientStatus(0.5, 3.0), "b": {"free_cpu": 2, "bandwidth": np.float32(6)}})
    play_round(scheduler, {"b": ClientStatus(1.0, 1.0)})
    play_round(scheduler, {"a": ClientStatus(1.0, 1.0), "b": ClientStatus(1.0, 1.0)})
    assert contexts_in(scheduler) == [
        [[2.0, 1.0, 10.0], [0.5, 1.0, 5.0]],
        [[2.0, 0.0, 10.0], [0.5, 0.0, 5.0]],  # both trained in the previous round
        [[1.0, 0.0, 30.0]],
        [[1.0, 1.0, 30.0], [1.0, 0.0, 30.0]],
    ]


@pytest.mark.parametrize(
    "statuses",
    [
        [{"free_cpu": 2, "bandwidth": 0.1 + 0.2}, {"free_cpu": 1.5, "bandwidth": np.float64(4)}],
        [{"free_cpu": 2, "bandwidth": 3.0}, None, {"free_cpu": 0.1, "bandwidth": 1e8, "other": "x"}],
        [ClientStatus(0.3, 7), ClientStatus(1, 2.5)],
        [ClientStatus(0.3, 7), None],
        [{"free_cpu": True, "bandwidth": 3.0}],
        [{"free_cpu": 1.0, "bandwidth": 3.0}, {"free_cpu": 1.0}],
        [{"free_cpu": 1.0, "bandwidth": 10**400}],
        [{"free_cpu": 1.0, "bandwidth": "3"}],
        [ClientStatus(1.0, None)],  # type: ignore[arg-type]
    ],
)
def test_statuses_of_common_types_have_the_contexts_and_errors_of_any_status(
    statuses: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many statuses of common types are read all at once, others one by one."""
    monkeypatch.setattr(features, "FEW", 0)

    def contexts_of(clients: Mapping[str, Any]) -> Any:
        rows, cold = np.arange(len(clients)), np.ones(len(clients), dtype=np.bool_)
        try:
            return PAPER_FEATURES.contexts(clients, [*clients], rows, cold_start=cold, model_size=20.0).tobytes()
        except OfferError as error:
            return str(error)

    def uncommon(status: Any) -> Any:
        return MappingProxyType(asdict(status) if isinstance(status, ClientStatus) else status) if status else None

    clients = dict(zip(named(9), statuses, strict=False))
    slowly = {client: uncommon(status) for client, status in clients.items()}
    assert contexts_of(clients) == contexts_of(slowly)


def test_the_features_of_the_paper_are_the_same_from_its_formula_and_from_the_fast_path() -> None:
    rng = np.random.default_rng(3)
    columns = {"free_cpu": rng.uniform(0.5, 2, 6), "bandwidth": rng.uniform(1, 9, 6)}
    server = {"needs_cold_start": rng.integers(0, 2, 6) == 1, "model_size": np.full(6, 20.0)}
    cold = server["needs_cold_start"]
    fast = PAPER_FEATURES.contexts(FleetStatus(columns), named(6), None, cold_start=cold, model_size=20.0)
    assert np.array_equal(fast, np.column_stack(paper_contexts({**server, **columns})))
    assert fast.tolist()[0] == [1 / columns["free_cpu"][0], server["needs_cold_start"][0], 20 / columns["bandwidth"][0]]


def test_a_late_or_failed_client_needs_a_cold_start_again(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    status = {"a": ClientStatus(1.0, 2.0), "b": ClientStatus(1.0, 2.0)}
    play_round(scheduler, status)
    play_round(scheduler, status, {}, failed=["a"])
    play_round(scheduler, status)
    assert [context[1] for context in contexts_in(scheduler)[2]] == [1.0, 1.0]


def test_declared_values_are_the_features_without_a_function(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, TEMPERATURE))
    play_round(scheduler, {"a": {"battery": 0.5, "temperature": 20, "colour": "red"}})
    assert contexts_in(scheduler) == [[[0.5, 20.0]]]
    scheduler.close()
    again = open_fleet()  # the file contains the whole declaration
    assert again.amend(features=Features.of(BATTERY, TEMPERATURE)) == []
    play_round(again, {"a": {"battery": 0.25, "temperature": 30.0}})
    assert contexts_in(again)[1] == [[0.25, 30.0]]
    assert packed(again) == packed_from_disk(scheduler.path)


def test_a_function_that_computes_features_must_be_passed_again(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(features=WARM)
    play_round(scheduler, {"a": {"battery": 0.5, "temperature": 20.0}})
    play_round(scheduler, {"a": {"battery": 0.5, "temperature": 20.0}})
    assert contexts_in(scheduler) == [[[10.0, 120.0]], [[10.0, 20.0]]]
    scheduler.close()
    path = scheduler.path
    with pytest.raises(SettingError, match="features that a function computes: open it with the same features=…"):
        Scheduler.open(path)
    for other in (Features(), Features.of(BATTERY), Features.of(BATTERY, TEMPERATURE)):
        with pytest.raises(
            SettingError, match=r"was created with other features .*: open it with those, or amend them"
        ):
            Scheduler.open(path, features=other)
    with FleetReader(path) as reader:  # to read, the function is not needed
        assert reader.round == 2
        before = pack_snapshot(reader.state().state())
    again = open_fleet(features=WARM)
    assert packed(again) == before
    assert play_round(again, {"a": {"battery": 1.0, "temperature": 20.0}}) == ["a"]


UNKNOWN = r"nothing is known about 'a', and the feature 'temperature' has no default: pass .* default=…"


@pytest.mark.parametrize(
    ("statuses", "complaint"),
    [
        ({"a": {"battery": 1.5, "temperature": 20.0}}, r"battery of 'a' must be from 0 to 1 of capacity, got 1.5: cor"),
        ({"a": {"battery": 0.5, "temperature": -41.0}}, "temperature of 'a' must be from -40 to 90 °C, got -41"),
        ({"a": {"battery": 0.5}}, r"the status of 'a' has no 'temperature': add temperature \(°C\), or pass None"),
        ({"a": {"battery": "full", "temperature": 1.0}}, "battery of 'a' must be a number, got 'full'"),
        ({"a": {"battery": True, "temperature": 1.0}}, "battery of 'a' must be a number, got True"),
        ({"a": {"battery": None, "temperature": 1.0}}, "the status of 'a' has no 'battery'"),
        ({"a": ClientStatus(1.0, 1.0)}, "the status of 'a' has no 'battery'"),
        (["a"], UNKNOWN),
        ({"a": None}, UNKNOWN),
        ({"b": {"battery": 0.5, "temperature": 20.0}, "a": None}, UNKNOWN),
        ("abc", "statuses must be a mapping of ids to statuses, a list of ids or a FleetStatus, got 'abc'"),
        (5, "statuses must be a mapping .*, got 5"),
        ([5], "client ids must be non-empty strings without null characters, got 5"),
        ([""], "client ids must be non-empty strings without null characters, got ''"),
        ([{"free_cpu": 1.0}], "client ids must be non-empty strings without null characters, got {'free_cpu'"),
    ],
)
def test_invalid_statuses_are_refused_with_the_client_and_the_feature(
    open_fleet: OpenFleet, statuses: Any, complaint: str
) -> None:
    scheduler = open_fleet(features=Features.of(replace(BATTERY, default=0.5), TEMPERATURE))
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose(statuses)
    assert scheduler.clients == []
    assert not scheduler.status().is_open


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        ([[1.0]], "compute must return 2 features, as declared by outputs, got 1"),
        ([[1.0], [1.0, 2.0]], r"compute must return one number or shape \(1,\) for feature 1, got shape \(2,\)"),
        ([[1.0], [np.nan]], r"contexts\[0, 1\] = nan must be finite"),
        ([[1e9], [1.0]], r"contexts\[0, 0\] = 1000000000.0 must lie within ±1e\+06"),
    ],
)
def test_invalid_results_of_a_function_are_refused(open_fleet: OpenFleet, made: list[Any], complaint: str) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, compute=lambda _: made, outputs=2))
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose({"a": {"battery": 1.0}})
    assert scheduler.clients == []
    assert not scheduler.status().is_open


def test_a_function_may_return_one_number_for_all_clients(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, compute=lambda known: [known["battery"], 1.0], outputs=2))
    play_round(scheduler, {"a": {"battery": 0.5}, "b": {"battery": 0.25}})
    assert contexts_in(scheduler) == [[[0.5, 1.0], [0.25, 1.0]]]


@pytest.mark.parametrize(
    ("declare", "complaint"),
    [
        (lambda: Features.of(), "at least one feature must be declared, each with its own name, got none"),
        (lambda: Features.of(BATTERY, BATTERY), "each with its own name, got battery, battery"),
        (
            lambda: Features.of(BATTERY, outputs=2),
            "outputs must be 1, the number of declared features, got 2: leave it out, or pass compute",
        ),
        (lambda: Feature("x", 2, 1), "high of x must be at least 2, not 1"),
        (lambda: Feature("x", float("nan"), 1), "low of x must be finite"),
    ],
)
def test_invalid_declarations_are_refused(declare: Any, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        declare()


def test_a_selection_computes_the_contexts_once(open_fleet: OpenFleet) -> None:
    """The recorded offer contains the contexts that the policy saw, not a second computation of them."""
    offsets: list[float] = []

    def compute(columns: Columns) -> Sequence[FloatArray]:
        offsets.append(float(len(offsets)))
        return [columns["battery"] + offsets[-1]]

    scheduler = open_fleet(features=Features.of(BATTERY, compute=compute, outputs=1))
    for _ in range(3):
        play_round(scheduler, {"a": {"battery": 0.0}, "b": {"battery": 0.0}, "c": {"battery": 0.0}})
    assert offsets == [0.0, 1.0, 2.0]
    with FleetReader(scheduler.path) as reader:
        offers = [offer.contexts for offer in reader.offers()]
    assert [None if contexts is None else contexts.tolist() for contexts in offers] == [
        [[offset]] * 3 for offset in offsets
    ]


def test_as_many_features_as_those_of_the_paper_are_computed_by_their_own_function(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, compute=lambda known: [known["battery"]] * 3, outputs=3))
    play_round(scheduler, {"a": {"battery": 0.5}, "b": {"battery": 0.25}})
    assert contexts_in(scheduler) == [[[0.5] * 3, [0.25] * 3]]


# Clients about which nothing is known


def offers_of(path: Path) -> list[list[list[float]]]:
    """Returns the recorded contexts of the available clients, one list per round."""
    with FleetReader(path) as reader:
        return [offer.contexts.tolist() for offer in reader.offers() if offer.contexts is not None]


@pytest.mark.parametrize(
    "statuses", [["b", "a"], ("b", "a"), {"b": None, "a": None}, np.array(["b", "a"]), dict.fromkeys(("b", "a")).keys()]
)
@pytest.mark.parametrize("model_size", [20.0, 300.0])
def test_ids_alone_give_the_default_features(open_fleet: OpenFleet, statuses: Any, model_size: float) -> None:
    """The defaults are one core and a transfer of 7.5 seconds, whatever the size of the model."""
    scheduler = open_fleet(model_size=model_size)
    assert play_round(scheduler, statuses) == ["b", "a"]
    assert play_round(scheduler, statuses) == ["b", "a"]
    expected = [[[1.0, 1.0, 7.5]] * 2, [[1.0, 0.0, 7.5]] * 2]
    np.testing.assert_allclose(contexts_in(scheduler), expected, rtol=1e-15)
    assert offers_of(scheduler.path) == contexts_in(scheduler)


@pytest.mark.parametrize("statuses", [{"c", "b", "a"}, frozenset("abc")])
def test_a_set_of_ids_joins_in_sorted_order(open_fleet: OpenFleet, statuses: Any) -> None:
    scheduler = open_fleet()
    scheduler.choose(statuses)
    assert scheduler.clients == ["a", "b", "c"]


def test_known_and_unknown_statuses_can_be_mixed(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    play_round(scheduler, {"a": None, "b": ClientStatus(2.0, 4.0)})
    assert contexts_in(scheduler) == [[[1.0, 1.0, 7.5], [0.5, 1.0, 5.0]]]
    assert packed(scheduler) == packed_from_disk(scheduler.path)


@pytest.mark.parametrize("model_size", [1e-6, 1e10])
def test_the_default_bandwidth_stays_within_its_range(open_fleet: OpenFleet, model_size: float) -> None:
    scheduler = open_fleet(model_size=model_size)
    assert play_round(scheduler, ["a"]) == ["a"]
    low, high = BANDWIDTH_RANGE
    assert contexts_in(scheduler)[0][0][2] == model_size / (low if model_size < 1 else high)


def test_declared_defaults_are_stored_and_used_after_a_restart(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(features=Features.of(replace(BATTERY, default=0.5), replace(TEMPERATURE, default=20)))
    play_round(scheduler, ["a"])
    scheduler.close()
    reopened = open_fleet()
    play_round(reopened, ["a", "b"])
    assert contexts_in(reopened) == [[[0.5, 20.0]], [[0.5, 20.0], [0.5, 20.0]]]


def test_computed_features_use_the_defaults_that_are_passed(open_fleet: OpenFleet) -> None:
    battery, temperature = replace(BATTERY, default=0.5), replace(TEMPERATURE, default=lambda model_size: model_size)
    features = Features.of(battery, temperature, compute=warm_contexts, outputs=2)
    scheduler = open_fleet(features=features)
    play_round(scheduler, ["a"])
    assert contexts_in(scheduler) == [[[10.0, 120.0]]]
    scheduler.close()
    without_defaults = open_fleet(features=WARM)
    with pytest.raises(OfferError, match="the feature 'battery' has no default"):
        without_defaults.choose(["a"])


@pytest.mark.parametrize("default", [-0.1, 1.1, float("nan")])
def test_a_default_outside_the_range_is_refused(default: float) -> None:
    with pytest.raises(SettingError, match="default of battery must be"):
        replace(BATTERY, default=default)


def played(open_fleet: OpenFleet, who: Who, *, hinted: bool, seed: int = 0) -> tuple[int, float]:
    return play(open_fleet(f"{who}-{hinted}-{seed}.turnout", **FLEET), who, hinted=hinted, seed=seed)


@pytest.mark.parametrize(
    ("who", "hinted", "seeds"),
    [
        ("everybody", True, 1),
        ("one", False, 1),
        *(
            pytest.param(who, hinted, 4, marks=pytest.mark.thorough)
            for who in ("one", "round", "everybody")
            for hinted in (True, False)
        ),
    ],
)
def test_fast_clients_keep_their_turns_and_rounds_their_length_after_cold_starts(
    open_fleet: OpenFleet, who: Who, hinted: bool, seeds: int
) -> None:
    turns, seconds = np.mean([played(open_fleet, who, hinted=hinted, seed=seed) for seed in range(seeds)], axis=0)
    warm = np.mean([played(open_fleet, "nobody", hinted=False, seed=seed) for seed in range(seeds)], axis=0)
    if hinted or who == "one":
        assert turns >= 0.9 * warm[0]
        assert seconds <= 1.05 * warm[1]
    else:  # without a hint, the start-ups of most clients cannot be told from slow clients
        assert turns < 0.7 * warm[0]


def restart(scheduler: Scheduler, open_fleet: OpenFleet) -> Scheduler:
    scheduler.close()
    return open_fleet(scheduler.path)


@pytest.mark.parametrize("persisted", [True, False])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_a_cold_turn_teaches_nothing_whether_the_client_arrives_fails_or_is_late(
    open_fleet: OpenFleet, persisted: bool, concurrency: int | None
) -> None:
    settings = {"guaranteed_rate": "1/20"} if concurrency else {"cohort_size": 3, "guaranteed_rate": 0.1}
    options: dict[str, Any] = {"settings": settings, "concurrency": concurrency, "persist_statuses": persisted}
    scheduler = open_fleet(deadline=60.0, **options)
    world, clients = World(5), named(5)
    if concurrency:
        given = [turn.id for turn in scheduler.fill(world.statuses(1), cold=set(clients))]
        scheduler = restart(scheduler, open_fleet)
        scheduler.report(given[0], 30.0)
        scheduler.report_failure(given[1], "its battery died")
        warm = scheduler.fill(world.statuses(2), cold=clients[3:])[:1]
        scheduler.report(warm[0].id, 4.0)
        scheduler.fill({})
    else:
        first = scheduler.choose(world.statuses(1), cold=set(clients))
        scheduler = restart(scheduler, open_fleet)
        scheduler.report(first[0], 30.0)
        scheduler.report_failure(first[1], "its battery died")
        scheduler.close_round(after=50.0)
        scheduler.report(first[2], 70.0, round=1)  # late, and cold
        assert not state_of(scheduler).fleet.counters.learned.any()
        cohort = scheduler.choose(world.statuses(2), cold=clients[3:])
        scheduler.report_many(dict.fromkeys(cohort, 4.0))
        scheduler.close_round()
    model = state_of(scheduler).fleet.model
    assert model is not None
    assert model.predict([[1.0, 0.0, 1.0]] * 5).max() < 5.0
    assert problems(scheduler.path) == []
    if persisted:
        assert packed(scheduler) == packed_from_disk(scheduler.path)


@pytest.mark.files
def test_a_cold_start_is_replayed_and_exported_and_its_context_is_in_the_offer_only(open_fleet: OpenFleet) -> None:
    world = World(5)
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline=60.0)
    for number in range(1, 9):
        statuses = world.statuses(number)
        cohort = scheduler.choose(statuses, cold=["c0"] if number % 3 == 1 else [])
        scheduler.report_many({client: world.seconds(number, client, statuses[client]) for client in cohort})
        scheduler.close_round()
    take_snapshot(scheduler)
    contexts = next(event["contexts"] for event in exported(scheduler) if event["kind"] == "round")
    assert contexts[0] is None
    assert len(contexts[1]) == 3
    assert any("give the same state as all events" in finding.message for finding in examine(scheduler.path))
    recording = read_recording(scheduler.path)
    assert len(recording.columns) == 8  # rounds with a cold start are replayed, too
    assert not np.isnan(recording.columns.contexts).any()


def test_a_client_that_always_starts_cold_has_a_time_from_its_second_turn_on(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 1, "guaranteed_rate": 0.1}, deadline=60.0)
    for _ in range(2):
        scheduler.choose(["a"], cold=["a"])
        assert predicted_seconds(scheduler) == {}
        scheduler.report("a", 20.0)
        scheduler.close_round()
    scheduler.choose(["a"])
    assert predicted_seconds(scheduler)["a"] > 10.0


def test_an_automatic_deadline_waits_for_a_cold_start(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline="auto", deadline_ceiling=900.0)
    for _ in range(3):
        play_round(scheduler, ["a", "b"], {"a": 2.0, "b": 2.0})
    deadlines = []
    for cold in ([], ["b"]):
        scheduler.choose(["a", "b"], cold=cold)
        assert scheduler.open_round is not None
        deadlines.append(scheduler.open_round.deadline)
        scheduler.abandon_round()
    assert (deadlines[0] or 0.0) < 9.0
    assert deadlines[1] == 900.0


def test_cold_must_be_a_collection_of_ids(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(deadline=60.0)
    with pytest.raises(OfferError, match="cold must be a list or a set of client ids, got 'c0'"):
        scheduler.choose(named(3), cold="c0")
    assert scheduler.open_round is None


def test_no_predicted_time_is_negative(open_fleet: OpenFleet) -> None:
    """Times that fall while a feature grows make the regression negative where the feature is large."""
    scheduler = open_fleet(settings={"cohort_size": 1, "guaranteed_rate": 0.1}, deadline="auto")
    for bandwidth, seconds in ((2.0, 9.0), (4.0, 0.5)) * 15:
        play_round(scheduler, {"a": {"free_cpu": 1.0, "bandwidth": bandwidth}}, {"a": seconds})
    scheduler.choose({"a": {"free_cpu": 1.0, "bandwidth": 40.0}})
    model, opened = state_of(scheduler).fleet.model, scheduler.open_round
    assert model is not None
    assert opened is not None
    assert model.predict(opened.contexts)[0] < 0
    assert predicted_seconds(scheduler) == {"a": 0.0}
    assert opened.deadline == 1.0
