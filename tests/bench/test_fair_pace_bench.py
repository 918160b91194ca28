from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.fair_pace import MAX_BEHIND, MAX_MEAN_ROUND, WorldFigures, play_papers_world, summarize


def test_the_figures_of_three_seeds_are_within_the_targets() -> None:
    figures = summarize([play_papers_world(seed) for seed in range(3)])
    assert figures.mean_round <= MAX_MEAN_ROUND
    assert figures.largest_behind <= MAX_BEHIND
    assert figures.met


def test_a_summary_has_the_mean_round_and_the_largest_shortfalls() -> None:
    figures = summarize([WorldFigures(8.0, 1.5, 1.0), WorldFigures(9.0, 2.5, 0.5)])
    assert figures == WorldFigures(8.5, 2.5, 1.0)
    assert not figures.met


def test_the_first_rounds_can_be_left_out() -> None:
    whole, later = play_papers_world(2, rounds=120), play_papers_world(2, rounds=120, skip=60)
    assert later.mean_round < whole.mean_round
    assert later.largest_behind == whole.largest_behind


def test_the_command_prints_the_figures() -> None:
    arguments = ["fair-pace", "--seeds", "2", "--rounds", "40"]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0
    assert "FairPace in the paper's world, 2 seeds, 40 rounds, tolerance 2: mean round" in text.stdout
    figures = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert len(figures["seeds"]) == 2
    assert figures["mean_round"] == pytest.approx(sum(seed["mean_round"] for seed in figures["seeds"]) / 2)
