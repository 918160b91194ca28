"""Replays a record under another policy and compares the results with the recorded ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.analysis.metrics import jain_index, owed_after_each_round
from turnout.analysis.statistics import student_t
from turnout.errors import SettingError, StoreError
from turnout.kernel.arrays import FloatArray, as_count
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundRecord, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import guarantee_of, make_policy, setting_names, with_defaults
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
SHARED = ("cohort_size", "guaranteed_rate")  # the settings that another policy inherits from the recorded one
CALIBRATED_ON = 4  # the number of seeds that determine the scale of a fitted world
MOST_NUMBERS = 20_000_000  # the largest number of context values to load, 160 megabytes
COLD_START = 1  # the index of the cold start among the paper's features
REPEATED = "everything is exact: the policy selects the recorded cohorts from the recorded offers"


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Recorded rounds with their policy, and how to build this or another policy for the same clients.

    `plan`: the plan of a simulated run, which can be played again in its own world. `live`: the settings of a live
    fleet.
    """

    where: str
    past: RecordedHistory
    policy: str
    settings: Mapping[str, Any]
    plan: RunPlan | None = None
    live: SchedulerSettings | None = None
    notes: tuple[str, ...] = ()

    def settings_for(self, policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the recorded settings, overridden by the given ones.

        The same policy inherits all recorded settings, another policy only those in SHARED.
        """
        if policy == self.policy:
            return {**self.settings, **given}
        known = setting_names(policy)
        shared = {name: self.settings[name] for name in SHARED if name in self.settings and name in known}
        return {**shared, **given}

    def build(self, policy: str, settings: Mapping[str, Any]) -> SelectionPolicy:
        """Builds a new policy for the recorded clients."""
        clients, features = self.past.columns.clients, self.past.columns.contexts.shape[1]
        if self.live is not None:
            return live_policy(replace(self.live, policy=policy, settings=settings), features, clients)
        seed = 0 if self.plan is None else self.plan.seed
        fitting = {"seed": seed, "features": features, "availability": self.past.available.mean(axis=0)}
        return make_policy(policy, clients, **with_defaults(policy, settings, fitting))


class Figure(NamedTuple):
    """A recorded figure and its replayed value; `half_width` is 0 if the replay is exact."""

    name: str
    recorded: float
    replayed: float
    half_width: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Replayed:
    """The comparison of a record with its replay under another policy or other settings.

    `known_times`: the share of the replay's times that are recorded ones. `notes`: what is exact and what is estimated.
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
        return next(figure for figure in self.figures if figure.name == name)


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
    return Recorded(f"run {info.id} of {path}", past, plan.policy, plan.settings, replace(plan, rounds=len(columns)))


def fitted_build(record: Recorded, given: Mapping[str, Any]) -> tuple[Callable[..., Any], float]:
    """Returns a builder for find_speed_weight, and the scale of its times.

    The builder returns rbcsf in worlds that are fitted to the record. The scale gives the recorded policy the recorded
    mean round time.
    """
    base = record.settings_for("rbcsf", given)

    def fitted(seed: int, scale: float = 1.0) -> FittedWorld:
        return FittedWorld(record.past, seed, scale=scale)

    mean_durations = []
    for seed in range(CALIBRATED_ON):
        world = fitted(seed)
        records = play(record.build(record.policy, record.settings), world, len(record.past.columns))
        mean_durations.append(np.mean([played.report.duration for played in records]))
    simulated, observed = np.mean(mean_durations), record.past.columns.durations.mean()
    scale = float(observed / simulated) if simulated > 0 else 1.0

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
    """Replays the recorded offers under another policy or other settings.

    The result is exact for a simulated world that can be rebuilt. Otherwise availability is as recorded; contexts and
    times that were not recorded are resampled `draws` times, and each figure is a mean with a 95 % prediction interval.

    Args:
        record: The record to replay.
        policy: The name of the policy.
        given: Settings of the policy; they override the recorded ones.
        draws: The number of replays with resampled values.
        watch: A progress callback; receives the number of finished replays and their total.
    """
    draws = as_count("draws", draws, SettingError, least=2)
    settings = record.settings_for(policy, given)
    again = record.build(policy, settings)
    if _can_be_rebuilt(record):
        assert record.plan is not None
        columns = _played_in_its_world(replace(record.plan, policy=policy, settings=settings))
        notes: tuple[str, ...] = (
            "everything is exact: the world of this run was rebuilt with its availability, contexts and noise",
        )
        return _replayed(record, again, settings, [columns], 1.0, notes, exact=True)
    if again.requires_expected_times:
        raise SettingError(f"{policy} requires the true expected times, which were not recorded: replay another policy")
    repeated = record.past.has_all_contexts and (record.live is None or record.live.overcommit == 1)
    if not repeated and policy == record.policy and _plain(settings) == _plain(record.settings):
        notes = ("everything is exact: the same policy with the same settings makes the recorded selections",)
        return _replayed(record, again, settings, [record.past.columns], 1.0, notes, exact=True)
    replays, recorded_times, reported_times = [], 0, 0
    for seed in range(draws):
        world = RecordedWorld(record.past, seed)
        records = list(play(record.build(policy, settings), world, len(record.past.columns)))
        replays.append(RoundColumns.from_records(records, clients=world.clients))
        recorded_times += world.recorded_times
        reported_times += world.reported_times
        if watch is not None:
            watch(seed + 1, draws)
    notes = _notes(record, again) if recorded_times < reported_times else (REPEATED,)
    known_share = recorded_times / max(reported_times, 1)
    return _replayed(record, again, settings, replays, known_share, notes, exact=False)


def _notes(record: Recorded, policy: SelectionPolicy) -> tuple[str, ...]:
    if record.past.has_all_contexts:
        exact = "exact: the available clients and their contexts, because complete offers were recorded"
        fairness = "selections, turns and debts, as far as the policy learned from resampled times"
    elif policy.features is None:
        exact = f"exact: the available clients; {policy.name} does not use contexts"
        fairness = "selections, turns and debts, as far as the policy learned from resampled times"
    else:
        exact = "exact: the available clients"
        fairness = (
            "selections, turns and debts: contexts of clients that were not selected are resampled from their turns"
        )
    return (
        f"{exact}; the times of clients that were also selected in the record with the same context",
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
    """Compares the record with its replays under the guarantee of the replayed policy, or else the recorded one.

    Args:
        record: The record.
        policy: The replayed policy.
        settings: The settings of the replayed policy.
        played: The replays.
        known: The share of the replays' times that are recorded ones.
        notes: What is exact and what is estimated.
        exact: Whether the replay is exact.
    """
    promise = _promise(record, policy)
    before = _figures(record.past.columns, record.past.columns, promise)
    after = np.array([_figures(columns, record.past.columns, promise) for columns in played])
    figures = []
    # The selections are certain if they do not depend on the draws.
    settled = all(np.array_equal(columns.chosen, played[0].chosen) for columns in played)
    for index, name in enumerate(FIGURES):
        values = after[:, index]
        sure = exact or (settled and (name not in ON_TIME or known == 1) and bool((values == values[0]).all()))
        now = float(values[0] if sure else values.mean())
        figures.append(Figure(name, before[index], now, 0.0 if sure else prediction_half_width(values), sure))
    choices = len(record.past.columns.chosen)
    rounds = len(record.past.columns)
    return Replayed(policy.name, dict(settings), rounds, choices, tuple(figures), known, len(played), notes)


def prediction_half_width(values: FloatArray) -> float:
    """Returns half the width of the 95 % prediction interval of a single replay."""
    count = len(values)
    return float(student_t(0.95, count - 1) * values.std(ddof=1) * math.sqrt(1 + 1 / count))


def _promise(record: Recorded, policy: SelectionPolicy) -> dict[str, Any]:
    """Returns the guarantee against which debts are counted: the policy's own, else that of the recorded policy."""
    guarantee = policy.guarantee
    if guarantee is None:
        defaults = LIVE_DEFAULTS if record.live is not None else {}
        guarantee = guarantee_of(
            record.policy, policy.clients, with_defaults(record.policy, record.settings, defaults)
        ) or Guarantee(DEFAULT_RATE, accrual="always", paid="chosen")
    return {
        "guaranteed_rate": guarantee.rate,
        "accrual": guarantee.accrual,
        "outcomes_paid": ("arrived",) if guarantee.paid == "contributed" else OUTCOMES,
    }


def _figures(columns: RoundColumns, record: RoundColumns, promise: Mapping[str, Any]) -> list[float]:
    """Returns the figures of a run in the order of FIGURES."""
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
    """Returns whether playing the plan of the run again reproduces the record exactly."""
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
    """Converts integers to floats, because 20 and 20.0 are the same setting."""
    return {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}


def _recorded_fleet(path: Path) -> Recorded:
    with FleetReader(path) as reader, reader.reading():
        settings, features, clients = reader.settings, reader.features, len(reader.ids)
        rounds = list(reader.closed_rounds())
        kept = [closed for closed in rounds if closed.available is not None]
        if not kept:
            raise SettingError(
                f"{path} holds no closed round with its available clients: close at least one round before a replay"
            )
        offers = _offers(reader, kept, clients)
    notes = ["as recorded: clients in back-off after misses count as unavailable"]
    if len(kept) < len(rounds):
        notes.append(
            f"only the last {len(kept)} of {len(rounds)} rounds are used: the availability of the others was deleted"
        )
    if settings.overcommit != 1:
        notes.append("over-selection is not replayed: the cohort has the requested size")
    paper_like = features.compute is not None and features.outputs == PAPER_FEATURES.outputs
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else None
    columns = RoundColumns.from_records(_records(kept, clients), clients=clients)
    past = RecordedHistory(columns, COLD_START if paper_like and _is_flag(columns) else None, deadline, offers)
    return Recorded(str(path), past, settings.policy, settings.settings, live=settings, notes=tuple(notes))


def _offers(reader: FleetReader, rounds: Sequence[RecordedRound], clients: int) -> FloatArray | None:
    """Returns the contexts of all available clients, or None if they were not recorded or are too many to load."""
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
    """Returns whether the feature has only the values 0 and 1, as a cold start has."""
    return bool(np.isin(columns.contexts[:, COLD_START], (0.0, 1.0)).all())


def _records(rounds: Sequence[RecordedRound], clients: int) -> list[RoundRecord]:
    """Returns records with rounds numbered from 1 and availability masks for the current number of clients."""
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


def _late(arrivals: Sequence[tuple[int, int, FloatArray, float, float]]) -> LateArrivals | None:
    if not arrivals:
        return None
    rounds, rows, contexts, deadlines, seconds = zip(*arrivals, strict=True)
    return LateArrivals(
        np.array(rounds), np.array(rows), np.array(contexts), np.array(deadlines), np.maximum(seconds, deadlines)
    )
