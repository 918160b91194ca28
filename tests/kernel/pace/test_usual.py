"""Single times that nothing supports do not change what FairPace learns about a client."""

from __future__ import annotations

import numpy as np
import pytest

from policies.examples import make_report
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.pace.usual import UsualContexts, UsualTimes, credible_times
from turnout.kernel.rounds import LateArrivals, RoundOffer, RoundReport
from turnout.lab import PaperWorld, play
from turnout.policies import pace_times
from turnout.policies.fair_pace import FairPace

EVERYONE = np.ones(3, dtype=np.bool_)


def test_the_usual_context_is_the_mean_of_the_own_contexts_and_one_of_the_fleet() -> None:
    usual, model = UsualContexts(3, 2), ExchangeTimeModel(3, features=2)
    model.coefficients[:] = [[1.0, 2.0, -9.0], [10.0, 20.0, 1.0]]
    usual.learn_from(make_report(1, [0, 1], [[1.0, 0.0], [3.0, 2.0]], [5.0, 5.0]))
    usual.learn_from(make_report(2, [0], [[2.0, 4.0]], [5.0]))
    mean = usual.fleet_mean()
    assert mean.tolist() == [2.0, 2.0]
    weighted, weights = usual.terms(model, mean, np.arange(3))
    assert weights.tolist() == [3.0, 2.0, 1.0]
    # Client 0: mean of (1, 0), (2, 4) and the fleet's (2, 2); client 2 has no turns and a negative prediction.
    assert (weighted / weights).tolist() == pytest.approx([5 / 3 + 10 * 2, 2 * 2.5 + 20 * 2.0, 0.0])


def test_before_the_first_turn_the_mean_time_is_that_of_the_available_clients() -> None:
    usual, times = UsualTimes(3), np.array([1.0, 5.0, 9.0])
    assert usual.fleet_mean(times, np.array([True, True, False])) == 3.0
    assert usual.fleet_mean(times, EVERYONE) == 5.0
    assert usual.fleet_mean(times, np.zeros(3, dtype=np.bool_)) == 0.0


def test_failures_do_not_count() -> None:
    for usual in (UsualContexts(3, 1), UsualTimes(3)):
        usual.learn_from(
            make_report(1, [0, 1, 2], np.ones((3, 1)), [4.0, 6.0, 8.0], outcomes=["arrived", "failed", "late"])
        )
        assert usual.weights(np.arange(3)).tolist() == [2.0, 1.0, 2.0]


def test_the_usual_time_is_the_mean_of_the_own_times_and_one_of_the_fleet() -> None:
    usual = UsualTimes(3)
    usual.learn_from(make_report(1, [0, 1], np.ones((2, 3)), [4.0, 8.0]))
    usual.learn_from(make_report(2, [1], np.ones((1, 3)), [12.0], outcomes=["late"]))
    arrival = LateArrivals(np.array([2]), np.array([1]), np.ones((1, 3)), np.array([12.0]), np.array([18.0]))
    usual.learn_from(make_report(3, [], np.ones((0, 3)), [], late_arrivals=arrival))
    mean = usual.fleet_mean(np.zeros(3), EVERYONE)
    assert mean == 10.0
    weighted, weights = usual.terms(mean, np.arange(3))
    assert (weighted / weights).tolist() == [7.0, 12.0, 10.0]


def test_forget_removes_a_client_from_the_fleets_mean() -> None:
    usual = UsualContexts(3, 1)
    usual.learn_from(make_report(1, [0, 1], [[2.0], [6.0]], [1.0, 1.0]))
    usual.forget(np.array([1]))
    assert usual.fleet_mean().tolist() == [2.0]
    usual.forget(np.array([0]))
    assert usual.fleet_mean().tolist() == [0.0]
    assert not usual.state()["fleet"].any()


# Credible times


CONTEXTS = np.tile([1.0, 0.0, 7.5], (6, 1))


def report(policy: FairPace, number: int, times: dict[int, float], outcome: str = "arrived") -> None:
    rows = np.array(list(times))
    available = np.ones(policy.clients, dtype=np.bool_)
    seconds, outcomes = np.array(list(times.values())), [outcome] * len(rows)
    policy.tell(RoundReport(number, rows, CONTEXTS[rows], seconds, available=available, outcomes=outcomes))


def predicted(policy: FairPace) -> list[float]:
    return [float(seconds) for seconds in policy.learned()[0].predict(CONTEXTS)]


@pytest.fixture
def policy() -> FairPace:
    """A policy that knows six clients of 1 s."""
    policy = FairPace(6, cohort_size=6, guaranteed_rate=0.1)
    for number in (1, 2):
        report(policy, number, dict.fromkeys(range(6), 1.0))
    return policy


def test_one_outlier_changes_nothing_and_a_second_in_a_row_is_learned(policy: FairPace) -> None:
    before = predicted(policy)
    report(policy, 3, {0: 16.0})
    assert predicted(policy) == pytest.approx(before)
    report(policy, 4, {0: 16.0})
    assert predicted(policy)[0] > 3
    assert predicted(policy)[1] < 2


def test_an_outlier_between_two_usual_times_stays_one(policy: FairPace) -> None:
    before = predicted(policy)
    for number, seconds in enumerate([16.0, 1.0, 16.0, 1.0], start=3):
        report(policy, number, {0: seconds})
    assert predicted(policy) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("seconds", [12.9, 0.01])
def test_times_that_are_not_that_long_are_learned(policy: FairPace, seconds: float) -> None:
    before = predicted(policy)[0]
    report(policy, 3, {0: seconds})
    assert abs(predicted(policy)[0] - before) > 0.1 * abs(seconds - before)


def test_in_the_first_round_the_others_show_that_a_time_is_an_outlier() -> None:
    policy = FairPace(6, cohort_size=6, guaranteed_rate=0.1)
    report(policy, 1, {0: 16.0, 1: 0.5, 2: 1.0, 3: 1.0, 4: 1.5})
    assert max(predicted(policy)) < 2
    few = FairPace(6, cohort_size=6, guaranteed_rate=0.1)
    report(few, 1, {0: 16.0, 1: 0.5, 2: 1.0, 3: 1.0})  # four clients are too few to tell
    assert max(predicted(few)) > 3


def test_deadlines_of_late_clients_are_learned_as_they_are(policy: FairPace) -> None:
    report(policy, 3, {0: 30.0}, "late")
    assert predicted(policy)[0] > 5


def test_forgetting_a_client_forgets_its_last_time_and_a_restored_policy_goes_on_alike(policy: FairPace) -> None:
    report(policy, 3, {0: 16.0})
    restored = FairPace(6, cohort_size=6, guaranteed_rate=0.1)
    restored.restore(policy.state())
    for each in (policy, restored):
        report(each, 4, {0: 16.0})
    assert predicted(policy) == predicted(restored)
    policy.forget([0])
    assert policy.state()["last"].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_clients_that_are_behind_come_first_while_turns_have_taught_nothing() -> None:
    policy = FairPace(6, cohort_size=3, guaranteed_rate=0.1)
    cohorts = []
    for number in (1, 2, 3):
        chosen = policy.ask(RoundOffer(number, np.ones(6, dtype=np.bool_), CONTEXTS)).clients
        cohorts.append(chosen.tolist())
        report(policy, number, dict.fromkeys(chosen.tolist(), 1.0), "failed")
    assert cohorts == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(20), marks=pytest.mark.thorough)], ids=["2 seeds", "20 seeds"]
)
@pytest.mark.parametrize("tolerance", [2.0, pytest.param(3.0, marks=pytest.mark.thorough)])
def test_no_time_of_the_paper_is_doubted(seeds: range, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []

    def judge(times: np.ndarray, *known: np.ndarray) -> np.ndarray:
        judged.extend(credible_times(times, *known) == times)
        return times

    monkeypatch.setattr(pace_times, "credible_times", judge)
    rounds = 500 if len(seeds) > 2 else 150
    for seed in seeds:
        policy = FairPace(40, tolerance=tolerance, accrual="always")
        assert len(list(play(policy, PaperWorld(seed=seed), rounds=rounds))) == rounds
    assert len(judged) > 40 * len(seeds)
    assert all(judged)
