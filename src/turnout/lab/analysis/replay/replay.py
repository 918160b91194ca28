"""Replays a record under another policy and compares the results with the recorded ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import PluginError, SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.certificate import STATUSES, PromiseStatus, TimeUnit
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.metrics import summarise_shortfall
from turnout.lab.analysis.promise import Shortfall, describe_promise, share_of, shortfalls
from turnout.lab.analysis.replay.recording import Recording
from turnout.lab.analysis.slots import slot_metrics
from turnout.lab.analysis.statistics import UNIT_RANGE, prediction_half_width
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import SlotRun, play
from turnout.lab.worlds.recorded import ASSUMPTION, RecordedHistory, RecordedWorld
from turnout.policies.base import SelectionPolicy

#: The figures of a replay; without rounds, a turn is a round with one client, and RATE comes first.
SUMMARISED = ("mean_round", "p95_round", "least_share", "largest_shortfall", "shortfall_at_end", "worst_debt", "jain")
FIGURES = (*SUMMARISED, "other_choices", "other_rounds")
RATE = "updates_per_second"
ON_TIME = ("mean_round", "p95_round", RATE)
REPEATED = "everything is exact: the policy selects the recorded cohorts from the recorded offers"


class ReplayFigure(NamedTuple):
    """A recorded figure and its replayed value; `half_width` is 0 if the replay is exact."""

    name: str
    recorded: float
    replayed: float
    half_width: float
    exact: bool

    @property
    def limits(self) -> tuple[float, float]:
        """The range of possible values."""
        if self.name in ("least_share", "jain"):
            return UNIT_RANGE
        return (-math.inf if "shortfall" in self.name else 0.0, math.inf)


class JudgedRounds(NamedTuple):
    """The figures of some rounds by name, and how far clients fell behind."""

    figures: dict[str, float]
    shortfall: Shortfall


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The comparison of a record with its replay under another policy or other settings.

    Attributes:
        policy: The name of the replayed policy.
        settings: Its settings.
        rounds: The number of rounds.
        choices: The number of recorded selections.
        figures: The figures, in the order of FIGURES; without rounds, after RATE.
        promise: The promise by which both are judged, as a phrase.
        share_of: What the least share is a share of.
        recorded_status: The status of the promise after the recorded rounds.
        recorded_promise: The same as a sentence.
        statuses: How many replays ended with each status.
        replayed_promise: The status of the first replay with the worst status, as a sentence.
        known_times: The share of the replay's times that are recorded ones.
        draws: The number of replays.
        notes: What is exact and what is estimated.
        slots: The number of slots, if there are no rounds: `rounds` is the number of turns then.
    """

    policy: str
    settings: Mapping[str, Any]
    rounds: int
    choices: int
    figures: tuple[ReplayFigure, ...]
    promise: str
    share_of: str
    recorded_status: PromiseStatus
    recorded_promise: str
    statuses: Mapping[PromiseStatus, int]
    replayed_promise: str
    known_times: float
    draws: int
    notes: tuple[str, ...]
    slots: int | None = None

    @property
    def status(self) -> PromiseStatus:
        """The worst status of the promise after any replay."""
        return max(self.statuses, key=STATUSES.index)

    def __getitem__(self, name: str) -> ReplayFigure:
        return next(figure for figure in self.figures if figure.name == name)


class RecordedTurnWorld(RecordedWorld):
    """Replays the recorded decisions: each meets the clients that were present at the recorded one.

    Recorded are the clients that were present, the contexts of those that were not training, and the time of the client
    that was given this turn in the record too, if its context is the same. Everything else is resampled.
    """

    def __init__(self, history: RecordedHistory, seed: int = 0) -> None:
        super().__init__(history, seed)
        self._decisions = 0

    def offer(self, round: int) -> RoundOffer:  # noqa: ARG002
        """Returns the offer of the next decision, also if turns end and it is offered again."""
        return super().offer(self._decisions + 1)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Reports the recorded or resampled result of the selected client."""
        self._decisions += 1
        return super().play(offer, selection)


def replay(
    record: Recording,
    policy: str,
    given: Mapping[str, Any],
    *,
    draws: int = 20,
    watch: Callable[[int, int], None] | None = None,
) -> ReplayResult:
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
        return _compare(record, policy, again, settings, [columns], 1.0, notes, exact=True)
    if again.requires_expected_times:
        raise SettingError(f"{policy} requires the true expected times, which were not recorded: replay another policy")
    repeated = record.past.has_all_contexts and not record.over_selects
    if not repeated and record.repeats(policy, given):
        notes = ("everything is exact: the same policy with the same settings makes the recorded selections",)
        return _compare(record, policy, again, settings, [record.columns], 1.0, notes, exact=True)
    replays, recorded_times, reported_times = [], 0, 0
    for seed in range(draws):
        replayed = record.build(policy, settings)
        if record.slots is None:
            world = RecordedWorld(record.past, seed)
            records = play(replayed, world, len(record.columns))
        else:
            world = RecordedTurnWorld(record.past, seed)
            records = SlotRun(replayed, world, record.slots).play(len(record.columns))
        replays.append(RoundColumns.from_records(records, clients=world.clients))
        recorded_times += world.recorded_times
        reported_times += world.reported_times
        if watch is not None:
            watch(seed + 1, draws)
    notes = _notes(record, again) if recorded_times < reported_times else (REPEATED,)
    known_share = recorded_times / max(reported_times, 1)
    return _compare(record, policy, again, settings, replays, known_share, notes, exact=False)


def _notes(record: Recording, policy: SelectionPolicy) -> tuple[str, ...]:
    if record.past.has_all_contexts:
        exact = "exact: the available clients and their contexts, because complete offers were recorded"
        fairness = "selections, turns and debts, as far as the policy learned from resampled times"
    elif policy.features is None:
        exact = f"exact: the available clients; {policy.name} does not use contexts"
        fairness = "selections, turns and debts, as far as the policy learned from resampled times"
    else:
        exact = "exact: the available clients"
        unknown = "not selected" if record.slots is None or record.past.offers is None else "training"
        fairness = (
            f"selections, turns and debts: contexts of clients that were {unknown} are resampled from their turns"
        )
    return (
        f"{exact}; the times of clients that were also selected in the record with the same context",
        f"estimated: {fairness}",
        f"estimated: {ASSUMPTION}",
        *record.notes,
    )


def _compare(
    record: Recording,
    policy: str,
    built: SelectionPolicy,
    settings: Mapping[str, Any],
    played: Sequence[RoundColumns],
    known: float,
    notes: tuple[str, ...],
    *,
    exact: bool,
) -> ReplayResult:
    """Compares the record with its replays under the guarantee of the replayed policy, or else the recorded one.

    Args:
        record: The record.
        policy: The name of the replayed policy.
        built: The policy.
        settings: All its settings.
        played: The replays.
        known: The share of the replays' times that are recorded ones.
        notes: What is exact and what is estimated.
        exact: Whether the replay is exact.
    """
    promise = record.promise(built)
    before = _outcome(record.columns, record.columns, promise)
    outcomes = [_outcome(columns, record.columns, promise) for columns in played]
    names = list(before.figures)
    after = np.array([[outcome.figures[name] for name in names] for outcome in outcomes])
    figures = []
    # The selections are certain if they do not depend on the draws.
    settled = all(np.array_equal(columns.chosen, played[0].chosen) for columns in played)
    for index, name in enumerate(names):
        values = after[:, index]
        sure = exact or (settled and (name not in ON_TIME or known == 1) and bool((values == values[0]).all()))
        now, half_width = (values[0], 0.0) if sure else (values.mean(), prediction_half_width(values))
        figures.append(ReplayFigure(name, before.figures[name], float(now), half_width, sure))
    worst = max(outcomes, key=lambda outcome: STATUSES.index(outcome.shortfall.certificate.status))
    return ReplayResult(
        policy=policy,
        settings=dict(settings),
        rounds=len(record.columns),
        choices=len(record.columns.chosen),
        figures=tuple(figures),
        promise=describe_promise(promise, record.slots),
        share_of=share_of(promise.accrual, record.slots),
        recorded_status=before.shortfall.certificate.status,
        recorded_promise=_sentence(before, record),
        statuses=dict(Counter(outcome.shortfall.certificate.status for outcome in outcomes)),
        replayed_promise=_sentence(worst, record),
        known_times=known,
        draws=len(played),
        notes=notes,
        slots=record.slots,
    )


def _sentence(outcome: JudgedRounds, record: Recording) -> str:
    """Returns the status of the promise as a sentence."""
    return replace(outcome.shortfall.certificate, unit=TimeUnit.of(record.slots)).summary().sentence(record.name)


def _outcome(columns: RoundColumns, record: RoundColumns, promise: Guarantee) -> JudgedRounds:
    """Returns the figures of some rounds, compared with the record, under a promise."""
    terms: dict[str, Any] = {"accrual": promise.accrual, "counts": promise.counts, "tolerance": promise.tolerance}
    shortfall = shortfalls(columns, promise.rate, **terms)
    summary = summarise_shortfall(columns, shortfall, promise.accrual)
    differs = columns.chosen_mask != record.chosen_mask
    figures: dict[str, float] = {name: getattr(summary, name) for name in SUMMARISED}
    figures["other_choices"] = float((differs & columns.chosen_mask).sum())
    figures["other_rounds"] = float(differs.any(axis=1).sum())
    if STARTED in columns.metrics:
        del figures["other_rounds"]  # equals other_choices: a turn has one client
        figures = {RATE: slot_metrics(columns).updates_per_second, **figures}
    return JudgedRounds(figures, shortfall)


def _can_be_rebuilt(record: Recording) -> bool:
    """Returns whether playing the plan of the run again reproduces the record exactly."""
    if record.plan is None or record.plan.world == "training":  # training takes too long to be repeated
        return False
    try:
        again, columns = _played_in_its_world(record.plan), record.columns
    except PluginError:  # its policy or its world is not installed here
        return False
    names = ("chosen", "starts", "exchange_times")
    return all(np.array_equal(getattr(again, name), getattr(columns, name)) for name in names)


def _played_in_its_world(plan: RunPlan) -> RoundColumns:
    run = plan.start()
    return RoundColumns.from_records(run.play(plan.rounds), clients=run.world.clients)
