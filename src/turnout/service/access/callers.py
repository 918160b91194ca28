"""Finds the caller of a request by the tokens of the fleets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from turnout.errors import StoreError
from turnout.service.access.tokens import FleetTokens
from turnout.service.errors import DeniedError, MissingClientError
from turnout.web.access import Caller


class HasTokens(Protocol):
    """What has the tokens of a fleet."""

    @property
    def tokens(self) -> FleetTokens | None:
        """The tokens; None if they are not open."""


class FleetAccess:
    """Finds the caller of a request by its token.

    A token is looked up for every request, so that a change takes effect with the next one.

    Args:
        fleets: The fleets by name; None if the service needs no tokens, so that every caller is an operator.
    """

    def __init__(self, fleets: Mapping[str, HasTokens] | None) -> None:
        self._fleets = fleets

    @property
    def needs_token(self) -> bool:
        """Whether a request needs a token."""
        return self._fleets is not None

    def caller(self, text: str) -> Caller | None:
        """Returns the caller with this token; None if the token gives no access.

        Raises:
            StoreError: If the tokens of a fleet cannot be read, and the token is of no other fleet.
        """
        if self._fleets is None:
            return Caller("operator")
        problem: StoreError | None = None
        for fleet, file in self._fleets.items():
            try:
                if file.tokens is None:
                    raise StoreError(f"the fleet {fleet!r} is not open")
                token = file.tokens.find(text)
            except StoreError as error:  # of this fleet only
                problem = error
                continue
            if token is not None:
                return Caller(token.role, fleet, token.client, token.id)
        if problem is not None:
            raise problem
        return None


def own_client(caller: Caller, client: str | None) -> str:
    """Returns the client for which a request is made: devices may leave it out, and must not name another.

    Raises:
        DeniedError: If a device names another client.
        MissingClientError: If no client is named.
    """
    if caller.client is not None and client not in (None, caller.client):
        raise DeniedError(f"this token is of the device {caller.client!r}: it cannot call for {client!r}")
    named = client if client is not None else caller.client
    if named is None:
        raise MissingClientError("client is missing: name the client")
    return named
