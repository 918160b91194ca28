"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.errors import look_up
from turnout.lab.studies.framework.experiment import Experiment
from turnout.lab.studies.pace import PriceOfFairness, TimeToAccuracy
from turnout.lab.studies.paper.accuracy import AccuracyRounds, AccuracyTime
from turnout.lab.studies.paper.comparison import Overview, PullRecord, Queues, TrainingTime
from turnout.lab.studies.paper.fairness_impact import FairnessImpact
from turnout.lab.studies.paper.stability import Stability
from turnout.lab.studies.paper.theory import Lemma, Theory
from turnout.lab.studies.paper.trade_off import HorizonStudy, TradeOff

NUMERICAL: tuple[Experiment, ...] = (
    Overview(),
    Queues(),
    TrainingTime(),
    PullRecord(),
    Theory(),
    Stability(),
    Lemma(),
    TradeOff(),
    HorizonStudy(),
)
ACCURACY: tuple[Experiment, ...] = (FairnessImpact(), AccuracyRounds(), AccuracyTime())
PACE: tuple[Experiment, ...] = (TimeToAccuracy(), PriceOfFairness())
EXPERIMENTS: Mapping[str, Experiment] = {experiment.name: experiment for experiment in (*NUMERICAL, *ACCURACY, *PACE)}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "numerical": tuple(experiment.name for experiment in NUMERICAL),
    "accuracy": tuple(experiment.name for experiment in ACCURACY),
    "fair-pace": tuple(experiment.name for experiment in PACE),
}


def find_experiments(name: str, datasets: Sequence[str] = ()) -> list[Experiment]:
    """Returns one experiment, or all of a group; `datasets` replace their default datasets."""
    look_up("experiment", name, {**EXPERIMENTS, **GROUPS})
    experiments = [EXPERIMENTS[member] for member in GROUPS.get(name, (name,))]
    return [experiment.on(datasets) for experiment in experiments] if datasets else experiments
