"""What an operator should know about a fleet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from turnout.counting import pluralize
from turnout.kernel.arrays import BoolArray
from turnout.kernel.feasibility import least_tolerances
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.operation.amending import GROUPED
from turnout.live.settings import DEFAULT_POLICY, SchedulerSettings
from turnout.live.turns.feasibility import infeasibility, longest_deadline, longest_rest, rounded_down
from turnout.live.turns.state import Fleet
from turnout.log import printable
from turnout.policies.registry import nested_settings, setting_default, setting_names

#: A client waits too long if it must be owed more turns than this, and than the tolerance, before it is selected: at a
#: rate of 0.1 it waits for more than 100 rounds.
MAX_WAIT_TURNS = 10
#: The number of clients that a notice names.
NAMED = 5

#: What is said if the file may contain data of forgotten clients that no query returns.
UNCLEAN_NOTICE = (
    "unused parts of the file may contain data of clients that were forgotten: compact it to remove them for certain"
)
#: What is said if the time since the selection of the open round is not known.
UNKNOWN_ELAPSED = "the time since the selection is unknown, because the machine was restarted and its clock was changed"


class LongWait(NamedTuple):
    """How long the slowest client waits for a turn because of the speed weight.

    Attributes:
        row: The client.
        rounds: The rounds that it waits.
        clients: The number of clients that wait too long.
        never: Whether its debt is capped before it is large enough.
        largest_weight: The speed weight with which the client would not be further behind than the tolerance.
    """

    row: int
    rounds: float
    clients: int
    never: bool
    largest_weight: float


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
    cut_off = "" if settings.overcommit == 1 else ", and without overcommit if slow clients are always cut_off"
    return (
        f"the promise is {certificate.summary().sentence(fleet.ids.__getitem__)}. Amend the fleet to a smaller "
        f"guaranteed_rate{larger}{cut_off}{fair}; check why turns fail or are late if many do"
    )


def waiting_notice(fleet: Fleet, settings: SchedulerSettings) -> str:
    """Returns which client waits too long because of the speed weight; "" if nobody does."""
    weight = speed_weight_of(settings)
    wait = None if weight is None else longest_wait(fleet, weight)
    if wait is None:
        return ""
    others = f", like {wait.clients - 1:,} more clients" if wait.clients > 1 else ""
    never = "; max_owed caps its debt before that, so it is never selected" if wait.never else ""
    return (
        f"at speed_weight={weight:g} {printable(fleet.ids[wait.row])} waits about {wait.rounds:,.0f} "
        f"{settings.unit.plural} for a turn"
        f"{others}{never}: amend the fleet to a speed_weight of at most {_round_down(wait.largest_weight)}, or create "
        f"a new fleet with policy={DEFAULT_POLICY!r}"
    )


def infeasible_notice(fleet: Fleet) -> str:
    """Returns that no policy could give the clients of the fleet what they are promised; "" if one could."""
    problem = infeasibility(fleet) if fleet.round else None
    if problem is None or problem.largest_rate is None:
        return ""
    rate = rounded_down(problem.largest_rate)
    if fleet.slots is not None:
        why, fewer = "all rates together exceed 1", ""
        if problem.slots is not None:
            why = f"nobody is in two of the {fleet.slots} slots"
            fewer = f", or create a new fleet with a concurrency of at most {problem.slots}"
        return (
            f"no policy could give the clients of this fleet what they are promised, because {why}: amend the fleet to "
            f"a guaranteed_rate of at most {rate}{fewer}"
        )
    size = "" if problem.cohort_size is None else f", or a cohort_size of at least {problem.cohort_size}"
    return (
        f"no policy could give the clients of this fleet what they are promised, as often as they are available: amend "
        f"the fleet to a guaranteed_rate of at most {rate}{size}"
    )


def deadline_notice(fleet: Fleet, settings: SchedulerSettings) -> str:
    """Returns that the deadline is too long for a fleet without rounds; "" if it is not, or cannot be judged."""
    if not isinstance(settings.deadline, int | float) or not fleet.ids:
        return ""
    longest = longest_deadline(fleet)
    if longest is None or settings.deadline <= longest:
        return ""
    return (
        f"a client earns one turn in about {longest:.3g} s, and nothing more while a turn lasts, which the deadline of "
        f"{settings.deadline:g} s allows for longer: amend the fleet to a deadline of at most {_round_down(longest)} s"
    )


def rest_notice(fleet: Fleet) -> str:
    """Returns that the clients rest for so long that slots stay empty; "" if they do not, or if no times are known."""
    longest = longest_rest(fleet) if fleet.min_turn_interval is not None and fleet.ids else None
    if longest is None or fleet.min_turn_interval is None or fleet.slots is None or fleet.min_turn_interval <= longest:
        return ""
    used = fleet.slots * longest / fleet.min_turn_interval
    return (
        f"slots stay empty, because each client has at most one turn in "
        f"{fleet.min_turn_interval:g} s: about {used:.2g} of "
        f"{fleet.slots} slots can be in use. Amend the fleet to a "
        f"min_turn_interval of at most {_round_down(longest)} to "
        "use all of them"
    )


def speed_weight_of(settings: SchedulerSettings) -> float | None:
    """Returns the speed weight that decides how long clients wait; None if none does.

    A horizon changes the weight from round to round, and `with-guarantee` serves clients whatever the weight is.
    """
    for name, own in nested_settings(settings.policy, settings.settings):
        if name == "with-guarantee" or own.get("horizon") is not None:
            return None
        if "speed_weight" in setting_names(name):
            return float(own.get("speed_weight", setting_default(name, "speed_weight")))
    return None


def longest_wait(fleet: Fleet, speed_weight: float) -> LongWait | None:
    """Estimates the longest wait for a turn; returns None if no client waits too long, or too little is known.

    A client that takes d seconds longer than the fastest cohort is selected when it is owed about speed_weight · d
    turns more than the clients it replaces, which takes speed_weight · d / rate rounds. Times are the mean times of the
    clients that have returned at least once.
    """
    if fleet.queues is None or fleet.policy.guarantee is None or fleet.policy.cohort_size is None:
        return None
    rates = fleet.queues.guaranteed_rates
    rows = np.flatnonzero((fleet.history.arrived > 0) & (fleet.counters.retired == 0) & (rates > 0))
    size = fleet.policy.cohort_size
    if len(rows) <= size:
        return None
    seconds = fleet.history.typical_seconds[rows]
    longer = seconds - np.partition(seconds, size - 1)[size - 1]
    tolerance = float(fleet.policy.guarantee.tolerance)
    turns = speed_weight * longer
    too_long = turns > max(MAX_WAIT_TURNS, tolerance)
    if not too_long.any():
        return None
    slowest = int(np.argmax(turns / rates[rows]))
    cap = fleet.queues.max_owed
    return LongWait(
        row=int(rows[slowest]),
        rounds=float(turns[slowest] / rates[rows[slowest]]),
        clients=int(too_long.sum()),
        never=cap is not None and float(turns[slowest]) > cap,
        largest_weight=tolerance / float(longer[slowest]),
    )


def _notices(fleet: Fleet, settings: SchedulerSettings) -> Iterator[str]:
    if settings.deadline is None:
        stays = "the slot of a client that never reports stays in use"
        open_round = "a round in which a client never reports stays open until it is closed"
        yield f"no deadline is set: {open_round if settings.has_rounds else stays}"
    yield promise_notice(fleet, settings)
    yield waiting_notice(fleet, settings)
    yield infeasible_notice(fleet)
    yield deadline_notice(fleet, settings)
    yield rest_notice(fleet)
    yield from _availability_notices(fleet)
    unlearned = (fleet.history.arrived > 0) & (fleet.counters.learned == 0) & (fleet.counters.retired == 0)
    if fleet.model is not None and unlearned.any():
        yield (
            f"the features were amended: the times of {_some(fleet, unlearned)} are learned again, debts and turns "
            "continue"
        )
    yield empty_groups_notice(settings)
    forfeited = 0 if fleet.queues is None else int((fleet.queues.forfeited >= 1).sum())
    if forfeited:
        lower = "" if speed_weight_of(settings) is None else " or lower speed_weight"
        yield f"{pluralize(forfeited, 'client', 'have')} forfeited turns to the cap: raise max_owed{lower}"
    suspects = fleet.history.suspects()
    if suspects.any():
        yield f"the statuses of {_some(fleet, suspects)} no longer explain their times: check what they report"


def _availability_notices(fleet: Fleet) -> Iterator[str]:
    """Yields notices about clients that are available too rarely for what they are promised in every round."""
    if fleet.queues is None or fleet.policy.guarantee is None or fleet.queues.accrual == "available":
        return
    rare = np.zeros(len(fleet.ids), dtype=np.bool_)
    rare[fleet.rarely_available()] = True
    if rare.any():
        yield (
            f"{_some(fleet, rare)} were available in fewer {fleet.unit.plural} than they are guaranteed: lower "
            "guaranteed_rate, or use accrual='available'"
        )
    needed = least_tolerances(fleet.queues.guaranteed_rates, fleet.observed_availability(), "always")
    absent = (needed >= float(fleet.policy.guarantee.tolerance)) & fleet.observed_enough() & ~rare
    if absent.any():
        yield (
            f"{_some(fleet, absent)} may be absent for so long that no policy keeps the tolerance: use "
            f"accrual='available', or a tolerance above {needed[absent].max():.2f}"
        )


def _some(fleet: Fleet, clients: BoolArray) -> str:
    """Returns the first ids of these clients, and the number of the others."""
    rows = np.flatnonzero(clients).tolist()
    more = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    return ", ".join(printable(fleet.ids[row]) for row in rows[:NAMED]) + more


def _round_down(value: float) -> str:
    """Rounds to two digits, downwards."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / step * (1 + 1e-9)) * step:.2g}"
