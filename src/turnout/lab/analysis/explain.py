"""Explains why a client of a recorded run was selected in a round, or was not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from turnout.errors import PluginError, ReportError, SettingError, TurnoutError
from turnout.kernel.certificate import TimeUnit
from turnout.kernel.rounds import RoundRecord, RoundReport
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import SlotRun
from turnout.lab.runs.store import RunStore
from turnout.lab.worlds.base import World, WorldWrapper
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.explanation import Explanation, explain_choice, inexact_explanation


def explain_run(store: RunStore, run: int, client: int, round: int | None = None) -> Explanation:
    """Explains why a client, given by its row, was selected in a round of a run, or was not.

    `round` is by default the last round, or the last decision of a run without rounds. The policy is restored by
    replaying the recorded rounds before it, and the world offers the round again. The explanation is exact only if
    world and policy reproduce the record.
    """
    info = store.info(run)
    round_ = info.rounds if round is None else round
    if not 1 <= round_ <= info.rounds:
        raise ReportError(f"there is no round {round_} in run {run}: its rounds are 1 to {info.rounds}")
    if not 0 <= client < info.clients:
        raise ReportError(f"there is no client {client} in run {run}: its rows are 0 to {info.clients - 1}")
    records = list(islice(store.columns(run).records(), round_))
    try:
        plan = RunPlan.from_dict(info.plan)
        policy, world = plan.build()
    except PluginError as error:
        message = f"the plan of run {run} cannot be played: {error}"
        raise PluginError(message, name=error.name, argument=error.argument) from error
    except (TurnoutError, TypeError) as error:
        raise SettingError(f"the plan of run {run} cannot be played: {error}") from error
    if plan.concurrency is not None:
        return _explain_turn(SlotRun(policy, _KnownResults(world, records), plan.concurrency), records, client)
    selection = records[-1].selection
    first_difference = _replay_rounds(policy, world, records[:-1])
    if first_difference is not None:
        return inexact_explanation(
            policy, selection, client, _name, f"the replay of round {first_difference} differs from the record"
        )
    offer = world.offer(round_)
    return explain_choice(
        policy, offer if policy.requires_expected_times else offer.without_truth(), selection, client, _name
    )


def _explain_turn(run: SlotRun, records: list[RoundRecord], client: int) -> Explanation:
    """Explains the last of these decisions; the run plays those before it again."""
    selection, policy = records[-1].selection, run.policy
    for record in records[:-1]:
        if not _is_same(run.decide().report, record.report):
            why = f"the replay of decision {record.round} differs from the record"
            return inexact_explanation(policy, selection, client, _name, why, unit=TimeUnit.DECISION)
    offer = run.next_offer()
    since = run.running.decision_of(client)
    if since:
        result = inexact_explanation(policy, selection, client, _name, "", outcome="training", unit=TimeUnit.DECISION)
        return replace(result, sentence=f"{_name(client)} was training, in its turn of decision {since}.")
    return explain_choice(policy, run.visible(offer), selection, client, _name, TimeUnit.DECISION)


class _KnownResults(WorldWrapper):
    """A world in which the results of training are looked up instead of training again.

    Args:
        world: The recorded world. Only the times of its clients are used, if it trains.
        records: The recorded turns.
    """

    def __init__(self, world: World, records: list[RoundRecord]) -> None:
        super().__init__(world.timing)
        self._results = {record.round: record.report for record in records}

    def finish(self, report: RoundReport) -> RoundReport:
        """Adds the recorded losses, signals and metrics to a turn that ends."""
        known = self._results[report.round]
        return replace(report, losses=known.losses, signals=known.signals, metrics=known.metrics)


def _replay_rounds(policy: SelectionPolicy, world: World, records: list[RoundRecord]) -> int | None:
    """Replays the recorded selections without asking the policy; returns the first round that differs, if any."""
    # A training world only adds losses, signals and metrics, which are recorded; the inner world determines the times.
    timing = world.timing
    for record in records:
        recorded = record.report
        report = timing.play(timing.offer(record.round), record.selection)
        if not _is_same(report, recorded):
            return record.round
        policy.tell(replace(report, losses=recorded.losses, signals=recorded.signals, metrics=recorded.metrics))
    return None


def _is_same(report: RoundReport, other: RoundReport) -> bool:
    names = ("clients", "exchange_times")
    return all(np.array_equal(getattr(report, name), getattr(other, name)) for name in names)


def _name(row: int) -> str:
    return f"client {row}"
