"""Every policy on the same worlds: how fast, how fair, at what cost, and whom nobody beats."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from turnout.analysis.metrics import available_rates, jain_index, owed_units
from turnout.analysis.statistics import mean_confidence_interval
from turnout.experiments.framework import drawing
from turnout.experiments.framework.experiment import Experiment, Findings, Plans, Runs, Table
from turnout.experiments.framework.reproduce import as_csv, write_text
from turnout.experiments.leaderboard.drawing import draw_figures, draw_front
from turnout.experiments.leaderboard.forecasts import forecast_table
from turnout.experiments.leaderboard.front import places
from turnout.experiments.leaderboard.suites import Contender, Suite
from turnout.experiments.paper.comparison import weight_label
from turnout.experiments.paper.learning_curves import LearningCurve, finals, time_to
from turnout.experiments.paper.panels import HIGH
from turnout.kernel.arrays import FloatArray
from turnout.kernel.fairness import Certificate, exact_rates
from turnout.store import RoundColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE, FORECASTS = "leaderboard", "forecasts"
REFERENCE = "random"
#: Who was available for less than this share of the rounds does not count as the least chosen: a few rounds tell
#: nothing.
LEAST_PRESENCE = 0.05
#: Whose cohorts are smaller than this share of random's has short rounds for that alone.
LEAST_COHORT = 0.9
Measure = Literal["mean_round", "minutes_to_target"]


class Leaderboard(Experiment):
    """One suite, its contenders and where they stand.

    Told the truth, a contender is shown but has no place on the front. Nor has one that never came to the target in
    some run, or, where rounds are compared, one whose cohorts are much smaller than random's.
    """

    name = "leaderboard"
    title = "Leaderboard"
    about = "Every policy on the same worlds and seeds."

    def __init__(self, suite: Suite) -> None:
        self.suite = suite

    @property
    def measure(self) -> Measure:
        """What is to be short."""
        return "minutes_to_target" if self.suite.trains else "mean_round"

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Every contender in the suite's world."""
        return self.suite.plans(seeds, rounds)

    def findings(self, runs: Runs) -> Findings:
        """Where everyone stands, the shortest first; on traces also how well times were foreseen."""
        measured = {one.label: _measured(runs.of(one.label), one) for one in self.suite.contenders}
        target = self._time_to_target(runs, measured) if self.suite.trains else None
        standing = self._places(measured)
        rows = [self._row(one, measured[one.label], standing.get(one.label, ""), target) for one in self._ordered(runs)]
        rows.sort(key=lambda row: (row.get("never", 0) > 0, row[self.measure]))
        tables: dict[str, Table] = {TABLE: {word: [row[word] for row in rows] for word in rows[0]}}
        if self.suite.world == "traces":
            ours, oracle = self._foreseen()
            tables[FORECASTS] = forecast_table(runs.of(ours), runs.of(oracle))
        return Findings([], tables)

    def draw(self, findings: Findings) -> Figure:
        """Time against the least-chosen client's share."""
        return draw_front(findings.tables[TABLE], self.measure, self.suite)

    def _ordered(self, runs: Runs) -> list[Contender]:
        return [one for one in self.suite.contenders if one.label in runs.labels]

    def _time_to_target(self, runs: Runs, measured: dict[str, dict[str, FloatArray]]) -> float:
        """Minutes to a share of random's final accuracy, and the final accuracies."""
        curves = {label: [LearningCurve.of(columns) for columns in runs.of(label)] for label in measured}
        target = HIGH * float(finals(REFERENCE, curves[REFERENCE]).values.mean())
        for label, own in curves.items():
            measured[label]["minutes_to_target"] = time_to(label, own, target, "minutes").values
            measured[label]["reached"] = np.array([float(one.reaches(target)) for one in own])
            measured[label]["final_accuracy"] = finals(label, own).values
        return target

    def _places(self, measured: Mapping[str, Mapping[str, FloatArray]]) -> dict[str, str]:
        enough = LEAST_COHORT * measured[REFERENCE]["chosen"].mean()
        eligible = [
            one.label
            for one in self.suite.contenders
            if not one.told_truth
            and (measured[one.label]["reached"].all() if self.suite.trains else _large(measured[one.label], enough))
        ]
        share = self._share
        return dict(
            places(
                {label: measured[label][self.measure] for label in eligible},
                {label: measured[label][share] for label in eligible},
            )
        )

    @property
    def _share(self) -> str:
        return "least_share_of_available" if self.suite.share_of == "available" else "least_share_of_all"

    def _row(
        self, one: Contender, measured: Mapping[str, FloatArray], place: str, target: float | None
    ) -> dict[str, Any]:
        row: dict[str, Any] = {
            "contender": one.label,
            "policy": one.policy,
            "told_truth": one.told_truth,
            "front": place,
        }
        if target is not None:
            row |= {"target": round(target, 6), "never": int((measured["reached"] == 0).sum())}
        for word in self._figures():
            mean, band = mean_confidence_interval(measured[self._share if word == "least_share" else word])
            row[word], row[f"{word}_band"] = round(float(mean), 6), round(float(band), 6)
        row["promised"] = math.nan if one.promised is None else one.promised
        missing, certified = measured.get("missing"), measured.get("certified")
        row["worst_missing"] = math.nan if missing is None else round(float(missing.max()), 6)
        row["certificate"] = "" if certified is None else "holds" if certified.all() else "fails"
        return row

    def _figures(self) -> list[str]:
        """What is told of each contender, as mean and half-width."""
        learned = ["minutes_to_target", "final_accuracy"] if self.suite.trains else []
        shares = ["least_share", "least_share_of_all", "least_share_of_available"]
        return ["mean_round", *learned, *shares, "jain", "chosen", "arrived"]

    def _foreseen(self) -> tuple[str, str]:
        """The contender whose forecasts are looked at, and the one that is told the truth."""
        oracle = next(one for one in self.suite.contenders if one.policy == "fair-oracle")
        return weight_label(oracle.settings["speed_weight"]), oracle.label


def with_costs(findings: Findings, costs: Mapping[str, FloatArray]) -> Findings:
    """The findings, and beside them what choosing cost on this machine."""
    table = dict(findings.tables[TABLE])
    bands = [mean_confidence_interval(costs[label]) for label in np.asarray(table["contender"]).tolist()]
    table["microseconds"] = [round(float(one.mean), 1) for one in bands]
    table["microseconds_band"] = [round(float(one.half_width), 1) for one in bands]
    return Findings(findings.claims, {**findings.tables, TABLE: table})


def rows_of(table: Table) -> list[dict[str, Any]]:
    """One dictionary a row, for JSON: what is not a number is None."""
    columns = {word: np.asarray(values).tolist() for word, values in table.items()}
    return [
        {word: _plain(value) for word, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def as_json(
    board: Leaderboard, findings: Findings, *, seeds: int, rounds: int, assumed: Sequence[str]
) -> dict[str, Any]:
    """All that was found, and what it was found with."""
    suite = board.suite
    told: dict[str, Any] = {
        "suite": suite.name,
        "title": suite.title,
        "rounds": rounds,
        "seeds": seeds,
        "world": {"name": suite.world, **suite.world_settings},
        "assumptions": list(assumed),
        "front": [board.measure, "least_share"],
        "least_share_of": suite.share_of,
        "settings": {one.label: {"policy": one.policy, **one.settings} for one in suite.contenders},
        "left_out": dict(suite.left_out),
        "machine_dependent": ["microseconds"],
        "policies": rows_of(findings.tables[TABLE]),
    }
    if FORECASTS in findings.tables:
        told["forecasts"] = rows_of(findings.tables[FORECASTS])
    return told


def write_leaderboard(board: Leaderboard, findings: Findings, told: Mapping[str, Any], folder: Path) -> list[Path]:
    """Data as CSV and JSON first, then the two figures, which need matplotlib."""
    written = [write_text(folder / f"{name}.csv", as_csv(table)) for name, table in findings.tables.items()]
    text = json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    written.append(write_text(folder / f"{TABLE}.json", text))
    for name, drawn in (
        ("front", board.draw(findings)),
        (TABLE, draw_figures(findings.tables[TABLE], board.measure, board.suite)),
    ):
        written.append(write_text(folder / f"{name}.svg", drawing.as_svg(drawn)))
    return written


def _measured(runs: Any, one: Contender) -> dict[str, FloatArray]:
    """One number a seed of each figure."""
    each = [_figures_of(columns, one) for columns in runs]
    return {word: np.array([figures[word] for figures in each]) for word in each[0]}


def _figures_of(columns: RoundColumns, one: Contender) -> dict[str, float]:
    rates = available_rates(columns, least=LEAST_PRESENCE)
    arrived = 1.0 if columns.outcomes is None or not len(columns.chosen) else float((columns.outcomes == 0).mean())
    figures = {
        "mean_round": float(columns.durations.mean()),
        "least_share_of_all": int(columns.turns.min()) / len(columns),
        "least_share_of_available": float(np.nanmin(rates)) if not np.isnan(rates).all() else math.nan,
        "jain": jain_index(columns.turns),
        "chosen": len(columns.chosen) / len(columns),
        "arrived": arrived,
    }
    if one.promised is not None:
        certificate = certificate_of(columns, one)
        figures["missing"] = float((certificate.promised - certificate.turns).max())
        figures["certified"] = float(certificate.holds)
    return figures


def certificate_of(columns: RoundColumns, one: Contender) -> Certificate:
    """What the contender promised in this run, and what each client got, from the records alone."""
    owed, units = owed_units(columns, one.promised or 0.0, accrual=one.accrual)
    rates, _ = exact_rates(one.promised or 0.0, columns.clients)
    earned = len(columns) if columns.available is None or one.accrual == "always" else columns.available.sum(axis=0)
    promised = np.broadcast_to(np.asarray(rates) * earned, columns.clients)
    nothing = np.zeros(columns.clients, dtype=np.int64)
    return Certificate(columns.turns, units, promised, owed[-1], nothing)


def _large(measured: Mapping[str, FloatArray], enough: float) -> bool:
    return bool(measured["chosen"].mean() >= enough)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
