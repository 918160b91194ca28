"""Explains why a client of a recorded run was selected in a round, or was not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from turnout.errors import ReportError, SettingError, TurnoutError
from turnout.kernel.rounds import RoundRecord
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.explanation import Explanation, explain_choice, inexact_explanation
from turnout.simulator.plans import RunPlan
from turnout.simulator.world import World
from turnout.store import RunStore


def explain_run(store: RunStore, run: int, client: int, round: int | None = None) -> Explanation:
    """Explains why a client, given by its row, was selected in a round of a run, or was not.

    `round` is by default the last round. The policy is restored by replaying the recorded rounds before it, and the
    world offers the round again. The explanation is exact only if world and policy reproduce the record.
    """
    info = store.info(run)
    round_ = info.rounds if round is None else round
    if not 1 <= round_ <= info.rounds:
        raise ReportError(f"there is no round {round_} in run {run}: its rounds are 1 to {info.rounds}")
    if not 0 <= client < info.clients:
        raise ReportError(f"there is no client {client} in run {run}: its rows are 0 to {info.clients - 1}")
    records = list(islice(store.records(run), round_))
    try:
        policy, world = RunPlan.from_dict(info.plan).build()
    except (TurnoutError, TypeError) as error:
        raise SettingError(f"the plan of run {run} cannot be played: {error}") from error
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


def _replay_rounds(policy: SelectionPolicy, world: World, records: list[RoundRecord]) -> int | None:
    """Replays the recorded selections without asking the policy; returns the first round that differs, if any."""
    # A training world only adds losses and metrics, which are recorded; the inner world determines the times.
    clock: Any = getattr(world, "inner", world)
    for record in records:
        recorded = record.report
        report = clock.play(clock.offer(record.round), record.selection)
        if not _equal(report.clients, recorded.clients) or not _equal(report.exchange_times, recorded.exchange_times):
            return record.round
        policy.tell(replace(report, losses=recorded.losses, metrics=recorded.metrics))
    return None


def _equal(left: Any, right: Any) -> bool:
    return bool(np.array_equal(left, right))


def _name(row: int) -> str:
    return f"client {row}"
