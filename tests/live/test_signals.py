"""Declared signals: recorded with the turns in whose reports they come, and passed to the policy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import fleets
from narrowing import known
from turnout.errors import ReportError, SettingError
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.live._internals import session_of

DECLARED: dict[str, Any] = {"utility": (0, 100), "drift": (-1, 1)}
LEARNING: dict[str, Any] = {
    "settings": {"cohort_size": 4, "guaranteed_rate": 0.1, "value": "utility"},
    "signals": DECLARED,
}


def test_losses_and_signals_are_passed_to_the_policy_when_the_round_is_closed(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4}, signals=DECLARED)
    scheduler.choose(fleets.offered(*"abcd"))
    assert scheduler.report("a", 2.0, loss=0.5, signals={"utility": 3, "drift": -0.5})
    scheduler.report("b", loss=np.float32(0.25), signals={"utility": np.float32(0.25)})  # type: ignore[arg-type, dict-item]
    scheduler.report("c", 3.0)
    scheduler.report_failure("d", "its battery died")
    report = scheduler.close_round().report
    signals = known(report.signals)
    np.testing.assert_array_equal(signals["utility"], [3.0, 0.25, math.nan, math.nan])
    np.testing.assert_array_equal(signals["drift"], [-0.5, math.nan, math.nan, math.nan])
    np.testing.assert_array_equal(known(report.losses), [0.5, 0.25, math.nan, math.nan])
    recorded = [(turn.loss, turn.signals) for turn in scheduler.history(round=1)]
    assert recorded == [(0.5, {"utility": 3.0, "drift": -0.5}), (0.25, {"utility": 0.25}), (None, None), (None, None)]
    assert scheduler.history("a")[0].to_dict()["signals"] == {"utility": 3.0, "drift": -0.5}
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_values_out_of_range_and_nan_count_as_unknown(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4}, signals=DECLARED)
    scheduler.choose(fleets.offered(*"abcd"))
    for client, value in zip("abcd", (-0.001, 100.001, math.nan, math.inf), strict=True):
        assert scheduler.report(client, 2.0, signals={"utility": value})
        assert not scheduler.report(client, 2.0)  # the same report
    assert scheduler.close_round().report.signals is None
    assert [turn.signals for turn in scheduler.history(round=1)] == [None] * 4


@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        ("loss", math.nan, "loss of 'a' must be finite, not nan"),
        ("loss", math.inf, "loss of 'a' must be finite, not inf"),
        ("loss", "low", "loss of 'a' must be a number, not 'low'"),
        ("loss", True, "loss of 'a' must be a number, not True"),
        (
            "signals",
            {"utilty": 1.0},
            r"'a' reports the signal 'utilty' \(did you mean 'utility'\?\), but the fleet declares drift, utility",
        ),
        ("signals", {"loss": 1.0}, "'a' reports the signal 'loss', but"),
        ("signals", {"utility": "high"}, "utility of 'a' must be a number, not 'high'; nothing was recorded"),
        ("signals", {"utility": True}, "utility of 'a' must be a number, not True"),
        ("signals", {"utility": None}, "utility of 'a' must be a number, not None"),
        ("signals", [1.0], r"signals of 'a' must be a mapping, not \[1.0\]"),
    ],
)
def test_unknown_names_and_other_values_than_numbers_are_refused(
    open_fleet: fleets.OpenFleet, kind: str, value: Any, complaint: str
) -> None:
    many, valid = ("losses", 0.5) if kind == "loss" else ("signals", {"utility": 1.0})
    invalid, incomplete = dict[str, Any]({many: {"a": value}}), dict[str, Any]({many: {"a": valid, "b": valid}})
    scheduler = open_fleet(signals=DECLARED)
    scheduler.choose(fleets.offered("a", "b"))
    before = fleets.turns_in(scheduler.path)
    with pytest.raises(ReportError, match=complaint):
        scheduler.report("a", 2.0, **{kind: value})
    with Reporter(scheduler.path) as reporter:
        for reporting in (scheduler, reporter):
            with pytest.raises(ReportError, match=complaint):
                reporting.report_many({"b": 2.0, "a": 2.0}, **invalid)
            with pytest.raises(ReportError, match=f"{many} has 'b', but seconds does not: pass both"):
                reporting.report_many({"a": 2.0}, **incomplete)
    assert fleets.turns_in(scheduler.path) == before


def test_a_fleet_without_declared_signals_accepts_none(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    client, _ = scheduler.choose(fleets.offered("a", "b"))
    with pytest.raises(ReportError, match="but the fleet declares none: amend its setting signals"):
        scheduler.report(client, 2.0, signals={"utility": 1.0})


@pytest.mark.parametrize(
    ("one", "many"),
    [
        pytest.param(lambda value: {"loss": value}, lambda value: {"losses": {"a": value}}, id="a loss"),
        pytest.param(
            lambda value: {"signals": {"utility": value}},
            lambda value: {"signals": {"a": {"utility": value}}},
            id="a signal",
        ),
    ],
)
def test_a_repeated_report_has_no_effect_and_one_with_another_value_is_refused(
    open_fleet: fleets.OpenFleet, one: Callable[[float], Any], many: Callable[[float], Any]
) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3}, signals=DECLARED)
    scheduler.choose(fleets.offered("a", "b", "c"))
    assert scheduler.report("a", 2.0, **one(0.5))
    assert scheduler.report("b", 2.0)
    turns = fleets.turns_in(scheduler.path)
    assert not scheduler.report("a", 2, **one(np.float64(0.5)))
    assert scheduler.report_many({"a": 2.0, "b": 2.0}, **many(0.5)) == 0
    attempts: list[Callable[[], object]] = [
        lambda: scheduler.report("a", 2.0),
        lambda: scheduler.report("a", 2.0, **one(0.6)),
        lambda: scheduler.report("a", 2.0, **one(0.5) | {"signals": {"drift": 0.5}}),
        lambda: scheduler.report("b", 2.0, **one(0.5)),
        lambda: scheduler.report_many({"c": 1.0, "a": 2.0}, **many(0.7)),  # nothing of it is recorded
    ]
    for attempt in attempts:
        with pytest.raises(ReportError, match=r"after 2 s(, (loss|utility) 0\.5)?\): the first report is kept"):
            attempt()
    assert fleets.turns_in(scheduler.path) == turns
    scheduler.close_round(after=5.0)
    assert not scheduler.report("a", 2.0, **one(0.5))
    for attempt in attempts[:4]:
        with pytest.raises(ReportError, match=r"arrived(, (loss|utility) 0\.5)?\): the first report is kept"):
            attempt()


@pytest.mark.parametrize(
    ("fleet", "reported", "learned"),
    [
        pytest.param({"policy": "oort"}, lambda value: {"loss": value}, "policy.losses.values", id="a loss"),
        pytest.param(LEARNING, lambda value: {"signals": {"utility": value}}, "policy.signal.values", id="a signal"),
    ],
)
def test_what_a_late_client_reports_is_recorded_but_not_learned(
    open_fleet: fleets.OpenFleet, fleet: dict[str, Any], reported: Callable[[float], Any], learned: str
) -> None:
    scheduler = open_fleet(**fleet)
    scheduler.choose(fleets.offered("a", "b"))
    scheduler.report("a", 1.0, **reported(2.0))
    scheduler.close_round(after=10.0)
    assert scheduler.report("b", 20.0, **reported(5.0))
    assert not scheduler.report("b", 20.0, **reported(5.0))
    for other in (reported(4.0), dict[str, Any]()):
        with pytest.raises(ReportError, match=r"\(late, after 20 s, (loss|utility) 5\): the first report is kept"):
            scheduler.report("b", 20.0, **other)
    fleets.play_round(scheduler, fleets.offered("a"), 1.0)
    assert scheduler.history("b")[0].to_dict().items() >= reported(5.0).items()
    assert fleets.state_of(scheduler).state()[learned].tolist() == [2.0, -math.inf]
    assert fleets.problems(scheduler.path) == []
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


@pytest.mark.parametrize("persist_statuses", [True, False])
@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_fleet_selects_by_a_signal_also_after_a_restart(
    open_fleet: fleets.OpenFleet, concurrency: int | None, persist_statuses: bool
) -> None:
    rate = 0.1 if concurrency is None else 0.05
    settings = {"guaranteed_rate": rate, "value": "utility", "value_weight": 5.0}
    given: dict[str, Any] = {"settings": settings, "signals": DECLARED, "persist_statuses": persist_statuses}
    if concurrency is None:
        settings["cohort_size"] = 2
    else:
        given["concurrency"] = concurrency
    clients = fleets.named(8)
    utility = {client: 50.0 if client in ("c1", "c5") else 1.0 for client in clients}

    def play(scheduler: Scheduler, rounds: int) -> list[str]:
        chosen: list[str] = []
        for _ in range(rounds):
            if concurrency is None:
                cohort = scheduler.choose(fleets.offered(*clients))
                scheduler.report_many(
                    dict.fromkeys(cohort, 2.0), signals={client: {"utility": utility[client]} for client in cohort}
                )
                scheduler.close_round()
                chosen += cohort
            else:
                for turn in scheduler.fill(fleets.offered(*clients)):
                    scheduler.report(turn.id, 2.0, signals={"utility": utility[turn.client]})
                    chosen.append(turn.client)
        return chosen

    with open_fleet(**given) as scheduler:
        play(scheduler, 12)
        before = fleets.state_of(scheduler).state()["policy.signal.values"].tolist()
        assert set(before) == {1.0, 50.0}
    with open_fleet() as scheduler:
        assert fleets.state_of(scheduler).state()["policy.signal.values"].tolist() == before
        chosen = play(scheduler, 12)
        assert chosen.count("c1") + chosen.count("c5") > len(chosen) / 2  # a quarter of the clients
        assert fleets.problems(scheduler.path) == []


def test_the_explanation_names_the_signal(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**LEARNING)
    clients = fleets.named(8)
    for _ in range(4):
        cohort = scheduler.choose(fleets.offered(*clients))
        signals = {client: {"utility": 1.0 + clients.index(client)} for client in cohort}
        scheduler.report_many(dict.fromkeys(cohort, 2.0), signals=signals)
        scheduler.close_round()
    explanation = scheduler.explain(cohort[0])
    assert explanation.exact
    assert "s for its utility = " in explanation.sentence


@pytest.mark.files
def test_signals_and_losses_are_exported_and_those_of_a_forgotten_client_leave_the_file(
    open_fleet: fleets.OpenFleet, folder: Path
) -> None:
    scheduler = open_fleet(**LEARNING)
    value = 12.34567
    for _ in range(2):
        cohort = scheduler.choose(fleets.offered("a", "b", "c", "d"))
        signals = {client: {"utility": value if client == "b" else 1.0} for client in cohort}
        scheduler.report_many(dict.fromkeys(cohort, 2.0), losses={"b": 0.1234567}, signals=signals)
        scheduler.close_round()
    rounds = [event for event in fleets.exported(scheduler) if event["kind"] == "round"]
    assert json.loads(json.dumps(rounds[0]["signals"], allow_nan=False)) == [
        {"utility": value if c == "b" else 1.0} for c in cohort
    ]
    assert json.loads(json.dumps(rounds[1]["losses"])) == [0.1234567 if c == "b" else None for c in cohort]
    in_text, in_an_array = str(value).encode(), np.float64(value).tobytes()
    before = b"".join(file.read_bytes() for file in folder.iterdir())
    assert in_text in before
    assert in_an_array in before
    scheduler.forget("b")
    after = b"".join(file.read_bytes() for file in folder.iterdir())
    assert in_text not in after
    assert in_an_array not in after
    exports = [event for event in fleets.exported(scheduler) if event["kind"] == "round"]
    assert [event["signals"] for event in exports] == [[None if c == "b" else {"utility": 1.0} for c in cohort]] * 2
    assert [event["losses"] for event in exports] == [[None] * len(cohort)] * 2
    assert {loss for (loss,) in fleets.rows_of(scheduler.path, "SELECT loss FROM turns")} == {None}
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM turns WHERE signals LIKE '%12.3%'") == [(0,)]
    assert fleets.problems(scheduler.path) == []
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_the_doctor_finds_a_signal_that_differs_from_the_event(open_fleet: fleets.OpenFleet) -> None:
    with open_fleet(signals=DECLARED) as scheduler:
        cohort = scheduler.choose(fleets.offered("a", "b"))
        scheduler.report_many(dict.fromkeys(cohort, 2.0), signals={cohort[0]: {"utility": 1.0}})
        scheduler.close_round()
        turn = scheduler.history(cohort[0])[0]
        with session_of(scheduler).journal.writing() as changes:
            changes.put_turns([replace(turn, signals={"utility": 2.0})])
    (problem,) = fleets.problems(scheduler.path)
    assert "ended with the signals {'utility': 1.0}, but is recorded with {'utility': 2.0}" in problem


def test_signals_can_be_amended_as_long_as_the_policy_knows_its_own(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(**LEARNING)
    fleets.play_round(scheduler, fleets.offered("a", "b"), 1.0)
    with pytest.raises(SettingError, match="learns from the signal 'utility'"):
        scheduler.amend(signals={"drift": (0, 1)})
    with pytest.raises(SettingError, match="signals must be a mapping"):
        scheduler.amend(signals=5)  # type: ignore[arg-type]
    with Reporter(scheduler.path) as reporter:
        assert scheduler.amend(signals={"utility": (0, 5), "age": (0, 1)}) == ["signals"]
        assert scheduler.amend(signals={"utility": [0.0, 5.0], "age": [0, 1]}) == []
        scheduler.choose(fleets.offered("a", "b"))
        assert reporter.report("a", 1.0, signals={"utility": 6.0, "age": 0.5})
        assert scheduler.report("b", 1.0, signals={"utility": 4.0})
    assert [turn.signals for turn in scheduler.history(round=2)] == [{"age": 0.5}, {"utility": 4.0}]
    scheduler.close_round()
    with FleetReader(scheduler.path) as reader:
        assert reader.settings.signals == {"utility": [0.0, 5.0], "age": [0.0, 1.0]}
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)


def test_the_policy_gets_no_losses_if_none_were_reported(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    scheduler.report_many(dict.fromkeys(scheduler.choose(fleets.offered("a", "b")), 1.0), losses={})
    assert scheduler.close_round().report.losses is None


def test_the_loss_of_a_surplus_client_is_learned(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(policy="oort", settings={"cohort_size": 2}, overcommit=1.5)
    scheduler.choose(fleets.offered(*"abc"))
    scheduler.report_many({"a": 1.0, "b": 2.0, "c": 3.0}, losses={"c": 7.0})
    report = scheduler.close_round().report
    assert report.outcomes is not None
    assert report.outcomes.tolist() == ["arrived", "arrived", "late"]  # type: ignore[union-attr]  # outcomes are an array here
    assert known(report.losses)[2] == 7.0
