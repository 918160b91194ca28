"""Why a client of a recorded run was chosen in a round, or was not."""

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
    """Why a client, by its row, was chosen in a round of a run, by default the last, or was not.

    The policy is brought to where it stood by telling it the recorded rounds before, and the world offers that round
    again. Only if world and policy do what is on record is the answer exact.
    """
    info = store.info(run)
    number = info.rounds if round is None else round
    if not 1 <= number <= info.rounds:
        raise ReportError(f"there is no round {number} in run {run}: it has {info.rounds}")
    if not 0 <= client < info.clients:
        raise ReportError(f"there is no client {client} in run {run}: rows count from 0 to {info.clients - 1}")
    records = list(islice(store.records(run), number))
    try:
        policy, world = RunPlan.from_dict(info.plan).build()
    except (TurnoutError, TypeError) as cannot:
        raise SettingError(f"the plan of run {run} cannot be played here: {cannot}") from cannot
    asked = records[-1].selection
    differs = _bring_to(policy, world, records[:-1])
    if differs is not None:
        return inexact_explanation(
            policy, asked, client, _name, f"round {differs} goes otherwise when it is played again"
        )
    offer = world.offer(number)
    return explain_choice(
        policy, offer if policy.requires_expected_times else offer.without_truth(), asked, client, _name
    )


def _bring_to(policy: SelectionPolicy, world: World, records: list[RoundRecord]) -> int | None:
    """Play the recorded choices again, without asking; the first round that goes otherwise, if one does."""
    # A world that trains only adds losses and metrics, which are on record: its clock is that of the world inside.
    clock: Any = getattr(world, "inner", world)
    for record in records:
        told = record.report
        report = clock.play(clock.offer(record.round), record.selection)
        if not _is_same(report.clients, told.clients) or not _is_same(report.exchange_times, told.exchange_times):
            return record.round
        policy.tell(replace(report, losses=told.losses, metrics=told.metrics))
    return None


def _is_same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other))


def _name(row: int) -> str:
    return f"client {row}"
