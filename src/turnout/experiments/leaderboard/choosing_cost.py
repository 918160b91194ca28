"""What choosing costs on this machine. It is measured, not stored: elsewhere and tomorrow it is another number."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.policies.base import SelectionPolicy
from turnout.simulator.plans import RunPlan
from turnout.simulator.world import World

ROUNDS = 50
SEEDS = 3


def choosing_costs(
    plans: Mapping[str, Sequence[RunPlan]], watch: Callable[[int], None] | None = None
) -> dict[str, FloatArray]:
    """Microseconds of CPU that one ask and one tell take, the median of the first rounds, one number a seed.

    Contenders take turns, so that a busy moment hits all alike. `watch` is told how many runs were just measured.
    """
    seeds = min(SEEDS, *(len(own) for own in plans.values()))
    costs: dict[str, list[float]] = {label: [] for label in plans}
    for seed in range(seeds):
        for label, own in plans.items():
            policy, world = own[seed].build()
            costs[label].append(_median_cost(policy, world, min(ROUNDS, own[seed].rounds)))
            if watch is not None:
                watch(1)
    return {label: np.array(one) for label, one in costs.items()}


def _median_cost(policy: SelectionPolicy, world: World, rounds: int) -> float:
    spent = []
    for round_ in range(1, rounds + 1):
        offer = world.offer(round_)
        shown = offer if policy.requires_expected_times else offer.without_truth()
        before = time.thread_time()
        selection = policy.ask(shown)
        asked = time.thread_time()
        report = world.play(offer, selection)
        played = time.thread_time()
        policy.tell(report)
        spent.append(asked - before + time.thread_time() - played)
    return float(np.median(spent)) * 1e6
