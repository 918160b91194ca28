from __future__ import annotations

import pytest

from benchmarks.literal_rbcsf import literal_run
from benchmarks.rbcsf import RunFigures, measure_run
from turnout.lab import PaperWorld, play
from turnout.policies import RBCSF


@pytest.mark.parametrize("speed_weight", [1.0, 50.0])
def test_the_literal_rbcsf_selects_the_same_cohorts_as_the_kernel(speed_weight: float) -> None:
    policy = RBCSF(40, speed_weight=speed_weight)
    cohorts = [record.selection.clients.tolist() for record in play(policy, PaperWorld(2), 120)]
    assert literal_run(120, seed=2, speed_weight=speed_weight) == cohorts


def test_a_measured_run_has_all_its_figures() -> None:
    figures = measure_run(rounds=30, repeats=1)
    assert figures.rounds == 30
    assert min(figures.run_seconds, figures.literal_seconds) > 0
    assert RunFigures(500, 0.1, 0.7).literal_ratio == pytest.approx(7)


def test_a_literal_rbcsf_that_selects_other_cohorts_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.rbcsf.literal_run", lambda rounds: [[0]] * rounds)
    with pytest.raises(AssertionError, match="selected other cohorts"):
        measure_run(rounds=10, repeats=1)
