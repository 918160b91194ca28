"""The paper's comparison, and one run against the literal RBCS-F: `make bench`."""

from __future__ import annotations

from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.literal_rbcsf import literal_run
from turnout.bench.sweeping import ROUNDS, paper_sweep
from turnout.lab import RunPlan, RunStore, play_plan, sweep


def test_sweep_of_six_policies_and_twenty_seeds(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    benchmark.group = "6 policies, 500 rounds, 20 seeds, 2 cores"
    folders = iter(range(1000))

    def run_sweep() -> None:
        with RunStore(tmp_path / f"{next(folders)}.turnout") as store:
            sweep(paper_sweep(20), store, workers=2)

    benchmark.pedantic(run_sweep, rounds=3)  # type: ignore[no-untyped-call]


def test_one_run(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "one run of RBCS-F, 500 rounds"
    benchmark(play_plan, RunPlan("rbcsf", ROUNDS))


def test_one_run_of_the_literal_rbcsf(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "one run of RBCS-F, 500 rounds"
    benchmark.pedantic(literal_run, args=(ROUNDS,), rounds=3)  # type: ignore[no-untyped-call]
