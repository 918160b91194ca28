"""The runs that experiments need, their findings, and their figures and data as files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from turnout.lab.drawing import style
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.studies.framework.claims import Verdict
from turnout.lab.studies.framework.experiment import Experiment, Findings, Runs
from turnout.lab.tables import as_csv, write_text


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
