"""Measures the CPU cost of selection on this machine. It is not stored, because it depends on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.runs.plans import RunPlan
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy

ROUNDS = 50
SEEDS = 3


def choosing_costs(
    plans: Mapping[str, Sequence[RunPlan]], watch: Callable[[int], None] | None = None
) -> dict[str, FloatArray]:
    """Returns the CPU time in microseconds of one `ask` and one `tell`: the median of the first rounds, by seed.

    Contenders are measured alternately, so that load on the machine affects all of them. `watch` is called with the
    number of runs that were just measured.
    """
    costs: dict[str, list[float]] = {label: [] for label in plans}
    for seed in range(min(SEEDS, *map(len, plans.values()))):
        for label, by_seed in plans.items():
            policy, world = by_seed[seed].build()
            costs[label].append(_median_cost(policy, world, min(ROUNDS, by_seed[seed].rounds)))
            if watch is not None:
                watch(1)
    return {label: np.array(values) for label, values in costs.items()}


def _median_cost(policy: SelectionPolicy, world: World, rounds: int) -> float:
    costs = []
    for round_ in range(1, rounds + 1):
        offer = world.offer(round_)
        visible = offer if policy.requires_expected_times else offer.without_truth()
        before = time.thread_time()
        selection = policy.ask(visible)
        asked = time.thread_time()
        report = world.play(offer, selection)
        played = time.thread_time()
        policy.tell(report)
        costs.append(asked - before + time.thread_time() - played)
    return float(np.median(costs)) * 1e6
