from __future__ import annotations

import numpy as np

from policies.examples import late_arrivals
from turnout import RBCSF, RoundReport
from turnout.policies.rbcsf.change import ChangeDetector


def test_a_client_whose_times_change_is_detected_and_a_steady_one_is_not() -> None:
    rng = np.random.default_rng(0)
    detector, rows = ChangeDetector(3, 8.0), np.arange(3)
    detected: list[list[bool]] = []
    for round_ in range(400):
        mean = np.array([10.0, 10.0 if round_ < 200 else 30.0, 10.0 if round_ < 200 else 2.0])
        times = mean * rng.uniform(0.5, 1.5, 3)
        detected.append(detector.changed(rows, np.full(3, 10.0), times).tolist())
    first = [next((round_ for round_ in range(400) if detected[round_][client]), None) for client in range(3)]
    assert first[0] is None
    assert first[1] is not None
    assert first[2] is not None
    assert 200 <= first[1] < 210
    assert 200 <= first[2] < 220


def test_a_client_that_changed_is_learned_from_scratch() -> None:
    def error(threshold: float | None) -> float:
        policy = RBCSF(2, cohort_size=2, guaranteed_rate=0.1, change_threshold=threshold)
        rng, contexts = np.random.default_rng(2), np.ones((2, 3))
        for round_ in range(1, 161):
            times = np.array([10.0, 10.0 if round_ <= 100 else 40.0]) * rng.uniform(0.8, 1.2, 2)
            policy.tell(RoundReport(round_, np.arange(2), contexts, times))
        return float(abs(policy.time_model.predict(contexts)[1] - 40.0))

    assert error(8.0) < 2.0
    assert error(None) > 15.0


def test_only_times_of_clients_that_arrived_are_tested() -> None:
    """The time of a late client is the deadline, and that of a failed one says nothing about its speed."""
    policy = RBCSF(3, cohort_size=3, guaranteed_rate=0.1, change_threshold=8.0)
    assert policy.changes is not None
    rows, contexts, outcomes = np.arange(3), np.ones((3, 3)), np.array(["arrived", "late", "failed"])
    for round_ in range(1, 31):
        late = late_arrivals([(round_ - 1, 1)]) if round_ > 1 else None
        times = np.array([10.0, 10.0 if round_ <= 15 else 90.0, 3.0])
        policy.tell(RoundReport(round_, rows, contexts, times, outcomes=outcomes, late_arrivals=late))
    tested = policy.changes.state()["sums"][3]
    assert tested.tolist() == [30, 0, 0]


def test_a_time_without_a_context_is_not_tested() -> None:
    policy = RBCSF(2, cohort_size=2, guaranteed_rate=0.1, change_threshold=8.0)
    assert policy.changes is not None
    policy.tell(RoundReport(1, np.arange(2), np.array([[1.0] * 3, [np.nan] * 3]), np.array([10.0, 10.0])))
    assert policy.changes.state()["sums"][3].tolist() == [1, 0]


def test_a_forgotten_and_a_new_client_have_no_history() -> None:
    detector = ChangeDetector(2, 8.0)
    for _ in range(7):
        detector.changed(np.arange(2), np.full(2, 10.0), np.array([11.0, 12.0]))
    detector.add(1)
    detector.forget(np.array([0]))
    sums = detector.state()["sums"]
    assert not sums[:, [0, 2]].any()
    assert sums[:, 1].any()
