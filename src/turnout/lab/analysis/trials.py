"""What is tuned and measured: settings, goals, and the figures of simulated runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_number
from turnout.lab.analysis.promise import smallest_share
from turnout.lab.analysis.statistics import UNIT_RANGE, ConfidenceInterval, mean_confidence_interval, student_t
from turnout.lab.runs.play import play
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy

CONFIDENCE = 0.975  # of the prediction that one more run meets the goal


class RunFigures(NamedTuple):
    """The figures of one run.

    Attributes:
        mean_round: The mean duration of a round, in seconds.
        p95_round: The 95th percentile of the durations.
        least_share: The smallest share of any client: its turns divided by the rounds in which it accrues.
        shortfall: How many turns the worst-served client is behind its promised turns after the last round.
        worst_debt: The longest queue of owed turns after the last round.
        largest_shortfall: The largest shortfall of any client at the end of any round.
    """

    mean_round: float
    p95_round: float
    least_share: float
    shortfall: float
    worst_debt: float
    largest_shortfall: float

    @staticmethod
    def limits(figure: str) -> tuple[float, float]:
        """Returns the range of possible values of a figure."""
        if figure == "least_share":
            return UNIT_RANGE
        return (-math.inf if "shortfall" in figure else 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure of a run after a number of rounds.

    After `rounds` rounds the figure must be at most `most`: turns for the shortfall, seconds for the other figures.

    >>> Goal.within(3, by=500).description
    'every client within 3 turns of its guarantee by round 500'
    """

    figure: Literal["shortfall", "mean_round", "p95_round"]
    most: float
    rounds: int = 500

    def __post_init__(self) -> None:
        name = {"shortfall": "within", "mean_round": "mean_round", "p95_round": "p95_round"}.get(self.figure)
        if name is None:
            raise SettingError(f"figure must be shortfall, mean_round or p95_round, not {self.figure!r}")
        if self.figure == "shortfall":
            as_number(name, self.most, SettingError, least=0)
        else:
            as_number(name, self.most, SettingError, above=0)
        as_count("by", self.rounds, SettingError, least=2)

    @classmethod
    def within(cls, turns: float, *, by: int = 500) -> Goal:
        """Returns the goal that after round `by` every client is at most `turns` turns behind its guaranteed turns."""
        return cls("shortfall", turns, by)

    @property
    def description(self) -> str:
        """The goal as a phrase for reports."""
        if self.figure == "shortfall":
            unit = "turn" if self.most == 1 else "turns"
            return f"every client within {self.most:g} {unit} of its guarantee by round {self.rounds}"
        which = "a mean round" if self.figure == "mean_round" else "95 % of the rounds"
        return f"{which} of at most {self.most:g} s over {self.rounds} rounds"

    @property
    def is_fairness(self) -> bool:
        """Whether the goal is on fairness; otherwise it is on time."""
        return self.figure == "shortfall"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting that can be tuned.

    Attributes:
        name: The name of the setting.
        policy: The policy whose setting is tuned.
        label: The setting in words.
        larger_is_faster: Whether a larger value makes rounds shorter. If so, a goal on time is met by large values and
            a goal on fairness by small ones; otherwise both are met by small values.
        levels_off: Whether rounds do not become any shorter from some value on. Then the first value that meets a goal
            on time is sought, because larger values do not meet it more safely.
        fairness: The figure that shows what a shorter round costs.
    """

    name: Literal["speed_weight", "tolerance", "guaranteed_rate"]
    policy: str
    label: str
    larger_is_faster: bool = True
    levels_off: bool = False
    fairness: Literal["shortfall", "largest_shortfall", "least_share"] = "largest_shortfall"

    def met_by_larger(self, goal: Goal) -> bool:
        """Returns whether large values meet the goal; otherwise small ones do."""
        return self.larger_is_faster and not goal.is_fairness

    def value(self, settings: Mapping[str, Any]) -> float:
        """Returns the value of the parameter in some settings."""
        return float(settings[self.name])


SPEED_WEIGHT = Parameter("speed_weight", "rbcsf", "speed weight", fairness="shortfall")
TOLERANCE = Parameter("tolerance", "fair-pace", "tolerance", levels_off=True)
GUARANTEED_RATE = Parameter(
    "guaranteed_rate", "fair-pace", "guaranteed rate", larger_is_faster=False, fairness="least_share"
)
#: The parameters by name.
PARAMETERS: dict[str, Parameter] = {
    parameter.name: parameter for parameter in (SPEED_WEIGHT, TOLERANCE, GUARANTEED_RATE)
}


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Settings that were simulated, and the resulting figures: one row per seed, one column per field of RunFigures."""

    settings: Mapping[str, Any]
    figures: FloatArray

    @property
    def weight(self) -> float:
        """The speed weight of the trial."""
        return SPEED_WEIGHT.value(self.settings)

    def values(self, figure: str) -> FloatArray:
        """Returns one number per seed."""
        return self.figures[:, RunFigures._fields.index(figure)]

    def mean(self, figure: str) -> float:
        """Returns the mean over the seeds."""
        return float(self.values(figure).mean())

    def interval(self, figure: str) -> ConfidenceInterval:
        """Returns the mean over the seeds with its confidence interval."""
        return mean_confidence_interval(self.values(figure))

    def bound(self, goal: Goal) -> float:
        """Returns the upper prediction bound of the figure in one more run, with 97.5 % confidence.

        The bound is mean + t · standard deviation · sqrt(1 + 1/n).
        """
        values = self.values(goal.figure)
        if len(values) < 2:
            return math.inf
        quantile = student_t(2 * CONFIDENCE - 1, len(values) - 1) * math.sqrt(1 + 1 / len(values))
        return float(values.mean() + quantile * values.std(ddof=1))

    def meets(self, goal: Goal) -> bool:
        """Returns whether one more run would meet the goal, with 97.5 % confidence."""
        return self.bound(goal) <= goal.most

    def runs_meeting(self, goal: Goal) -> int:
        """Returns how many of the runs met the goal."""
        return int((self.values(goal.figure) <= goal.most).sum())


def measure_run(policy: SelectionPolicy, world: World, rounds: int) -> RunFigures:
    """Plays one run of a policy with a guarantee; the promised turns are those of its certificate."""
    guarantee, debts = policy.guarantee, policy.debts
    if guarantee is None or debts is None:
        raise SettingError(f"{policy.name} guarantees nothing, so there is nothing to tune: use fair-pace or rbcsf")
    durations, largest = np.empty(rounds), -math.inf
    for index, record in enumerate(play(policy, world, rounds)):
        durations[index] = record.report.duration
        certificate = policy.certificate()
        assert certificate is not None
        largest = max(largest, int(certificate.behind_units.max()) / certificate.units_per_turn)
    assert certificate is not None
    servable = certificate.promised_units >= certificate.units_per_turn
    return RunFigures(
        mean_round=float(durations.mean()),
        p95_round=float(np.percentile(durations, 95)),
        least_share=smallest_share(certificate.turns, debts.rounds, servable, guarantee.accrual),
        shortfall=float(certificate.behind.max()),
        worst_debt=float(certificate.owed.max()),
        largest_shortfall=largest,
    )


def round_to_safe_side(value: float, *, down: bool) -> float:
    """Rounds a value to two digits, downwards or upwards.

    >>> round_to_safe_side(1.2345, down=True), round_to_safe_side(123.45, down=False)
    (1.2, 130.0)
    """
    if value <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(value)) - 1)
    count = value / digit
    whole = math.floor(count + 1e-9) if down else math.ceil(count - 1e-9)
    return float(f"{whole * digit:.2g}")
