"""Reads a fleet or a run that can be replayed: what `replay` hands to the lab."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.certificate import TimeUnit
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.rounds import LateArrivals, RoundRecord, RoundReport, Selection
from turnout.kernel.slots.turns import FINISHED, STARTED, RunningTurns, TurnStart
from turnout.lab.analysis.replay.recording import COLD_START, Recording, record_run
from turnout.lab.columns import RoundColumns
from turnout.lab.worlds.recorded import RecordedHistory
from turnout.live import PAPER_FEATURES, FleetReader, SchedulerSettings
from turnout.live._internals import REDUNDANT, RecordedRound, RecordedTurn, is_fleet, live_policy
from turnout.policies.base import SelectionPolicy
from turnout.storage.store import Location

MAX_CONTEXT_VALUES = 20_000_000  # the largest number of context values to load, 160 megabytes
#: What to know about the recording of a fleet without rounds.
SLOT_NOTES = (
    "updates per second: of the recorded turns as well as of the replay, in slots that are never empty, without the "
    "pauses in which the server did not fill them",
    "clients that were training at a decision of the record count as available at this decision of the replay",
    "late clients teach that they were late, not their actual times",
)


def read_recording(path: Location, run: int | None = None) -> Recording:
    """Reads the recording of a fleet or of a run of a store; `run` is optional if there is only one run."""
    if isinstance(path, Path) and not is_fleet(path):
        return record_run(path, run)
    if run is not None:
        raise SettingError(f"{path} is a live fleet, which has no runs: omit run")
    with FleetReader(path) as reader, reader.reading():
        record = _record_rounds if reader.settings.has_rounds else _record_turns
        return record(reader, path)


def _record_rounds(reader: FleetReader, path: Location) -> Recording:
    settings, clients, rounds, after = reader.settings, len(reader.clients), reader.round, _features_since(reader)
    closed_rounds = [
        replace(closed, contexts=_offered_contexts(reader, closed.round, closed.rows, closed.contexts))
        for closed in reader.closed_rounds()
    ]
    complete = [each for each in closed_rounds if each.available is not None and not np.isnan(each.contexts).any()]
    kept = [closed for closed in complete if closed.round > after]
    if not kept and closed_rounds and not settings.persist_statuses:
        raise SettingError(
            f"{path} does not persist the statuses of its clients (persist_statuses=False): it cannot be replayed"
        )
    if not kept:
        raise SettingError(
            f"{path} holds no closed round with its available clients: close at least one round before a replay"
        )
    columns = known = RoundColumns.from_records(_round_records(kept, clients), clients=clients)
    if any((closed.kinds == REDUNDANT).any() for closed in kept):
        known = RoundColumns.from_records(_round_records(kept, clients, wait_for_all=True), clients=clients)
    notes = ["as recorded: clients in back-off after misses count as unavailable"]
    if len(kept) < rounds:
        why = "the features were amended before them" if after else "the others are not stored any more"
        notes.append(f"only the last {len(kept)} of {rounds} rounds are used: {why}")
    joined = [0 if closed.available is None else len(closed.available) for closed in (kept[0], kept[-1])]
    if settings.settings.get("accrual") == "always" and joined[0] < joined[1]:
        notes.append("clients that joined later are promised turns from the first round on, because accrual is always")
    return _recording(reader, path, [closed.round for closed in kept], columns, known, notes)


def _record_turns(reader: FleetReader, path: Location) -> Recording:
    """Returns the recording of a fleet without rounds: every turn that has ended is a round with one client."""
    settings, after, clients = reader.settings, _features_since(reader), len(reader.clients)
    assert settings.concurrency is not None
    turns = [
        replace(turn, context=_offered_contexts(reader, turn.id, turn.row, turn.context))
        for turn in sorted(reader.ended_turns(), key=lambda turn: turn.id)
        if turn.id > after and turn.context is not None
    ]
    turns = [
        turn
        for turn in turns
        if turn.present is not None and turn.context is not None and not np.isnan(turn.context).any()
    ]
    if not turns:
        raise SettingError(
            f"{path} holds no turn that has ended, with its context and the clients that were there: a replay needs one"
        )
    notes, running = list(SLOT_NOTES), len(reader.running())
    if running:
        notes.append(f"running turns are left out: {running}")
    if dropped := reader.round - len(turns) - running:
        notes.append(f"only {len(turns)} turns are used: the others, {dropped}, are not stored completely")
    masks = [_mask(turn.present, clients) for turn in turns]
    present = RoundColumns.from_records(_turn_records(turns, masks, [{} for _ in turns]), clients=clients)
    debts = live_policy(settings, present.contexts.shape[1], clients).debts
    columns = _judged_columns(turns, masks, settings.concurrency, debts)
    return _recording(reader, path, [turn.id for turn in turns], columns, present, notes)


def _recording(
    reader: FleetReader,
    path: Location,
    numbers: Sequence[int],
    columns: RoundColumns,
    known: RoundColumns,
    notes: list[str],
) -> Recording:
    """Returns the recording of a fleet, with its present settings.

    Args:
        reader: The reader of the fleet.
        path: Where it is.
        numbers: The numbers of the rounds, or turns, that are used.
        columns: These rounds as they happened.
        known: What the worlds know that are built from them.
        notes: What to know about them; notes about amended settings are added.
    """
    settings, features, width = reader.settings, reader.features, known.contexts.shape[1]
    ends = [amendment.round for amendment in reader.amendments]
    stored = [reader.stored_settings(0), *(amendment.settings for amendment in reader.amendments)]
    stages = list(map(SchedulerSettings.from_dict, stored))
    changed = [after for after, (old, new) in zip(ends, pairwise(stages), strict=True) if new.settings != old.settings]
    amended_after = bisect_right(numbers, changed[-1]) if changed else 0
    used = [stage for stage, end in zip(stages, [*ends, numbers[-1]], strict=True) if end >= numbers[0]]
    unit = TimeUnit.of(settings.concurrency)
    if amended_after:
        notes.append(f"the settings were amended after {unit} {changed[-1]}: all {unit.plural} have the present ones")
    if len({stage.deadline for stage in used}) > 1:
        notes.append(f"resampled times meet the present deadline, {settings.deadline}, in all {unit.plural}")
    over_selects = any(stage.overcommit != 1 for stage in used)
    if over_selects:
        notes.append("over-selection is not replayed: the cohort has the requested size, and the server waits for all")
    # A cold start is a flag; the same feature with other values is not one.
    is_paper = features.compute is not None and features.outputs == PAPER_FEATURES.outputs
    is_flag = settings.has_rounds and is_paper and np.isin(columns.contexts[:, COLD_START], (0.0, 1.0)).all()
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else None
    offers = _offers(reader, numbers, known.clients, width)

    def build(policy: str, own: Mapping[str, Any]) -> SelectionPolicy:
        return live_policy(replace(settings, policy=policy, settings=own), width, known.clients)

    return Recording(
        where=str(path),
        columns=columns,
        past=RecordedHistory(known, COLD_START if is_flag else None, deadline, offers),
        policy=settings.policy,
        settings=settings.settings,
        build=build,
        amended_after=amended_after,
        slots=settings.concurrency,
        over_selects=over_selects,
        notes=tuple(notes),
        ids=tuple(reader.clients),
    )


def _features_since(reader: FleetReader) -> int:
    """Returns the round after which the present features apply: contexts of other features cannot be compared."""
    return max((amendment.round for amendment in reader.amendments if amendment.has_new_features), default=0)


def _offers(reader: FleetReader, rounds: Sequence[int], clients: int, width: int) -> FloatArray | None:
    """Returns the contexts of all available clients, or None if they were not recorded or are too many to load."""
    if len(rounds) * clients * width > MAX_CONTEXT_VALUES:
        return None
    offers = np.full((len(rounds), clients, width), np.nan)
    for index, number in enumerate(rounds):
        offered = reader.offer(number)
        if offered is not None and offered.contexts is not None:
            offers[index, np.flatnonzero(offered.available)] = offered.contexts
    return None if np.isnan(offers).all() else offers


def _offered_contexts(reader: FleetReader, number: int, rows: IntArray | int, contexts: FloatArray) -> FloatArray:
    """Returns the contexts of a turn or a round; those of clients that started cold are in the offer, if it is kept."""
    offer = reader.offer(number) if np.isnan(contexts).any() else None
    offered = None if offer is None else offer.whole_contexts()
    return contexts if offered is None else np.where(np.isnan(contexts), offered[rows], contexts)


def _mask(present: BoolArray | None, clients: int) -> BoolArray:
    """Returns the mask for the present number of clients; those that joined later were not there."""
    mask = np.zeros(clients, dtype=np.bool_)
    if present is not None:
        mask[: len(present)] = present
    return mask


def _round_records(rounds: Sequence[RecordedRound], clients: int, *, wait_for_all: bool = False) -> list[RoundRecord]:
    """Returns records with rounds numbered from 1 and availability masks for the current number of clients.

    A client that returned after the round had enough others is late, with the time at which the round was over. If
    `wait_for_all`, it arrived at its own time, as it would have if the server had waited for it.
    """
    number_of = {closed.round: number for number, closed in enumerate(rounds, start=1)}
    turns: dict[tuple[int, int], tuple[FloatArray, float]] = {}
    records = []
    for number, closed in enumerate(rounds, start=1):
        redundant = closed.kinds == REDUNDANT
        seconds = closed.seconds if wait_for_all else np.where(redundant, closed.duration, closed.seconds)
        late = [
            (number_of[late.round], late.row, *turns[number_of[late.round], late.row], late.seconds)
            for late in closed.late
            if late.round in number_of
        ]
        report = RoundReport(
            number,
            closed.rows,
            closed.contexts,
            seconds,
            available=_mask(closed.available, clients),
            outcomes=np.where(redundant, "arrived", closed.outcomes) if wait_for_all else closed.outcomes,
            losses=closed.losses,
            signals=closed.signals,
            late_arrivals=_late(late) if late else None,
        )
        records.append(RoundRecord(Selection(number, closed.rows), report))
        for at, row in enumerate(closed.rows.tolist()):
            turns[number, row] = (closed.contexts[at], float(seconds[at]))
    return records


def _late(arrivals: Sequence[tuple[int, int, FloatArray, float, float]]) -> LateArrivals:
    rounds, rows, contexts, deadlines, seconds = map(np.array, zip(*arrivals, strict=True))
    return LateArrivals(rounds, rows, contexts, deadlines, np.maximum(seconds, deadlines))


def _judged_columns(
    turns: Sequence[RecordedTurn], present: Sequence[BoolArray], slots: int, debts: FairnessQueues | None
) -> RoundColumns:
    """Returns the turns with the clients that earned with each decision as available, and with their times.

    The times are those of slots that are never empty: a turn begins when a slot is free.

    Args:
        turns: The turns.
        present: The clients that were present at each decision.
        slots: The number of slots.
        debts: The queues with the rates of the clients; None if nothing is guaranteed.
    """
    clients = len(present[0])
    running, ends = RunningTurns(clients), list[float]()
    waiting: list[tuple[int, int]] = []  # the decision before which each turn ended, and its client
    last_end: dict[int, float] = {}
    masks, metrics, now = [], [], 0.0
    for number, (turn, there) in enumerate(zip(turns, present, strict=True), start=1):
        while waiting and waiting[0][0] < turn.id:
            running.finish(heapq.heappop(waiting)[1])
        started = TurnStart.trusted(number, turn.row, there, running.capped(number, debts))
        running.start(started)
        heapq.heappush(waiting, (turn.decisions, turn.row))
        masks.append(started.earning())
        free = heapq.heappop(ends) if len(ends) >= slots else 0.0
        now = max(now, free, last_end.get(turn.row, 0.0))
        last_end[turn.row] = now + turn.seconds
        heapq.heappush(ends, now + turn.seconds)
        metrics.append({STARTED: now, FINISHED: now + turn.seconds})
    return RoundColumns.from_records(_turn_records(turns, masks, metrics), clients=clients)


def _turn_records(
    turns: Sequence[RecordedTurn], masks: Sequence[BoolArray], metrics: Sequence[dict[str, float]]
) -> list[RoundRecord]:
    records = []
    for number, (turn, mask, own) in enumerate(zip(turns, masks, metrics, strict=True), start=1):
        rows = np.array([turn.row])
        assert turn.context is not None
        report = RoundReport(
            number,
            rows,
            turn.context[None],
            np.array([turn.seconds]),
            available=mask,
            outcomes=np.array([turn.kind]),
            losses=None if turn.loss is None else np.array([turn.loss]),
            signals={name: np.array([value]) for name, value in (turn.signals or {}).items()},
            metrics=own,
        )
        records.append(RoundRecord(Selection(number, rows), report))
    return records
