"""Searches the value of a parameter that meets a goal, by simulation with the same seeds for every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, read_only
from turnout.lab.analysis.trials import Goal, Parameter, RunFigures, Trial, measure_run, round_to_safe_side
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy

#: Builds a new policy and a new world from settings of the policy and a seed.
Build = Callable[[Mapping[str, Any], int], tuple[SelectionPolicy, World]]
#: A progress callback; receives the rounds played so far and the estimated total.
Watch = Callable[[int, int], None]

FRESH_SEED_OFFSET = 1_000_000  # the distance of the verification seeds from those of the search
SAFETY_FACTOR = 1.1  # moves a value to the safe side if fresh seeds did not confirm it
ATTEMPTS = 12


class Effort(NamedTuple):
    """How many values and seeds a search simulates.

    Attributes:
        points: The number of values of the curve.
        coarse: The number of seeds per value of the curve.
        fine: The largest number of seeds per value of the bisection.
        fresh: The number of seeds of the verification.
    """

    points: int = 12
    coarse: int = 6
    fine: int = 16
    fresh: int = 20

    def checked(self) -> Effort:
        """Returns the same effort, or raises SettingError if a number is too small."""
        for name, count in self._asdict().items():
            as_count(name, count, SettingError, least=2)
        if self.fine < self.coarse:
            raise SettingError(f"fine must be at least coarse, {self.coarse}, not {self.fine}: precision only grows")
        return self

    @property
    def steps(self) -> int:
        """The number of bisection steps that determine a value to about 5 %."""
        return max(3, math.ceil(math.log2(200 / self.points)))

    @property
    def runs(self) -> int:
        """The estimated number of runs of a search."""
        return (self.points + 1) * self.coarse + self.fine * self.steps + 2 * self.fresh


class Search:
    """Simulates settings with seeds, each combination once, and verifies results with fresh seeds.

    `lowest` is the smallest value of the parameter that is tried.

    Args:
        goal: The goal to meet.
        parameter: The setting that is tuned.
        build: Builds a policy and a world from settings and a seed.
        seed: The first seed of the search.
        watch: A progress callback.
    """

    def __init__(self, goal: Goal, parameter: Parameter, build: Build, seed: int, watch: Watch | None) -> None:
        self.goal, self.parameter, self.lowest = goal, parameter, 0.0
        self._build, self._seed, self._watch = build, as_count("seed", seed, SettingError, least=0), watch
        self._results: dict[tuple[tuple[tuple[str, Any], ...], int], RunFigures] = {}
        self._next_fresh_seed = seed + FRESH_SEED_OFFSET
        self._done, self._expected = 0, 0

    def expect_runs(self, runs: int) -> None:
        """Sets the estimated number of runs for the progress callback."""
        self._expected = runs * self.goal.rounds

    def example(self, settings: Mapping[str, Any]) -> tuple[SelectionPolicy, World]:
        """Returns the policy and the world of the first seed, which are not played."""
        return self._build(settings, self._seed)

    def trial(self, settings: Mapping[str, Any], seeds: int) -> Trial:
        """Simulates the settings with the first `seeds` seeds of the search."""
        return self._trial_with(settings, range(self._seed, self._seed + seeds))

    def boundary(self, curve: Sequence[Trial], effort: Effort) -> dict[str, Any] | None:
        """Returns the settings that meet the goal at the lowest price, by bisection; None if the curve has none.

        The curve is sorted by the value of the parameter. From the side where the goal should be met, the first value
        that does not meet it ends the range, so that later values that meet it by chance do not count. If round times
        level off, the smallest value that meets a goal on time is sought, seen from the other side.
        """
        goal, parameter = self.goal, self.parameter
        if parameter.levels_off and parameter.met_by_larger(goal):
            return self._first_meeting(curve, effort)
        ordered = list(curve)[::-1] if parameter.met_by_larger(goal) else list(curve)
        met = 0
        while met < len(ordered) and ordered[met].meets(goal):
            met += 1
        if met == 0:
            # More seeds give a tighter bound.
            meets = self.trial(ordered[0].settings, effort.fine).meets(goal)
            return dict(ordered[0].settings) if meets else None
        return self._bisect(ordered[met - 1], ordered[met] if met < len(ordered) else None, effort)

    def confirm(self, settings: Mapping[str, Any], effort: Effort, *, fixed: bool = False) -> Trial | None:
        """Returns the trial of the settings on fresh seeds, or None if they do not meet the goal.

        If necessary, the value is moved to the safe side, unless it is `fixed`. Only settings that meet the goal with
        every seed of the search are verified.
        """
        up = self.parameter.met_by_larger(self.goal)
        value = round_to_safe_side(self.parameter.value(settings), down=not up)
        for _ in range(ATTEMPTS):
            candidate = {**settings, self.parameter.name: value}
            if self.trial(candidate, effort.fine).runs_meeting(self.goal) == effort.fine:
                first = self._next_fresh_seed
                self._next_fresh_seed += effort.fresh
                trial = self._trial_with(candidate, range(first, first + effort.fresh))
                if trial.runs_meeting(self.goal) == effort.fresh:
                    return trial
            if fixed or value == 0:
                return None
            value = round_to_safe_side(value * SAFETY_FACTOR if up else value / SAFETY_FACTOR, down=not up)
            if value < self.lowest:
                return None
        return None

    def _first_meeting(self, curve: Sequence[Trial], effort: Effort) -> dict[str, Any] | None:
        """Returns the smallest value that meets the goal; more seeds decide where the mean alone would meet it."""
        failed = None
        for trial in curve:
            likely = trial.mean(self.goal.figure) <= self.goal.most
            if trial.meets(self.goal) or (likely and self.trial(trial.settings, effort.fine).meets(self.goal)):
                return self._bisect(trial, failed, effort)
            failed = trial
        return None

    def _bisect(self, met: Trial, failed: Trial | None, effort: Effort) -> dict[str, Any]:
        """Returns the settings between a trial that meets the goal and one that does not, on the meeting side."""
        name, passing = self.parameter.name, self.parameter.value(met.settings)
        if failed is None:
            return {name: passing}
        failing = self.parameter.value(failed.settings)
        if min(passing, failing) == 0:
            # Zero has no logarithm, and below the lowest positive value nothing changes.
            return {name: passing}
        coarse, fine, steps = effort.coarse, effort.fine, effort.steps
        for step in range(steps):
            seeds = min(coarse + math.ceil((fine - coarse) * (step + 1) / (steps - 1)), fine)
            if self.parameter.levels_off:  # the curve is flat, so that few seeds decide nothing
                seeds = fine
            middle = math.sqrt(passing * failing)
            if self.trial({name: middle}, seeds).meets(self.goal):
                passing = middle
            else:
                failing = middle
        return {name: passing}

    def _trial_with(self, settings: Mapping[str, Any], seeds: range) -> Trial:
        figures = np.array([self._run(settings, seed) for seed in seeds], dtype=np.float64)
        return Trial(dict(settings), read_only(figures))

    def _run(self, settings: Mapping[str, Any], seed: int) -> RunFigures:
        key = (tuple(sorted(settings.items())), seed)
        if key not in self._results:
            self._results[key] = measure_run(*self._build(settings, seed), self.goal.rounds)
            self._done += self.goal.rounds
            if self._watch is not None:
                self._watch(self._done, max(self._done, self._expected))
        return self._results[key]
