"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from turnout.experiments.comparison import Overview, PullRecord, Queues, TrainingTime
from turnout.experiments.experiment import Experiment
from turnout.experiments.theory import Theory
from turnout.experiments.trade_off import TradeOff
from turnout.kernel.errors import SettingError
from turnout.policies.registry import near

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for experiment in (Overview(), Queues(), TrainingTime(), PullRecord(), Theory(), TradeOff())
    }
)
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType({"numerical": tuple(EXPERIMENTS)})


def experiments_named(name: str) -> list[Experiment]:
    """One experiment, or those of a group."""
    if name in GROUPS:
        return [EXPERIMENTS[one] for one in GROUPS[name]]
    if name not in EXPERIMENTS:
        known = [*EXPERIMENTS, *GROUPS]
        raise SettingError(f"unknown experiment {name!r}{near(name, known)}; there are {', '.join(known)}")
    return [EXPERIMENTS[name]]
