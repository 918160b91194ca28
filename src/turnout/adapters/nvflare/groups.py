"""Groups of clients: named in the job, or read from the configuration of each site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvflare.apis.client import Client

from turnout.errors import SettingError

HAS_SITE_CONFIG = hasattr(Client, "get_site_config")  # since NVFlare 2.9


class SiteGroups:
    """The group of each client, and which groups may be selected.

    Args:
        groups: The group of each client by name, or the name of a value in the site configuration, or None.
        eligible: The groups that may be selected; None for all clients.
        is_needed: Whether groups are needed for something else, such as a quota.
    """

    def __init__(self, groups: Mapping[str, str] | str | None, eligible: Sequence[str] | None, is_needed: bool) -> None:
        if groups is None and (is_needed or eligible is not None):
            raise SettingError(
                "eligible and quota need groups: pass groups={client: group, …}, or the name of a value in the site "
                "configuration"
            )
        if isinstance(groups, str) and not HAS_SITE_CONFIG:
            raise SettingError(
                f"groups={groups!r} is read from the site configuration, which needs NVFlare 2.9 or newer: pass "
                "groups={client: group, …}"
            )
        self._groups = groups
        self._eligible = None if eligible is None else frozenset(eligible)
        self.configurations: dict[str, Mapping[str, Any]] = {}

    def learn(self, clients: Iterable[Client]) -> None:
        """Reads the site configurations of clients, where NVFlare has them."""
        if not HAS_SITE_CONFIG:
            return
        for client in clients:
            configuration = client.get_site_config()
            if isinstance(configuration, Mapping):
                self.configurations[client.name] = configuration

    def group_of(self, client: str) -> str | None:
        """Returns the group of a client; None if it has none."""
        if isinstance(self._groups, str):
            group = self.configurations.get(client, {}).get(self._groups)
            return None if group is None else str(group)
        return (self._groups or {}).get(client)

    def is_eligible(self, client: str) -> bool:
        """Returns whether a client may be selected."""
        return self._eligible is None or self.group_of(client) in self._eligible
