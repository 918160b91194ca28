"""The ledger compared with independent readings of the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.readings import (
    FOREVER,
    assert_same_certificate,
    audit_of,
    fleet_ledger,
    random_columns,
    run_source,
    write_random_run,
)
from dashboard.served import Stored, play_rounds, run_store, small_fleet
from lab.analysis.records import owed_by_queues
from live import restless_server
from live.fleets import named, offered, play_round, predicted_seconds, take_snapshot
from narrowing import known
from turnout.dashboard.sources.columns import CHANGE_THRESHOLD, ChangeDetector
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.sources.run import RunSource
from turnout.dashboard.views.clients import turns_and_availability
from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.lab import RoundColumns, RunStore
from turnout.lab.analysis.promise import owed_after_each_round
from turnout.live import FleetReader, Scheduler
from turnout.live.journal import changes
from turnout.policies.registry import make_policy, with_defaults

RATE = Fraction(1, 6)  # guaranteed rate of small_fleet


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunStore, Stored]]:
    path = tmp_path_factory.mktemp("ledger") / "runs.turnout"
    stored = run_store(path)
    with RunStore(path, read_only=True) as store:
        yield store, stored


def all_rows(ledger: Ledger) -> Any:
    return np.arange(ledger.clients)


# Runs


def test_the_ledger_of_a_run_equals_its_record(runs: tuple[RunStore, Stored]) -> None:
    store, stored = runs
    for run in (*stored.fast, *stored.random, *stored.fedcs, *stored.training, stored.unfinished):
        ledger, columns = run_source(store, run).ledger, store.columns(run)
        assert (len(ledger), ledger.last_round, ledger.clients) == (len(columns), len(columns), columns.clients)
        np.testing.assert_array_equal(ledger.starts, columns.starts)
        np.testing.assert_array_equal(ledger.turn_column("chosen"), columns.chosen)
        np.testing.assert_array_equal(ledger.turn_column("times"), columns.exchange_times)
        np.testing.assert_array_equal(ledger.round_column("seconds"), columns.durations)
        np.testing.assert_array_equal(ledger.counters["turns"], columns.turns)
        assert columns.available is not None
        np.testing.assert_array_equal(ledger.round_column("available_count"), columns.available.sum(axis=1))
        np.testing.assert_array_equal(ledger.counters["offered"], columns.available.sum(axis=0))
        for row in range(columns.clients):
            mine = np.flatnonzero(columns.chosen_mask[:, row])
            assert ledger.counters["last_round"][row] == (mine[-1] + 1 if len(mine) else 0)
            times = columns.exchange_times[columns.chosen == row]
            np.testing.assert_allclose(ledger.mean_seconds()[row], times.mean() if len(times) else np.nan)


def test_reasons_follow_their_clients_in_any_order_of_reports(folder: Path) -> None:
    rng = np.random.default_rng(4)
    records = []
    for round_ in range(1, 9):
        chosen, back = rng.permutation(10)[:4], rng.permutation(4)
        reasons = {"optimistic": chosen + 0.5, "owed": chosen * 10.0, "threshold": np.array(7.0)}
        report = RoundReport(round_, chosen[back], rng.random((4, 3)), (chosen[back] + 1).astype(np.float64))
        records.append(RoundRecord(Selection(round_, chosen, reasons), report))
    columns = RoundColumns.from_records(records, clients=10)
    with RunStore(folder / "runs.turnout") as store:
        ledger = run_source(store, write_random_run(store, "rbcsf", {"cohort_size": 4}, columns)).ledger
    rows = ledger.turn_column("chosen")
    np.testing.assert_array_equal(ledger.turn_column("times"), rows + 1.0)
    np.testing.assert_array_equal(ledger.turn_column("optimistic"), rows + 0.5)
    np.testing.assert_array_equal(ledger.turn_column("owed"), rows * 10.0)
    assert set(ledger.round_column("threshold").tolist()) == {7.0}


def test_summaries_of_debts_by_round_and_the_certificate_of_a_run(runs: tuple[RunStore, Stored]) -> None:
    store, stored = runs
    for run in (*stored.fast, *stored.fair, stored.training[0], stored.unfinished):
        ledger, columns = run_source(store, run).ledger, store.columns(run)
        expected = owed_after_each_round(columns, 0.15)
        series = ledger.fairness_series
        np.testing.assert_array_equal(series["rounds"], columns.rounds)
        np.testing.assert_array_equal(series["worst"], expected.max(axis=1))
        np.testing.assert_allclose(series["mean"], expected.mean(axis=1))
        np.testing.assert_array_equal(series["p95"], np.percentile(expected, 95, axis=1, method="lower"))
        shares = np.cumsum(columns.chosen_mask, axis=0) / columns.rounds[:, None]
        np.testing.assert_array_equal(series["least_share"], shares.min(axis=1))
        np.testing.assert_array_equal(ledger.shares(), shares[-1])
        result = known(ledger.certificate())
        assert result.books_balance
        np.testing.assert_array_equal(result.owed, expected[-1])
        np.testing.assert_array_equal(result.turns, columns.turns)
        np.testing.assert_allclose(result.promised, 0.15 * len(columns))


def test_a_run_read_in_small_steps_gives_the_same_ledger(runs: tuple[RunStore, Stored]) -> None:
    """Each catch-up reads at least one chunk."""
    store, stored = runs
    whole = run_source(store, stored.fast[0])
    (info,) = (info for info in store.runs() if info.id == stored.fast[0])
    stepwise, progress = RunSource(store, info), []
    while stepwise.reading is not None:
        progress.append(stepwise.reading)
        stepwise.catch_up(-1.0)
    assert progress == [{"done": done, "of": 60} for done in (0, 25, 50)]
    np.testing.assert_array_equal(stepwise.ledger.turn_column("predicted"), whole.ledger.turn_column("predicted"))
    np.testing.assert_array_equal(stepwise.ledger.fairness_series["worst"], whole.ledger.fairness_series["worst"])


# Debts for every guarantee


def trained_policy(name: str, policy_settings: Mapping[str, Any], columns: RoundColumns) -> Any:
    """Returns the policy after all reports."""
    policy = make_policy(
        name, columns.clients, **with_defaults(name, dict(policy_settings), {"seed": 0, "allow_infeasible": True})
    )
    for record in columns.records():
        policy.tell(record.report)
    return policy


def test_debts_of_a_wrapped_policy_are_exact(folder: Path) -> None:
    columns = random_columns(40, 10, seed=5, failures=0.0)
    inside = {"policy": "rbcsf", "settings": {"cohort_size": 3, "guaranteed_rate": 0.1}}
    guarded = {"policy": "with-guarantee", "settings": {"policy": "random", "settings": {"cohort_size": 3}}}
    cases = [("cool-down", {**inside, "rounds": 1}), ("cool-down", {**guarded, "rounds": 1})]
    with RunStore(folder / "runs.turnout") as store:
        for name, case in cases:
            source = run_source(store, write_random_run(store, name, case, columns))
            assert source.last_error is None
            queues, policy = source.ledger.queues, trained_policy(name, case, columns)
            assert queues is not None
            np.testing.assert_array_equal(queues.owed, policy.debts.owed)


@st.composite
def guarantees(draw: st.DrawFn) -> dict[str, Any]:
    """Generates the settings of a guarantee, with one rate or one for each of ten clients."""
    rates = st.fractions(0, 1, max_denominator=12).map(str)
    floats = st.sampled_from([0.0, 0.05, 0.125, 0.15, 0.5])
    return {
        "guaranteed_rate": draw(st.one_of(rates, floats, st.lists(floats, min_size=10, max_size=10))),
        "accrual": draw(st.sampled_from(["always", "available"])),
        "max_owed": draw(st.one_of(st.none(), st.floats(0.25, 3))),
        "counts": draw(st.sampled_from(["selected", "completed"])),
    }


@pytest.mark.thorough
@given(st.integers(0, 30), st.integers(0, 10**6), st.sampled_from(["rbcsf", "with-guarantee"]), guarantees())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_debts_and_certificate_of_any_run(rounds: int, seed: int, name: str, rule: dict[str, Any]) -> None:
    columns, expected = random_columns(rounds, 10, seed=seed, cohort=2), np.empty((0, 10))
    inside = {"policy": "random", "settings": {"cohort_size": 2}, "urgency": 0.25}
    case = {**({"cohort_size": 2} if name == "rbcsf" else inside), **rule}
    with TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        if rounds:
            run = write_random_run(store, name, case, columns)
            outcomes = ("arrived",) if rule["counts"] == "completed" else ("arrived", "late", "failed")
            rules = {"accrual": rule["accrual"], "max_owed": rule["max_owed"], "counted_outcomes": outcomes}
            expected = owed_by_queues(columns, rule["guaranteed_rate"], **rules)
        else:
            run = store.begin("empty", {"policy": name, "settings": case}, clients=10, code_version="test")
        source = run_source(store, run)
    assert source.last_error is None
    np.testing.assert_allclose(source.ledger.fairness_series["worst"], expected.max(axis=1))
    np.testing.assert_allclose(source.ledger.fairness_series["mean"], expected.mean(axis=1))
    certificate = trained_policy(name, case, columns).certificate()
    assert_same_certificate(source.ledger.certificate(), certificate, since=False)
    assert source.ledger.counts == rule["counts"]


# Fleets

Fleet = Callable[[Path], tuple[Fraction, dict[str, Any]]]


def eventful(path: Path) -> tuple[Fraction, dict[str, Any]]:
    small_fleet(path, rounds=36)
    return RATE, {"cap": 210}


def paid_when_chosen(path: Path) -> tuple[Fraction, dict[str, Any]]:
    rules = {"cohort_size": 3, "guaranteed_rate": "1/5", "accrual": "always", "counts": "selected", "max_owed": 30}
    small_fleet(path, rounds=30, settings=rules)
    return Fraction(1, 5), {
        "cap": 30,
        "accrual": "always",
        "counts": ("arrived", "redundant", "cut_off", "late", "failed"),
    }


def guaranteed(path: Path) -> tuple[Fraction, dict[str, Any]]:
    inside = {"policy": "random", "settings": {"cohort_size": 3}}
    rules = {**inside, "guaranteed_rate": "1/7", "accrual": "available", "counts": "completed", "max_owed": 4}
    small_fleet(path, rounds=30, policy="with-guarantee", settings=rules)
    return Fraction(1, 7), {"cap": 4}


def restless(path: Path) -> tuple[Fraction, dict[str, Any]]:
    """Writes a fleet in which clients join, leave, are forgotten and return late, and selections are abandoned."""
    restless_server.play(str(path), 40)
    return Fraction(1, 9), {"cap": 10 + 2 * 10}


FLEETS = [eventful, paid_when_chosen, guaranteed, restless]


@pytest.mark.parametrize("make", FLEETS)
def test_the_ledger_of_a_fleet_equals_its_scheduler(folder: Path, make: Fleet) -> None:
    path = folder / "fleet.turnout"
    rate, rules = make(path)
    audit = audit_of(path, rate, **rules)
    assert set(audit.outcomes) >= {"arrived", "late", "failed"}, "the fleet must have all of these outcomes"
    source, ledger = fleet_ledger(path)
    with closing(source), FleetReader(path) as scheduler:
        ids = [source.id_of(row) for row in range(ledger.clients)]
        rows = all_rows(ledger)
        assert ids == audit.ids
        assert [source.row_of(client) for client in ids] == rows.tolist()
        assert len(ledger) == len(audit.durations)
        for name, expected_counts in (
            ("turns", audit.turns),
            ("offered", audit.offered),
            ("last_round", audit.last_round),
            ("joined", audit.joined),
        ):
            assert dict(zip(ids, ledger.counters[name].tolist(), strict=True)) == expected_counts, name
        np.testing.assert_array_equal(ledger.round_column("seconds"), audit.durations)
        np.testing.assert_array_equal(
            ledger.round_column("available_count"), [len(present) for present in audit.present]
        )
        chosen = np.split(ledger.turn_column("chosen"), ledger.starts[1:-1])
        assert [[ids[row] for row in rows.tolist()] for rows in chosen] == audit.cohorts
        assert_same_certificate(ledger.certificate(), scheduler.certificate(), since=False)
        np.testing.assert_array_equal(known(ledger.queues).owed, scheduler.certificate().owed)
        if not ledger.retired.any():
            worst = [float(max(debts.values())) for debts in audit.debts]
            np.testing.assert_allclose(ledger.fairness_series["worst"], worst)
        available = [len([present for present in audit.present if client in present]) for client in ids]
        counts, share, _, edges = turns_and_availability(ledger, rows)
        assert counts.sum(axis=0).tolist() == [audit.turns[client] for client in ids]
        assert share is not None
        np.testing.assert_allclose((share * np.diff(edges)[:, None]).sum(axis=0), available)
        state = scheduler.state().state()
        np.testing.assert_array_equal(ledger.retired, np.array(state["clients.retired"]) > 0)
        for name in ("arrived", "lost"):
            np.testing.assert_array_equal(getattr(ledger.history, name), state[f"clients.{name}"])
        if make is not guaranteed:  # without a model the scheduler has no suspects, but the ledger trains a model
            assert [
                ids[row] for row in np.flatnonzero(ledger.history.suspects()).tolist()
            ] == scheduler.status().suspects


def test_clients_that_were_registered_in_many_calls_join_together(folder: Path) -> None:
    """Each time, all arrays are copied: a million clients are registered in 50 events."""
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"guaranteed_rate": "1/20"}, concurrency=2) as scheduler:
        for client in named(6):
            scheduler.register([client])
        scheduler.fill(named(6))
        for client in ("x", "y", "z"):
            scheduler.register([client])
    with patch.object(Ledger, "join", autospec=True, side_effect=Ledger.join) as join:
        source, ledger = fleet_ledger(path)
    with closing(source):
        assert [call.args[1] for call in join.call_args_list] == [6, 3]
        assert [source.id_of(row) for row in range(ledger.clients)] == [*named(6), "x", "y", "z"]
        assert ledger.counters["joined"].tolist() == [0] * 6 + [2] * 3
        assert [change["id"] for change in source.events(20)] == ["x", "y", "z", *named(6)]


def test_predictions_of_a_fleet_equal_those_of_the_scheduler(folder: Path) -> None:
    path, scheduler_predictions = folder / "fleet.turnout", []
    with Scheduler.open(path, settings={"cohort_size": 3}, deadline=9.0, allow_infeasible=True) as scheduler:
        for round_ in range(1, 31):
            rng = np.random.default_rng(round_)
            available = [client for client in named(8) if rng.random() < 0.8]
            chosen = scheduler.choose({**offered(*available, free_cpu=float(rng.uniform(0.5, 2)))})
            scheduler_predictions.append(predicted_seconds(scheduler))
            scheduler.report_many({client: float(rng.uniform(1, 8)) for client in chosen[: 3 if round_ % 4 else 2]})
            scheduler.close_round()
    source, ledger = fleet_ledger(path)
    with closing(source):
        rounds = ledger.round_of_each_turn
        results: list[dict[str, float]] = [{} for _ in scheduler_predictions]
        for row, round_, seconds in zip(
            ledger.turn_column("chosen"), rounds, ledger.turn_column("predicted"), strict=True
        ):
            if np.isfinite(seconds):
                results[round_ - 1][source.id_of(int(row))] = float(seconds)
    for mine, theirs in zip(results, scheduler_predictions, strict=True):
        assert set(mine) <= set(theirs)  # clients that were always late train the model, but have no known times
        for client, seconds in mine.items():
            assert seconds == pytest.approx(theirs[client])
    assert sum(map(len, results)) > 40


@pytest.mark.parametrize("make", [eventful, *(pytest.param(make, marks=pytest.mark.thorough) for make in FLEETS[1:])])
def test_a_fleet_without_old_masks_has_summaries_of_debts_since_its_snapshot(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Fleet
) -> None:
    path, calm = folder / "fleet.turnout", folder / "calm.turnout"
    rate, rules = make(calm)
    monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
    make(path)  # deterministic: plays the same rounds again
    if make is not restless:
        with Scheduler.open(path) as scheduler:
            if scheduler.open_round is not None:
                scheduler.close_round()
            take_snapshot(scheduler)
            play_rounds(scheduler, 12, scheduler.clients)
        with Scheduler.open(calm) as scheduler:
            if scheduler.open_round is not None:
                scheduler.close_round()
            play_rounds(scheduler, 12, scheduler.clients)
    audit = audit_of(calm, rate, **rules)
    source, ledger = fleet_ledger(path)
    with closing(source), FleetReader(path) as scheduler:
        rounds, known_rounds = len(audit.durations), ledger.fairness_series["rounds"].astype(int).tolist()
        since = known_rounds[0] - 1
        assert 0 < since < rounds
        assert_same_certificate(ledger.certificate(), scheduler.certificate(), since=False)
        ids = audit.ids
        assert known_rounds == list(range(since + 1, rounds + 1))
        worst = [max(float(owed) for owed in debts.values()) for debts in audit.debts]
        np.testing.assert_allclose(ledger.fairness_series["worst"], worst[since:])
        assert dict(zip(ids, ledger.counters["turns"].tolist(), strict=True)) == audit.turns
        stay = [client for client in ids if not client.startswith("forgotten")]
        available = dict(zip(ids, ledger.counters["offered"].tolist(), strict=True))
        assert {client: available[client] for client in stay} == {client: audit.offered[client] for client in stay}
        assert turns_and_availability(ledger, all_rows(ledger))[1] is None
        if make is not guaranteed:  # without a model the scheduler has no suspects, but the ledger trains a model
            assert [
                ids[row] for row in np.flatnonzero(ledger.history.suspects()).tolist()
            ] == scheduler.status().suspects


def test_the_ledger_and_the_scheduler_suspect_the_same_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reports varying contexts while its times stay the same."""
    for name, kept in (("small.turnout", 100), ("large.turnout", 3)):
        monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", kept)
        path = folder / name
        with Scheduler.open(path, settings={"cohort_size": 4}, deadline=90.0, allow_infeasible=True) as scheduler:
            for round_ in range(1, 41):
                factor = float(np.exp(np.random.default_rng(round_).uniform(-2.3, 2.3)))
                liar = offered("liar", free_cpu=factor, bandwidth=3.0 * factor)
                play_round(scheduler, {**offered("a", "b", "c", bandwidth=3.0), **liar}, 5.0)
                if round_ == 25:
                    take_snapshot(scheduler)
            expected = scheduler.status().suspects
        source, ledger = fleet_ledger(path)
        with closing(source):
            assert (ledger.fairness_series["rounds"][0] > 1) == (kept == 3)
            suspects = [source.id_of(row) for row in np.flatnonzero(ledger.history.suspects()).tolist()]
            assert suspects == expected == ["liar"]


def test_flags_cover_only_the_clients_read_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet restored from its snapshot knows all clients before the ledger has read their events."""
    monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
    path, rules = folder / "fleet.turnout", {"cohort_size": 1, "guaranteed_rate": "1/8", "accrual": "always"}
    with Scheduler.open(path, settings=rules, deadline=90.0, allow_infeasible=True) as scheduler:
        scheduler.register(["rare", *named(4)])
        for _ in range(30):
            play_round(scheduler, offered(*named(4)), 5.0)
        take_snapshot(scheduler)
    with closing(FleetSource(FleetReader(path))) as source:
        assert source.ledger.clients == 0
        flags = {name: mask.tolist() for name, mask in source.extra_flags().items()}
        assert flags == {"backing_off": [], "rarely_available": []}
        source.catch_up(FOREVER)
        assert source.reading is None
        assert source.extra_flags()["rarely_available"].tolist() == [True, False, False, False, False]


def test_false_alarm_rate_and_delay_of_the_change_detection() -> None:
    """Checks the figures in docs/dashboard.md for exponentially distributed times, doubled and divided by five."""
    clients, rng = 4000, np.random.default_rng(0)
    rows, expected = np.arange(clients), np.full(clients, 10.0)

    def times() -> FloatArray:
        return rng.exponential(5.0, clients) + 5.0

    steady, false_alarms = ChangeDetector(clients, CHANGE_THRESHOLD), 0
    for _ in range(100):
        false_alarms += int(steady.changed(rows, expected, times()).sum())
    assert 0 < false_alarms / (100 * clients) < 1.5e-4
    for factor, shortest, longest in ((2.0, 8, 13), (0.2, 14, 20)):
        detector, delays = ChangeDetector(clients, CHANGE_THRESHOLD), np.zeros(clients)
        for _ in range(30):
            detector.changed(rows, expected, times())
        for after in range(1, 60):
            changed = detector.changed(rows, expected, factor * times())
            delays[changed & (delays == 0)] = after
        assert shortest <= np.median(delays) <= longest
