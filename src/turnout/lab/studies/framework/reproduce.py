"""Runs experiments: plays missing runs, computes findings, writes figures and data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher
from turnout.lab.studies.framework import drawing
from turnout.lab.studies.framework.claims import Claim
from turnout.lab.studies.framework.experiment import Experiment, Findings, Runs, Table
from turnout.lab.training.distributed import play_plans, trains


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


def reproduce(
    experiments: Sequence[Experiment],
    store: RunStore,
    *,
    seeds: int | None = None,
    rounds: int | None = None,
    workers: int | None = None,
    backend: str | Executor | None = None,
    device: str = "cpu",
    watch: Callable[[int], None] | None = None,
    track: StoredWatcher | None = None,
) -> list[Result]:
    """Plays the runs that are missing from the store, then computes the findings of each experiment.

    Args:
        experiments: The experiments.
        store: The store of the runs.
        seeds: The number of seeds, by default that of each experiment.
        rounds: The number of rounds, by default that of each experiment.
        workers: The number of processes, by default one per core.
        backend: The executor that distributes all runs, or the joblib backend of the runs that train no model.
        device: The torch device that trains models.
        watch: Called with the number of rounds that were just played.
        track: Called with the plan and the rounds of runs as they are stored.
    """
    plans = plans_of(experiments, seeds, rounds)
    check_device(plans, device)
    play_plans(plans, store, workers=workers, backend=backend, device=device, watch=watch, track=track)
    return [
        Result(experiment, experiment.findings(Runs(experiment.plans(seeds or experiment.seeds, rounds), store)))
        for experiment in experiments
    ]


def check_device(plans: Iterable[RunPlan], device: str) -> None:
    """Raises SettingError for a device other than the CPU if no plan trains a model."""
    if device != "cpu" and not any(trains(plan) for plan in plans):
        raise SettingError(
            f"these runs train no model: the device must be cpu, not {device}; runs in the world training use a device"
        )


def write_results(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes figures as SVG and PNG, their data as CSV and all claims as JSON; returns the paths."""
    written: list[Path] = []
    for result in results:
        for name, table in result.findings.tables.items():
            written.append(write_text(folder / f"{name}.csv", as_csv(table)))
        written.extend(drawing.save(result.experiment.draw(result.findings), folder, result.experiment.name))
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


def verdict_counts(claims: Iterable[Claim]) -> dict[str, int]:
    """Counts the claims by verdict."""
    counts = {"holds": 0, "does not hold": 0, "not decided": 0}
    for claim in claims:
        counts[claim.verdict] += 1
    return counts


def as_csv(table: Table) -> str:
    """Returns a table as CSV with a header line."""
    columns = {name: np.asarray(values) for name, values in table.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return text.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Writes a file and its folder; raises SettingError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror or error}") from error
    return path
