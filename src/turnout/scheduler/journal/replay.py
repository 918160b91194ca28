"""From the file to memory, and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import SettingError, StoreError
from turnout.kernel.arrays import FloatArray
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import make_policy, setting_default, with_defaults
from turnout.scheduler.features import PAPER_FEATURES, Columns, Feature, Features
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.records import OpenRound, unpack_closed
from turnout.scheduler.rounds.state import Fleet
from turnout.scheduler.settings import SchedulerSettings

#: Settings of a policy where a live fleet has other defaults: turns are earned by volunteering and paid for
#: contributing, and the scheduler itself checks whether the promise is feasible.
LIVE_DEFAULTS = {"accrual": "available", "paid": "contributed", "allow_infeasible": True}
#: A debt may grow by so many turns beyond what outweighs the longest wait, which is the deadline, or this many seconds.
SPARE_TURNS, LONGEST_WAIT = 10, 60.0
MOST_TURNS = 1e6
#: The speed weight that is assumed for policies without one.
DEFAULT_SPEED_WEIGHT = 20.0


@dataclass(slots=True)
class FleetState:
    """The fold of the file; `unsaved`: rounds since the last snapshot."""

    fleet: Fleet
    opened: OpenRound | None
    unsaved: int

    def state(self) -> dict[str, Any]:
        """All of it as plain arrays and numbers, with a digest of the ids."""
        return {**self.fleet.state(), "ids": _digest(self.fleet.ids)}


def load(journal: Journal, settings: SchedulerSettings, features: Features) -> FleetState:
    """The last snapshot, the events since, and the round that is open; refused if anything does not fit."""
    fleet = fresh_fleet(settings, features)
    with journal.reading():
        ids, after, unsaved = journal.ids(), 0, 0
        saved = journal.snapshot()
        if saved is not None:
            after, state = saved
            restore(journal, fleet, state, ids)
        for _, kind, data, mask in journal.events(after):
            apply_event(fleet, kind, data, mask)
            unsaved += kind == "close"
        journal.check_head()
        if fleet.ids != ids:
            raise journal.damage("the ids are not those that joined")
        opened = journal.open_round()
        _check_turns(journal, fleet.round, opened, settings.late_window)
        if opened is not None:
            fleet.join(opened.joined)
    return FleetState(fleet, opened, unsaved)


def load_before(journal: Journal, settings: SchedulerSettings, features: Features, round_: int) -> Fleet:
    """Memory as it was when the cohort of a closed round was chosen."""
    fleet, after = fresh_fleet(settings, features), 0
    with journal.reading():
        saved = journal.snapshot()
        if saved is not None and int(saved[1]["round"]) < round_:
            after = saved[0]
            restore(journal, fleet, saved[1], journal.ids())
        for _, kind, data, mask in journal.events(after):
            if kind == "close" and fleet.round + 1 == round_:
                return fleet
            apply_event(fleet, kind, data, mask)
    raise StoreError(f"round {round_} was not closed in {journal.path}")


def live_policy(settings: SchedulerSettings, features: int, clients: int) -> SelectionPolicy:
    """The policy with what a live fleet needs."""
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else LONGEST_WAIT

    def defaults(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**LIVE_DEFAULTS, "features": features, "max_owed": _max_owed(name, given, deadline)}

    policy = make_policy(settings.policy, clients, **with_defaults(settings.policy, settings.settings, defaults))
    if policy.requires_expected_times:
        raise SettingError(f"{settings.policy} must be told the true times, which no live fleet knows: use rbcsf")
    return policy


def _max_owed(policy: str, settings: Mapping[str, Any], longest_wait: float) -> int:
    """Returns the default debt cap of one policy.

    A debt of speed_weight · seconds turns outweighs a wait of that many seconds; under a smaller cap the slowest client
    would never be selected.

    Args:
        policy: The name of the policy, which may be inside wrappers.
        settings: Its own settings.
        longest_wait: The longest wait to reckon with, in seconds.
    """
    weight = settings.get("speed_weight", setting_default(policy, "speed_weight"))
    if weight is None:
        weight = DEFAULT_SPEED_WEIGHT
    if not isinstance(weight, int | float) or weight < 0:
        return SPARE_TURNS  # the policy refuses such a weight with a message of its own
    return SPARE_TURNS + math.ceil(min(weight * longest_wait, MOST_TURNS))


def same_features(stored: Mapping[str, Any], given: Features | None, path: Path, read_only: bool) -> Features:
    """Those of the file; what is computed must be given again by whoever chooses."""
    if given is not None:
        if json.loads(json.dumps(given.to_dict())) != stored:
            raise SettingError(
                f"{path} was begun with other features ({stored['declared']}): give those, or begin anew"
            )
        return given
    if stored == json.loads(json.dumps(PAPER_FEATURES.to_dict())):
        return PAPER_FEATURES
    if stored["computed"] and not read_only:
        raise SettingError(f"{path} has features of its own, which are computed: open it with features=…")
    return stored_features(stored)


def stored_features(stored: Mapping[str, Any]) -> Features:
    """Those of the file, as far as they are in it: enough to read, not to choose."""
    declared = tuple(Feature(*one) for one in stored["declared"])
    return Features(declared, _not_here if stored["computed"] else None, stored["outputs"])


def fresh_fleet(settings: SchedulerSettings, features: Features) -> Fleet:
    """Nobody has joined yet."""
    return Fleet(
        lambda clients: live_policy(settings, features.outputs, clients),
        rest_after=settings.rest_after,
        late_window=settings.late_window,
    )


def restore(journal: Journal, fleet: Fleet, state: Mapping[str, Any], ids: Sequence[str]) -> None:
    """Take back a snapshot; refused if it is of other ids than those on record."""
    known = ids[: int(state["clients"])]
    if _digest(known) != state["ids"]:
        raise journal.damage("the ids are not those that were written")
    fleet.restore(state, known)


def _not_here(_: Columns) -> Sequence[FloatArray]:
    raise SettingError("the features of this fleet are computed: open it with features=… to choose")


def apply_event(fleet: Fleet, kind: str, data: bytes, mask: bytes | None) -> None:
    """Take in one event."""
    if kind == "join":
        fleet.join(json.loads(data))
    elif kind == "close":
        if mask is None:
            raise StoreError("who was available in a round is gone: restore the file from a backup")
        fleet.close(unpack_closed(data, mask)[0])
    elif kind == "retire":
        fleet.retire(json.loads(data)["row"])
    elif kind == "forget":  # with a snapshot: met only by who begins before it
        told = json.loads(data)
        fleet.forget(told["row"], told["name"])
    else:
        raise StoreError(f"unknown event {kind!r}: install a newer turnout")


def _check_turns(journal: Journal, closed: int, opened: OpenRound | None, late_window: int) -> None:
    """Hold all turns that may still change against their seals, and the rounds against each other."""
    newest = closed if opened is None else closed + 1
    turns = journal.turns_since(closed - late_window)
    if journal.closed_round() != closed or any(turn.round > newest for turn in turns):
        raise journal.damage(f"there are turns of rounds that were never closed, after round {closed}")
    if opened is not None:
        invited = [turn.row for turn in turns if turn.round == newest]
        if opened.round != newest or invited != sorted(opened.rows.tolist()):
            raise journal.damage(f"the turns of the open round {opened.round} are not those that were invited")


def _digest(ids: Sequence[str]) -> str:
    return hashlib.blake2b("\0".join(ids).encode(), digest_size=16).hexdigest()
