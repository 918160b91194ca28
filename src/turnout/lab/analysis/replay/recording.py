"""What can be replayed: recorded rounds, with their policy and how to build another one for the same clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from turnout.errors import SettingError, StoreError
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.rounds import RoundReport
from turnout.kernel.slots.turns import TurnStart
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan, slot_defaults
from turnout.lab.runs.store import RunStore
from turnout.lab.worlds.recorded import RecordedHistory
from turnout.lab.worlds.registry import OUR_WORLDS
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import build_policy, setting_names, with_defaults
from turnout.policies.wrappers.base import Wrapper

#: The settings that another policy inherits from the recorded one: the cohort, and what is promised.
SHARED = ("cohort_size", "guaranteed_rate", "tolerance", "accrual", "counts")
COLD_START = 1  # the index of the cold start among the paper's features


class Stage(NamedTuple):
    """The settings of the recorded policy from one amendment to the next.

    Attributes:
        after: The number of recorded rounds before this stage.
        settings: The settings of the recorded policy.
        build: Builds a policy, by name and settings, for the recorded clients.
    """

    after: int
    settings: Mapping[str, Any]
    build: Callable[[str, Mapping[str, Any]], SelectionPolicy]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Recorded rounds of a fleet or a run.

    Attributes:
        where: The source of the recording, for reports.
        columns: The rounds as they happened; the server waited for `columns.durations`.
        past: What the worlds know that are built from the recording: the same rounds, but with the true times of
            clients that returned after the round had enough others.
        policy: The name of the policy that selected the cohorts.
        stages: The settings that were in force, at least one stage; more if they were amended between these rounds.
        plan: The plan of a simulated run, which can be played again in its own world.
        slots: The number of slots, if there are no rounds.
        over_selects: Whether more clients were selected than the server waited for, which is not replayed.
        notes: What to know about the recording.
        ids: The ids of the clients of a fleet, by row.
    """

    where: str
    columns: RoundColumns
    past: RecordedHistory
    policy: str
    stages: tuple[Stage, ...]
    plan: RunPlan | None = None
    slots: int | None = None
    over_selects: bool = False
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The present settings of the recorded policy."""
        return self.stages[-1].settings

    def settings_for(self, policy: str, given: Mapping[str, Any], stage: Stage | None = None) -> dict[str, Any]:
        """Returns the recorded settings of a stage, by default the last, overridden by the given ones.

        The same policy inherits all recorded settings, another policy only those in SHARED.
        """
        own = (stage or self.stages[-1]).settings
        if policy == self.policy:
            return {**own, **given}
        known = setting_names(policy)
        return {**{name: own[name] for name in SHARED if name in own and name in known}, **given}

    def build(self, policy: str, settings: Mapping[str, Any]) -> SelectionPolicy:
        """Builds a new policy for the recorded clients, with the same settings in all rounds."""
        return self.stages[-1].build(policy, settings)

    def build_staged(self, policy: str, given: Mapping[str, Any]) -> SelectionPolicy:
        """Builds a new policy for the recorded clients, with the settings of each round if they were amended.

        The given settings override those of all rounds.
        """
        first, *later = self.stages
        built = self._build_in(first, policy, given)
        if not later:
            return built
        return StagedPolicy(built, [(stage.after, self._builder(stage, policy, given)) for stage in later])

    def repeats(self, policy: str, given: Mapping[str, Any]) -> bool:
        """Returns whether this is the recorded policy with the recorded settings, in all rounds."""
        return policy == self.policy and all(
            _plain(self.settings_for(policy, given, stage)) == _plain(stage.settings) for stage in self.stages
        )

    def promises(self, policy: str, given: Mapping[str, Any]) -> list[tuple[int, Guarantee]]:
        """Returns the promises by which a policy is judged, each with the number of rounds before it applies.

        They are its own, else those of the recorded policy, else that of the paper.
        """
        fallback: Any = DEFAULT_RATE if self.slots is None else slot_defaults(self.columns.clients)["guaranteed_rate"]
        return [
            (
                stage.after,
                self._build_in(stage, policy, given).guarantee
                or stage.build(self.policy, stage.settings).guarantee
                or Guarantee(fallback, accrual="always", counts="selected"),
            )
            for stage in self.stages
        ]

    def name(self, row: int) -> str:
        """Returns the id of a client, or its row in a simulated run."""
        return f"client {row}" if self.ids is None else self.ids[row]

    def _build_in(self, stage: Stage, policy: str, given: Mapping[str, Any]) -> SelectionPolicy:
        return stage.build(policy, self.settings_for(policy, given, stage))

    def _builder(self, stage: Stage, policy: str, given: Mapping[str, Any]) -> Callable[[], SelectionPolicy]:
        return lambda: self._build_in(stage, policy, given)


class StagedPolicy(Wrapper):
    """A policy that continues with other settings after given rounds, as an amended fleet does.

    Args:
        policy: The policy of the first stage.
        later: The number of rounds before each later stage, and what builds its policy.
    """

    name = "staged"
    works_with_slots = True

    def __init__(self, policy: SelectionPolicy, later: Sequence[tuple[int, Callable[[], SelectionPolicy]]]) -> None:
        super().__init__(policy)
        self._later = list(later)

    def tell(self, report: RoundReport) -> None:
        """Passes the report on, and changes the settings if the next stage begins."""
        super().tell(report)
        self._advance(report.round)

    def tell_started(self, turn: TurnStart) -> None:
        """Passes the decision on, and changes the settings if the next stage begins."""
        super().tell_started(turn)
        self._advance(turn.decision)

    def _advance(self, done: int) -> None:
        while self._later and done >= self._later[0][0]:
            _, build = self._later.pop(0)
            amended = build()
            self.policy.settle()
            amended.restore(amended.amended_state(self.policy.state(), keep_times=True))
            super().__init__(amended)


def record_run(path: Path, run: int | None = None) -> Recording:
    """Reads a run of a store; `run` is optional if there is only one."""
    with RunStore(path, read_only=True) as store:
        held = {info.id: info for info in store.runs()}
        numbers = ", ".join(map(str, list(held)[:10])) or "none"
        if run is None and len(held) != 1:
            raise SettingError(f"{path} holds {len(held)} runs ({numbers}): pass one of them as run", argument="run")
        info = held.get(next(iter(held)) if run is None else run)
        if info is None:
            raise StoreError(f"there is no run {run} in {path}: it holds {numbers}", argument="run")
        columns = store.columns(info.id)
    plan = RunPlan.from_dict(info.plan)
    paper_like = plan.world in (*OUR_WORLDS, "training") and plan.world_settings.get("cold_start") != "participants"
    past = RecordedHistory(columns, COLD_START if paper_like else None, plan.world_settings.get("deadline"))
    clients = columns.clients
    fitting = {"seed": plan.seed, "features": columns.contexts.shape[1], "availability": past.available.mean(axis=0)}
    if plan.concurrency is not None:
        fitting |= slot_defaults(clients)

    def build(policy: str, settings: Mapping[str, Any]) -> SelectionPolicy:
        return build_policy(policy, clients, **with_defaults(policy, settings, fitting))

    return Recording(
        where=f"run {info.id} of {path}",
        columns=columns,
        past=past,
        policy=plan.policy,
        stages=(Stage(0, plan.settings, build),),
        plan=replace(plan, rounds=len(columns)),
        slots=plan.concurrency,
    )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Converts integers to floats, because 20 and 20.0 are the same setting."""
    return {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}
