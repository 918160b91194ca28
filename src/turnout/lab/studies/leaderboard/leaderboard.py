"""Compares every policy on the same worlds, with rounds or without: speed, fairness, cost, and the Pareto front."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.certificate import STATUSES
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.metrics import available_rates, jain_index, worst_status
from turnout.lab.analysis.promise import shortfalls, with_outcome
from turnout.lab.analysis.slots import slot_metrics
from turnout.lab.analysis.statistics import LearningCurve, with_bands
from turnout.lab.columns import RoundColumns, Table, as_columns, as_csv, write_text
from turnout.lab.drawing.style import Figure, as_svg
from turnout.lab.runs.plans import RunPlan
from turnout.lab.studies.framework.claims import all_above
from turnout.lab.studies.framework.experiment import Experiment, Findings, Plans, Runs
from turnout.lab.studies.leaderboard.contenders import Contender
from turnout.lab.studies.leaderboard.drawing import draw_board
from turnout.lab.studies.leaderboard.suites import Suite
from turnout.lab.studies.paper.learning_curves import final_accuracies, time_to_target
from turnout.lab.studies.paper.panels import HIGH
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy

Position = Literal["front", "near", "behind"]


def on_front(times: npt.ArrayLike, shortfalls: npt.ArrayLike) -> BoolArray:
    """Returns which points are not dominated: no other point is at least as good in both and better in one.

    >>> on_front([1.0, 2.0, 3.0], [9.0, 1.0, 1.5])
    array([ True,  True, False])
    """
    time, shortfall = np.asarray(times, dtype=np.float64), np.asarray(shortfalls, dtype=np.float64)
    as_good = (time[:, None] <= time) & (shortfall[:, None] <= shortfall)
    better = (time[:, None] < time) | (shortfall[:, None] < shortfall)
    dominated: BoolArray = np.any(as_good & better, axis=0)
    return ~dominated


def classify(times: Mapping[str, FloatArray], shortfalls: Mapping[str, FloatArray]) -> dict[str, Position]:
    """Classifies contenders by their values per seed: on the front of the means, near it, or behind it.

    A contender off the front is near it if no other contender dominates it with 95 % confidence, in paired comparisons
    by seed.
    """
    labels = list(times)
    if not labels:
        return {}
    undominated = on_front([times[label].mean() for label in labels], [shortfalls[label].mean() for label in labels])
    positions: dict[str, Position] = {}
    for label, best in zip(labels, undominated.tolist(), strict=True):
        others = [other for other in labels if other != label]
        dominated = any(
            _surely_dominates([times[label] - times[other], shortfalls[label] - shortfalls[other]]) for other in others
        )
        positions[label] = "front" if best else "behind" if dominated else "near"
    return positions


def _surely_dominates(gains: Sequence[FloatArray]) -> bool:
    """Returns whether, with 95 % confidence, no gain is negative and at least one is positive."""
    return all_above(gains, 0.0) == "holds" and any(all_above([gain], 0.0, strictly=True) == "holds" for gain in gains)


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


#: Clients that were available in a smaller share of the rounds are excluded from the least share: a few rounds give no
#: meaningful share.
MIN_PRESENCE = 0.05
#: Policies with cohorts below this share of random's are excluded from the front: small cohorts alone shorten rounds.
MIN_COHORT = 0.9


class Leaderboard(Experiment):
    """The measurements of all contenders of a suite and, with rounds, their Pareto front.

    Three kinds of contenders are shown but excluded from the front: those that know the true expected times, those that
    missed the target accuracy in some run, and, where round times are compared, those with much smaller cohorts than
    random.
    """

    name = "leaderboard"
    title = "Leaderboard"
    about = "Every policy on the same worlds and seeds."

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self.table = "leaderboard" if suite.slots is None else "slots"  # the name of the table

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns the plans of every contender in the suite's world; `rounds` may be a number of turns."""
        return self.suite.plans(seeds, rounds)

    def findings(self, runs: Runs) -> Findings:
        """Computes one row per contender, the best first."""
        suite = self.suite
        measured = {
            contender.label: measure_each(runs.of(contender.label), partial(_measure_run, suite, contender))
            for contender in suite.contenders
        }
        target = add_accuracies(runs, measured, suite.reference) if suite.trains else None
        if suite.slots is None:
            positions = self._positions(measured)
        else:
            positions, reference = {}, measured[suite.reference]["updates_per_second"]
            for own in measured.values():
                own["speedup"] = own["updates_per_second"] / reference
        rows = [
            self._row(contender, measured[contender.label], positions.get(contender.label, ""), target)
            for contender in suite.contenders
        ]
        if suite.slots is None:
            rows.sort(key=lambda row: (row.get("never", 0) > 0, row[suite.measure]))
        else:
            rows.sort(key=lambda row: -row[suite.measure])
        return Findings([], {self.table: as_columns(rows)})

    def draw(self, findings: Findings) -> Figure:
        """Draws speed against the largest shortfall at any time."""
        return next(iter(draw_board(self.suite, findings.tables[self.table]).values()))

    def _positions(self, measured: Mapping[str, Mapping[str, FloatArray]]) -> dict[str, Position]:
        smallest_cohort = MIN_COHORT * measured[self.suite.reference]["chosen"].mean()
        eligible = [
            contender.label
            for contender in self.suite.contenders
            if not contender.knows_truth
            and (
                measured[contender.label]["reached"].all()
                if self.suite.trains
                else measured[contender.label]["chosen"].mean() >= smallest_cohort
            )
        ]
        times = {label: measured[label][self.suite.measure] for label in eligible}
        return classify(times, {label: measured[label]["shortfall"] for label in eligible})

    def _row(
        self, contender: Contender, measured: Mapping[str, FloatArray], position: str, target: float | None
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"contender": contender.label, "policy": contender.policy}
        learned = [] if target is None else ["minutes_to_target", "final_accuracy"]
        if self.suite.slots is None:
            row |= {"told_truth": contender.knows_truth, "front": position}
            completed = ["shortfall_completed"] if self.suite.misses else []
            measures = ["mean_round", "later_round", *learned, "shortfall", "shortfall_at_end", *completed]
            measures += ["least_share", "least_share_of_all", "least_share_of_available", "jain", "chosen", "arrived"]
            promise = {"promised": math.nan if contender.promised is None else contender.promised}
        else:
            share = math.nan if contender.share is None else float(contender.share)
            row |= {"in_rounds": contender.in_rounds, "promised_share": share}
            measures = ["updates_per_second", "speedup", "mean_staleness", "least_share", "shortfall", *learned]
            promise = {}
        if target is not None:
            row |= {"target": round(target, 6), "never": int((measured["reached"] == 0).sum())}
        row |= with_bands({measure: measured[measure] for measure in measures}, digits=6)
        for measure in measures:
            if measure.startswith("shortfall"):
                row[f"worst_{measure}"] = round(float(measured[measure].max()), 6)
        return {**row, **promise, "tolerance": contender.tolerance, "status": STATUSES[int(measured["level"].max())]}


def add_accuracies(runs: Runs, measured: Mapping[str, dict[str, FloatArray]], reference: str) -> float:
    """Adds minutes to the target and final accuracies to the measurements; returns the target accuracy.

    Args:
        runs: The runs of all contenders.
        measured: The measurements of each contender, one value per seed.
        reference: The contender whose final accuracy determines the target.
    """
    curves = {label: [LearningCurve.of(columns) for columns in runs.of(label)] for label in measured}
    target = HIGH * float(final_accuracies(reference, curves[reference]).values.mean())
    for label, seeds in curves.items():
        measured[label]["minutes_to_target"] = time_to_target(label, seeds, target, "minutes").values
        measured[label]["reached"] = np.array([float(curve.reaches(target)) for curve in seeds])
        measured[label]["final_accuracy"] = final_accuracies(label, seeds).values
    return target


def with_costs(board: Leaderboard, findings: Findings, costs: Mapping[str, FloatArray]) -> Findings:
    """Adds the selection costs measured on this machine to the findings."""
    table = dict(findings.tables[board.table])
    labels = np.asarray(table["contender"]).tolist()
    table |= as_columns([with_bands({"microseconds": costs[label]}, digits=1) for label in labels])
    return Findings(findings.claims, {**findings.tables, board.table: table})


def rows_of(table: Table) -> list[dict[str, Any]]:
    """Returns one dict per row, for JSON; NaN becomes None."""
    columns = {name: np.asarray(values).tolist() for name, values in table.items()}
    return [
        # Only NaN differs from itself.
        {name: None if value != value else value for name, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def as_json(board: Leaderboard, findings: Findings, *, seeds: int, rounds: int) -> dict[str, Any]:
    """Returns the findings and the settings of all runs as a dict; `rounds` is the number of rounds, or of turns."""
    suite = board.suite
    data: dict[str, Any] = {
        "suite": suite.name,
        "title": suite.title,
        "rounds" if suite.slots is None else "turns": rounds,
        "seeds": seeds,
        "world": {"name": suite.world, **suite.world_settings},
    }
    if suite.slots is None:
        data |= {
            "assumptions": list(suite.assumptions),
            "front": [suite.measure, "shortfall"],
            "guaranteed_rate": suite.rate,
            "least_share_of": suite.share_of,
            "settings": {each.label: {"policy": each.policy, **each.settings} for each in suite.contenders},
            "left_out": dict(suite.left_out),
            "machine_dependent": ["microseconds"],
        }
    else:
        data |= {
            "concurrency": suite.slots,
            "clients": suite.clients,
            "present": round(1 / suite.rate),
            "baseline": suite.reference,
        }
    data["policies"] = rows_of(findings.tables[board.table])
    return data


def write_leaderboard(board: Leaderboard, findings: Findings, data: Mapping[str, Any], folder: Path) -> None:
    """Writes the data as CSV and JSON, then the figures, which need matplotlib."""
    for name, table in findings.tables.items():
        write_text(folder / f"{name}.csv", as_csv(table))
    write_text(folder / f"{board.table}.json", json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    for name, drawn in draw_board(board.suite, findings.tables[board.table]).items():
        write_text(folder / f"{name}.svg", as_svg(drawn))


def measure_each(
    runs: Iterable[RoundColumns], measure: Callable[[RoundColumns], dict[str, float]]
) -> dict[str, FloatArray]:
    """Returns each measure with one value per seed."""
    by_seed = [measure(columns) for columns in runs]
    return {name: np.array([values[name] for values in by_seed]) for name in by_seed[0]}


def _measure_run(suite: Suite, contender: Contender, columns: RoundColumns) -> dict[str, float]:
    rates = available_rates(columns, least=MIN_PRESENCE)
    of_available = math.nan if np.isnan(rates).all() else float(np.nanmin(rates))
    of_all = int(columns.turns.min()) / len(columns)
    selected, completed = (
        shortfalls(
            columns, suite.rate_of(contender), accrual=suite.share_of, counts=counts, tolerance=contender.tolerance
        )
        for counts in ("selected", "completed")
    )
    promised = selected if contender.counts == "selected" else completed
    measures = {
        "shortfall": selected.largest,
        "shortfall_at_end": selected.at_end,
        "shortfall_completed": completed.largest,
        "level": float(STATUSES.index(worst_status(promised))),
        "least_share": (of_all if suite.share_of == "always" else of_available) / float(suite.equal_share(contender)),
    }
    arrived = with_outcome(columns, ("arrived",))
    if STARTED in columns.metrics:
        figures = slot_metrics(columns, int(suite.world_settings.get("updates_per_version", 1)))
        return measures | {"updates_per_second": figures.updates_per_second, "mean_staleness": figures.mean_staleness}
    if suite.slots is not None:
        pace = int(arrived.sum()) / float(columns.durations.sum())
        return measures | {"updates_per_second": pace, "mean_staleness": 0.0}
    return measures | {
        "mean_round": float(columns.durations.mean()),
        "later_round": float(columns.durations[len(columns) // 3 :].mean()),
        "least_share_of_all": of_all,
        "least_share_of_available": of_available,
        "jain": jain_index(columns.turns),
        "chosen": len(columns.chosen) / len(columns),
        "arrived": float(arrived.mean()) if len(arrived) else 1.0,
    }
