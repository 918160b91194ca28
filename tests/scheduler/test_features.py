from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.fleets import OpenFleet, packed, packed_from_disk, play_round
from turnout.errors import OfferError, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.scheduler import ClientStatus, Feature, Features, FleetReader, Scheduler
from turnout.scheduler.features import Columns

BATTERY = Feature("battery", 0.0, 1.0, "of a full one")
TEMPERATURE = Feature("temperature", -40.0, 90.0, "°C", source="server")


def warm_contexts(columns: Columns) -> Sequence[FloatArray]:
    """Two features from two numbers, and from what the server knows."""
    return columns["battery"] * columns["model_size"], columns["temperature"] + 100 * columns["needs_cold_start"]


WARM = Features.of(BATTERY, TEMPERATURE, compute=warm_contexts, outputs=2)


def contexts_in(scheduler: Scheduler) -> list[list[list[float]]]:
    return [event["contexts"] for event in scheduler.export() if event["kind"] == "round"]


def test_the_papers_features_are_the_default(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(model_size=30.0)
    for _ in range(2):
        play_round(scheduler, {"a": ClientStatus(0.5, 3.0), "b": {"free_cpu": 2, "bandwidth": np.float32(6)}})
    play_round(scheduler, {"b": ClientStatus(1.0, 1.0)})
    play_round(scheduler, {"a": ClientStatus(1.0, 1.0), "b": ClientStatus(1.0, 1.0)})
    assert contexts_in(scheduler) == [
        [[2.0, 1.0, 10.0], [0.5, 1.0, 5.0]],
        [[2.0, 0.0, 10.0], [0.5, 0.0, 5.0]],  # both have trained in the round before
        [[1.0, 0.0, 30.0]],
        [[1.0, 1.0, 30.0], [1.0, 0.0, 30.0]],
    ]


def test_who_was_late_or_failed_needs_a_cold_start_again(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    status = {"a": ClientStatus(1.0, 2.0), "b": ClientStatus(1.0, 2.0)}
    play_round(scheduler, status)
    scheduler.choose(status)
    scheduler.failed("a", "its battery died")
    scheduler.close_round()
    play_round(scheduler, status)
    assert [context[1] for context in contexts_in(scheduler)[2]] == [1.0, 1.0]


def test_declared_numbers_are_the_features_where_nothing_computes_them(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, TEMPERATURE))
    play_round(scheduler, {"a": {"battery": 0.5, "temperature": 20, "colour": "red"}})
    assert contexts_in(scheduler) == [[[0.5, 20.0]]]
    scheduler.close()
    again = open_fleet()  # all of it is in the file
    assert again.features == Features.of(BATTERY, TEMPERATURE)
    play_round(again, {"a": {"battery": 0.25, "temperature": 30.0}})
    assert contexts_in(again)[1] == [[0.25, 30.0]]
    assert packed(again) == packed_from_disk(folder / "fleet.turnout")


def test_a_function_makes_features_of_statuses_and_must_be_given_again(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(features=WARM)
    play_round(scheduler, {"a": {"battery": 0.5, "temperature": 20.0}})
    play_round(scheduler, {"a": {"battery": 0.5, "temperature": 20.0}})
    assert contexts_in(scheduler) == [[[10.0, 120.0]], [[10.0, 20.0]]]
    scheduler.close()
    path = folder / "fleet.turnout"
    with pytest.raises(SettingError, match="features that a function computes: open it with the same features=…"):
        Scheduler.open(path)
    for other in (Features(), Features.of(BATTERY), Features.of(BATTERY, TEMPERATURE)):
        with pytest.raises(
            SettingError, match=r"was created with other features .*: open it with those, or create a new fleet"
        ):
            Scheduler.open(path, features=other)
    with Scheduler.open(path, read_only=True) as reader:  # to read, the function is not needed
        assert reader.round == 2
        before = packed(reader)
    again = open_fleet(features=WARM)
    assert packed(again) == before
    assert play_round(again, {"a": {"battery": 1.0, "temperature": 20.0}}) == ["a"]


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ({"battery": 1.5, "temperature": 20.0}, r"battery of 'a' is 1.5, allowed is 0 to 1 of a full one: correct it"),
        ({"battery": 0.5, "temperature": -41.0}, "temperature of 'a' is -41, allowed is -40 to 90 °C"),
        ({"battery": 0.5}, "the status of 'a' has no 'temperature': give temperature, °C"),
        ({"battery": "full", "temperature": 1.0}, "battery of 'a' must be a number, not 'full'"),
        ({"battery": True, "temperature": 1.0}, "battery of 'a' must be a number, not True"),
        ({"battery": None, "temperature": 1.0}, "the status of 'a' has no 'battery'"),
        (ClientStatus(1.0, 1.0), "the status of 'a' has no 'battery'"),
    ],
)
def test_a_status_that_is_not_as_declared_is_refused_by_name(
    open_fleet: OpenFleet, status: Any, complaint: str
) -> None:
    scheduler = open_fleet(features=WARM)
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose({"a": status})
    assert scheduler.clients == []


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        ([[1.0]], "compute gave 1 features, expected are 2"),
        ([[1.0], [1.0, 2.0]], r"compute gave shape \(2,\) for feature 1, expected is \(1,\)"),
        ([[1.0], [np.nan]], r"contexts\[0, 1\] = nan must be finite"),
        ([[1e9], [1.0]], r"contexts\[0, 0\] = 1000000000.0 must lie within ±1e\+06"),
    ],
)
def test_a_function_that_makes_nonsense_is_refused(open_fleet: OpenFleet, made: list[Any], complaint: str) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, compute=lambda _: made, outputs=2))
    with pytest.raises(OfferError, match=complaint):
        scheduler.choose({"a": {"battery": 1.0}})
    assert scheduler.clients == []
    assert not scheduler.status().is_open


def test_a_constant_feature_may_be_one_number_for_all(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(features=Features.of(BATTERY, compute=lambda known: [known["battery"], 1.0], outputs=2))
    play_round(scheduler, {"a": {"battery": 0.5}, "b": {"battery": 0.25}})
    assert contexts_in(scheduler) == [[[0.5, 1.0], [0.25, 1.0]]]


@pytest.mark.parametrize(
    ("declare", "complaint"),
    [
        (lambda: Features.of(), "features need different names, at least one: there are none"),
        (lambda: Features.of(BATTERY, BATTERY), "features need different names, at least one: battery, battery"),
        (
            lambda: Features.of(BATTERY, outputs=2),
            "outputs must be 1, the number of declared features, or give compute",
        ),
        (lambda: Feature("x", 2, 1), "high of x must be at least 2, not 1"),
        (lambda: Feature("x", float("nan"), 1), "low of x must be finite"),
        (lambda: Feature("x", 0, 1, source="guess"), "source of x must be 'client' or 'server', not 'guess'"),  # type: ignore[arg-type]
    ],
)
def test_features_that_cannot_be_are_refused(declare: Any, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        declare()


def test_a_choice_computes_the_contexts_once(open_fleet: OpenFleet) -> None:
    """The offer on record holds the contexts that the policy was given, not a second computation of them."""
    drawn: list[float] = []

    def compute(columns: Columns) -> Sequence[FloatArray]:
        drawn.append(float(len(drawn)))
        return [columns["battery"] + drawn[-1]]

    scheduler = open_fleet(features=Features.of(BATTERY, compute=compute, outputs=1))
    for _ in range(3):
        play_round(scheduler, {"a": {"battery": 0.0}, "b": {"battery": 0.0}, "c": {"battery": 0.0}})
    assert drawn == [0.0, 1.0, 2.0]
    with FleetReader(scheduler.path) as reader:
        offers = [offer.contexts for offer in reader.offers()]
    assert [None if contexts is None else contexts.tolist() for contexts in offers] == [[[one]] * 3 for one in drawn]
