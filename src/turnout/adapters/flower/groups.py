"""Groups of clients: by owner or location, which the SuperLink knows, or by an entry of the node's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from turnout.adapters.common.fleet import Fleet, facts_of
from turnout.adapters.flower.core.nodes import NodeFilter
from turnout.adapters.flower.flower_api import LOCATION, OWNER
from turnout.adapters.flower.settings import ClientSettings
from turnout.adapters.flower.wire import GROUPS, RECORD
from turnout.errors import SettingError
from turnout.policies.registry import nested_settings

#: The groups that the SuperLink knows, and the fields of its description of a node.
DESCRIBED = {"owner": OWNER, "location": LOCATION}


class NodeGroups(NodeFilter):
    """Knows the groups of each node, as far as the settings need them.

    Raises SettingError if they have groups for which the policy of the fleet does not reserve places.
    """

    def __init__(self, settings: ClientSettings, scheduler: Fleet) -> None:
        policies = [name for name, _ in nested_settings(scheduler.settings.policy, scheduler.settings.settings)]
        if settings.groups is not None and "quota" not in policies:
            place = facts_of(scheduler).location
            raise SettingError(
                f"groups needs a fleet with the policy 'quota', and {place} has {' around '.join(policies)}: "
                "leave out groups, or create a fleet with places for groups"
            )
        self._scheduler, self._name = scheduler, settings.groups
        self._rules = {name: {str(group) for group in allowed} for name, allowed in settings.eligible.items()}
        names = [*self._rules, *([] if settings.groups is None else [settings.groups])]
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

    def admitted(self, nodes: Sequence[int], descriptions: Mapping[int, Any]) -> list[int]:
        """Returns the nodes all of whose groups are eligible."""
        admitted = list(nodes)
        for name, allowed in self._rules.items():
            admitted = [node for node in admitted if self._group(name, node, descriptions) in allowed]
        return admitted

    def enter(self, clients: Mapping[str, int], descriptions: Mapping[int, Any]) -> None:
        """Enters the groups of clients into the fleet, if its policy reserves places for them."""
        if self._name is not None:
            groups = {client: self._group(self._name, node, descriptions) for client, node in clients.items()}
            self._scheduler.amend(groups={client: group for client, group in groups.items() if group})

    def _group(self, name: str, node: int, descriptions: Mapping[int, Any]) -> str | None:
        """Returns a group of a node; None if it has none, or if it is not known."""
        if name in DESCRIBED:
            return getattr(descriptions.get(node), DESCRIBED[name], "") or None
        return self._reported.get(node, {}).get(name)
