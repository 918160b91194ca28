from __future__ import annotations

import pytest

from turnout.bench.literal import literal_run
from turnout.bench.sweeping import measure_sweep, paper_sweep
from turnout.policies import RBCSF
from turnout.simulator import PaperWorld, play


@pytest.mark.parametrize("speed_weight", [1.0, 50.0])
def test_the_literal_reading_chooses_as_the_kernel_does(speed_weight: float) -> None:
    policy = RBCSF(40, speed_weight=speed_weight)
    chosen = [record.selection.clients.tolist() for record in play(policy, PaperWorld(2), 120)]
    assert literal_run(120, seed=2, speed_weight=speed_weight) == chosen


def test_the_sweep_is_the_papers_comparison() -> None:
    plans = paper_sweep(20)
    assert len({plan.key for plan in plans}) == 6 * 20
    assert {plan.rounds for plan in plans} == {500}


def test_a_measured_sweep_has_all_its_figures() -> None:
    figures = measure_sweep(seeds=1, workers=1)
    assert figures.runs == 6
    assert min(figures.sweep_seconds, figures.run_seconds, figures.literal_seconds) > 0
    assert figures.literal_ratio == figures.literal_seconds / figures.run_seconds
