"""Which settings of a fleet can be amended, and what an amendment makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from numbers import Number
from reprlib import repr as short  # values may be very long or deep
from typing import Any

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import Rate
from turnout.live.identifiers import is_encodable
from turnout.live.journal.journal import Amendment
from turnout.live.settings import SETTINGS, AmendableOptions, SchedulerSettings, Setting
from turnout.policies.registry import nested_settings, setting_names

#: The settings of policies that can be amended; the policies check their values.
POLICY_SETTINGS: Mapping[str, Setting] = {
    "cohort_size": Setting(None, "clients", "the number of clients that a round selects"),
    "guaranteed_rate": Setting(
        None,
        "rate",
        "the guaranteed share of the rounds, or of the decisions about a slot, for which a client is available",
    ),
    "tolerance": Setting(None, "turns", "how far a client may be behind; beyond it, the promise is broken"),
    "speed_weight": Setting(None, "turns", "the owed turns that a second is worth, for policies with a weight"),
    "groups": Setting(None, None, "the group of each client, for the policy `quota`"),
}
#: What can be amended, or could be in another fleet, and is one value for all clients.
NAMES = {*SETTINGS, *POLICY_SETTINGS} - {"groups", "signals"}
#: The only policy whose groups can be amended: those of others are parts of a guarantee.
GROUPED = "quota"


class Amendments(AmendableOptions, total=False):
    """The keyword options of `Scheduler.amend`, except features; `SchedulerSettings` and policies document them."""

    cohort_size: int
    guaranteed_rate: Rate
    tolerance: float
    speed_weight: float
    groups: Mapping[str, str | None]


def amended_settings(settings: SchedulerSettings, changes: Mapping[str, Any]) -> SchedulerSettings:
    """Returns the settings with these changes; a setting of the policy is changed in the policy inside that has it.

    Raises:
        SettingError: If a setting cannot be amended, has an invalid value, or no policy of the fleet has it.
    """
    own: dict[str, Any] = {}
    of_policy = settings.settings
    for name, value in changes.items():
        if name in NAMES and not isinstance(value, str | Number | None):
            raise SettingError(f"{name} must be one value for all clients, got {short(value)}: clients may join later")
        if name in SETTINGS and SETTINGS[name].amendable:
            own[name] = value
        elif name in POLICY_SETTINGS:
            stored = str(value) if isinstance(value, Fraction) else value
            of_policy = _with_policy_setting(settings.policy, of_policy, name, stored)
        else:
            own_names = [name for name, setting in SETTINGS.items() if setting.amendable]
            known = (*own_names, *POLICY_SETTINGS, "features")
            raise SettingError(
                f"{name!r} cannot be amended{suggestion(name, known)}; what can be amended is {', '.join(known)}"
            )
    return replace(settings, settings=of_policy, **own)


def groups_by_row(
    settings: SchedulerSettings, groups: Mapping[str, str | None], rows: Mapping[str, int]
) -> list[str | None]:
    """Returns the groups of clients by row, up to the last that has one: the new ones, and the present ones of others.

    Args:
        settings: The present settings.
        groups: The new groups, by client id; None for no group.
        rows: The row of each client.

    Raises:
        SettingError: If a client is unknown, or a name is not a string that can be stored.
    """
    if not isinstance(groups, Mapping):
        raise SettingError(f"groups must be a mapping from client ids to groups, got {short(groups)}")
    by_row: list[str | None] = list(_value_of(settings, "groups") or ())[: len(rows)]
    by_row += [None] * (len(rows) - len(by_row))
    for client, group in groups.items():
        if client not in rows:
            raise SettingError(f"groups has the unknown client {client!r}: register it first")
        if not isinstance(group, str | None):
            raise SettingError(f"the group of {client!r} must be a string or None, got {short(group)}")
        if group is not None and not is_encodable(group):
            raise SettingError(f"the group of {client!r} cannot be stored as UTF-8: {group!r}")
        by_row[rows[client]] = group
    while by_row and by_row[-1] is None:
        by_row.pop()
    return by_row


def actual_changes(
    before: SchedulerSettings, after: SchedulerSettings, changes: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Returns the old and the new value of each setting that differs; an old value of None may be a default."""
    pairs = {name: (_value_of(before, name), _value_of(after, name)) for name in changes}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _value_of(settings: SchedulerSettings, name: str) -> Any:
    if name in SETTINGS:
        return getattr(settings, name)
    depth = _owner(settings.policy, settings.settings, name)
    return list(nested_settings(settings.policy, settings.settings))[depth][1].get(name)


def _owner(policy: str, settings: Mapping[str, Any], name: str) -> int:
    """Returns the depth of the policy to which a setting belongs; 0 is the outermost.

    The outermost policy with a guarantee is the one whose promise counts. The cohort size is that of the innermost
    policy, which selects; wrappers derive theirs from it.
    """
    names = [inner for inner, _ in nested_settings(policy, settings)]
    owners = [
        depth
        for depth, inner in enumerate(names)
        if name in setting_names(inner) and (name != "groups" or inner == GROUPED)
    ]
    if not owners:
        raise SettingError(f"the policy {' around '.join(names)} has no setting {name!r}")
    return owners[-1] if name == "cohort_size" else owners[0]


def _with_policy_setting(policy: str, settings: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Returns the settings of a policy with one of them changed, at whatever depth it belongs."""
    nested, owner = [own for _, own in nested_settings(policy, settings)], _owner(policy, settings, name)
    changed: dict[str, Any] = {}
    for depth in range(len(nested) - 1, -1, -1):
        own = dict(nested[depth])
        # A wrapper that repeats the cohort size of the policy inside must go on agreeing with it.
        if depth == owner or (name == "cohort_size" and depth < owner and name in own):
            own[name] = value
        changed = own if depth == len(nested) - 1 else {**own, "settings": changed}
    return changed


def rounds_of_amendments(amended: Sequence[Amendment]) -> dict[str, int]:
    """Returns the round after which each option of `Scheduler.open` was last amended."""
    rounds: dict[str, int] = {}
    for amendment in amended:
        for name in amendment.changes:
            rounds["settings" if name in POLICY_SETTINGS else name] = rounds[name] = amendment.round
    return rounds
