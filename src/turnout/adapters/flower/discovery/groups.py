"""Groups of clients: by owner or location, which the SuperLink knows, or by an entry of the node's configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from turnout.adapters.flower.wire import GROUPS, RECORD
from turnout.errors import SettingError

#: The groups that the SuperLink knows, and the fields of its description of a node.
DESCRIBED = {"owner": "owner_name", "location": "location"}
Rules = Mapping[str, Collection[str]]


class NodeGroups:
    """Knows the groups of each node, as far as they are needed.

    `names` are "owner", "location" or the names of entries in the nodes' configurations.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._reported_names = [name for name in names if name not in DESCRIBED]
        self._reported: dict[int, Mapping[str, str]] = {}

    def query(self) -> RecordDict:
        """Returns the content of a query that asks a node for the entries of its configuration that are needed."""
        if not self._reported_names:
            return RecordDict()
        return RecordDict({RECORD: ConfigRecord({GROUPS: self._reported_names})})

    def record(self, node: int, groups: Mapping[str, str]) -> None:
        """Stores what a node answered to such a query; nothing if its app does not implement it."""
        self._reported[node] = groups

    def must_query(self, node: int) -> bool:
        """Returns whether a group of this node is known only to itself."""
        return bool(self._reported_names) and node not in self._reported

    def group(self, name: str, node: int, description: Any) -> str | None:
        """Returns a group of a node, which the SuperLink describes; None if it has none, or if it is not known."""
        if name in DESCRIBED:
            return getattr(description, DESCRIBED[name], "") or None
        return self._reported.get(node, {}).get(name)


def as_rules(eligible: Mapping[str, Collection[str]] | None) -> Rules:
    """Returns the groups that may take part, by name; raises SettingError unless each is a list of names."""
    rules = {} if eligible is None else eligible
    if not isinstance(rules, Mapping) or any(
        isinstance(allowed, str) or not isinstance(allowed, Collection) or not allowed for allowed in rules.values()
    ):
        raise SettingError(f"eligible must be a mapping of names to lists of at least one group, got {eligible!r}")
    return {name: {str(group) for group in allowed} for name, allowed in rules.items()}
