"""What the leaderboard plays: three suites, and in each every policy that can play there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turnout.errors import SettingError, suggestion
from turnout.experiments.paper.accuracy import TASKS
from turnout.experiments.paper.comparison import ROUNDS, WEIGHTS, weight_label
from turnout.kernel.fairness import Accrual
from turnout.simulator.plans import RunPlan
from turnout.simulator.traces.formats.files import read_traces

#: RBCS-F in suites whose exchanges take minutes: a second is worth fewer turns there.
SLOW_WEIGHTS = (0.005, 0.02, 0.1, 0.5)
NO_LOSSES = "chooses by losses, which only the training suite has"
EQUAL_SIZES = "all clients hold equally much data here, so that it is random choice"


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its settings.

    `told_truth`: it is told the expected times, which no server knows. `by_the_end`: its horizon is the last round.
    """

    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    told_truth: bool = False
    by_the_end: bool = False

    @property
    def promised(self) -> float | None:
        """The share of rounds that it guarantees, if any."""
        return self.settings.get("guaranteed_rate") or None

    @property
    def accrual(self) -> Accrual:
        """Of which rounds."""
        return "available" if self.settings.get("accrual") == "available" else "always"

    def settings_for(self, rounds: int) -> dict[str, Any]:
        """Its settings in a run of so many rounds."""
        return {**self.settings, "horizon": rounds} if self.by_the_end else dict(self.settings)


@dataclass(frozen=True, slots=True)
class Suite:
    """A world, its contenders, and what is counted.

    `share_of`: the least-chosen client's share is taken of all rounds, or of those it was available for; as what is
    promised there. `left_out`: the other policies, each with the reason.
    """

    name: str
    title: str
    world: str
    world_settings: Mapping[str, Any]
    rounds: int
    seeds: int
    share_of: Accrual
    contenders: tuple[Contender, ...]
    left_out: Mapping[str, str]

    @property
    def trains(self) -> bool:
        """Are models trained here?"""
        return self.world == "training"

    def plans(self, seeds: int | None = None, rounds: int | None = None) -> dict[str, list[RunPlan]]:
        """The runs of each contender, one a seed; all meet the same worlds."""
        return {
            one.label: [
                RunPlan(
                    one.policy,
                    rounds or self.rounds,
                    seed,
                    one.settings_for(rounds or self.rounds),
                    world=self.world,
                    world_settings=self._world_of(one),
                    label=one.label,
                )
                for seed in range(seeds or self.seeds)
            ]
            for one in self.contenders
        }

    def on_traces(self, files: Sequence[Path]) -> Suite:
        """The same suite with recorded clients; the plans know the files by what they hold."""
        if self.world != "traces":
            raise SettingError(
                f"the suite {self.name} plays no traces: omit the trace files, or use the suite 'traces'",
                argument="suite",
            )
        recorded = {"traces": [str(one) for one in files], "fingerprint": read_traces(*files).fingerprint}
        own = {word: value for word, value in self.world_settings.items() if word != "clients"}
        return replace(self, title="recorded clients", world_settings={**own, **recorded})

    def _world_of(self, one: Contender) -> dict[str, Any]:
        """Who is not told the truth needs a world that need not work it out."""
        told = {"truth": one.told_truth} if self.world == "traces" else {}
        return {**self.world_settings, **told}


def suite_named(name: str) -> Suite:
    """One of the suites."""
    if name not in SUITES:
        raise SettingError(f"unknown suite {name!r}{suggestion(name, SUITES)}; there are {', '.join(SUITES)}")
    return SUITES[name]


def _roster(
    weights: Sequence[float],
    *,
    cohort_size: int,
    rate: float,
    accrual: Accrual,
    deadline: float,
    losses: bool,
    forgetting: bool = False,
) -> tuple[Contender, ...]:
    """Every policy, with the settings of its paper where the suite does not say otherwise."""
    size = {"cohort_size": cohort_size}
    promise = {"guaranteed_rate": rate, "accrual": accrual}
    middle = sorted(weights)[len(weights) // 2]
    learned = {"deadline": deadline, "estimates": "learned"}
    fast = {**size, "guaranteed_rate": 0, "speed_weight": 1.0}  # RBCS-F where nothing is owed to anybody

    def ours(weight: float, suffix: str = "", *, by_the_end: bool = False, **more: Any) -> Contender:
        settings = {**size, **promise, "speed_weight": float(weight), **more}
        return Contender(f"{weight_label(weight)}{suffix}", "rbcsf", settings, by_the_end=by_the_end)

    def guaranteed(label: str, policy: str, settings: Mapping[str, Any]) -> Contender:
        return Contender(
            f"{label} + guarantee", "with-guarantee", {"policy": policy, "settings": dict(settings), **promise}
        )

    found = [
        *(ours(weight) for weight in weights),
        ours(middle, ", fleet", prior="fleet"),
        ours(middle, ", fleet, horizon", prior="fleet", by_the_end=True),
    ]
    if forgetting:
        found.append(ours(middle, ", forgetting", forgetting=0.98))
    found += [
        Contender("fastest, learned", "rbcsf", fast),
        Contender("random", "random", size),
        Contender("skewed", "skewed", size),
        Contender("round robin", "round-robin", size),
        Contender("Oort", "oort", size),
        Contender("TiFL", "tifl", size),
        Contender("REFL", "refl", size),
        Contender("CS-UCB", "cs-ucb", size),
        Contender("CS-UCB-Q", "cs-ucb-q", {**size, **promise}),
        Contender("E3CS", "e3cs", size),
        Contender(f"FedCS({deadline:g}), learned", "fedcs", learned),
        guaranteed("fastest, learned", "rbcsf", fast),
        guaranteed("random", "random", size),
        guaranteed("Oort", "oort", size),
        guaranteed("CS-UCB", "cs-ucb", size),
        guaranteed(f"FedCS({deadline:g}), learned", "fedcs", learned),
    ]
    if losses:
        found += [
            Contender("Power-of-Choice", "power-of-choice", size),
            Contender("Active FL", "active-fl", size),
            Contender("UCB-CS", "ucb-cs", size),
            guaranteed("Power-of-Choice", "power-of-choice", size),
            guaranteed("UCB-CS", "ucb-cs", size),
        ]
    found += [
        Contender("fastest", "fastest", size, told_truth=True),
        Contender(f"FedCS({deadline:g})", "fedcs", {"deadline": deadline}, told_truth=True),
        Contender(
            f"fair oracle, weight {middle:g}",
            "fair-oracle",
            {**size, **promise, "speed_weight": float(middle)},
            told_truth=True,
        ),
    ]
    return tuple(found)


_WITHOUT_LOSSES = MappingProxyType(
    {"power-of-choice": NO_LOSSES, "active-fl": NO_LOSSES, "ucb-cs": NO_LOSSES, "data-size": EQUAL_SIZES}
)

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        suite.name: suite
        for suite in (
            Suite(
                "numerical",
                "the paper's world",
                "paper",
                {},
                ROUNDS,
                20,
                "always",
                _roster(WEIGHTS, cohort_size=8, rate=0.15, accrual="always", deadline=3.0, losses=False),
                _WITHOUT_LOSSES,
            ),
            Suite(
                "traces",
                "generated phones",
                "traces",
                {"clients": 300},
                864,  # six days, as long as the recorded phones were watched
                5,
                "available",
                _roster(
                    SLOW_WEIGHTS,
                    cohort_size=10,
                    rate=0.1,
                    accrual="available",
                    deadline=75.0,
                    losses=False,
                    forgetting=True,
                ),
                _WITHOUT_LOSSES,
            ),
            Suite(
                "training",
                "the digits in the paper's world",
                "training",
                {"dataset": "digits", "gamma": 1.0, **TASKS["digits"].settings},
                TASKS["digits"].rounds,
                5,
                "always",
                _roster(WEIGHTS, cohort_size=8, rate=0.15, accrual="always", deadline=3.0, losses=True),
                MappingProxyType({"data-size": EQUAL_SIZES}),
            ),
        )
    }
)
