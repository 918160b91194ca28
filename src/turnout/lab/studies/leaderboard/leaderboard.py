"""Compares every policy on the same worlds: speed, fairness, cost, and the Pareto front."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import STATUSES
from turnout.lab.analysis.judging import worst_status
from turnout.lab.analysis.learning_curves import LearningCurve
from turnout.lab.analysis.metrics import available_rates, jain_index
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.columns import RoundColumns
from turnout.lab.drawing import style as drawing
from turnout.lab.studies.framework.experiment import Experiment, Findings, Plans, Runs
from turnout.lab.studies.leaderboard.drawing import draw_figures, draw_front
from turnout.lab.studies.leaderboard.forecasts import forecast_table
from turnout.lab.studies.leaderboard.front import classify
from turnout.lab.studies.leaderboard.suites import Contender, Suite
from turnout.lab.studies.paper.comparison import weight_label
from turnout.lab.studies.paper.learning_curves import final_accuracies, time_to_target
from turnout.lab.studies.paper.panels import HIGH
from turnout.lab.tables import Table, as_columns, as_csv, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE, FORECASTS = "leaderboard", "forecasts"
REFERENCE = "random"
#: Clients that were available in a smaller share of the rounds are excluded from the least share: a few rounds give no
#: meaningful share.
MIN_PRESENCE = 0.05
#: Policies with cohorts below this share of random's are excluded from the front: small cohorts alone shorten rounds.
MIN_COHORT = 0.9
Measure = Literal["mean_round", "minutes_to_target"]


class Leaderboard(Experiment):
    """The measurements of all contenders of a suite, and their Pareto front.

    Three kinds of contenders are shown but excluded from the front: those that know the true expected times, those that
    missed the target accuracy in some run, and, where round times are compared, those with much smaller cohorts than
    random.
    """

    name = "leaderboard"
    title = "Leaderboard"
    about = "Every policy on the same worlds and seeds."

    def __init__(self, suite: Suite) -> None:
        self.suite = suite

    @property
    def measure(self) -> Measure:
        """The time that the front minimises."""
        return "minutes_to_target" if self.suite.trains else "mean_round"

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns the plans of every contender in the suite's world."""
        return self.suite.plans(seeds, rounds)

    def findings(self, runs: Runs) -> Findings:
        """Computes one row per contender, sorted by time; on traces also the errors of time forecasts."""
        measured = {
            contender.label: measure_each(
                runs.of(contender.label), partial(_measure_run, self.suite, contender.tolerance)
            )
            for contender in self.suite.contenders
        }
        target = add_accuracies(runs, measured, REFERENCE) if self.suite.trains else None
        positions = self._positions(measured)
        rows = [
            self._row(contender, measured[contender.label], positions.get(contender.label, ""), target)
            for contender in self.suite.contenders
            if contender.label in runs.labels
        ]
        rows.sort(key=lambda row: (row.get("never", 0) > 0, row[self.measure]))
        tables: dict[str, Table] = {TABLE: as_columns(rows)}
        if self.suite.world == "traces":
            learned, oracle = self._forecast_labels()
            tables[FORECASTS] = forecast_table(runs.of(learned), runs.of(oracle))
        return Findings([], tables)

    def draw(self, findings: Findings) -> Figure:
        """Draws time against the largest shortfall at any time."""
        return draw_front(findings.tables[TABLE], self.measure, self.suite)

    def _positions(self, measured: Mapping[str, Mapping[str, FloatArray]]) -> dict[str, str]:
        smallest_cohort = MIN_COHORT * measured[REFERENCE]["chosen"].mean()
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
        return dict(
            classify(
                {label: measured[label][self.measure] for label in eligible},
                {label: measured[label]["shortfall"] for label in eligible},
            )
        )

    @property
    def _share(self) -> str:
        return "least_share_of_available" if self.suite.share_of == "available" else "least_share_of_all"

    def _row(
        self, contender: Contender, measured: Mapping[str, FloatArray], position: str, target: float | None
    ) -> dict[str, Any]:
        row: dict[str, Any] = {
            "contender": contender.label,
            "policy": contender.policy,
            "told_truth": contender.knows_truth,
            "front": position,
        }
        if target is not None:
            row |= {"target": round(target, 6), "never": int((measured["reached"] == 0).sum())}
        measures = {
            measure: measured[self._share if measure == "least_share" else measure] for measure in self._measures()
        }
        row |= {
            **with_bands(measures, digits=6),
            "worst_shortfall": round(float(measured["shortfall"].max()), 6),
            "worst_shortfall_at_end": round(float(measured["shortfall_at_end"].max()), 6),
            "promised": math.nan if contender.promised is None else contender.promised,
            "tolerance": contender.tolerance,
            "status": STATUSES[int(measured["level"].max())],
        }
        return row

    def _measures(self) -> list[str]:
        """Returns the measures of each contender that are shown as mean and half-width."""
        learned = ["minutes_to_target", "final_accuracy"] if self.suite.trains else []
        fairness = ["shortfall", "shortfall_at_end", "least_share", "least_share_of_all", "least_share_of_available"]
        return ["mean_round", "later_round", *learned, *fairness, "jain", "chosen", "arrived"]

    def _forecast_labels(self) -> tuple[str, str]:
        """Returns the contender whose runs the forecasts replay, and the one that knows the expected times."""
        oracle = next(contender for contender in self.suite.contenders if contender.policy == "fair-oracle")
        return weight_label(oracle.settings["speed_weight"]), oracle.label


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


def with_costs(findings: Findings, costs: Mapping[str, FloatArray]) -> Findings:
    """Adds the selection costs measured on this machine to the findings."""
    table = dict(findings.tables[TABLE])
    labels = np.asarray(table["contender"]).tolist()
    table |= as_columns([with_bands({"microseconds": costs[label]}, digits=1) for label in labels])
    return Findings(findings.claims, {**findings.tables, TABLE: table})


def rows_of(table: Table) -> list[dict[str, Any]]:
    """Returns one dict per row, for JSON; NaN becomes None."""
    columns = {name: np.asarray(values).tolist() for name, values in table.items()}
    return [
        {name: _nan_to_none(value) for name, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def as_json(
    board: Leaderboard, findings: Findings, *, seeds: int, rounds: int, assumed: Sequence[str]
) -> dict[str, Any]:
    """Returns the findings and the settings of all runs as a dict.

    Args:
        board: The leaderboard.
        findings: Its findings.
        seeds: The number of seeds.
        rounds: The number of rounds.
        assumed: The assumptions of the world, as sentences.
    """
    suite = board.suite
    data: dict[str, Any] = {
        "suite": suite.name,
        "title": suite.title,
        "rounds": rounds,
        "seeds": seeds,
        "world": {"name": suite.world, **suite.world_settings},
        "assumptions": list(assumed),
        "front": [board.measure, "shortfall"],
        "guaranteed_rate": suite.rate,
        "least_share_of": suite.share_of,
        "settings": {
            contender.label: {"policy": contender.policy, **contender.settings} for contender in suite.contenders
        },
        "left_out": dict(suite.left_out),
        "machine_dependent": ["microseconds"],
        "policies": rows_of(findings.tables[TABLE]),
    }
    if FORECASTS in findings.tables:
        data["forecasts"] = rows_of(findings.tables[FORECASTS])
    return data


def write_leaderboard(board: Leaderboard, findings: Findings, data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the data as CSV and JSON, then the two figures, which need matplotlib; returns the paths."""
    written = [write_text(folder / f"{name}.csv", as_csv(table)) for name, table in findings.tables.items()]
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    written.append(write_text(folder / f"{TABLE}.json", text))
    for name, drawn in (
        ("front", board.draw(findings)),
        (TABLE, draw_figures(findings.tables[TABLE], board.measure, board.suite)),
    ):
        written.append(write_text(folder / f"{name}.svg", drawing.as_svg(drawn)))
    return written


def measure_each(
    runs: Iterable[RoundColumns], measure: Callable[[RoundColumns], dict[str, float]]
) -> dict[str, FloatArray]:
    """Returns each measure with one value per seed."""
    by_seed = [measure(columns) for columns in runs]
    return {name: np.array([values[name] for values in by_seed]) for name in by_seed[0]}


def _measure_run(suite: Suite, tolerance: float, columns: RoundColumns) -> dict[str, float]:
    rates = available_rates(columns, least=MIN_PRESENCE)
    arrived = 1.0 if columns.outcomes is None or not len(columns.chosen) else float((columns.outcomes == 0).mean())
    shortfall = shortfalls(columns, suite.rate, accrual=suite.share_of, tolerance=tolerance)
    return {
        "mean_round": float(columns.durations.mean()),
        "later_round": float(columns.durations[len(columns) // 3 :].mean()),
        "shortfall": shortfall.largest,
        "shortfall_at_end": shortfall.at_end,
        "level": float(STATUSES.index(worst_status(shortfall))),
        "least_share_of_all": int(columns.turns.min()) / len(columns),
        "least_share_of_available": float(np.nanmin(rates)) if not np.isnan(rates).all() else math.nan,
        "jain": jain_index(columns.turns),
        "chosen": len(columns.chosen) / len(columns),
        "arrived": arrived,
    }


def _nan_to_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
