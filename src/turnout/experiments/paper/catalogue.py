"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from turnout.errors import SettingError, suggestion
from turnout.experiments.framework.experiment import Experiment
from turnout.experiments.paper.accuracy import AccuracyRounds, AccuracyTime
from turnout.experiments.paper.comparison import Overview, PullRecord, Queues, TrainingTime
from turnout.experiments.paper.fairness_impact import FairnessImpact
from turnout.experiments.paper.horizon import HorizonStudy
from turnout.experiments.paper.theory import Theory
from turnout.experiments.paper.trade_off import TradeOff

NUMERICAL: tuple[Experiment, ...] = (
    Overview(),
    Queues(),
    TrainingTime(),
    PullRecord(),
    Theory(),
    TradeOff(),
    HorizonStudy(),
)
ACCURACY: tuple[Experiment, ...] = (FairnessImpact(), AccuracyRounds(), AccuracyTime())
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({one.name: one for one in (*NUMERICAL, *ACCURACY)})
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"numerical": tuple(one.name for one in NUMERICAL), "accuracy": tuple(one.name for one in ACCURACY)}
)


def find_experiments(name: str, datasets: Sequence[str] = ()) -> list[Experiment]:
    """One experiment, or those of a group; on these datasets in place of their own."""
    if name not in EXPERIMENTS and name not in GROUPS:
        known = [*EXPERIMENTS, *GROUPS]
        raise SettingError(f"unknown experiment {name!r}{suggestion(name, known)}; there are {', '.join(known)}")
    found = [EXPERIMENTS[one] for one in GROUPS.get(name, (name,))]
    return [one.on(datasets) for one in found] if datasets else found
