from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from live.fleets import OpenFleet, exported, named, packed, packed_from_disk, play_round
from turnout.errors import OfferError, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.live import ClientStatus, Feature, Features, FleetReader, FleetStatus, Scheduler, features
from turnout.live.features import (
    BANDWIDTH_RANGE,
    DEFAULT_FREE_CPU,
    DEFAULT_TRANSFER_SECONDS,
    PAPER_FEATURES,
    Columns,
    paper_contexts,
)
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


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ({"battery": 1.5, "temperature": 20.0}, r"battery of 'a' must be from 0 to 1 of capacity, got 1.5: correct it"),
        ({"battery": 0.5, "temperature": -41.0}, "temperature of 'a' must be from -40 to 90 °C, got -41"),
        ({"battery": 0.5}, "the status of 'a' has no 'temperature': add temperature \\(°C\\), or pass None"),
        ({"battery": "full", "temperature": 1.0}, "battery of 'a' must be a number, got 'full'"),
        ({"battery": True, "temperature": 1.0}, "battery of 'a' must be a number, got True"),
        ({"battery": None, "temperature": 1.0}, "the status of 'a' has no 'battery'"),
        (ClientStatus(1.0, 1.0), "the status of 'a' has no 'battery'"),
    ],
)
def test_an_invalid_status_is_refused_with_the_client_and_the_feature(
    open_fleet: OpenFleet, status: Any, complaint: str
) -> None:
    scheduler = open_fleet(features=WARM)
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose({"a": status})
    assert scheduler.clients == []


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


def test_unknown_statuses_equal_statuses_with_the_default_values(open_fleet: OpenFleet) -> None:
    unknown, known = open_fleet("unknown"), open_fleet("known")
    for _ in range(5):
        play_round(unknown, ["a", "b", "c"], 3.0)
        play_round(known, dict.fromkeys("abc", ClientStatus(DEFAULT_FREE_CPU, 20.0 / DEFAULT_TRANSFER_SECONDS)), 3.0)
        assert packed(unknown) == packed(known)


@pytest.mark.parametrize("model_size", [1e-6, 1e10])
def test_the_default_bandwidth_stays_within_its_range(open_fleet: OpenFleet, model_size: float) -> None:
    scheduler = open_fleet(model_size=model_size)
    assert play_round(scheduler, ["a"]) == ["a"]
    low, high = BANDWIDTH_RANGE
    assert contexts_in(scheduler)[0][0][2] == model_size / (low if model_size < 1 else high)


@pytest.mark.parametrize("statuses", [["a"], {"a": None}, {"b": {"battery": 0.5, "temperature": 20.0}, "a": None}])
def test_a_custom_feature_without_a_default_needs_a_status(open_fleet: OpenFleet, statuses: Any) -> None:
    scheduler = open_fleet(features=Features.of(replace(BATTERY, default=0.5), TEMPERATURE))
    complaint = r"nothing is known about 'a', and the feature 'temperature' has no default: pass .* default=…"
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose(statuses)
    assert scheduler.clients == []
    assert not scheduler.status().is_open


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


@pytest.mark.parametrize(
    ("statuses", "complaint"),
    [
        ("abc", "statuses must be a mapping of ids to statuses, a list of ids or a FleetStatus, got 'abc'"),
        (5, "statuses must be a mapping .*, got 5"),
        ([5], "client ids must be non-empty strings without null characters, got 5"),
        ([""], "client ids must be non-empty strings without null characters, got ''"),
        ([{"free_cpu": 1.0}], "client ids must be non-empty strings without null characters, got {'free_cpu'"),
    ],
)
def test_anything_but_a_collection_of_clients_is_refused(open_fleet: OpenFleet, statuses: Any, complaint: str) -> None:
    scheduler = open_fleet()
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose(statuses)
    assert scheduler.clients == []


@pytest.mark.parametrize("default", [-0.1, 1.1, float("nan")])
def test_a_default_outside_the_range_is_refused(default: float) -> None:
    with pytest.raises(SettingError, match="default of battery must be"):
        replace(BATTERY, default=default)
