from __future__ import annotations

import pytest

from turnout.bench import sweeping
from turnout.bench.sweeping import MAX_SECONDS, SweepFigures, measure_sweep, paper_sweep


def test_the_sweep_is_the_papers_comparison() -> None:
    plans = paper_sweep(20)
    assert len({plan.key for plan in plans}) == 6 * 20
    assert {plan.rounds for plan in plans} == {500}


def test_a_measured_sweep_has_all_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "ROUNDS", 50)
    figures = measure_sweep(seeds=1, workers=1)
    assert (figures.runs, figures.workers) == (6, 1)
    assert min(figures.sweep_seconds, figures.run_seconds) > 0
    assert figures.single_seconds > 0


def test_the_ratios_of_a_sweep_are_per_second_of_the_sweep() -> None:
    figures = SweepFigures(runs=120, workers=2, sweep_seconds=4.0, run_seconds=0.1, single_seconds=6.0)
    assert figures.runs_per_second == 30
    assert figures.speedup == pytest.approx(1.5)
    assert figures.met
    assert not SweepFigures(120, 2, MAX_SECONDS + 0.1, 0.1, 6.0).met
