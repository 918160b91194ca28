"""FairPace against a literal implementation of its rule, and its settings, state and stress tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from narrowing import known
from policies.examples import make_report, same_state
from policies.literal_fair_pace import LiteralFairPace
from turnout import FairPace, RoundOffer, RoundReport, check_policy
from turnout.errors import OfferError, SettingError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.rounds import LateArrivals, Selection
from turnout.lab import PaperWorld, play
from turnout.policies.explain.explanation import explain_choice

KERNELS = ("compiled", "numpy")


class RandomFleet:
    """A small fleet with failures, late clients whose true times arrive in the next round, and changing places."""

    def __init__(self, seed: int, *, clients: int, places: bool = False, deadline: float = 25.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.clients, self.places, self.deadline = clients, places, deadline
        self.theta = self.rng.uniform(0.5, 8, (clients, 3))
        self.late: list[tuple[int, int, list[float], float]] = []

    def offer(self, round: int) -> RoundOffer:
        available = self.rng.random(self.clients) < self.rng.choice([0.3, 0.8, 1.0])
        contexts = self.rng.uniform(0.1, 2, (self.clients, 3)) * [1.0, 30.0, 0.1]
        places = int(self.rng.integers(1, 5)) if self.places and self.rng.random() < 0.3 else None
        return RoundOffer(round, available, contexts, places=places)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        rows = selection.clients
        contexts = offer.contexts[rows]
        times = (contexts * self.theta[rows] * [1.0, 1 / 30.0, 10.0]).sum(axis=1) * self.rng.uniform(
            0.5, 1.5, len(rows)
        )
        is_late = times > self.deadline
        failed = self.rng.random(len(rows)) < 0.1
        arrivals, self.late = self.late, []
        for index in np.flatnonzero(is_late & ~failed).tolist():
            self.late.append((offer.round, int(rows[index]), contexts[index].tolist(), float(times[index])))
        return make_report(
            offer.round,
            rows,
            contexts,
            np.minimum(times, self.deadline),
            available=offer.available,
            outcomes=np.where(failed, "failed", np.where(is_late, "late", "arrived")),
            losses=np.where(failed | is_late, np.nan, times * 0.1 - 0.2),
            late_arrivals=self._late_arrivals(arrivals),
        )

    def _late_arrivals(self, arrivals: list[tuple[int, int, list[float], float]]) -> LateArrivals | None:
        if not arrivals:
            return None
        rounds, rows, contexts, times = zip(*arrivals, strict=True)
        return LateArrivals(
            np.array(rounds), np.array(rows), np.array(contexts), np.full(len(rows), self.deadline), np.array(times)
        )


RULES: list[dict[str, Any]] = [
    {"rates": ["3/20"] * 7, "cohort_size": 3, "tolerance": 2.0},
    {"rates": ["3/20"] * 7, "cohort_size": 3, "tolerance": 2.0, "counts": "completed"},
    {"rates": ["1/3"] * 6, "cohort_size": 2, "tolerance": 0.7},
    {"rates": ["1/5", "1/3", "0", "1/20", "1/2", "1/7"], "cohort_size": 2, "tolerance": 1.25},
    {"rates": ["1/4"] * 5, "cohort_size": 1, "tolerance": 3.0},
    {"rates": ["3/20"] * 7, "cohort_size": 3, "tolerance": 2.0, "value_weight": 1.0},
    {"rates": ["1/5"] * 7, "cohort_size": 2, "tolerance": 1.0, "value_weight": 2.0, "head_start": 1.5},
    {"rates": ["1/10", "1/5", "3/10", "0", "1/7", "1/8", "1/9", "1/11"], "cohort_size": 3, "tolerance": 2.0},
]


@pytest.mark.parametrize("accrual", ["available", "always"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rounds", [30, pytest.param(150, marks=pytest.mark.thorough)])
def test_it_selects_what_a_literal_implementation_selects(rule: dict[str, Any], accrual: Any, rounds: int) -> None:
    rates = [Fraction(rate) for rate in rule["rates"]]
    keys = ("cohort_size", "tolerance", "counts", "value_weight", "head_start")
    settings = {key: rule[key] for key in keys if key in rule}
    settings["value"] = "loss" if "value_weight" in rule else None
    policies = {
        kernel: FairPace(
            len(rates),
            guaranteed_rate=[float(rate) for rate in rates],
            accrual=accrual,
            allow_infeasible=True,
            **settings,
        )
        for kernel in KERNELS
    }
    literal = LiteralFairPace(
        rates,
        tolerance=Fraction(str(rule["tolerance"])),
        cohort_size=rule["cohort_size"],
        accrual=accrual,
        counts=rule.get("counts", "selected"),
        value_weight=rule.get("value_weight", 0.0),
        head_start=Fraction(rule["head_start"]) if "head_start" in rule else None,
    )
    fleet = RandomFleet(len(rates), clients=len(rates), places=True)
    kinds = {"urgent": 0, "priced": 0, "late": 0, "failed": 0, "corrected": 0}
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        chosen = literal.choose(offer)
        for kernel, policy in policies.items():
            with using_kernel(kernel):
                selection = policy.ask(offer)
            assert selection.clients.tolist() == chosen, kernel
        kinds["urgent"] += int(selection.reasons["urgent"].sum())
        kinds["priced"] += int((selection.reasons["price"] > 0).sum())
        report = fleet.play(offer, selection)
        kinds["late"] += int(report.with_outcome("late").sum())
        kinds["failed"] += int(report.with_outcome("failed").sum())
        kinds["corrected"] += report.late_arrivals is not None
        literal.learn(report)
        for kernel, policy in policies.items():
            with using_kernel(kernel):
                policy.tell(report)
            assert policy.turns.tolist() == literal.turns
    assert min(kinds[kind] for kind in ("late", "failed", "corrected")) > 0
    if accrual == "available" and rule["tolerance"] < 1.5:
        assert min(kinds[kind] for kind in ("urgent", "priced")) > 0


def test_the_reasons_are_the_terms_of_the_rule() -> None:
    policy, literal = FairPace(7, cohort_size=3), LiteralFairPace([Fraction(3, 20)] * 7, Fraction(2), 3)
    fleet = RandomFleet(2, clients=7)
    for round_ in range(1, 40):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        report = fleet.play(offer, selection)
        for index, row in enumerate(selection.clients.tolist()):
            reasons = {key: float(value[index]) for key, value in selection.reasons.items() if value.ndim}
            behind = literal.rates[row] * (literal.earned[row] + 1) - literal.turns[row]
            assert reasons["behind"] == float(behind)
            assert reasons["urgent"] == (behind >= literal.allowed(row))
            assert reasons["usual"] == pytest.approx(literal.usual(row, offer), rel=1e-9, abs=1e-9)
            assert reasons["optimistic"] == pytest.approx(
                literal.predicted(row, offer.contexts[row].tolist()), rel=1e-9, abs=1e-9
            )
            if not reasons["urgent"]:
                share = float(literal.priced(row, offer, 3)) / (0.7 * 3)
                room = literal.room(row, literal.allowed(row), behind, round_) + 2 * (1 - Fraction(round_ - 1, 100))
                price = share * float(max(literal.allowed(row), Fraction(1)) / room)
                assert reasons["price"] == pytest.approx(price, rel=1e-9, abs=1e-9)
        if len(selection.clients):
            assert selection.reasons["threshold"] == selection.reasons["optimistic"].max()
        policy.tell(report)
        literal.learn(report)


# Units of time


def cohorts_in_the_papers_world(scale: float, **settings: Any) -> Iterator[list[int]]:
    """Plays 60 rounds of the paper's world with all times multiplied by `scale`."""
    world, policy = PaperWorld(seed=4), FairPace(40, **settings)
    for round_ in range(1, 61):
        offer = world.offer(round_).without_truth()
        selection = policy.ask(offer)
        report = world.play(offer, selection)
        policy.tell(
            make_report(
                round_, report.clients, report.contexts, report.exchange_times * scale, available=offer.available
            )
        )
        yield selection.clients.tolist()


@pytest.mark.parametrize("accrual", ["available", "always"])
def test_the_choice_does_not_depend_on_the_unit_of_time(accrual: str) -> None:
    in_seconds = list(cohorts_in_the_papers_world(1.0, accrual=accrual))
    for scale in (1000.0, 1 / 3600):
        assert list(cohorts_in_the_papers_world(scale, accrual=accrual)) == in_seconds


# Cold starts, bad measurements, changed devices


class SimpleWorld:
    """Clients with the context 1 and given times; records how far every client is behind after each round."""

    def __init__(self, policy: FairPace, times: Any, *, availability: float = 1.0, seed: int = 0) -> None:
        self.policy, self.times = policy, np.asarray(times, dtype=np.float64)
        self.availability, self.rng = availability, np.random.default_rng(seed)
        self.round, self.largest, self.seconds = 0, -np.inf, 0.0

    def play(self, rounds: int, *, first_time: dict[int, float] | None = None) -> None:
        """Plays rounds; the first turns of the clients in `first_time` take these times."""
        pending = dict(first_time or {})
        for _ in range(rounds):
            self.round += 1
            clients = len(self.times)
            offer = RoundOffer(
                self.round, self.rng.random(clients) < self.availability, np.ones((clients, self.policy.features or 1))
            )
            rows = self.policy.ask(offer).clients
            times = np.array([pending.pop(row, self.times[row]) for row in rows.tolist()])
            self.seconds += float(times.max(initial=0.0))
            self.policy.tell(make_report(self.round, rows, offer.contexts[rows], times, available=offer.available))
            certificate = self.policy.certificate()
            assert certificate.books_balance
            self.largest = max(self.largest, float(certificate.behind.max()))


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_client_whose_speed_changes_keeps_its_turns(factor: float) -> None:
    policy = FairPace(10, cohort_size=3, guaranteed_rate=0.2, features=1, forgetting=0.9)
    world = SimpleWorld(policy, np.linspace(5, 15, 10))
    world.play(100)
    turns = int(policy.turns[4])
    world.times[4] *= factor
    world.play(100)
    assert world.largest <= 2
    assert policy.turns[4] >= 0.2 * 200 - 2
    if factor < 1:
        assert policy.turns[4] - turns > 50  # now it is the fastest


def test_clients_that_join_are_not_behind_and_are_kept_within_the_tolerance() -> None:
    policy = FairPace(6, cohort_size=3, guaranteed_rate=0.2, features=1)
    world = SimpleWorld(policy, np.linspace(5, 15, 6), availability=0.8)
    for count in (1, 3, 4):
        world.play(40)
        policy.add(count)
        assert policy.certificate().behind[-count:].tolist() == [0.0] * count
        world.times = np.append(world.times, world.rng.uniform(2, 40, count))
    world.play(100)
    assert policy.clients == 14
    assert world.largest <= 2
    assert policy.certificate().holds


@pytest.mark.parametrize(
    ("settings", "times", "rounds", "first_time", "turns"),
    [
        # Equal clients; the first turn of one of them takes five times as long.
        ({"cohort_size": 2, "guaranteed_rate": 0.3}, np.ones(5), 60, {0: 5.0}, (16, 60)),
        ({"cohort_size": 2, "guaranteed_rate": 0.3, "accrual": "always"}, np.ones(5), 60, {0: 5.0}, (16, 60)),
        # One measurement that is 50 times too long.
        ({"cohort_size": 3, "guaranteed_rate": 0.2}, np.linspace(5, 15, 10), 150, {2: 500.0}, (28, 150)),
        # Identical clients take turns: each gets 50 on average.
        ({"cohort_size": 4, "guaranteed_rate": 0.3}, np.full(12, 3.0), 150, {}, (48, 52)),
        # From one to eight minutes; random takes 419 s per round.
        ({"cohort_size": 4, "guaranteed_rate": 0.1}, np.linspace(60, 480, 12), 120, {}, (10, 120)),
    ],
)
def test_nobody_is_ever_beyond_two_turns(
    settings: Any, times: FloatArray, rounds: int, first_time: dict[int, float], turns: tuple[int, int]
) -> None:
    policy = FairPace(len(times), features=1, **settings)
    world = SimpleWorld(policy, times)
    world.play(rounds, first_time=first_time)
    assert world.largest <= 2
    assert policy.certificate().holds
    assert turns[0] <= policy.turns.min() <= policy.turns.max() <= turns[1]
    assert times.max() < 480 or world.seconds / rounds < 0.55 * 419


def test_clients_that_are_rarely_there_get_their_share_of_those_rounds() -> None:
    policy = FairPace(60, cohort_size=3, guaranteed_rate=0.2, features=1, availability=0.05)
    world = SimpleWorld(policy, np.linspace(5, 50, 60), availability=0.05)
    world.play(300)
    assert world.largest <= 2
    assert (policy.turns >= 0.2 * policy.debts.rounds - 2).all()


# The paper's world


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_rounds_of_the_papers_world_are_short_and_nobody_is_ever_beyond_two_turns(seed: int) -> None:
    policy = FairPace(40, guaranteed_rate=0.15, tolerance=2.0, accrual="always", availability=0.8)
    seconds = []
    for record in play(policy, PaperWorld(seed), 500):
        assert policy.certificate().behind.max() <= 2
        seconds.append(record.report.duration)
    assert np.mean(seconds) <= 9.2  # the mean over twenty seeds is below 9


# Settings


def test_the_defaults_are_those_of_the_rule() -> None:
    policy = FairPace(40)
    assert (policy.cohort_size, policy.exploration, policy.guarantee.accrual) == (8, 0.0, "available")
    assert (policy.guarantee.counts, policy.tolerance, policy.features) == ("selected", Fraction(2), 3)
    assert policy.bound == pytest.approx(2 - 0.15 + 0.15 * 39 / 8)
    assert FairPace(40, accrual="always").bound == np.inf
    assert FairPace(40, counts="completed").bound == np.inf
    assert [FairPace(40, tolerance=given).tolerance for given in (0.1501, 0.3)] == [
        Fraction(1501, 10000),
        Fraction("0.3"),
    ]
    assert FairPace(40, tolerance=3.5).head_start == 3.5
    assert FairPace(40, tolerance=3.5, head_start=0).head_start == 0


# Known times


def test_with_expected_times_the_true_times_are_used() -> None:
    policy = FairPace(3, cohort_size=1, times="expected", guaranteed_rate="1/4")
    assert policy.requires_expected_times
    assert policy.time_model is None
    with pytest.raises(SettingError, match="times='expected' learns no exchange times: use times='learned'"):
        policy.learned()
    available = np.ones(3, dtype=np.bool_)
    offer = RoundOffer(1, available, np.ones((3, 2)), expected_times=np.array([5.0, 1.0, 2.0]))
    selection = policy.ask(offer)
    assert selection.clients.tolist() == [1]
    # Nobody has a time of its own: the usual time of everyone is the mean of the offer.
    assert selection.reasons["usual"].tolist() == [8 / 3]
    policy.tell(make_report(1, selection.clients, offer.contexts[selection.clients], [4.0], available=available))
    later = policy.ask(RoundOffer(2, available, np.ones((3, 2)), expected_times=np.array([9.0, 3.0, 0.5])))
    assert (later.clients.tolist(), later.reasons["usual"].tolist()) == ([2], [4.0])
    assert later.reasons["behind"].tolist() == [0.5]
    with pytest.raises(OfferError, match="fair-pace with times='expected' needs the true expected times"):
        policy.ask(offer.without_truth())


# Values of turns


def turns_with_losses(losses: FloatArray, rounds: int, **settings: Any) -> tuple[npt.NDArray[np.int32], float]:
    """Plays the paper's world with these losses; returns the turns, and the largest number that anybody lacked."""
    world, policy, largest = PaperWorld(seed=6), FairPace(40, guaranteed_rate=0.05, value="loss", **settings), 0.0
    for round_ in range(1, rounds + 1):
        offer = world.offer(round_)
        selection = policy.ask(offer.without_truth())
        policy.tell(replace(world.play(offer, selection), losses=losses[selection.clients]))
        largest = max(largest, float(policy.certificate().behind.max()))
    return policy.turns, largest


def test_an_absurd_loss_buys_no_more_turns_than_one_that_a_tenth_of_the_clients_exceed() -> None:
    losses = np.random.default_rng(3).uniform(0.5, 1.5, 40)
    for attacker in (0, 13, 39):
        losses[attacker] = np.sort(losses)[-3]
        plain, _ = turns_with_losses(losses, 100)
        losses[attacker] = 1e300
        turns, behind = turns_with_losses(losses, 100)
        assert turns[attacker] <= 1.1 * plain[attacker]
        assert behind <= 2.0  # the tolerance


@pytest.mark.parametrize("rate", [0.05, pytest.param(0.15, marks=pytest.mark.thorough)])
def test_a_client_that_joins_late_takes_at_most_half_more_than_its_share(rate: float) -> None:
    """Without a limit on the surplus that counts, it takes nearly every round."""
    policy = FairPace(39, guaranteed_rate=rate, times="expected")
    rng = np.random.default_rng(1)

    def play(first: int, last: int) -> None:
        for round_ in range(first, last + 1):
            count = policy.clients
            offer = RoundOffer(
                round_, rng.random(count) < 0.8, np.ones((count, 3)), expected_times=rng.uniform(4, 6, count)
            )
            rows = policy.ask(offer).clients
            policy.tell(RoundReport(round_, rows, offer.contexts[rows], np.full(8, 5.0), available=offer.available))

    play(1, 3000)
    policy.add(1)
    play(3001, 3100)
    assert 100 * rate <= policy.turns[39] <= 1.5 * 100 * 8 / 40


@pytest.mark.parametrize(
    ("setting", "value"),
    [("value", 5), ("value", ""), ("value_weight", -1), ("head_start", float("nan")), ("head_start", -0.5)],
)
def test_odd_values_and_head_starts_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"^{setting} must be "):
        FairPace(40, **{setting: value})


def test_a_signal_counts_exactly_as_the_loss_does() -> None:
    by_loss, by_signal = (FairPace(10, cohort_size=3, value=value) for value in ("loss", "utility"))
    fleet = RandomFleet(7, clients=10)
    for round_ in range(1, 61):
        offer = fleet.offer(round_)
        selection = by_loss.ask(offer)
        assert selection == by_signal.ask(offer)
        report = fleet.play(offer, selection)
        by_loss.tell(report)
        by_signal.tell(
            replace(report, losses=None, signals={"utility": known(report.losses), "other": report.exchange_times})
        )
        assert same_state(by_loss.state(), by_signal.state())
        if round_ == 40:
            by_loss.forget([2])
            by_signal.forget([2])
    assert "value" in selection.reasons


def test_another_signal_and_a_missing_one_change_nothing() -> None:
    plain, valued = FairPace(10, cohort_size=3), FairPace(10, cohort_size=3, value="utility")
    fleet = RandomFleet(7, clients=10)
    for round_ in range(1, 31):
        offer = fleet.offer(round_)
        selection = plain.ask(offer)
        assert selection == valued.ask(offer)
        report = fleet.play(offer, selection)
        plain.tell(report)
        missing = np.full(len(report.clients), np.nan)
        valued.tell(
            replace(report, signals={"other": report.exchange_times, **({"utility": missing} if round_ % 2 else {})})
        )
    assert (plain.signals, valued.signals, FairPace(10, value="loss").signals) == ((), ("utility",), ())


class ByTurns(FairPace):
    """Turns of clients with few turns are worth more."""

    name = "by-turns"

    def turn_values(self, offer: RoundOffer) -> FloatArray | None:  # noqa: ARG002
        return 9 / (1.0 + self.turns)


@pytest.mark.thorough
def test_a_subclass_computes_the_values_of_turns() -> None:
    assert check_policy(ByTurns)
    policy, plain = ByTurns(12, cohort_size=3, guaranteed_rate=0.01), FairPace(12, cohort_size=3, guaranteed_rate=0.01)
    world = PaperWorld(seed=2, clients=12)
    list(play(policy, world, 100))
    list(play(plain, PaperWorld(seed=2, clients=12), 100))
    assert np.ptp(policy.turns) < np.ptp(plain.turns)
    offer = world.offer(101)
    explanation = explain_choice(policy, offer, policy.ask(offer), 0)
    assert explanation.exact
    assert "s for its value = " in explanation.sentence


@pytest.mark.parametrize("values", [[1.0, -1.0], [1.0, np.nan], [np.inf, 1.0], [1.0]])
def test_values_of_turns_that_are_no_finite_numbers_from_0_are_refused(values: list[float]) -> None:
    class Odd(FairPace):
        name = "odd"

        def turn_values(self, offer: RoundOffer) -> FloatArray | None:  # noqa: ARG002
            return np.array(values)

    with pytest.raises(SettingError, match=r"^turn_values(\[\d\] = .* must be finite| must return shape \(2,\))"):
        Odd(2, cohort_size=1).ask(RoundOffer(1, np.ones(2, dtype=np.bool_), np.ones((2, 3))))


def test_a_cohort_problem_is_not_changed_by_later_rounds() -> None:
    policy = FairPace(3, cohort_size=1, guaranteed_rate=0.2, accrual="always")
    offer = RoundOffer(1, np.array([True, True, False]), np.ones((3, 3)))
    outlook = known(policy.cohort_problem(offer).prices).outlook
    before = outlook.after(1, np.arange(1, 4))
    policy.tell(make_report(1, [1], np.ones((1, 3)), [2.0], available=offer.available))
    assert np.array_equal(outlook.after(1, np.arange(1, 4)), before)


# Forgetting: no number of the state depends on what the client reported


CLIENTS, FORGOTTEN = 9, [2, 5]


def played(scale: float, rounds: int = 80, **settings: Any) -> FairPace:
    """Returns a policy after given cohorts; the times and contexts of the clients to forget are scaled."""
    policy = FairPace(CLIENTS, cohort_size=3, guaranteed_rate=0.2, allow_infeasible=True, **settings)
    rng = np.random.default_rng(11)
    late: LateArrivals | None = None
    for round_ in range(1, rounds + 1):
        available = rng.random(CLIENTS) < 0.9
        available[:3] = True
        rows = rng.choice(np.flatnonzero(available), 3, replace=False)
        contexts = rng.uniform(0.5, 2, (3, 3)) * [1.0, 1e3, 1e-2]
        times = rng.uniform(1, 30, 3)
        outcomes = np.array(["arrived", "arrived", "arrived", "late", "failed"])[rng.integers(0, 5, 3)]
        own = np.where(np.isin(rows, FORGOTTEN), scale, 1.0)
        report = make_report(
            round_,
            rows,
            contexts * own[:, None],
            times * own,
            available=available,
            outcomes=outcomes,
            losses=np.where(outcomes == "arrived", times * own, np.nan),
            late_arrivals=late,
        )
        policy.tell(report)
        late = late_arrivals(report, rows, own)
    return policy


def late_arrivals(report: RoundReport, rows: IntArray, scale: FloatArray) -> LateArrivals | None:
    late = report.with_outcome("late")
    if not late.any():
        return None
    deadlines = report.exchange_times[late]
    return LateArrivals(
        np.full(int(late.sum()), report.round),
        rows[late],
        report.contexts[late],
        deadlines,
        deadlines + 7 * scale[late],
    )


def assert_close(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert state.keys() == other.keys()
    for key in state:
        values = np.asarray(other[key], dtype=np.float64)
        scale = max(float(np.abs(values[np.isfinite(values)]).max(initial=0.0)), 1e-300)
        np.testing.assert_allclose(state[key], other[key], rtol=1e-8, atol=1e-10 * scale, err_msg=key)


@pytest.mark.parametrize(
    "settings", [{}, {"accrual": "always"}, {"times": "expected"}, {"counts": "completed"}, {"value": "loss"}]
)
@pytest.mark.parametrize("rounds", [3, 30, pytest.param(80, marks=pytest.mark.thorough)])
def test_the_state_does_not_depend_on_what_forgotten_clients_reported(settings: dict[str, Any], rounds: int) -> None:
    plain, scaled = played(1.0, rounds, **settings), played(1 + 1e-5, rounds, **settings)
    assert not same_state(plain.state(), scaled.state())
    for policy in (plain, scaled):
        policy.forget(FORGOTTEN)
    assert_close(plain.state(), scaled.state())
    offer = RoundOffer(999, np.ones(CLIENTS, dtype=np.bool_), np.ones((CLIENTS, 3)), expected_times=np.ones(CLIENTS))
    assert plain.ask(offer).clients.tolist() == scaled.ask(offer).clients.tolist()


def test_even_times_and_contexts_that_are_a_hundred_times_larger_leave_no_trace() -> None:
    """The ridges follow the fleet's mean squares, so large contexts change them for everybody until `forget`."""
    plain, scaled = played(1.0), played(100.0)
    for policy in (plain, scaled):
        policy.forget(FORGOTTEN)
    for key, value in plain.state().items():
        np.testing.assert_allclose(value, scaled.state()[key], rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("settings", [{}, {"accrual": "always"}, {"times": "expected"}, {"value": "loss"}])
def test_a_fleet_of_forgotten_clients_has_learned_nothing(settings: dict[str, Any]) -> None:
    policy = played(1.0, **settings)
    policy.forget(range(CLIENTS))
    new = FairPace(CLIENTS, cohort_size=3, guaranteed_rate=0.2, allow_infeasible=True, **settings).state()
    for key, value in policy.state().items():
        if key.split(".")[0] not in ("turns", "queues") and key != "presence.discounted":
            np.testing.assert_allclose(value, new[key], err_msg=key)


def test_a_forgotten_client_that_always_accrues_is_not_taken_for_one_that_is_never_there() -> None:
    policy = played(1.0, accrual="always")
    before = policy.pace().allowed
    policy.forget(FORGOTTEN)
    allowed = np.asarray(policy.pace().allowed) / policy.debts.units_per_turn
    # The allowance of a client that is there for its first round: p = 2/3.
    assert allowed[FORGOTTEN].tolist() == pytest.approx([2 - 0.2 * (1 + np.log(0.001) / np.log(1 / 3))] * 2)
    others = np.setdiff1d(np.arange(CLIENTS), FORGOTTEN)
    assert allowed[others].tolist() == (np.asarray(before)[others] / policy.debts.units_per_turn).tolist()
    assert policy.turns[FORGOTTEN].min() > 0  # the certificate needs the turns


def test_learning_goes_on_after_forget() -> None:
    """The prior is recomputed from the times that are left, and then whenever their number has grown by a tenth."""
    policy = played(1.0)
    policy.forget(list(range(1, CLIENTS)))
    model = known(policy.time_model)
    prior = model.state()["pool"][12:15].copy()
    report = make_report(100, [3], np.ones((1, 3)), [500.0], available=np.ones(CLIENTS, dtype=np.bool_))
    for _ in range(4):
        policy.tell(report)
    assert not np.allclose(model.state()["pool"][12:15], prior)
