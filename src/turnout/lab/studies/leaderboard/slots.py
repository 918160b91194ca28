"""The leaderboard without rounds: updates per second against what every client is guaranteed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE, STATUSES
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.judging import worst_status
from turnout.lab.analysis.metrics import available_rates
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.slots import slot_metrics
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.studies.framework.experiment import Experiment, Findings, Plans, Runs
from turnout.lab.studies.leaderboard.leaderboard import (
    MIN_PRESENCE,
    add_accuracies,
    measure_each,
)
from turnout.lab.studies.leaderboard.slot_drawing import draw_slots
from turnout.lab.studies.leaderboard.suites import BaseSuite
from turnout.lab.studies.paper.accuracy import TASKS
from turnout.lab.tables import as_columns
from turnout.policies.registry import load_policies, setting_names, with_defaults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE = "slots"
#: The contender with which all others are compared, seed by seed.
REFERENCE = "random (FedBuff)"
#: What FairPace guarantees, as shares of an equal share of the turns.
SHARES = (Fraction(1, 2), Fraction(3, 4), Fraction(19, 20))
#: The promise by which policies without one are judged.
USUAL = Fraction(3, 4)


@dataclass(frozen=True, slots=True)
class SlotContender:
    """A policy with its settings.

    Attributes:
        label: The name in tables.
        policy: The name of the policy.
        settings: Its settings, without the guaranteed rate.
        share: What it guarantees, as a share of an equal share of the turns; None if it guarantees nothing.
        in_rounds: Whether it plays rounds with as many clients as there are slots.
        world_settings: Settings of the world that only this contender has.
    """

    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: Fraction | None = None
    in_rounds: bool = False
    world_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """The number of turns that a client may be behind; 2 for a policy that states no tolerance."""
        return float(self.settings.get("tolerance", DEFAULT_TOLERANCE))


@dataclass(frozen=True, slots=True)
class SlotSuite(BaseSuite):
    """A world, a number of slots, and the contenders.

    Attributes:
        clients: The number of clients.
        present: The number of clients among which the turns are divided: all, or about as many as are available at
            the busiest times. Its reciprocal is an equal share.
        slots: The number of slots, and of clients in a round.
        turns: The number of turns of each run.
        seeds: The number of seeds.
        contenders: The contenders.
    """

    clients: int
    present: int
    slots: int
    turns: int
    seeds: int
    contenders: tuple[SlotContender, ...]

    def rate(self, contender: SlotContender) -> Fraction:
        """Returns the guaranteed rate of a contender in turns per decision, or per round; the usual one if it has none.

        A round has as many turns as there are slots.
        """
        share = USUAL if contender.share is None else contender.share
        return share / self.present * (self.slots if contender.in_rounds else 1)

    def plans(self, seeds: int | None = None, turns: int | None = None) -> dict[str, list[RunPlan]]:
        """Returns the plans of each contender, one per seed."""
        return {
            contender.label: [self._plan(contender, seed, turns or self.turns) for seed in range(seeds or self.seeds)]
            for contender in self.contenders
        }

    def on_traces(self, files: Sequence[Path]) -> SlotSuite:
        """Returns the same suite with recorded clients."""
        return replace(self, title="recorded clients", world_settings=self.recorded_settings(files, "async-traces"))

    def with_policies(self, policies: Sequence[tuple[str, Mapping[str, Any]]]) -> SlotSuite:
        """Returns the suite with further contenders, given by name and settings.

        A policy with a guarantee guarantees the usual share, unless its settings have a guaranteed_rate.
        """
        further = []
        for name, given in policies:
            load_policies(name, given)
            label = RunPlan(name, 1, settings=given).name
            promises = "guaranteed_rate" in setting_names(name) and "guaranteed_rate" not in given
            settings = with_defaults(name, given, {"accrual": "available"})
            further.append(SlotContender(label, name, settings, share=USUAL if promises else None))
        self.require_different([contender.label for contender in (*self.contenders, *further)])
        return replace(self, contenders=(*self.contenders, *further))

    def _plan(self, contender: SlotContender, seed: int, turns: int) -> RunPlan:
        settings, world_settings = dict(contender.settings), {**self.world_settings, **contender.world_settings}
        if contender.share is not None:
            settings["guaranteed_rate"] = str(self.rate(contender))
        if contender.in_rounds:
            world_settings.pop("updates_per_version", None)
            if self.world == "traces":
                world_settings["clock"] = "rounds"  # as without rounds: time passes as turns do
            return RunPlan(
                contender.policy,
                max(turns // self.slots, 1),
                seed,
                {**settings, "cohort_size": self.slots},
                self.world,
                world_settings,
                label=contender.label,
            )
        return RunPlan(
            contender.policy,
            turns,
            seed,
            settings,
            self.world,
            world_settings,
            concurrency=self.slots,
            label=contender.label,
        )


class SlotBoard(Experiment):
    """The measurements of all contenders of a suite without rounds."""

    name = "slots"
    title = "Leaderboard without rounds"
    about = "Every policy on the same worlds and seeds, one client for each free slot."

    def __init__(self, suite: SlotSuite) -> None:
        self.suite = suite

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns the plans of every contender; `rounds` is the number of turns."""
        return self.suite.plans(seeds, rounds)

    def findings(self, runs: Runs) -> Findings:
        """Computes one row per contender, the most updates per second first."""
        measured = {
            contender.label: measure_each(runs.of(contender.label), partial(_measure, self.suite, contender))
            for contender in self.suite.contenders
        }
        target = add_accuracies(runs, measured, REFERENCE) if self.suite.trains else None
        rows = [self._row(contender, measured, target) for contender in self.suite.contenders]
        rows.sort(key=lambda row: -row["updates_per_second"])
        return Findings([], {TABLE: as_columns(rows)})

    def draw(self, findings: Findings) -> Figure:
        """Draws updates per second against the largest shortfall."""
        return draw_slots(findings.tables[TABLE], self.suite.title)

    def _row(
        self, contender: SlotContender, measured: Mapping[str, Mapping[str, FloatArray]], target: float | None
    ) -> dict[str, Any]:
        own, reference = measured[contender.label], measured[REFERENCE]
        row: dict[str, Any] = {
            "contender": contender.label,
            "policy": contender.policy,
            "in_rounds": contender.in_rounds,
            "promised_share": math.nan if contender.share is None else float(contender.share),
        }
        figures = {
            "updates_per_second": own["updates_per_second"],
            "speedup": own["updates_per_second"] / reference["updates_per_second"],
            "mean_staleness": own["mean_staleness"],
            "least_share": own["least_share"],
            "shortfall": own["shortfall"],
        }
        if target is not None:
            figures |= {name: own[name] for name in ("minutes_to_target", "final_accuracy")}
            row |= {"target": round(target, 6), "never": int((own["reached"] == 0).sum())}
        row |= {
            **with_bands(figures, digits=6),
            "worst_shortfall": round(float(own["shortfall"].max()), 6),
            "tolerance": contender.tolerance,
            "status": STATUSES[int(own["level"].max())],
        }
        return row


def _measure(suite: SlotSuite, contender: SlotContender, columns: RoundColumns) -> dict[str, float]:
    shortfall = shortfalls(columns, suite.rate(contender), accrual="available", tolerance=contender.tolerance)
    rates = available_rates(columns, least=MIN_PRESENCE)
    arrived = len(columns.chosen) if columns.outcomes is None else int((columns.outcomes == 0).sum())
    if STARTED in columns.metrics:
        figures = slot_metrics(columns, int(suite.world_settings.get("updates_per_version", 1)))
        updates_per_second, staleness = figures.updates_per_second, figures.mean_staleness
    else:
        updates_per_second, staleness = arrived / float(columns.durations.sum()), 0.0
    return {
        "updates_per_second": updates_per_second,
        "mean_staleness": staleness,
        "least_share": float(np.nanmin(rates)) * suite.present / (suite.slots if contender.in_rounds else 1),
        "shortfall": shortfall.largest,
        "level": float(STATUSES.index(worst_status(shortfall))),
    }


def _contenders(*, losses: bool) -> tuple[SlotContender, ...]:
    """Returns all contenders; `losses`: whether the suite reports losses, and can mix single updates."""
    one_turn = {"tolerance": 1.0}
    fair = [
        SlotContender(f"FairPace, {float(100 * share):g} %", "fair-pace", one_turn, share=share) for share in SHARES
    ]
    fastest = {"guaranteed_rate": 0, "speed_weight": 1.0}  # RBCS-F without a guarantee
    guard = {"policy": "rbcsf", "settings": fastest, "urgency": 1.0, "accrual": "available"}
    contenders = [
        *fair,
        SlotContender("guard only, 75 %", "with-guarantee", guard, share=USUAL),
        SlotContender("RBCS-F 0.1, 75 %", "rbcsf", {"speed_weight": 0.1, "accrual": "available"}, share=USUAL),
        SlotContender("RBCS-F 0.5, 75 %", "rbcsf", {"speed_weight": 0.5, "accrual": "available"}, share=USUAL),
        SlotContender("Oort", "oort"),
        SlotContender("round-robin", "round-robin"),
        SlotContender(REFERENCE, "random"),
        SlotContender("FairPace, 75 %, in rounds", "fair-pace", one_turn, share=USUAL, in_rounds=True),
        SlotContender("random, in rounds", "random", in_rounds=True),
    ]
    if losses:
        contenders.append(
            SlotContender("random (FedAsync)", "random", world_settings={"updates_per_version": 1, "mixing": 0.6})
        )
    return tuple(contenders)


SLOT_SUITES: Mapping[str, SlotSuite] = MappingProxyType(
    {
        suite.name: suite
        for suite in (
            SlotSuite("async", "the paper's world", "paper", {}, 40, 40, 8, 4000, 20, _contenders(losses=False)),
            SlotSuite(
                "async-traces",
                "generated phones",
                "traces",
                {"clients": 300},
                300,
                100,
                10,
                10_000,
                5,
                _contenders(losses=False),
            ),
            SlotSuite(
                "async-training",
                "the digits in the paper's world",
                "training",
                {
                    "dataset": "digits",
                    "gamma": 1.0,
                    **TASKS["digits"].settings,
                    "evaluate_every": 1,
                    "updates_per_version": 8,
                },
                40,
                40,
                8,
                2000,
                10,
                _contenders(losses=True),
            ),
            SlotSuite(
                "async-cifar-10",
                "CIFAR-10 in the paper's world",
                "training",
                {"dataset": "cifar-10", "gamma": 1.0, **TASKS["cifar-10"].settings, "updates_per_version": 8},
                40,
                40,
                8,
                4000,
                5,
                _contenders(losses=True),
            ),
        )
    }
)
