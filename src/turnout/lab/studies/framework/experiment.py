"""The base class of experiments: plans to play, findings to compute, a figure to draw; and their results as files.

Drawing never plays a run, and playing never draws.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.lab.columns import RoundColumns, Table, as_csv, write_text
from turnout.lab.drawing import style
from turnout.lab.drawing.style import Figure
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.studies.framework.claims import Claim, Group, Verdict

Plans = Mapping[str, list[RunPlan]]
#: Policies with their settings, by label.
Contenders = Mapping[str, tuple[str, Mapping[str, Any]]]


def plans_for(contenders: Contenders, seeds: int, rounds: int, *, first_seed: int = 0, **options: Any) -> Plans:
    """Returns the plans of each contender, one per seed; `options` are further arguments of `RunPlan`."""
    return {
        label: [
            RunPlan(policy, rounds, seed, settings, label=label, **options)
            for seed in range(first_seed, first_seed + seeds)
        ]
        for label, (policy, settings) in contenders.items()
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of an experiment: claims with their verdicts, and the data of its figure as named tables."""

    claims: list[Claim]
    tables: dict[str, Table]


class Runs:
    """The finished runs of an experiment, which are read from the store one at a time."""

    def __init__(self, plans: Plans, store: RunStore) -> None:
        self._plans, self._store = plans, store

    @property
    def labels(self) -> list[str]:
        """The labels of the contenders."""
        return list(self._plans)

    def plans_of(self, label: str) -> list[RunPlan]:
        """Returns the plans of a contender, one per seed."""
        return self._plans[label]

    def of(self, label: str) -> Iterator[RoundColumns]:
        """Yields the runs of a contender, one per seed."""
        for plan in self._plans[label]:
            run = self._store.find(plan.key)
            if run is None or not run.finished:
                raise SettingError(f"the run of {plan.name}, seed {plan.seed}, is not in the store: play it first")
            yield self._store.columns(run.id)

    def each(self, label: str, measure: Callable[[RoundColumns], float]) -> Group:
        """Returns one measurement per seed."""
        return Group(label, np.array([measure(columns) for columns in self.of(label)]))

    def curves(self, label: str, measure: Callable[[RoundColumns], FloatArray]) -> FloatArray:
        """Returns one curve per seed, as rows."""
        return np.stack([measure(columns) for columns in self.of(label)])


class Experiment(ABC):
    """A figure with its claims.

    `rounds` and `seeds` are the default numbers, `first_seed` is the first of the seeds; `keep` is that of the plans:
    long runs store only choices and times.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    contenders: ClassVar[Contenders]
    rounds: ClassVar[int] = 500
    seeds: ClassVar[int] = 20
    first_seed: ClassVar[int] = 0
    keep: ClassVar[Literal["all", "choices"]] = "all"

    def on(self, datasets: Sequence[str]) -> Experiment:
        """Returns the same experiment on other datasets; most experiments train no model and reject this."""
        raise SettingError(f"{self.name} trains no model: it cannot be played on {', '.join(datasets)}")

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns the plans of each contender, one per seed; `rounds` replaces the default number of rounds."""
        return plans_for(self.contenders, seeds, rounds or self.rounds, keep=self.keep)

    @abstractmethod
    def findings(self, runs: Runs) -> Findings:
        """Computes claims and tables from finished runs."""

    @abstractmethod
    def draw(self, findings: Findings) -> Figure:
        """Draws the figure from the tables."""


@dataclass(frozen=True, slots=True)
class Result:
    """An experiment and its findings."""

    experiment: Experiment
    findings: Findings


def plans_of(experiments: Iterable[Experiment], seeds: int | None = None, rounds: int | None = None) -> list[RunPlan]:
    """Returns the plans of all runs that these experiments need; a plan that several need is listed once.

    `seeds` and `rounds` replace the defaults of each experiment.
    """
    plans = {
        plan.key: plan
        for experiment in experiments
        for contender in experiment.plans(seeds or experiment.seeds, rounds).values()
        for plan in contender
    }
    return list(plans.values())


def compute_results(
    experiments: Sequence[Experiment], store: RunStore, *, seeds: int | None = None, rounds: int | None = None
) -> list[Result]:
    """Computes the findings of each experiment from a store that holds its runs.

    Args:
        experiments: The experiments.
        store: The store of the runs.
        seeds: The number of seeds, by default that of each experiment.
        rounds: The number of rounds, by default that of each experiment.
    """
    return [
        Result(experiment, experiment.findings(Runs(experiment.plans(seeds or experiment.seeds, rounds), store)))
        for experiment in experiments
    ]


def write_results(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes figures as SVG and PNG, their data as CSV and all claims as JSON; returns the paths."""
    written: list[Path] = []
    for result in results:
        for name, table in result.findings.tables.items():
            written.append(write_text(folder / f"{name}.csv", as_csv(table)))
        written.extend(style.save(result.experiment.draw(result.findings), folder, result.experiment.name))
    claims = claims_of(results)
    written.append(write_text(folder / "claims.json", json.dumps(claims, indent=2, ensure_ascii=False) + "\n"))
    return list(dict.fromkeys(written))


def claims_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns every claim as a dict, with the name of its experiment."""
    return [
        {"experiment": result.experiment.name, **asdict(claim)}
        for result in results
        for claim in result.findings.claims
    ]


def verdict_summary(results: Sequence[Result]) -> str:
    """Returns how many claims have each verdict, in words."""
    counts = Counter(claim.verdict for result in results for claim in result.findings.claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])
