"""What an operator should know about a fleet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from turnout.counting import pluralize
from turnout.errors import InfeasiblePromise
from turnout.kernel.arrays import BoolArray
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.operation.amending import GROUPED
from turnout.live.settings import DEFAULT_POLICY, SchedulerSettings
from turnout.live.turns.feasibility import require_feasible
from turnout.live.turns.state import Fleet
from turnout.log import printable
from turnout.policies.registry import nested_settings, setting_names

#: The number of clients that a notice names.
NAMED = 5

#: What is said if the file may contain data of forgotten clients that no query returns.
UNCLEAN_NOTICE = (
    "unused parts of the file may contain data of clients that were forgotten: compact it to remove them for certain"
)
#: What is said if the time since the selection of the open round is not known.
UNKNOWN_ELAPSED = "the time since the selection is unknown, because the machine was restarted and its clock was changed"


def fleet_notices(journal: Journal, memory: FleetState, settings: SchedulerSettings) -> list[str]:
    """Returns what an operator should know about the settings, the clients, the open round and the file of a fleet."""
    notices = [notice for notice in _notices(memory.fleet, settings) if notice]
    if memory.opened is not None and math.isnan(memory.opened.elapsed):
        notices.append(f"{UNKNOWN_ELAPSED}: close round {memory.opened.round}")
    return [*notices, UNCLEAN_NOTICE] if journal.needs_vacuum else notices


def empty_groups_notice(settings: SchedulerSettings) -> str:
    """Returns for which groups places are reserved although no client is in them; "" if there are none."""
    empty: list[str] = []
    for name, own in nested_settings(settings.policy, settings.settings):
        if name == GROUPED and isinstance(own["least"], Mapping):
            empty += [repr(group) for group, least in own["least"].items() if least and group not in own["groups"]]
    if not empty:
        return ""
    return f"places are reserved for {', '.join(empty)}, but no client is in this group: amend the groups"


def promise_notice(fleet: Fleet, settings: SchedulerSettings) -> str:
    """Returns who is beyond the tolerance, how far, since when, and what to do; "" if nobody is."""
    certificate = fleet.certificate() if fleet.ids else None
    if certificate is None or certificate.holds:
        return ""
    names = [name for name, _ in nested_settings(settings.policy, settings.settings)]
    fair = "" if DEFAULT_POLICY in names else f", or create a new fleet with policy={DEFAULT_POLICY!r}"
    larger = " or a larger cohort_size" if settings.has_rounds else ""
    slower = " or a smaller speed_weight" if _has_speed_weight(settings) else ""
    cut_off = "" if settings.overcommit == 1 else ", and without overcommit if slow clients are always cut_off"
    return (
        f"the promise is {certificate.summary().sentence(fleet.ids.__getitem__)}. Amend the fleet to a smaller "
        f"guaranteed_rate{larger}{slower}{cut_off}{fair}; check why turns fail or are late if many do"
    )


def infeasible_notice(fleet: Fleet) -> str:
    """Returns why no policy could give the clients of the fleet what they are promised; "" if one could."""
    try:
        if fleet.round:
            require_feasible(fleet)
    except InfeasiblePromise as problem:
        return str(problem)
    return ""


def _notices(fleet: Fleet, settings: SchedulerSettings) -> Iterator[str]:
    if settings.deadline is None:
        stays = "the slot of a client that never reports stays in use"
        open_round = "a round in which a client never reports stays open until it is closed"
        yield f"no deadline is set: {open_round if settings.has_rounds else stays}"
    yield promise_notice(fleet, settings)
    yield infeasible_notice(fleet)
    rare = fleet.rarely_available()
    if rare.any():
        yield (
            f"{_some(fleet, rare)} were available in fewer {fleet.unit.plural} than they are guaranteed: lower "
            "guaranteed_rate, or use accrual='available'"
        )
    yield empty_groups_notice(settings)
    forfeited = 0 if fleet.queues is None else int((fleet.queues.forfeited >= 1).sum())
    if forfeited:
        lower = " or lower speed_weight" if _has_speed_weight(settings) else ""
        yield f"{pluralize(forfeited, 'client', 'have')} forfeited turns to the cap: raise max_owed{lower}"
    misreporting = fleet.history.misreporting()
    if misreporting.any():
        yield (
            f"the statuses of {_some(fleet, misreporting)} no longer explain their times, while those of most clients "
            "do: check what they report"
        )


def _has_speed_weight(settings: SchedulerSettings) -> bool:
    return "speed_weight" in setting_names(settings.policy)


def _some(fleet: Fleet, clients: BoolArray) -> str:
    """Returns the first ids of these clients, and the number of the others."""
    rows = np.flatnonzero(clients).tolist()
    more = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    return ", ".join(printable(fleet.ids[row]) for row in rows[:NAMED]) + more
