"""The suites of the leaderboards: a world each, with every policy that can be used in it, with rounds or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from turnout.errors import SettingError, look_up
from turnout.kernel.certificate import Accrual
from turnout.lab.runs.plans import RunPlan
from turnout.lab.studies.leaderboard.contenders import (
    FED_BUFF,
    RANDOM,
    USUAL,
    Contender,
    round_contenders,
    slot_contenders,
)
from turnout.lab.studies.paper.accuracy import TASKS
from turnout.lab.studies.paper.comparison import RATE, ROUNDS, WEIGHTS
from turnout.lab.training.datasets import load_dataset
from turnout.lab.training.partition import partition
from turnout.lab.worlds.base import World
from turnout.lab.worlds.registry import build_world
from turnout.lab.worlds.traces.formats.files import read_traces
from turnout.lab.worlds.traces.world import TraceWorld
from turnout.policies.registry import build_policy, load_policies, setting_names, with_defaults

#: Speed weights of RBCS-F for exchange times of minutes, in which a second is worth fewer turns.
SLOW_WEIGHTS = (0.005, 0.02, 0.1, 0.5)
#: The guaranteed rate of phones, which are available in few rounds.
PHONES_RATE = 0.1
NO_LOSSES = "it selects by losses, which only the training suite reports"
EQUAL_SIZES = "all clients have the same amount of data, which makes it equivalent to random"
SAME_SIZES = {"data-size": EQUAL_SIZES}
WITHOUT_LOSSES = {"power-of-choice": NO_LOSSES, "active-fl": NO_LOSSES, "ucb-cs": NO_LOSSES, **SAME_SIZES}


@dataclass(frozen=True, slots=True)
class Suite:
    """A world and its contenders.

    Attributes:
        name: The name of the suite.
        title: The world in words.
        world: The name of the world.
        world_settings: Its settings.
        rounds: The number of rounds of each run, or of turns if there are no rounds.
        seeds: The number of seeds.
        rate: The guaranteed rate by which all contenders are judged; without rounds, an equal share of the turns, of
            which each contender guarantees a part. It is a share of the turns among the clients that are available at
            the busiest times.
        share_of: Whether the rate and the least share refer to all rounds ("always") or to the rounds in which the
            client was available.
        contenders: The contenders.
        left_out: The excluded policies, each with the reason.
        slots: The number of slots, and of clients in a round, if there are no rounds.
    """

    name: str
    title: str
    world: str
    world_settings: Mapping[str, Any]
    rounds: int
    seeds: int
    rate: float | Fraction
    share_of: Accrual
    contenders: tuple[Contender, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    slots: int | None = None

    @property
    def trains(self) -> bool:
        """Whether this suite trains models."""
        return self.world == "training"

    @property
    def misses(self) -> bool:
        """Whether clients can miss their turns."""
        return self.world == "traces"

    @property
    def reference(self) -> str:
        """The contender that the others are compared with."""
        return RANDOM if self.slots is None else FED_BUFF

    @property
    def measure(self) -> str:
        """What the contenders are sorted by."""
        if self.slots is not None:
            return "updates_per_second"
        return "minutes_to_target" if self.trains else "mean_round"

    @property
    def cohort_size(self) -> int:
        """The cohort size of its contenders."""
        return next(int(each.settings["cohort_size"]) for each in self.contenders if "cohort_size" in each.settings)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self._build_world().clients

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the world assumes about its clients, as sentences."""
        world = self._build_world()
        return world.assumptions if isinstance(world, TraceWorld) else ()

    def _build_world(self) -> World:
        """Builds the world without models to train and without true expected times, which are slow to compute."""
        if self.trains:
            return build_world("paper", 0, **self.world_settings.get("world", {}))
        truth = {"truth": False} if self.world == "traces" else {}
        return build_world(self.world, 0, **self.world_settings, **truth)

    def equal_share(self, contender: Contender) -> float | Fraction:
        """Returns an equal share of the turns, in turns per decision or per round; with rounds, one turn per round."""
        return 1 if self.slots is None else self.rate * (self.slots if contender.in_rounds else 1)

    def rate_of(self, contender: Contender) -> float | Fraction:
        """Returns the rate by which a contender is judged, in turns per round or per decision."""
        if self.slots is None:
            return self.rate
        return (USUAL if contender.share is None else contender.share) * self.equal_share(contender)

    def plans(self, seeds: int | None = None, rounds: int | None = None) -> dict[str, list[RunPlan]]:
        """Returns the plans of each contender, one per seed; all contenders get the same worlds."""
        return {
            contender.label: [self._plan(contender, seed, rounds or self.rounds) for seed in range(seeds or self.seeds)]
            for contender in self.contenders
        }

    def on_traces(self, files: Sequence[Path]) -> Suite:
        """Returns the same suite with recorded clients; plans identify the files by a fingerprint of their content."""
        if self.world != "traces":
            playing = "traces" if self.slots is None else "async-traces"
            raise SettingError(
                f"the suite {self.name} plays no traces: omit the trace files, or use the suite {playing!r}",
                argument="suite",
            )
        recorded = {"traces": [str(path) for path in files], "fingerprint": read_traces(*files).fingerprint}
        settings = {**self.world_settings, **recorded}
        if self.slots is None:
            settings.pop("clients", None)
        return replace(self, title="recorded clients", world_settings=settings)

    def with_policies(self, policies: Sequence[tuple[str, Mapping[str, Any]]]) -> Suite:
        """Returns the suite with further contenders, given by name and settings.

        Cohort size, guaranteed rate and accrual are those of the suite, unless the settings say otherwise. Without
        rounds, a policy with a guarantee guarantees the usual share.
        """
        shared: dict[str, Any] = {"accrual": self.share_of}
        if self.slots is None:
            shared |= {"cohort_size": self.cohort_size, "guaranteed_rate": self.rate}
        contenders = list(self.contenders)
        clients = self.clients if policies else 0
        for name, given in policies:
            load_policies(name, given)
            settings = with_defaults(name, given, shared)
            policy = build_policy(name, clients, **with_defaults(name, settings, {"allow_infeasible": True}))
            promises = self.slots is not None and "guaranteed_rate" in {*setting_names(name)} - {*given}
            label = RunPlan(name, 1, settings=given).name
            if any(label == other.label for other in contenders):
                raise SettingError(f"the suite {self.name} has a contender {label!r} already: give it another setting")
            truth, share = policy.requires_expected_times, USUAL if promises else None
            contenders.append(Contender(label, name, settings, knows_truth=truth, share=share))
        return replace(self, contenders=tuple(contenders))

    def _label_clusters(self, seed: int) -> list[str]:
        """Returns the cluster of each client's labels in the world of this seed, as many clusters as places."""
        labels = load_dataset(self.world_settings["dataset"]).train_labels
        items, gamma = self.world_settings["items"], self.world_settings["gamma"]
        held = partition(labels, clients=self.clients, items=items, gamma=gamma, seed=seed)
        return [str(cluster) for cluster in held.clusters(self.cohort_size)]

    def _plan(self, contender: Contender, seed: int, rounds: int) -> RunPlan:
        settings, world_settings = dict(contender.settings), {**self.world_settings, **contender.world_settings}
        if self.slots is None:
            if contender.by_the_end:
                settings["horizon"] = rounds
            if contender.by_labels:
                settings["groups"] = self._label_clusters(seed)
            if self.world == "traces":  # true expected times are slow to compute
                world_settings["truth"] = contender.knows_truth
        if contender.share is not None:
            settings["guaranteed_rate"] = str(self.rate_of(contender))
        if self.slots is not None and contender.in_rounds:
            settings["cohort_size"], rounds = self.slots, max(rounds // self.slots, 1)
            world_settings.pop("updates_per_version", None)
            if self.world == "traces":
                world_settings["clock"] = "rounds"  # as without rounds: time passes as turns do
        plan = RunPlan(contender.policy, rounds, seed, settings, self.world, world_settings, label=contender.label)
        return plan if contender.in_rounds else replace(plan, concurrency=self.slots)


_PAPER = round_contenders(WEIGHTS, cohort_size=8, rate=RATE, accrual="always", deadline=3.0)
_TRAINED = round_contenders(WEIGHTS, cohort_size=8, rate=RATE, accrual="always", deadline=3.0, losses=True)
_PHONES = round_contenders(
    SLOW_WEIGHTS, cohort_size=10, rate=PHONES_RATE, accrual="available", deadline=75.0, phones=True
)
_SLOTS, _TRAINED_SLOTS = slot_contenders(), slot_contenders(losses=True)
_DIGITS, _CIFAR = ({"dataset": name, "gamma": 1.0, **TASKS[name].settings} for name in ("digits", "cifar-10"))
_DIGITS_SLOTS, _CIFAR_SLOTS = (
    {**_DIGITS, "evaluate_every": 1, "updates_per_version": 8},
    {**_CIFAR, "updates_per_version": 8},
)
_DAYS = 864  # the rounds of six days, the length of the recorded traces
_40TH, _100TH = Fraction(1, 40), Fraction(1, 100)
PAPER, PHONES = "the paper's world", "generated phones"
DIGITS, CIFAR = f"the digits in {PAPER}", f"CIFAR-10 in {PAPER}"

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("numerical", PAPER, "paper", {}, ROUNDS, 20, RATE, "always", _PAPER, WITHOUT_LOSSES),
        Suite(
            "traces", PHONES, "traces", {"clients": 300}, _DAYS, 5, PHONES_RATE, "available", _PHONES, WITHOUT_LOSSES
        ),
        Suite("training", DIGITS, "training", _DIGITS, TASKS["digits"].rounds, 5, RATE, "always", _TRAINED, SAME_SIZES),
        Suite("async", PAPER, "paper", {}, 4000, 20, _40TH, "available", _SLOTS, slots=8),
        Suite("async-traces", PHONES, "traces", {"clients": 300}, 10_000, 5, _100TH, "available", _SLOTS, slots=10),
        Suite(
            "async-training", DIGITS, "training", _DIGITS_SLOTS, 2000, 10, _40TH, "available", _TRAINED_SLOTS, slots=8
        ),
        Suite("async-cifar-10", CIFAR, "training", _CIFAR_SLOTS, 4000, 5, _40TH, "available", _TRAINED_SLOTS, slots=8),
    )
}


def find_suite(name: str) -> Suite:
    """Returns a suite by name."""
    return look_up("suite", name, SUITES)
