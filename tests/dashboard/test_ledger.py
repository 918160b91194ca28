"""What the dashboard knows, against other readings of the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.readings import FOREVER, audit_of, fleet_ledger, made_up, run_source, write_made_up
from dashboard.served import Stored, play_rounds, run_store, small_fleet
from scheduler import restless_server
from scheduler.fleets import named, offered
from turnout.analysis.metrics import owed_after_each_round, replayed_estimates
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.ledger import CHANGE_THRESHOLD, Ledger
from turnout.dashboard.sources.run import RunSource
from turnout.dashboard.views.queues import debts_of, turns_and_presence
from turnout.kernel.arrays import FloatArray
from turnout.kernel.fairness import Certificate
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.policies.rbcsf.change import ChangeDetector
from turnout.policies.registry import make_policy, with_defaults
from turnout.scheduler import Scheduler
from turnout.scheduler.journal import journal
from turnout.store import RoundColumns, RunStore

RATE = Fraction(1, 6)  # that of small_fleet


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunStore, Stored]]:
    path = tmp_path_factory.mktemp("ledger") / "runs.turnout"
    stored = run_store(path)
    with RunStore(path, read_only=True) as store:
        yield store, stored


def all_rows(ledger: Ledger) -> Any:
    return np.arange(ledger.clients)


def assert_same_certificate(found: Certificate | None, expected: Certificate) -> None:
    assert found is not None
    assert found.units_per_turn == expected.units_per_turn
    for name in ("turns", "promised_units", "owed_units", "forfeited_units"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


# Runs


def test_a_run_is_told_as_it_was_recorded(runs: tuple[RunStore, Stored]) -> None:
    store, stored = runs
    for run in (*stored.fast, *stored.random, *stored.fedcs, *stored.training, stored.unfinished):
        ledger, columns = run_source(store, run).ledger, store.columns(run)
        assert (len(ledger), ledger.last, ledger.clients) == (len(columns), len(columns), columns.clients)
        np.testing.assert_array_equal(ledger.starts, columns.starts)
        np.testing.assert_array_equal(ledger.turn_column("chosen"), columns.chosen)
        np.testing.assert_array_equal(ledger.turn_column("times"), columns.exchange_times)
        np.testing.assert_array_equal(ledger.round_column("seconds"), columns.durations)
        np.testing.assert_array_equal(ledger.numbers["turns"], columns.turns)
        assert columns.available is not None
        np.testing.assert_array_equal(ledger.round_column("volunteers"), columns.available.sum(axis=1))
        np.testing.assert_array_equal(ledger.numbers["volunteered"], columns.available.sum(axis=0))
        for row in range(columns.clients):
            mine = np.flatnonzero(columns.chosen_mask[:, row])
            assert ledger.numbers["last_round"][row] == (mine[-1] + 1 if len(mine) else 0)
            times = columns.exchange_times[columns.chosen == row]
            np.testing.assert_allclose(ledger.mean_seconds()[row], times.mean() if len(times) else np.nan)


def test_reasons_of_a_choice_stand_beside_the_chosen(runs: tuple[RunStore, Stored]) -> None:
    store, stored = runs
    ledger, columns = run_source(store, stored.fast[0]).ledger, store.columns(stored.fast[0])
    for word in ("optimistic", "owed"):
        np.testing.assert_array_equal(ledger.turn_column(word), columns.client_reasons[word])
    for word in ("threshold", "objective"):
        np.testing.assert_array_equal(ledger.round_column(word), columns.cohort_reasons[word])
    unreasoned = run_source(store, stored.random[0]).ledger
    assert np.isnan(unreasoned.turn_column("owed")).all()
    assert np.isnan(unreasoned.round_column("threshold")).all()


def test_reasons_go_with_their_clients_in_whatever_order_these_report(folder: Path) -> None:
    rng = np.random.default_rng(4)
    records = []
    for round_ in range(1, 9):
        chosen, back = rng.permutation(10)[:4], rng.permutation(4)
        reasons = {"optimistic": chosen + 0.5, "owed": chosen * 10.0, "threshold": np.array(7.0)}
        report = RoundReport(round_, chosen[back], rng.random((4, 3)), (chosen[back] + 1).astype(np.float64))
        records.append(RoundRecord(Selection(round_, chosen, reasons), report))
    columns = RoundColumns.from_records(records, clients=10)
    with RunStore(folder / "runs.turnout") as store:
        ledger = run_source(store, write_made_up(store, "rbcsf", {"cohort_size": 4}, columns)).ledger
    rows = ledger.turn_column("chosen")
    assert rows.tolist() != columns.chosen.tolist(), "or the order was never another"
    np.testing.assert_array_equal(ledger.turn_column("times"), rows + 1.0)
    np.testing.assert_array_equal(ledger.turn_column("optimistic"), rows + 0.5)
    np.testing.assert_array_equal(ledger.turn_column("owed"), rows * 10.0)
    assert set(ledger.round_column("threshold").tolist()) == {7.0}


def test_debts_of_a_run_over_time_and_its_certificate(runs: tuple[RunStore, Stored]) -> None:
    store, stored = runs
    for run in (*stored.fast, *stored.fair, stored.training[0], stored.unfinished):
        ledger, columns = run_source(store, run).ledger, store.columns(run)
        expected = owed_after_each_round(columns, 0.15)
        after, why = debts_of(ledger, all_rows(ledger))
        assert why is None
        np.testing.assert_array_equal(after, expected)
        course = ledger.course
        np.testing.assert_array_equal(course["rounds"], columns.rounds)
        np.testing.assert_array_equal(course["worst"], expected.max(axis=1))
        np.testing.assert_allclose(course["mean"], expected.mean(axis=1))
        np.testing.assert_array_equal(course["p95"], np.percentile(expected, 95, axis=1, method="lower"))
        shares = np.cumsum(columns.chosen_mask, axis=0) / columns.rounds[:, None]
        np.testing.assert_array_equal(course["least_share"], shares.min(axis=1))
        np.testing.assert_array_equal(ledger.shares(), shares[-1])
        found = ledger.certificate()
        assert found is not None
        assert found.holds
        np.testing.assert_array_equal(found.owed, expected[-1])
        np.testing.assert_array_equal(found.turns, columns.turns)
        np.testing.assert_allclose(found.promised, 0.15 * len(columns))


def test_predictions_are_those_of_a_model_that_was_told_the_same(runs: tuple[RunStore, Stored]) -> None:
    """Also beside a policy that learns nothing; of who was never back nothing is foretold."""
    store, stored = runs
    for run in (stored.fast[0], stored.random[0], stored.training[0]):
        ledger, columns = run_source(store, run).ledger, store.columns(run)
        expected = replayed_estimates(columns)
        first = np.unique(columns.chosen, return_index=True)[1]
        known = np.ones(len(columns.chosen), dtype=np.bool_)
        known[first] = False
        predicted, band = ledger.turn_column("predicted"), ledger.turn_column("band")
        np.testing.assert_array_equal(np.isfinite(predicted), known)
        np.testing.assert_allclose(predicted[known], expected.predicted[known])
        np.testing.assert_allclose(band[known], 0.1 * expected.uncertainty[known])


def test_a_run_read_bit_by_bit_is_the_same(runs: tuple[RunStore, Stored]) -> None:
    """Each catch-up without any time still reads one append."""
    store, stored = runs
    whole = run_source(store, stored.fast[0])
    (info,) = (one for one in store.runs() if one.id == stored.fast[0])
    bits, told = RunSource(store, info), []
    while bits.reading is not None:
        told.append(bits.reading)
        bits.catch_up(-1.0)
    assert told == [(0, 60), (25, 60), (50, 60)]
    np.testing.assert_array_equal(bits.ledger.turn_column("predicted"), whole.ledger.turn_column("predicted"))
    np.testing.assert_array_equal(bits.ledger.course["worst"], whole.ledger.course["worst"])


# Debts by every rule

RATES: dict[str, Any] = {
    "one": "1/5",
    "float": 0.15,
    "each": [0.1, 0.2, 0.3, 0.05, 0.0, 0.15, 0.25, 0.4, 0.125, 0.5],
}


def told_policy(name: str, given: Mapping[str, Any], columns: RoundColumns) -> Any:
    """The policy, told all of it."""
    policy = make_policy(
        name, columns.clients, **with_defaults(name, dict(given), {"seed": 0, "allow_infeasible": True})
    )
    for record in columns.records():
        policy.tell(record.report)
    return policy


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("paid", ["chosen", "contributed"])
@pytest.mark.parametrize("accrual", ["always", "available"])
@pytest.mark.parametrize("cap", [None, 1, 2.5])
def test_debts_over_time_by_every_rule(folder: Path, rate: str, paid: str, accrual: Any, cap: float | None) -> None:
    columns = made_up(80, 10, seed=3)
    rule = {"guaranteed_rate": RATES[rate], "accrual": accrual, "max_owed": cap, "paid": paid}
    outcomes = ("arrived",) if paid == "contributed" else ("arrived", "late", "failed")
    expected = owed_after_each_round(
        columns,
        RATES[rate],
        accrual=accrual,
        max_owed=cap,
        outcomes_paid=outcomes,
    )
    cases: dict[str, dict[str, Any]] = {
        "rbcsf": {"cohort_size": 3, **rule},
        "with-guarantee": {"policy": "random", "settings": {"cohort_size": 3}, "urgency": 1.0, **rule},
    }
    with RunStore(folder / "runs.turnout") as store:
        for name, given in cases.items():
            source = run_source(store, write_made_up(store, name, given, columns))
            assert source.trouble is None
            after, why = debts_of(source.ledger, all_rows(source.ledger))
            assert why is None
            np.testing.assert_array_equal(after, expected)
            some = np.array([7, 0, 4])
            np.testing.assert_array_equal(debts_of(source.ledger, some)[0], expected[:, some])
            assert_same_certificate(source.ledger.certificate(), told_policy(name, given, columns).certificate())
            assert source.ledger.paid == paid


def test_a_rule_around_the_policy_never_makes_debts_up(folder: Path) -> None:
    """Whoever wraps a promise: what is drawn is what the promise owes, or it is said why nothing is drawn."""
    columns = made_up(40, 10, seed=5, failures=0.0)
    inside = {"policy": "rbcsf", "settings": {"cohort_size": 3, "guaranteed_rate": 0.1}}
    guarded = {"policy": "with-guarantee", "settings": {"policy": "random", "settings": {"cohort_size": 3}}}
    cases = [("cool-down", {**inside, "rounds": 1}), ("cool-down", {**guarded, "rounds": 1})]
    with RunStore(folder / "runs.turnout") as store:
        for name, given in cases:
            source = run_source(store, write_made_up(store, name, given, columns))
            assert source.trouble is None
            queues, policy = source.ledger.queues, told_policy(name, given, columns)
            assert queues is not None
            np.testing.assert_array_equal(queues.owed, policy.owed)
            after, why = debts_of(source.ledger, all_rows(source.ledger))
            assert (after is None) == (why is not None)
            if after is not None:
                np.testing.assert_array_equal(after[-1], policy.owed)


@given(
    rounds=st.integers(0, 25),
    clients=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    cap=st.one_of(st.none(), st.fractions(0, 3, max_denominator=7)),
    accrual=st.sampled_from(["always", "available"]),
    contributed=st.booleans(),
    rate=st.fractions(0, 1, max_denominator=12),
)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_debts_of_any_run(
    tmp_path: Path, rounds: int, clients: int, seed: int, cap: Any, accrual: Any, contributed: bool, rate: Fraction
) -> None:
    columns = made_up(rounds, clients, seed=seed, cohort=2)
    most = None if cap is None else float(cap)
    given_ = {
        "cohort_size": 2,
        "guaranteed_rate": str(rate),
        "accrual": accrual,
        "max_owed": most,
        "paid": "contributed" if contributed else "chosen",
    }
    path = tmp_path / f"{seed}-{rounds}-{clients}-{rate.numerator}-{rate.denominator}-{accrual}-{contributed}-{most}"
    with RunStore(path.with_suffix(".turnout")) as store:
        if not rounds:
            plan = {"policy": "rbcsf", "settings": given_}
            run = store.begin("empty", plan, clients=clients, code_version="test")
        else:
            run = write_made_up(store, "rbcsf", given_, columns)
        ledger = run_source(store, run).ledger
    path.with_suffix(".turnout").unlink()
    after, why = debts_of(ledger, all_rows(ledger))
    assert why is None
    assert after is not None
    outcomes = ("arrived",) if contributed else ("arrived", "late", "failed")
    expected = np.empty((0, clients))
    if rounds:
        expected = owed_after_each_round(columns, rate, accrual=accrual, max_owed=most, outcomes_paid=outcomes)
    np.testing.assert_array_equal(after, expected)


# Fleets

Fleet = Callable[[Path], tuple[Fraction, dict[str, Any]]]


def eventful(path: Path) -> tuple[Fraction, dict[str, Any]]:
    small_fleet(path, rounds=60)
    return RATE, {"cap": 210}


def paid_when_chosen(path: Path) -> tuple[Fraction, dict[str, Any]]:
    rules = {"cohort_size": 3, "guaranteed_rate": "1/5", "accrual": "always", "paid": "chosen", "max_owed": 30}
    small_fleet(path, rounds=50, settings=rules)
    return Fraction(1, 5), {"cap": 30, "accrual": "always", "paid": ("arrived", "surplus", "outrun", "late", "failed")}


def guaranteed(path: Path) -> tuple[Fraction, dict[str, Any]]:
    inside = {"policy": "random", "settings": {"cohort_size": 3}}
    rules = {**inside, "guaranteed_rate": "1/7", "accrual": "available", "paid": "contributed", "max_owed": 4}
    small_fleet(path, rounds=50, policy="with-guarantee", settings=rules)
    return Fraction(1, 7), {"cap": 4}


def restless(path: Path) -> tuple[Fraction, dict[str, Any]]:
    """Clients join, leave, are forgotten, come back late with their true times; choices are abandoned."""
    restless_server.play(str(path), 40)
    return Fraction(1, 9), {"cap": 10 + 2 * 10}


FLEETS = [eventful, paid_when_chosen, guaranteed, restless]


@pytest.mark.parametrize("make", FLEETS)
def test_a_fleet_is_told_as_its_scheduler_tells_it(folder: Path, make: Fleet) -> None:
    path = folder / "fleet.turnout"
    rate, rules = make(path)
    audit = audit_of(path, rate, **rules)
    assert set(audit.outcomes) >= {"arrived", "late", "failed"}, "or the fleet shows too little"
    source, ledger = fleet_ledger(path)
    with closing(source), Scheduler.open(path, read_only=True) as scheduler:
        ids = [source.id_of(row) for row in range(ledger.clients)]
        rows = all_rows(ledger)
        assert ids == audit.ids
        assert [source.row_of(client) for client in ids] == rows.tolist()
        assert len(ledger) == len(audit.durations)
        for word, counted in (
            ("turns", audit.turns),
            ("volunteered", audit.volunteered),
            ("last_round", audit.last_round),
            ("joined", audit.joined),
        ):
            assert dict(zip(ids, ledger.numbers[word].tolist(), strict=True)) == counted, word
        np.testing.assert_array_equal(ledger.round_column("seconds"), audit.durations)
        np.testing.assert_array_equal(ledger.round_column("volunteers"), [len(one) for one in audit.present])
        chosen = np.split(ledger.turn_column("chosen"), ledger.starts[1:-1])
        assert [[ids[row] for row in one.tolist()] for one in chosen] == audit.cohorts
        assert_same_certificate(ledger.certificate(), scheduler.certificate())
        assert ledger.queues is not None
        np.testing.assert_array_equal(ledger.queues.owed, scheduler.certificate().owed)
        expected = np.array([[float(debts.get(client, 0)) for client in ids] for debts in audit.debts])
        after, why = debts_of(ledger, rows)
        assert after is not None, why
        np.testing.assert_allclose(after, expected, rtol=1e-12, atol=1e-12)
        there = [[len([one for one in audit.present if client in one]) for client in ids]]
        counts, share, edges = turns_and_presence(ledger, rows)
        assert counts.sum(axis=0).tolist() == [audit.turns[client] for client in ids]
        assert share is not None
        np.testing.assert_allclose((share * np.diff(edges)[:, None]).sum(axis=0), there[0])
        np.testing.assert_array_equal(ledger.retired, np.array(scheduler.state()["numbers.retired"]) > 0)
        if make is not guaranteed:  # a scheduler without a model doubts nobody; here one learns beside it
            assert [ids[row] for row in np.flatnonzero(ledger.doubted()).tolist()] == scheduler.doubted()


def test_who_comes_back_is_counted_as_the_scheduler_does(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=60)
    source, ledger = fleet_ledger(path)
    with closing(source), Scheduler.open(path, read_only=True) as scheduler:
        for word in ("arrived", "lost"):
            np.testing.assert_array_equal(ledger.history.counters()[word], scheduler.state()[f"numbers.{word}"])


def test_the_predictions_of_a_fleet_are_the_schedulers(folder: Path) -> None:
    path, foretold = folder / "fleet.turnout", []
    with Scheduler.open(path, settings={"cohort_size": 3}, deadline=9.0, allow_infeasible=True) as scheduler:
        for round_ in range(1, 31):
            rng = np.random.default_rng(round_)
            there = [client for client in named(8) if rng.random() < 0.8]
            chosen = scheduler.choose({**offered(*there, free_cpu=float(rng.uniform(0.5, 2)))})
            foretold.append(scheduler.predicted())
            scheduler.report_many({client: float(rng.uniform(1, 8)) for client in chosen[: 3 if round_ % 4 else 2]})
            scheduler.close_round()
    source, ledger = fleet_ledger(path)
    with closing(source):
        rounds = ledger.round_of_each_turn
        found: list[dict[str, float]] = [{} for _ in foretold]
        for row, round_, seconds in zip(
            ledger.turn_column("chosen"), rounds, ledger.turn_column("predicted"), strict=True
        ):
            if np.isfinite(seconds):
                found[round_ - 1][source.id_of(int(row))] = float(seconds)
    for mine, theirs in zip(found, foretold, strict=True):
        assert set(mine) <= set(theirs)  # who was only ever late has taught the model, but has shown no time
        for client, seconds in mine.items():
            assert seconds == pytest.approx(theirs[client])
    assert sum(map(len, found)) > 40


@pytest.mark.parametrize("make", FLEETS)
def test_a_fleet_whose_masks_are_gone_has_debts_since_the_snapshot(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Fleet
) -> None:
    path, calm = folder / "fleet.turnout", folder / "calm.turnout"
    rate, rules = make(calm)
    audit = audit_of(calm, rate, **rules)
    monkeypatch.setattr(journal, "KEEP_AVAILABILITY_UP_TO", 3)
    make(path)  # the same again, as everything is by the script
    if make is not restless:
        with Scheduler.open(path) as scheduler:
            if scheduler.open_round is not None:
                scheduler.close_round()
            scheduler.snapshot()
            play_rounds(scheduler, 12, scheduler.clients)
        with Scheduler.open(calm) as scheduler:
            if scheduler.open_round is not None:
                scheduler.close_round()
            play_rounds(scheduler, 12, scheduler.clients)
        audit = audit_of(calm, rate, **rules)
    source, ledger = fleet_ledger(path)
    with closing(source), Scheduler.open(path, read_only=True) as scheduler:
        since, rounds = ledger.debts_from, len(audit.durations)
        assert 0 < since < rounds
        assert_same_certificate(ledger.certificate(), scheduler.certificate())
        ids = audit.ids
        after, why = debts_of(ledger, all_rows(ledger))
        assert after is not None, why
        expected = np.array([[float(debts.get(client, 0)) for client in ids] for debts in audit.debts])
        np.testing.assert_allclose(after, expected[since:], rtol=1e-12, atol=1e-12)
        assert ledger.course["rounds"].tolist() == list(range(since + 1, rounds + 1))
        worst = [max(float(owed) for owed in debts.values()) for debts in audit.debts]
        np.testing.assert_allclose(ledger.course["worst"], worst[since:])
        assert dict(zip(ids, ledger.numbers["turns"].tolist(), strict=True)) == audit.turns
        stay = [client for client in ids if not client.startswith("forgotten")]
        there = dict(zip(ids, ledger.numbers["volunteered"].tolist(), strict=True))
        assert {client: there[client] for client in stay} == {client: audit.volunteered[client] for client in stay}
        assert turns_and_presence(ledger, all_rows(ledger))[1] is None
        if make is not guaranteed:  # a scheduler without a model doubts nobody; here one learns beside it
            assert [ids[row] for row in np.flatnonzero(ledger.doubted()).tolist()] == scheduler.doubted()
        assert any("no longer on record" in notice for notice in source.notices())


def test_a_liar_is_doubted_by_both_also_when_masks_are_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of itself is ever another thing, and its times stay the same."""
    for name, kept in (("small.turnout", 100), ("large.turnout", 3)):
        monkeypatch.setattr(journal, "KEEP_AVAILABILITY_UP_TO", kept)
        path = folder / name
        with Scheduler.open(path, settings={"cohort_size": 4}, deadline=90.0, allow_infeasible=True) as scheduler:
            for round_ in range(1, 41):
                factor = float(np.exp(np.random.default_rng(round_).uniform(-2.3, 2.3)))
                liar = offered("liar", free_cpu=factor, bandwidth=3.0 * factor)
                chosen = scheduler.choose({**offered("a", "b", "c", bandwidth=3.0), **liar})
                scheduler.report_many(dict.fromkeys(chosen, 5.0))
                scheduler.close_round()
                if round_ == 25:
                    scheduler.snapshot()
            expected = scheduler.doubted()
        source, ledger = fleet_ledger(path)
        with closing(source):
            assert (ledger.debts_from > 0) == (kept == 3)
            assert [source.id_of(row) for row in np.flatnonzero(ledger.doubted()).tolist()] == expected == ["liar"]


def test_flags_are_of_the_clients_that_were_read_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that is followed from its snapshot knows all its clients before the ledger has read that they joined."""
    monkeypatch.setattr(journal, "KEEP_AVAILABILITY_UP_TO", 3)
    path, rules = folder / "fleet.turnout", {"cohort_size": 1, "guaranteed_rate": "1/8", "accrual": "always"}
    with Scheduler.open(path, settings=rules, deadline=90.0, allow_infeasible=True) as scheduler:
        scheduler.register(["rare", *named(4)])
        for _ in range(30):
            scheduler.report_many(dict.fromkeys(scheduler.choose(offered(*named(4))), 5.0))
            scheduler.close_round()
        scheduler.snapshot()
    with closing(FleetSource(path)) as source:
        assert source.ledger.clients == 0
        assert {name: flags.tolist() for name, flags in source.more_flags().items()} == {"resting": [], "seldom": []}
        source.catch_up(FOREVER)
        assert source.reading is None
        assert source.more_flags()["seldom"].tolist() == [True, False, False, False, False]


def test_a_fleet_nobody_has_joined_has_nothing(folder: Path) -> None:
    path = folder / "fleet.turnout"
    Scheduler.open(path).close()
    source, ledger = fleet_ledger(path)
    with closing(source):
        assert (len(ledger), ledger.clients, ledger.last) == (0, 0, 0)
        assert ledger.certificate() is None
        assert ledger.queues is None


def test_a_change_is_seldom_claimed_wrongly_and_found_soon() -> None:
    """What docs/dashboard.md says of the flag: times that scatter like an exponential, and times that double."""
    clients, rng = 4000, np.random.default_rng(0)
    rows, expected = np.arange(clients), np.full(clients, 10.0)

    def times() -> FloatArray:
        return rng.exponential(5.0, clients) + 5.0

    steady, wrongly = ChangeDetector(clients, CHANGE_THRESHOLD), 0
    for _ in range(100):
        wrongly += int(steady.changed(rows, expected, times()).sum())
    assert 0 < wrongly / (100 * clients) < 1.5e-4
    moved, found = ChangeDetector(clients, CHANGE_THRESHOLD), np.zeros(clients)
    for _ in range(30):
        moved.changed(rows, expected, times())
    for after in range(1, 60):
        changed = moved.changed(rows, expected, 2 * times())
        found[changed & (found == 0)] = after
    assert 8 <= np.median(found) <= 13
