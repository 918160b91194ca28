"""What can be replayed: recorded rounds, with their policy and how to build another one for the same clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnout.errors import SettingError, StoreError
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.guarantee import Guarantee
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan, slot_defaults
from turnout.lab.runs.store import RunStore
from turnout.lab.worlds.recorded import RecordedHistory
from turnout.lab.worlds.registry import OUR_WORLDS
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import build_policy, setting_names, with_defaults

#: The settings that another policy inherits from the recorded one: the cohort, and what is promised.
SHARED = ("cohort_size", "guaranteed_rate", "tolerance", "accrual", "counts")
COLD_START = 1  # the index of the cold start among the paper's features


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Recorded rounds of a fleet or a run.

    Attributes:
        where: The source of the recording, for reports.
        columns: The rounds as they happened; the server waited for `columns.durations`.
        past: What the worlds know that are built from the recording: the same rounds, but with the true times of
            clients that returned after the round had enough others.
        policy: The name of the policy that selected the cohorts.
        settings: The present settings of the policy.
        build: Builds a policy, by name and settings, for the recorded clients.
        amended_after: The number of recorded rounds before the present settings; 0 if they were not amended.
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
    settings: Mapping[str, Any]
    build: Callable[[str, Mapping[str, Any]], SelectionPolicy]
    amended_after: int = 0
    plan: RunPlan | None = None
    slots: int | None = None
    over_selects: bool = False
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None

    def settings_for(self, policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the recorded settings, overridden by the given ones.

        The same policy inherits all recorded settings, another policy only those in SHARED.
        """
        if policy == self.policy:
            return {**self.settings, **given}
        known = setting_names(policy)
        return {**{name: self.settings[name] for name in SHARED if name in self.settings and name in known}, **given}

    def repeats(self, policy: str, given: Mapping[str, Any]) -> bool:
        """Returns whether this is the recorded policy with the recorded settings, in all rounds."""
        return policy == self.policy and not self.amended_after and self.settings_for(policy, given) == self.settings

    def promise(self, policy: SelectionPolicy) -> Guarantee:
        """Returns the promise by which a policy is judged: its own, else that of the recorded one, else the paper's."""
        fallback: Any = DEFAULT_RATE if self.slots is None else slot_defaults(self.columns.clients)["guaranteed_rate"]
        return (
            policy.guarantee
            or self.build(self.policy, self.settings).guarantee
            or Guarantee(fallback, accrual="always", counts="selected")
        )

    def name(self, row: int) -> str:
        """Returns the id of a client, or its row in a simulated run."""
        return f"client {row}" if self.ids is None else self.ids[row]


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
        settings=plan.settings,
        build=build,
        plan=replace(plan, rounds=len(columns)),
        slots=plan.concurrency,
    )
