"""The suites of the leaderboard: three worlds, each with every policy that can be used in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turnout.errors import SettingError, suggestion
from turnout.kernel.certificate import DEFAULT_TOLERANCE, Accrual
from turnout.lab.runs.plans import RunPlan
from turnout.lab.studies.paper.accuracy import TASKS
from turnout.lab.studies.paper.comparison import RATE, ROUNDS, WEIGHTS, weight_label
from turnout.lab.worlds.registry import build_world
from turnout.lab.worlds.traces.formats.files import read_traces
from turnout.policies.registry import build_policy, load_policies, with_defaults

#: Speed weights of RBCS-F for exchange times of minutes, in which a second is worth fewer turns.
SLOW_WEIGHTS = (0.005, 0.02, 0.1, 0.5)
#: The guaranteed rate of phones, which are available in few rounds.
PHONES_RATE = 0.1
#: Tolerances of FairPace, in turns.
TOLERANCES = (1, 2, 3, 5)
NO_LOSSES = "it selects by losses, which only the training suite reports"
EQUAL_SIZES = "all clients have the same amount of data, which makes it equivalent to random"


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its settings.

    `knows_truth`: it uses the true expected times, which are unknown to a real server. `by_the_end`: its horizon is the
    last round.
    """

    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    knows_truth: bool = False
    by_the_end: bool = False

    @property
    def promised(self) -> float | None:
        """The guaranteed rate, if there is one."""
        return self.settings.get("guaranteed_rate") or None

    @property
    def tolerance(self) -> float:
        """The number of turns that a client may be behind; 2 for a policy that states no tolerance."""
        return float(self.settings.get("tolerance", DEFAULT_TOLERANCE))

    def settings_for(self, rounds: int) -> dict[str, Any]:
        """Returns the settings for a run with this number of rounds."""
        return {**self.settings, "horizon": rounds} if self.by_the_end else dict(self.settings)


@dataclass(frozen=True, slots=True)
class BaseSuite:
    """A world with a name and a title; the base class of suites with and without rounds."""

    name: str
    title: str
    world: str
    world_settings: Mapping[str, Any]

    @property
    def trains(self) -> bool:
        """Whether this suite trains models."""
        return self.world == "training"

    def recorded_settings(self, files: Sequence[Path], suite: str) -> dict[str, Any]:
        """Returns the settings of the world with recorded clients; the fingerprint identifies the files' content.

        Args:
            files: The trace files.
            suite: The name of the suite that plays traces.
        """
        if self.world != "traces":
            raise SettingError(
                f"the suite {self.name} plays no traces: omit the trace files, or use the suite {suite!r}",
                argument="suite",
            )
        recorded = {"traces": [str(path) for path in files], "fingerprint": read_traces(*files).fingerprint}
        return {**self.world_settings, **recorded}

    def require_different(self, labels: Sequence[str]) -> None:
        """Raises SettingError if two contenders have the same label."""
        for label in labels:
            if labels.count(label) > 1:
                raise SettingError(f"the suite {self.name} has a contender {label!r} already: give it another setting")


@dataclass(frozen=True, slots=True)
class Suite(BaseSuite):
    """A world and its contenders.

    `rate`: the guaranteed rate, by which all contenders are judged. `share_of`: whether it and the least share refer to
    all rounds ("always") or to the rounds in which the client was available. `left_out`: the excluded policies, each
    with the reason.
    """

    rounds: int
    seeds: int
    rate: float
    share_of: Accrual
    contenders: tuple[Contender, ...]
    left_out: Mapping[str, str]

    def plans(self, seeds: int | None = None, rounds: int | None = None) -> dict[str, list[RunPlan]]:
        """Returns the plans of each contender, one per seed; all contenders get the same worlds."""
        return {
            contender.label: [
                RunPlan(
                    contender.policy,
                    rounds or self.rounds,
                    seed,
                    contender.settings_for(rounds or self.rounds),
                    world=self.world,
                    world_settings=self._world_settings_for(contender),
                    label=contender.label,
                )
                for seed in range(seeds or self.seeds)
            ]
            for contender in self.contenders
        }

    def on_traces(self, files: Sequence[Path]) -> Suite:
        """Returns the same suite with recorded clients; plans identify the files by a fingerprint of their content."""
        settings = self.recorded_settings(files, "traces")
        settings.pop("clients", None)
        return replace(self, title="recorded clients", world_settings=settings)

    @property
    def cohort_size(self) -> int:
        """The cohort size of its contenders."""
        return next(int(each.settings["cohort_size"]) for each in self.contenders if "cohort_size" in each.settings)

    def with_policies(self, policies: Sequence[tuple[str, Mapping[str, Any]]]) -> Suite:
        """Returns the suite with further contenders, given by name and settings.

        Cohort size, guaranteed rate and accrual are those of the suite, unless the settings say otherwise.
        """
        shared = {"cohort_size": self.cohort_size, "guaranteed_rate": self.rate, "accrual": self.share_of}
        clients = self._clients()
        further = []
        for name, given in policies:
            load_policies(name, given)
            settings = with_defaults(name, given, shared)
            policy = build_policy(name, clients, **with_defaults(name, settings, {"allow_infeasible": True}))
            label = RunPlan(name, 1, settings=given).name
            further.append(Contender(label, name, settings, knows_truth=policy.requires_expected_times))
        self.require_different([contender.label for contender in (*self.contenders, *further)])
        return replace(self, contenders=(*self.contenders, *further))

    def _clients(self) -> int:
        """Returns the number of clients; models are not trained to find it out."""
        if self.trains:
            return build_world("paper", 0, **self.world_settings.get("world", {})).clients
        truth = {"truth": False} if self.world == "traces" else {}
        return build_world(self.world, 0, **self.world_settings, **truth).clients

    def _world_settings_for(self, contender: Contender) -> dict[str, Any]:
        """Computes true expected times only for contenders that use them, because that is slow."""
        truth = {"truth": contender.knows_truth} if self.world == "traces" else {}
        return {**self.world_settings, **truth}


def find_suite(name: str) -> Suite:
    """Returns a suite by name."""
    if name not in SUITES:
        raise SettingError(f"unknown suite {name!r}{suggestion(name, SUITES)}; there are {', '.join(SUITES)}")
    return SUITES[name]


def _contenders(
    weights: Sequence[float],
    *,
    cohort_size: int,
    rate: float,
    accrual: Accrual,
    deadline: float,
    losses: bool,
    forgetting: bool = False,
) -> tuple[Contender, ...]:
    """Returns every policy, with the settings of its paper unless the suite sets them.

    Args:
        weights: The speed weights of RBCS-F.
        cohort_size: The cohort size.
        rate: The guaranteed rate of policies with a guarantee.
        accrual: The rounds that the guaranteed rate refers to.
        deadline: The deadline of FedCS in seconds.
        losses: Whether the suite reports losses.
        forgetting: Whether RBCS-F with forgetting takes part.
    """
    size = {"cohort_size": cohort_size}
    promise = {"guaranteed_rate": rate, "accrual": accrual}
    middle = sorted(weights)[len(weights) // 2]
    learned = {"deadline": deadline, "estimates": "learned"}
    fast = {**size, "guaranteed_rate": 0, "speed_weight": 1.0}  # RBCS-F without a guarantee

    def rbcsf(weight: float, suffix: str = "", *, by_the_end: bool = False, **more: Any) -> Contender:
        settings = {**size, **promise, "speed_weight": float(weight), **more}
        return Contender(f"{weight_label(weight)}{suffix}", "rbcsf", settings, by_the_end=by_the_end)

    def guaranteed(label: str, policy: str, settings: Mapping[str, Any]) -> Contender:
        return Contender(
            f"{label} + guarantee", "with-guarantee", {"policy": policy, "settings": dict(settings), **promise}
        )

    def fair_pace(tolerance: float, suffix: str = "", *, knows_truth: bool = False, **more: Any) -> Contender:
        settings = {**size, **promise, "tolerance": float(tolerance), **more}
        return Contender(f"FairPace, tolerance {tolerance:g}{suffix}", "fair-pace", settings, knows_truth=knows_truth)

    contenders = [
        *(fair_pace(tolerance) for tolerance in TOLERANCES),
        *(rbcsf(weight) for weight in weights),
        rbcsf(middle, ", fleet", prior="fleet"),
        rbcsf(middle, ", fleet, horizon", prior="fleet", by_the_end=True),
    ]
    if forgetting:
        contenders.append(rbcsf(middle, ", forgetting", forgetting=0.98))
    contenders += [
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
        contenders += [
            Contender("Power-of-Choice", "power-of-choice", size),
            Contender("Active FL", "active-fl", size),
            Contender("UCB-CS", "ucb-cs", size),
            guaranteed("Power-of-Choice", "power-of-choice", size),
            guaranteed("UCB-CS", "ucb-cs", size),
        ]
    contenders += [
        fair_pace(DEFAULT_TOLERANCE, ", true times", knows_truth=True, times="expected"),
        Contender("fastest", "fastest", size, knows_truth=True),
        Contender(f"FedCS({deadline:g})", "fedcs", {"deadline": deadline}, knows_truth=True),
        Contender(
            f"fair oracle, weight {middle:g}",
            "fair-oracle",
            {**size, **promise, "speed_weight": float(middle)},
            knows_truth=True,
        ),
    ]
    return tuple(contenders)


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
                RATE,
                "always",
                _contenders(WEIGHTS, cohort_size=8, rate=RATE, accrual="always", deadline=3.0, losses=False),
                _WITHOUT_LOSSES,
            ),
            Suite(
                "traces",
                "generated phones",
                "traces",
                {"clients": 300},
                864,  # six days, the length of the recorded traces
                5,
                PHONES_RATE,
                "available",
                _contenders(
                    SLOW_WEIGHTS,
                    cohort_size=10,
                    rate=PHONES_RATE,
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
                RATE,
                "always",
                _contenders(WEIGHTS, cohort_size=8, rate=RATE, accrual="always", deadline=3.0, losses=True),
                MappingProxyType({"data-size": EQUAL_SIZES}),
            ),
        )
    }
)
