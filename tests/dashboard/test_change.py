from __future__ import annotations

import numpy as np

from turnout.dashboard.sources.change import ChangeDetector


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


def test_a_forgotten_and_a_new_client_have_no_history() -> None:
    detector = ChangeDetector(2, 8.0)
    for _ in range(7):
        detector.changed(np.arange(2), np.full(2, 10.0), np.array([11.0, 12.0]))
    detector.add(1)
    detector.forget(np.array([0]))
    sums = detector.state()["sums"]
    assert not sums[:, [0, 2]].any()
    assert sums[:, 1].any()
