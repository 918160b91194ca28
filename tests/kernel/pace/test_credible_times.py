"""Single times that nothing supports do not change what FairPace learns about a client."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.kernel.pace.usual import credible_times
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.lab import PaperWorld, play
from turnout.policies import pace_times
from turnout.policies.fair_pace import FairPace

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
