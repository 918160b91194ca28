"""Replays the journal of a fleet: computes the state from the snapshot and the events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turnout.errors import SettingError, StateError, StoreError, suggestion
from turnout.kernel.arrays import FloatArray, lending_arrays, saved_value
from turnout.kernel.rounds import LOSS
from turnout.live.features import PAPER_FEATURES, Columns, Feature, Features
from turnout.live.identifiers import digest_ids
from turnout.live.journal.changes import CompleteSnapshot
from turnout.live.journal.events import unknown_event
from turnout.live.journal.journal import AMEND, Amendment, Journal, as_stored, settings_at
from turnout.live.journal.schema import corruption, meta_count, meta_value
from turnout.live.journal.summary import SavedState, first_state, last_event, newest_state, read_summary
from turnout.live.journal.turns import read_open_round, read_running_turns, read_unit, turns_since
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.rounds.records import CLOSE, OpenRound
from turnout.live.turns.rounds.state import RoundFleet
from turnout.live.turns.slots.records import FILL, RunningTurnRecord
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.state import Fleet
from turnout.plugins import naming_packages
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import build_policy, nested_settings, setting_default, with_defaults
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.store import Connection, Location

#: What reading a state of another form raises: its digest is right, so that another program, or a bug, has written it.
MALFORMED = (ArithmeticError, AttributeError, LookupError, StateError, TypeError, ValueError)
#: Settings for which live fleets have other defaults than simulations: turns are earned by being available and paid for
#: contributing, and the scheduler itself checks whether the guarantee is feasible.
LIVE_DEFAULTS = {"accrual": "available", "counts": "completed", "allow_infeasible": True}
#: The default debt cap is SPARE_TURNS above the debt that outweighs the longest wait: the deadline, or MAX_WAIT
#: seconds in a fleet without one.
SPARE_TURNS, MAX_WAIT = 10, 60.0
MAX_TURNS = 1e6
#: The speed weight that is assumed for policies without one.
DEFAULT_SPEED_WEIGHT = 20.0
#: Policies that select by how far clients are behind, not by the debts that a cap limits.
UNCAPPED = ("fair-pace",)


@dataclass(slots=True)
class FleetState:
    """The state of a fleet, computed from its journal.

    Attributes:
        fleet: The clients and the policy, after all events.
        opened: The open round, if any.
        unsaved: The number of rounds that were closed since the last snapshot.
        running_turns: The running turns of a fleet without rounds, by decision.
        snapshot: The complete snapshot of a large fleet that this process has written last.
    """

    fleet: Fleet
    opened: OpenRound | None
    unsaved: int
    running_turns: dict[int, RunningTurnRecord] = field(default_factory=dict)
    snapshot: CompleteSnapshot | None = None

    @property
    def newest_round(self) -> int:
        """The number of the open round, or of the last closed round or decision."""
        return self.fleet.round if self.opened is None else self.opened.round

    def state(self, *, with_contexts: bool = True) -> dict[str, Any]:
        """Returns the state as plain arrays and numbers, with a digest of the ids.

        Without contexts, the actual times of clients that are late or train now cannot be learned from this state.
        """
        state = {**self.fleet.state(), "ids": self.fleet.ids_digest}
        if not with_contexts:
            for key in state.keys() & {"awaited.contexts", "running_turns.contexts"}:
                state[key] = np.full_like(state[key], np.nan)
        return state


def load(journal: Journal, *, from_snapshot: bool = True) -> FleetState:
    """Computes the state from the last snapshot, the events after it and the open round.

    Args:
        journal: The journal of the fleet.
        from_snapshot: Whether the last snapshot is used; otherwise all events that are kept are.

    Raises:
        StoreError: Parts of the file are damaged or do not agree.
    """
    with journal.reading() as db:
        settings = SchedulerSettings.from_dict(journal.settings)
        ids, joined, unsaved = journal.ids(), list[str](), 0
        saved = newest_state(db) if from_snapshot else first_state(db)
        after, fleet = start_from(journal, saved, ids)
        for _, kind, data, availability in journal.events(after):
            if kind == "join":  # those that follow one another join together: each time, all arrays are copied
                joined += parse_stored(data)
                continue
            fleet.join(joined)
            joined.clear()
            apply_event(fleet, kind, data, availability)
            unsaved += kind in (CLOSE, FILL)
        fleet.join(joined)
        if last_event(db)[1].hex() != meta_value(db, "head"):
            raise corruption(db, "the newest events are missing")
        if fleet.ids != ids:
            raise corruption(db, "the table of clients does not agree with the join events")
        opened, running_turns = (read_open_round(db), {}) if settings.has_rounds else (None, read_running_turns(db))
        _check_turns(db, fleet.round, opened, settings.late_turns)
        if {decision: running_turn.row for decision, running_turn in running_turns.items()} != fleet.training():
            raise corruption(db, "the running turns are not those of the decisions")
        if opened is not None:
            fleet.join(opened.joined)
    return FleetState(fleet, opened, unsaved, running_turns)


def load_before(journal: Journal, round: int) -> Fleet:
    """Computes the state in which the cohort of a closed round was selected."""
    with journal.reading() as db:
        first = read_summary(db).round
        if round <= first:
            unit = read_unit(db)
            raise StoreError(f"{unit.plural} up to {first:,} are no longer kept (keep_rounds): choose a later {unit}")
        after, fleet = start_from(journal, newest_state(db, before=round))
        for _, kind, data, availability in journal.events(after):
            if fleet.apply_before(round, kind, data, availability):
                return fleet
            apply_event(fleet, kind, data, availability)
    raise StoreError(f"round {round} was not closed in {journal.location}: check the number of the round")


def load_after(journal: Journal, round: int) -> tuple[int, Fleet]:
    """Computes the state right after a round was closed; returns the number of that event, and the state."""
    with journal.reading() as db:
        after, fleet = start_from(journal, newest_state(db, before=round))
        for number, kind, data, availability in journal.events(after):
            apply_event(fleet, kind, data, availability)
            if kind in (CLOSE, FILL) and fleet.round == round:
                return number, fleet
    raise StoreError(f"round {round} was not closed in {journal.location}: check the number of the round")


def start_from(journal: Journal, saved: SavedState | None, ids: Sequence[str] | None = None) -> tuple[int, Fleet]:
    """Returns the number of the event after which a state was saved, and the state; without one, the beginning.

    Args:
        journal: The journal of the fleet.
        saved: The state; None for the beginning.
        ids: The ids of all clients, if they were read before.

    Raises:
        StoreError: The state belongs to other ids than those of the file, or is malformed.
    """
    if saved is None:
        return 0, _fleet_at(journal, 0)
    fleet = _fleet_at(journal, saved.event)
    known = journal.ids() if ids is None else ids
    with journal.reading() as db:
        try:
            known = known[: int(saved_value(saved.state, "clients"))]
            if digest_ids(known) != str(saved_value(saved.state, "ids")):
                raise corruption(db, "the table of clients does not match the digest in the snapshot")
            with lending_arrays():
                fleet.restore(saved.state, known)
        except MALFORMED as error:
            raise corruption(db, f"the snapshot is malformed: {type(error).__name__}: {error}") from error
    return saved.event, fleet


def live_policy(settings: SchedulerSettings, features: int, clients: int) -> SelectionPolicy:
    """Builds the policy of a fleet, with the defaults of live fleets.

    Args:
        settings: The settings of the fleet.
        features: The number of features in a context.
        clients: The number of clients.
    """
    deadline = settings.deadline if isinstance(settings.deadline, int | float) else MAX_WAIT

    slots = {} if settings.has_rounds else {"cohort_size": 1}

    def defaults(name: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**LIVE_DEFAULTS, **slots, "features": features, "max_owed": _default_max_owed(name, own, deadline)}

    with naming_packages(settings.packages):
        own = with_defaults(settings.policy, settings.settings, defaults)
        policy = build_policy(settings.policy, clients, **own)
    if policy.requires_expected_times:
        raise SettingError(
            f"the policy {settings.policy} requires the true expected times, unknown in a live fleet: use fair-pace"
        )
    if not settings.has_rounds and policy.cohort_size != 1:
        raise SettingError(
            f"cohort_size must be 1, or left out, in a fleet with a concurrency, got {policy.cohort_size}: turns are "
            "given one at a time"
        )
    if not settings.has_rounds and not policy.fills_slots:
        raise SettingError(
            f"the policy {settings.policy} cannot give turns one at a time: leave out concurrency, or use fair-pace"
        )
    nested = nested_settings(settings.policy, settings.settings)
    has_rate = any("guaranteed_rate" in own for _, own in nested)
    if not settings.has_rounds and policy.guarantee is not None and not has_rate:
        raise SettingError(
            "a fleet with a concurrency needs the guaranteed_rate in its settings: a share of all turns, at most 1 "
            "divided by the number of clients"
        )
    return policy


def check_new_policy(settings: SchedulerSettings, features: Features) -> None:
    """Raises SettingError if the policy of a fleet could not give turns to every client that joins."""
    for _, own in nested_settings(settings.policy, settings.settings):
        for name in ("guaranteed_rate", "availability"):
            if isinstance(own.get(name), list | tuple):
                raise SettingError(
                    f"{name} must be one value for all clients, got {own[name]!r}: clients may join later"
                )
    policy = live_policy(settings, features.outputs, 1)
    if policy.features not in (None, features.outputs):
        raise SettingError(f"features must be {features.outputs}, as many as the fleet has, or left out")
    for signal in policy.signals:
        if signal not in settings.signals:
            raise SettingError(
                f"{settings.policy} learns from the signal {signal!r}{suggestion(signal, [LOSS, *settings.signals])}, "
                f'which the fleet does not declare: add it to signals, such as {{"{signal}": [0, 100]}}'
            )


def _default_max_owed(policy: str, settings: Mapping[str, Any], longest_wait: float) -> int | None:
    """Returns the default debt cap of one policy; None if it needs none.

    A debt of speed_weight · seconds turns outweighs a wait of that many seconds; under a smaller cap the slowest client
    would never be selected.

    Args:
        policy: The name of the policy, which may be inside wrappers.
        settings: Its own settings.
        longest_wait: The longest wait that a debt must be able to outweigh, in seconds.
    """
    if policy in UNCAPPED:
        return None
    weight = settings.get("speed_weight", setting_default(policy, "speed_weight"))
    if weight is None:
        weight = DEFAULT_SPEED_WEIGHT
    if not isinstance(weight, int | float) or weight < 0:
        return SPARE_TURNS  # the policy refuses such a weight with a message of its own
    return SPARE_TURNS + math.ceil(min(weight * longest_wait, MAX_TURNS))


def resolve_features(
    stored: Mapping[str, Any], features: Features | None, path: Location, amended_in: int | None = None
) -> Features:
    """Returns the features with which a fleet is opened.

    Args:
        stored: The features as they are stored in the file.
        features: The features that the caller passed, if any; they must be those of the file.
        path: The file, for messages.
        amended_in: The round in which the features were amended; None if they never were.
    """
    since = "was created with" if amended_in is None else f"was amended in round {amended_in} and has"
    if features is not None:
        if as_stored(features.to_dict()) != stored:
            raise SettingError(
                f"{path} {since} other features ({stored['declared']}): open it with those, or amend them"
            )
        return features
    if stored == as_stored(PAPER_FEATURES.to_dict()):
        return PAPER_FEATURES
    if stored["computed"]:
        raise SettingError(f"{path} {since} features that a function computes: open it with the same features=…")
    return stored_features(stored)


def stored_features(stored: Mapping[str, Any]) -> Features:
    """Returns the features of a file, without the function that computes them: enough for reading."""
    declared = tuple(Feature(*feature) for feature in stored["declared"])
    return Features(declared, _refuse_to_compute if stored["computed"] else None, stored["outputs"])


def fresh_fleet(settings: SchedulerSettings, features: Features) -> Fleet:
    """Returns the state of a fleet that no client has joined."""

    def build(clients: int) -> SelectionPolicy:
        return live_policy(settings, features.outputs, clients)

    after, window, slots = settings.backoff_after, settings.late_turns, settings.concurrency
    if slots is None:
        return RoundFleet(build, backoff_after=after, late_window=window)
    rest = settings.min_turn_interval
    return SlotFleet(build, backoff_after=after, late_window=window, slots=slots, min_turn_interval=rest)


def _fleet_at(journal: Journal, event: int) -> Fleet:
    """Returns the state of a fleet that no client has joined, with the settings that it had after event `event`.

    Event 0 stands for the settings with which the fleet was created.
    """
    stored = settings_at(journal, event)
    return fresh_fleet(SchedulerSettings.from_dict(stored), stored_features(stored["features"]))


def amend_fleet(fleet: Fleet, amendment: Amendment) -> None:
    """Applies an amendment to the state of a fleet."""
    settings = SchedulerSettings.from_dict(amendment.settings)
    outputs = stored_features(amendment.settings["features"]).outputs
    fleet.amend(
        lambda clients: live_policy(settings, outputs, clients),
        new_features=outputs if amendment.has_new_features else None,
        min_turn_interval=settings.min_turn_interval,
    )


def _refuse_to_compute(_: Columns) -> Sequence[FloatArray]:
    raise SettingError("the features of this fleet are computed by a function: open it with features=… to select")


def apply_event(fleet: Fleet, kind: str, data: bytes, availability: bytes | None) -> None:
    """Applies one stored event to the state of a fleet."""
    if kind == "join":
        fleet.join(parse_stored(data))
    elif kind in (CLOSE, FILL):
        fleet.apply(kind, data, availability)
    elif kind == "retire":
        fleet.retire(parse_stored(data)["row"])
    elif kind == AMEND:
        amend_fleet(fleet, Amendment.unpack(data))
    elif kind == "forget":  # a snapshot was taken with it, so only a replay that starts before that snapshot gets here
        content = parse_stored(data)
        fleet.forget(content["row"], content["name"])
    else:
        raise unknown_event(kind)


def _check_turns(db: Connection, closed: int, opened: OpenRound | None, late_window: int) -> None:
    """Checks all turns that may still change against their checksums, and the rounds against each other."""
    newest = closed if opened is None else closed + 1
    turns = turns_since(db, closed - late_window)
    if meta_count(db, "round") != closed or any(turn.round > newest for turn in turns):
        raise corruption(db, f"there are turns after {read_unit(db)} {closed}, the last one")
    if opened is not None:
        invited = [turn.row for turn in turns if turn.round == newest]
        if opened.round != newest or invited != sorted(opened.rows.tolist()):
            raise corruption(db, f"the turns of the open round {opened.round} are not those of its cohort")
