"""Keeps track of the clients of a job: their groups, which of them run, what they report, and which are still busy."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nvflare.apis.client import Client

from turnout.errors import OfferError, SettingError
from turnout.live import Features
from turnout.log import get_log

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


log = get_log("turnout.nvflare")


class LateTurn(NamedTuple):
    """A turn whose round was closed while the client still worked on its task."""

    round: int
    started: float  # by the monotonic clock


class ClientDirectory:
    """Learns from every request for work that a client runs, is free, and what its status is.

    NVFlare calls it from several threads.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._names = [feature.name for feature in features.declared]
        self._have_defaults = all(feature.default is not None for feature in features.declared)
        self._lock = threading.Lock()
        self._statuses: dict[str, Mapping[str, Any] | None] = {}  # of the clients that have asked for work
        self._late: dict[str, LateTurn] = {}
        self.warm: set[str] = set()  # the clients that were selected since they connected

    def record_request(self, client: str, status: Mapping[str, Any] | None) -> LateTurn | None:
        """Records that a client asks for work; returns the late turn that it has thereby finished, if any."""
        with self._lock:
            self._statuses[client] = status
            return self._late.pop(client, None)

    def record_late(self, client: str, turn: LateTurn) -> None:
        """Records that a client is still busy with the task of a closed round."""
        with self._lock:
            self._late[client] = turn

    def remove(self, client: str) -> None:
        """Forgets a client that is gone: it must ask for work before it is available again."""
        with self._lock:
            self._statuses.pop(client, None)
            self._late.pop(client, None)
            self.warm.discard(client)

    def is_known(self, client: str) -> bool:
        """Returns whether a client has asked for work."""
        with self._lock:
            return client in self._statuses

    def is_free(self, client: str) -> bool:
        """Returns whether a client has asked for work and is not busy with the task of a closed round."""
        with self._lock:
            return client in self._statuses and client not in self._late

    def statuses(
        self, clients: Iterable[str], configured: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any] | None]:
        """Returns the status of each client, None if nothing is known about it.

        Args:
            clients: The available clients.
            configured: The site configuration of each client, whose values take precedence.
        """
        with self._lock:
            reported = {client: self._statuses.get(client) for client in clients}
        checked: dict[str, Mapping[str, Any] | None] = {}
        for client, status in reported.items():
            own = configured.get(client, {})
            values = {**(status or {}), **{name: own[name] for name in self._names if name in own}}
            if not values:
                checked[client] = None
            elif self._is_valid(client, values):
                checked[client] = {name: values[name] for name in self._names}
            elif self._have_defaults:
                checked[client] = None
        return checked

    def _is_valid(self, client: str, status: Mapping[str, Any]) -> bool:
        try:
            self._features.check(client, status)
        except OfferError as error:
            effect = "nothing is assumed to be known about it" if self._have_defaults else "excluded from this round"
            log.warning("turnout: %s: %s", effect, error)
            return False
        return True
