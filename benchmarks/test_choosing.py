"""A full round in each condition, and a copy of the arrays that it must read: `make bench`."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from turnout.bench.fleets import CONDITIONS
from turnout.bench.paced_fleets import PACED_CONDITIONS

CLIENTS = 1_000_000


@pytest.mark.parametrize("cohort", [100, CLIENTS // 100])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_full_round(benchmark: BenchmarkFixture, condition: str, cohort: int) -> None:
    benchmark.group = f"N = {CLIENTS:,}, m = {cohort:,}"
    benchmark(CONDITIONS[condition](CLIENTS, cohort, np.random.default_rng(0)).full_round)


@pytest.mark.parametrize("cohort", [100, CLIENTS // 100])
@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_full_round_of_fair_pace(benchmark: BenchmarkFixture, condition: str, cohort: int) -> None:
    benchmark.group = f"fair-pace, N = {CLIENTS:,}, m = {cohort:,}"
    benchmark(PACED_CONDITIONS[condition](CLIENTS, cohort, np.random.default_rng(0)).full_round)


@pytest.mark.parametrize("cohort", [100, CLIENTS // 100])
def test_copy_of_the_arrays_that_a_round_reads(benchmark: BenchmarkFixture, cohort: int) -> None:
    benchmark.group = f"N = {CLIENTS:,}, m = {cohort:,}"
    sources = CONDITIONS["mixed"](CLIENTS, cohort, np.random.default_rng(0)).arrays()
    targets = [np.empty_like(source) for source in sources]

    def copy() -> None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)

    benchmark(copy)


def test_full_round_of_the_papers_forty_clients(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "N = 40, m = 8"
    benchmark(CONDITIONS["mixed"](40, 8, np.random.default_rng(0)).full_round)
