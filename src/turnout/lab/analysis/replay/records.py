"""Reads the records that can be replayed: the file of a live fleet, or a run of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import SettingError, StoreError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.replay.amended import Stage, StagedPolicy
from turnout.lab.analysis.replay.rounds import round_records
from turnout.lab.analysis.replay.slots import NOTES as SLOT_NOTES
from turnout.lab.analysis.replay.slots import judged_columns, present_columns, read_turns
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan, slot_defaults
from turnout.lab.runs.store import RunStore
from turnout.lab.worlds.recorded import RecordedHistory
from turnout.lab.worlds.registry import OUR_WORLDS
from turnout.live import PAPER_FEATURES, Amendment, FleetReader, SchedulerSettings
from turnout.live._internals import LIVE_DEFAULTS, SURPLUS, RecordedRound, is_fleet, live_policy
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import build_policy, guarantee_of, setting_names, with_defaults

#: The settings that another policy inherits from the recorded one: the cohort, and what is promised.
SHARED = ("cohort_size", "guaranteed_rate", "tolerance", "accrual", "paid")
MOST_NUMBERS = 20_000_000  # the largest number of context values to load, 160 megabytes
COLD_START = 1  # the index of the cold start among the paper's features


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Recorded rounds with their policy, and how to build this or another policy for the same clients.

    Attributes:
        where: The source of the record, for reports.
        columns: The rounds as they happened; the server waited for `columns.durations`.
        past: What the worlds know that are built from the record: the same rounds, but with the true times of clients
            that returned after the round had enough others.
        policy: The name of the policy that selected the cohorts.
        settings: The settings of this policy.
        plan: The plan of a simulated run, which can be played again in its own world.
        live: The settings of a live fleet.
        notes: What to know about the record.
        ids: The ids of the clients of a live fleet, by row.
        stages: The settings of a live fleet that were in force, if they were amended between these rounds; the last
            stage has `live`, and `settings` are those of its policy.
    """

    where: str
    columns: RoundColumns
    past: RecordedHistory
    policy: str
    settings: Mapping[str, Any]
    plan: RunPlan | None = None
    live: SchedulerSettings | None = None
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None
    stages: tuple[Stage, ...] = ()

    @property
    def slots(self) -> int | None:
        """The number of slots, if there are no rounds."""
        if self.live is not None:
            return self.live.concurrency
        return None if self.plan is None else self.plan.concurrency

    def settings_for(
        self, policy: str, given: Mapping[str, Any], recorded: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns the recorded settings, overridden by the given ones.

        The same policy inherits all recorded settings, another policy only those in SHARED.

        Args:
            policy: The name of the policy.
            given: The settings that override the recorded ones.
            recorded: The recorded settings; by default the present ones, `settings`.
        """
        own = self.settings if recorded is None else recorded
        if policy == self.policy:
            return {**own, **given}
        known = setting_names(policy)
        return {**{name: own[name] for name in SHARED if name in own and name in known}, **given}

    def staged(self, policy: str, given: Mapping[str, Any]) -> SelectionPolicy:
        """Builds a new policy for the recorded clients, with the settings of each round if they were amended.

        The given settings override those of all rounds.
        """
        if not self.stages:
            return self.build(policy, self.settings_for(policy, given))
        first, *later = self._stage_policies(policy, given)
        return StagedPolicy(first[1](), later)

    def repeats(self, policy: str, given: Mapping[str, Any]) -> bool:
        """Returns whether this is the recorded policy with the recorded settings, in all rounds."""
        recorded = [stage.settings.settings for stage in self.stages] or [self.settings]
        return policy == self.policy and all(
            _plain(self.settings_for(policy, given, own)) == _plain(own) for own in recorded
        )

    def promises(self, policy: str, given: Mapping[str, Any]) -> list[tuple[int, Guarantee]]:
        """Returns the promises by which a policy is judged, each with the number of rounds before it applies."""
        if not self.stages:
            return [(0, self.promise(self.build(policy, self.settings_for(policy, given))))]
        found: list[tuple[int, Guarantee]] = []
        for after, build in self._stage_policies(policy, given):
            found.append((after, self.promise(build(), self._stage_settings(after))))
        return found

    def _stage_policies(self, policy: str, given: Mapping[str, Any]) -> list[tuple[int, Callable[[], SelectionPolicy]]]:
        clients, features = self.columns.clients, self.columns.contexts.shape[1]

        def builder(stage: Stage) -> Callable[[], SelectionPolicy]:
            settings = self.settings_for(policy, given, stage.settings.settings)
            own = replace(stage.settings, policy=policy, settings=settings)
            return lambda: live_policy(own, features, clients)

        return [(stage.after, builder(stage)) for stage in self.stages]

    def _stage_settings(self, after: int) -> Mapping[str, Any]:
        return next(stage.settings.settings for stage in self.stages if stage.after == after)

    def build(self, policy: str, settings: Mapping[str, Any]) -> SelectionPolicy:
        """Builds a new policy for the recorded clients, with the same settings in all rounds."""
        clients, features = self.columns.clients, self.columns.contexts.shape[1]
        if self.live is not None:
            return live_policy(replace(self.live, policy=policy, settings=settings), features, clients)
        seed = 0 if self.plan is None else self.plan.seed
        fitting = {"seed": seed, "features": features, "availability": self.past.available.mean(axis=0)}
        if self.slots is not None:
            fitting |= slot_defaults(clients)
        return build_policy(policy, clients, **with_defaults(policy, settings, fitting))

    def promise(self, policy: SelectionPolicy, recorded: Mapping[str, Any] | None = None) -> Guarantee:
        """Returns the promise by which a policy is judged: its own, else that of the recorded policy or the paper.

        `recorded` are the settings of the recorded policy; by default the present ones.
        """
        if policy.guarantee is not None:
            return policy.guarantee
        defaults = dict(LIVE_DEFAULTS) if self.live is not None else {}
        fallback: Any = DEFAULT_RATE
        if self.slots is not None:
            defaults |= slot_defaults(policy.clients)
            fallback = defaults["guaranteed_rate"]
        own = self.settings if recorded is None else recorded
        guarantee = guarantee_of(self.policy, policy.clients, with_defaults(self.policy, own, defaults))
        return guarantee or Guarantee(fallback, accrual="always", paid="chosen")

    def name(self, row: int) -> str:
        """Returns the id of a client, or its row in a simulated run."""
        return f"client {row}" if self.ids is None else self.ids[row]


def recorded(path: Path, run: int | None = None) -> Recorded:
    """Reads the record of a fleet's file or of a run of a store; `run` is optional if there is only one run."""
    if is_fleet(path):
        if run is not None:
            raise SettingError(f"{path} is a live fleet, which has no runs: omit run")
        return _recorded_fleet(path)
    with RunStore(path, read_only=True) as store:
        held = {info.id: info for info in store.runs()}
        if run is None and len(held) != 1:
            numbers = ", ".join(map(str, list(held)[:10])) or "none"
            raise SettingError(f"{path} holds {len(held)} runs ({numbers}): pass one of them as run", argument="run")
        info = held.get(next(iter(held)) if run is None else run)
        if info is None:
            raise StoreError(
                f"there is no run {run} in {path}: it holds {', '.join(map(str, list(held)[:10])) or 'none'}",
                argument="run",
            )
        columns = store.columns(info.id)
    plan = RunPlan.from_dict(info.plan)
    paper_like = plan.world in (*OUR_WORLDS, "training") and plan.world_settings.get("cold_start") != "participants"
    deadline = plan.world_settings.get("deadline")
    past = RecordedHistory(columns, COLD_START if paper_like else None, deadline)
    return Recorded(
        where=f"run {info.id} of {path}",
        columns=columns,
        past=past,
        policy=plan.policy,
        settings=plan.settings,
        plan=replace(plan, rounds=len(columns)),
    )


def _recorded_fleet(path: Path) -> Recorded:
    with FleetReader(path) as reader, reader.reading():
        settings, features, ids = reader.settings, reader.features, tuple(reader.clients)
        clients = len(ids)
        if not settings.has_rounds:
            return _recorded_slots(reader, settings, ids)
        rounds = list(reader.closed_rounds())
        amended, last_round = reader.amendments, reader.round
        # Contexts of other features cannot be compared: only the rounds with the present ones are used.
        learned_after = max((amendment.round for amendment in amended if amendment.has_new_features), default=0)
        kept = [closed for closed in rounds if _is_complete(closed) and closed.round > learned_after]
        if not kept and rounds and not settings.persist_statuses:
            raise SettingError(
                f"{path} does not persist the statuses of its clients (persist_statuses=False): it cannot be replayed"
            )
        if not kept:
            raise SettingError(
                f"{path} holds no closed round with its available clients: close at least one round before a replay"
            )
        numbers = [closed.round for closed in kept]
        offers = _offers(reader, numbers, clients, kept[0].contexts.shape[1])
        stages = _stages(reader.stored_settings(0), amended, numbers)
    columns = RoundColumns.from_records(round_records(kept, clients), clients=clients)
    known = columns
    if any((closed.kinds == SURPLUS).any() for closed in kept):
        known = RoundColumns.from_records(round_records(kept, clients, wait_for_all=True), clients=clients)
    paper_like = features.compute is not None and features.outputs == PAPER_FEATURES.outputs
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else None
    past = RecordedHistory(known, COLD_START if paper_like and _is_flag(columns) else None, deadline, offers)
    return Recorded(
        where=str(path),
        columns=columns,
        past=past,
        policy=settings.policy,
        settings=settings.settings,
        live=settings,
        notes=_notes(settings, kept, last_round, stages, learned_after),
        ids=ids,
        stages=stages,
    )


def _recorded_slots(reader: FleetReader, settings: SchedulerSettings, ids: tuple[str, ...]) -> Recorded:
    """Returns the record of a fleet without rounds: every turn that has ended is a round with one client."""
    path, clients, amended = reader.path, len(ids), reader.amendments
    learned_after = max((amendment.round for amendment in amended if amendment.has_new_features), default=0)
    found = read_turns(reader, learned_after)
    if not found.turns:
        raise SettingError(
            f"{path} holds no turn that has ended, with its context and the clients that were there: a replay needs one"
        )
    slots = settings.concurrency
    assert slots is not None
    width = 0 if found.turns[0].context is None else len(found.turns[0].context)
    policy = live_policy(settings, width, clients)
    offers = _offers(reader, [turn.id for turn in found.turns], clients, width)
    stages = _stages(reader.stored_settings(0), amended, [turn.id for turn in found.turns])
    notes = list(SLOT_NOTES)
    if found.under_way:
        notes.append(f"turns under way are left out: {found.under_way}")
    if found.dropped:
        notes.append(f"only {len(found.turns)} turns are used: the others, {found.dropped}, are not stored completely")
    if stages:
        changes = ", ".join(str(found.turns[stage.after - 1].id) for stage in stages[1:])
        notes.append(f"the settings were amended after decision {changes}: each decision has the settings of its time")
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else None
    return Recorded(
        where=str(path),
        columns=judged_columns(found.turns, clients, slots, policy.debts),
        past=RecordedHistory(present_columns(found.turns, clients), None, deadline, offers),
        policy=settings.policy,
        settings=settings.settings,
        live=settings,
        notes=tuple(notes),
        ids=ids,
        stages=stages,
    )


def _is_complete(closed: RecordedRound) -> bool:
    """Returns whether the availability and the contexts of clients in a round are stored."""
    return closed.available is not None and not bool(np.isnan(closed.contexts).any())


def _stages(created: Mapping[str, Any], amended: Sequence[Amendment], kept: Sequence[int]) -> tuple[Stage, ...]:
    """Returns the settings in force between the kept rounds; empty if they were not amended between them."""
    stages = [Stage(0, SchedulerSettings.from_dict(created))]
    for amendment in amended:
        after = sum(number <= amendment.round for number in kept)
        stage = Stage(after, SchedulerSettings.from_dict(amendment.settings))
        stages = [*(earlier for earlier in stages if earlier.after < after), stage]
    return tuple(stages) if len(stages) > 1 else ()


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Converts integers to floats, because 20 and 20.0 are the same setting."""
    return {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}


def _notes(
    settings: SchedulerSettings,
    kept: Sequence[RecordedRound],
    rounds: int,
    stages: Sequence[Stage],
    learned_after: int,
) -> tuple[str, ...]:
    """Returns what to know about the record of a fleet.

    Args:
        settings: The present settings.
        kept: The rounds that are used.
        rounds: The number of all closed rounds.
        stages: The settings in force, if they were amended.
        learned_after: The round after which the features were amended; 0 if they never were.
    """
    notes = ["as recorded: clients in back-off after misses count as unavailable"]
    if stages:
        changes = ", ".join(str(kept[stage.after - 1].round) for stage in stages[1:])
        notes.append(f"the settings were amended after round {changes}: each round has the settings of its time")
        if len({stage.settings.deadline for stage in stages}) > 1:
            notes.append(f"resampled times meet the present deadline, {settings.deadline}, in all rounds")
    if len(kept) < rounds:
        why = "the features were amended before them" if learned_after else "the others are not stored any more"
        notes.append(f"only the last {len(kept)} of {rounds} rounds are used: {why}")
    if any(stage.settings.overcommit != 1 for stage in (*stages, Stage(0, settings))):
        notes.append("over-selection is not replayed: the cohort has the requested size, and the server waits for all")
    if settings.settings.get("accrual") == "always" and _clients(kept[0]) < _clients(kept[-1]):
        notes.append("clients that joined later are promised turns from the first round on, because accrual is always")
    return tuple(notes)


def _clients(closed: RecordedRound) -> int:
    """Returns the number of clients that had joined when the round was closed."""
    return 0 if closed.available is None else len(closed.available)


def _offers(reader: FleetReader, rounds: Sequence[int], clients: int, width: int) -> FloatArray | None:
    """Returns the contexts of all available clients, or None if they were not recorded or are too many to load."""
    if len(rounds) * clients * width > MOST_NUMBERS:
        return None
    offers = np.full((len(rounds), clients, width), np.nan)
    for index, number in enumerate(rounds):
        offered = reader.offer(number)
        if offered is not None and offered.contexts is not None:
            offers[index, np.flatnonzero(offered.available)] = offered.contexts
    return None if np.isnan(offers).all() else offers


def _is_flag(columns: RoundColumns) -> bool:
    """Returns whether the feature has only the values 0 and 1, as a cold start has."""
    return bool(np.isin(columns.contexts[:, COLD_START], (0.0, 1.0)).all())
