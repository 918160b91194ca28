"""What a record would have been under another policy: read, played again, and held against what was."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.analysis.metrics import jain_index, owed_after_each_round, student_t
from turnout.errors import SettingError, StoreError
from turnout.kernel.arrays import FloatArray, as_count
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundRecord, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import filled, make_policy, settings_named
from turnout.scheduler import (
    LIVE_DEFAULTS,
    PAPER_FEATURES,
    FleetReader,
    RecordedRound,
    SchedulerSettings,
    is_fleet,
    live_policy,
)
from turnout.simulator.plans import OUR_WORLDS, RunPlan
from turnout.simulator.play import play
from turnout.simulator.recorded import ASSUMPTIONS, FittedWorld, RecordedHistory, RecordedWorld
from turnout.store import RoundColumns, RunStore

FIGURES = ("mean_round", "p95_round", "least_share", "worst_debt", "jain", "other_choices", "other_rounds")
ON_TIME = ("mean_round", "p95_round")
SHARED = ("cohort_size", "guaranteed_rate")  # what a policy takes over from the recorded one, unless it is told
CALIBRATED_ON = 4  # seeds
MOST_NUMBERS = 20_000_000  # of whole offers: 160 megabytes
COLD_START = 1  # its place among the paper's features
REPEATED = "everything is exact: chosen anew from the recorded offers, and all who were chosen were chosen then"


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Rounds that were recorded, under which policy, and how to build it or another one for the same clients.

    `plan`: of a simulated run, which can be played again in its own world. `live`: of a live fleet.
    """

    where: str
    past: RecordedHistory
    policy: str
    settings: Mapping[str, Any]
    plan: RunPlan | None = None
    live: SchedulerSettings | None = None
    notes: tuple[str, ...] = ()

    def settings_for(self, policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, on top of what was recorded: all of it for the same policy, what all share for another."""
        if policy == self.policy:
            return {**self.settings, **given}
        known = settings_named(policy)
        shared = {name: self.settings[name] for name in SHARED if name in self.settings and name in known}
        return {**shared, **given}

    def build(self, policy: str, settings: Mapping[str, Any]) -> SelectionPolicy:
        """A fresh policy for the recorded clients."""
        clients, features = self.past.columns.clients, self.past.columns.contexts.shape[1]
        if self.live is not None:
            return live_policy(replace(self.live, policy=policy, settings=settings), features, clients)
        seed = 0 if self.plan is None else self.plan.seed
        fitting = {"seed": seed, "features": features, "availability": self.past.available.mean(axis=0)}
        return make_policy(policy, clients, **filled(policy, settings, fitting))


class Figure(NamedTuple):
    """One figure of a record beside that of its replay; `half_width` is 0 where the replay is exact."""

    name: str
    recorded: float
    replayed: float
    half_width: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Replayed:
    """A record and what another policy would have made of its offers.

    `known_times`: the share of the replay's times that are recorded ones. `notes`: what is exact and what is not.
    """

    policy: str
    settings: Mapping[str, Any]
    rounds: int
    choices: int
    figures: tuple[Figure, ...]
    known_times: float
    draws: int
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Figure:
        return next(one for one in self.figures if one.name == name)


def recorded(path: Path, run: int | None = None) -> Recorded:
    """What a fleet's file holds, or a run of a store; the run may be left out where there is but one."""
    if is_fleet(path):
        if run is not None:
            raise SettingError(f"{path} is a live fleet, which has no runs: leave out --run")
        return _recorded_fleet(path)
    with RunStore(path, read_only=True) as store:
        held = {info.id: info for info in store.runs()}
        if run is None and len(held) != 1:
            numbers = ", ".join(map(str, list(held)[:10])) or "none"
            raise SettingError(f"{path} holds {len(held)} runs ({numbers}): name one with --run, see turnout runs list")
        info = held.get(next(iter(held)) if run is None else run)
        if info is None:
            raise StoreError(f"there is no run {run} in {path}: see turnout runs list {path}")
        columns = store.columns(info.id)
    plan = RunPlan.from_dict(info.plan)
    paper_like = plan.world in (*OUR_WORLDS, "training") and plan.world_settings.get("cold_start") != "participants"
    deadline = plan.world_settings.get("deadline")
    past = RecordedHistory(columns, COLD_START if paper_like else None, deadline)
    return Recorded(f"run {info.id} of {path}", past, plan.policy, plan.settings, replace(plan, rounds=len(columns)))


def fitted_build(record: Recorded, given: Mapping[str, Any]) -> tuple[Callable[..., Any], float]:
    """For `tuned`: rbcsf in worlds fitted to the record; and the factor that makes its rounds last as recorded."""
    base = record.settings_for("rbcsf", given)

    def fitted(seed: int, scale: float = 1.0) -> FittedWorld:
        return FittedWorld(record.past, seed, scale=scale)

    lasted = []
    for seed in range(CALIBRATED_ON):
        world = fitted(seed)
        again = play(record.build(record.policy, record.settings), world, len(record.past.columns))
        lasted.append(np.mean([one.report.duration for one in again]))
    scale = float(record.past.columns.durations.mean() / np.mean(lasted)) if np.mean(lasted) > 0 else 1.0

    def build(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, FittedWorld]:
        return record.build("rbcsf", {**base, **settings}), fitted(seed, scale)

    return build, scale


def replay(
    record: Recorded,
    policy: str,
    given: Mapping[str, Any],
    *,
    draws: int = 20,
    watch: Callable[[int, int], None] | None = None,
) -> Replayed:
    """The recorded offers under another policy or other settings.

    In a simulated world that can be built again everything is exact. Otherwise availability is as recorded; contexts
    and times that nobody recorded are drawn, `draws` times over, and each figure is a mean with a 95 % interval for
    what would have happened.
    """
    draws = as_count("draws", draws, SettingError, least=2)
    settings = record.settings_for(policy, given)
    again = record.build(policy, settings)
    if _can_be_rebuilt(record):
        assert record.plan is not None
        columns = _played_in_its_world(replace(record.plan, policy=policy, settings=settings))
        notes = (
            "everything is exact: the world of this run was built again, with its availability, contexts and noise",
        )
        return _replayed(record, again, settings, [columns], 1.0, notes, exact=True)
    if again.requires_expected_times:
        raise SettingError(f"{policy} must be told the true times, which nobody recorded: replay another policy")
    repeated = record.past.is_whole and (record.live is None or record.live.overcommit == 1)
    if not repeated and policy == record.policy and _plain(settings) == _plain(record.settings):
        notes = ("everything is exact: the same policy with the same settings makes the recorded choices",)
        return _replayed(record, again, settings, [record.past.columns], 1.0, notes, exact=True)
    played, known, told = [], 0, 0
    for seed in range(draws):
        world = RecordedWorld(record.past, seed)
        records = list(play(record.build(policy, settings), world, len(record.past.columns)))
        played.append(RoundColumns.from_records(records, clients=world.clients))
        known, told = known + world.known, told + world.told
        if watch is not None:
            watch(seed + 1, draws)
    told_of = _notes(record, again) if known < told else (REPEATED,)
    return _replayed(record, again, settings, played, known / max(told, 1), told_of, exact=False)


def _notes(record: Recorded, policy: SelectionPolicy) -> tuple[str, ...]:
    if record.past.is_whole:
        exact = "exact: who was available, and in what condition: whole offers were recorded"
        fairness = "choices, turns and debts, as far as the policy has learned from times that were drawn"
    elif policy.features is None:
        exact = f"exact: who was available; {policy.name} does not look at contexts"
        fairness = "choices, turns and debts, as far as the policy has learned from times that were drawn"
    else:
        exact = "exact: who was available"
        fairness = "choices, turns and debts: contexts of clients that were not chosen are drawn from their own turns"
    return (
        f"{exact}; times of clients that were chosen then, too, in the same condition",
        f"estimated: {fairness}",
        f"estimated: {ASSUMPTIONS[0]}",
        *record.notes,
    )


def _replayed(
    record: Recorded,
    policy: SelectionPolicy,
    settings: Mapping[str, Any],
    played: Sequence[RoundColumns],
    known: float,
    notes: tuple[str, ...],
    *,
    exact: bool,
) -> Replayed:
    """Both held against the same promise: that of the replayed policy, or where it has none the recorded one."""
    promise = _promise(record, settings)
    before = _figures(record.past.columns, record.past.columns, promise)
    after = np.array([_figures(one, record.past.columns, promise) for one in played])
    figures = []
    settled = all(np.array_equal(one.chosen, played[0].chosen) for one in played)  # whatever was drawn
    for place, name in enumerate(FIGURES):
        values = after[:, place]
        sure = exact or (settled and (name not in ON_TIME or known == 1) and bool((values == values[0]).all()))
        now = float(values[0] if sure else values.mean())
        figures.append(Figure(name, before[place], now, 0.0 if sure else prediction_half_width(values), sure))
    choices = len(record.past.columns.chosen)
    rounds = len(record.past.columns)
    return Replayed(policy.name, dict(settings), rounds, choices, tuple(figures), known, len(played), notes)


def prediction_half_width(values: FloatArray) -> float:
    """Half the interval in which the one replay that would have happened lies, with 95 % confidence."""
    count = len(values)
    return float(student_t(0.95, count - 1) * values.std(ddof=1) * math.sqrt(1 + 1 / count))


def _promise(record: Recorded, settings: Mapping[str, Any]) -> dict[str, Any]:
    own = {**(LIVE_DEFAULTS if record.live is not None else {}), **record.settings, **settings}
    return {
        "guaranteed_rate": own.get("guaranteed_rate", DEFAULT_RATE),
        "accrual": own.get("accrual", "always"),
        "outcomes_paid": ("arrived",) if own.get("paid") == "contributed" else OUTCOMES,
    }


def _figures(columns: RoundColumns, record: RoundColumns, promise: Mapping[str, Any]) -> list[float]:
    """In the order of FIGURES."""
    durations, turns = columns.durations, columns.turns
    new = columns.chosen_mask & ~record.chosen_mask
    other = (columns.chosen_mask != record.chosen_mask).any(axis=1)
    return [
        float(durations.mean()),
        float(np.percentile(durations, 95)),
        int(turns.min()) / len(columns),
        float(owed_after_each_round(columns, **promise)[-1].max()),
        jain_index(turns),
        float(new.sum()),
        float(other.sum()),
    ]


def _can_be_rebuilt(record: Recorded) -> bool:
    """Does the plan of the run, played again, give the record to the bit?"""
    if record.plan is None or record.plan.world not in OUR_WORLDS:
        return False
    again, columns = _played_in_its_world(record.plan), record.past.columns
    return bool(
        np.array_equal(again.chosen, columns.chosen)
        and np.array_equal(again.starts, columns.starts)
        and np.array_equal(again.exchange_times, columns.exchange_times)
    )


def _played_in_its_world(plan: RunPlan) -> RoundColumns:
    policy, world = plan.build()
    return RoundColumns.from_records(play(policy, world, plan.rounds), clients=world.clients)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """20 and 20.0 are the same setting."""
    return {name: float(one) if isinstance(one, int) else one for name, one in settings.items()}


def _recorded_fleet(path: Path) -> Recorded:
    with FleetReader(path) as reader, reader.reading():
        settings, features, clients = reader.settings, reader.features, len(reader.ids)
        rounds = list(reader.closed_rounds())
        kept = [closed for closed in rounds if closed.available is not None]
        if not kept:
            raise SettingError(
                f"{path} holds no closed round that tells who was available: there is nothing to replay yet"
            )
        offers = _offers(reader, kept, clients)
    notes = ["as recorded: who rested after misses counts as away"]
    if len(kept) < len(rounds):
        notes.append(f"of {len(rounds)} rounds the last {len(kept)} are used: who was there in the others is gone")
    if settings.overcommit != 1:
        notes.append("over-selection is not replayed: as many are chosen as are wanted")
    paper_like = features.compute is not None and features.outputs == PAPER_FEATURES.outputs
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else None
    columns = RoundColumns.from_records(_records(kept, clients), clients=clients)
    past = RecordedHistory(columns, COLD_START if paper_like and _is_flag(columns) else None, deadline, offers)
    return Recorded(str(path), past, settings.policy, settings.settings, live=settings, notes=tuple(notes))


def _offers(reader: FleetReader, rounds: Sequence[RecordedRound], clients: int) -> FloatArray | None:
    """The contexts of all who volunteered, where they are on record and not too many to hold."""
    width = rounds[0].contexts.shape[1]
    if len(rounds) * clients * width > MOST_NUMBERS:
        return None
    offers = np.full((len(rounds), clients, width), np.nan)
    for place, closed in enumerate(rounds):
        offered = reader.offer(closed.round)
        if offered is not None and offered.contexts is not None:
            offers[place, np.flatnonzero(offered.available)] = offered.contexts
    return None if np.isnan(offers).all() else offers


def _is_flag(columns: RoundColumns) -> bool:
    """Nothing but 0 and 1, as a cold start is."""
    return bool(np.isin(columns.contexts[:, COLD_START], (0.0, 1.0)).all())


def _records(rounds: Sequence[RecordedRound], clients: int) -> list[RoundRecord]:
    """Counted from 1; masks as wide as the fleet is now."""
    place_of = {closed.round: place for place, closed in enumerate(rounds, start=1)}
    turns: dict[tuple[int, int], tuple[FloatArray, float]] = {}
    records = []
    for place, closed in enumerate(rounds, start=1):
        available = np.zeros(clients, dtype=np.bool_)
        if closed.available is not None:
            available[: len(closed.available)] = closed.available
        late = [
            (place_of[late.round], late.row, *turns[place_of[late.round], late.row], late.seconds)
            for late in closed.late
            if late.round in place_of
        ]
        report = RoundReport(
            place,
            closed.rows,
            closed.contexts,
            closed.seconds,
            available=available,
            outcomes=closed.outcomes,
            losses=closed.losses,
            late_arrivals=_late(late),
        )
        records.append(RoundRecord(Selection(place, closed.rows), report))
        for at, row in enumerate(closed.rows.tolist()):
            turns[place, row] = (closed.contexts[at], float(closed.seconds[at]))
    return records


def _late(told: Sequence[tuple[int, int, FloatArray, float, float]]) -> LateArrivals | None:
    if not told:
        return None
    rounds, rows, contexts, deadlines, seconds = zip(*told, strict=True)
    return LateArrivals(
        np.array(rounds), np.array(rows), np.array(contexts), np.array(deadlines), np.maximum(seconds, deadlines)
    )
