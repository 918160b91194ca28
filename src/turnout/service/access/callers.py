"""Who calls, and what the caller may do."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from turnout.errors import StoreError
from turnout.log import get_log
from turnout.service.access.tokens import Role, Token, TokenFile
from turnout.service.errors import DeniedError, MissingClientError

log = get_log("turnout.service")
_CALLER = "turnout.caller"
#: The most tokens that are kept in memory, each about 500 bytes; beyond it, all are read again.
MOST_KNOWN = 50_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    Attributes:
        role: What the caller may do.
        fleet: The only fleet that the caller may use; None for all.
        client: The only client for which a device may call; None for other roles.
        token: The id of the token; "" if the service needs none.
    """

    role: Role
    fleet: str | None = None
    client: str | None = None
    token: str = ""

    def own_client(self, client: str | None) -> str:
        """Returns the client for which a request is made: devices may leave it out, and must not name another.

        Raises:
            DeniedError: If a device names another client.
            MissingClientError: If no client is named.
        """
        if self.client is not None and client not in (None, self.client):
            raise DeniedError(f"this token is of the device {self.client!r}: it cannot call for {client!r}")
        named = client if client is not None else self.client
        if named is None:
            raise MissingClientError("client is missing: name the client")
        return named


class Access:
    """Finds the caller of a request by its token.

    Args:
        tokens: The tokens of each fleet; None if the service needs none, so that every caller is an operator.
    """

    def __init__(self, tokens: Mapping[str, TokenFile] | None) -> None:
        self._tokens = tokens
        # Tokens that were found, by the digest of their text, with their fleets, and the files in which they were.
        self._known: dict[bytes, tuple[str, Token]] = {}
        self._versions: list[tuple[int, int]] = []
        self._is_checked = False

    @property
    def needs_token(self) -> bool:
        """Whether a request needs a token."""
        return self._tokens is not None

    def caller(self, text: str) -> Caller | None:
        """Returns the caller with this token; None if the token gives no access."""
        if self._tokens is None:
            return Caller("operator")
        self._forget_if_changed(self._tokens)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if digest not in self._known:
            for fleet, file in self._tokens.items():
                token = file.find(text)
                if token is not None:
                    if len(self._known) >= MOST_KNOWN:
                        self._known.clear()
                    self._known[digest] = (fleet, token)
                    break
            else:
                return None
        fleet, token = self._known[digest]
        return Caller(token.role, fleet, token.client, token.id) if token.is_valid() else None

    def _forget_if_changed(self, tokens: Mapping[str, TokenFile]) -> None:
        """Drops the tokens in memory if a file has changed, so that a change takes effect with the next request.

        The files are looked at once in each pass of the event loop: requests that are handled in the same pass had
        arrived before it began.
        """
        if self._is_checked:
            return
        versions = [file.version() for file in tokens.values()]
        if versions != self._versions:
            self._known.clear()
            self._versions = versions
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a caller of another thread
            return
        self._is_checked = True
        loop.call_soon(self._expire)

    def _expire(self) -> None:
        self._is_checked = False

    def may_read(self, text: str, fleet: str) -> bool:
        """Returns whether the holder of a token may read about the fleet `fleet`; False if tokens cannot be read."""
        try:
            caller = self.caller(text)
        except StoreError as error:
            log.error("tokens cannot be read: %s", error)
            return False
        return caller is not None and caller.role != "device" and caller.fleet in (None, fleet)

    def remove_client(self, fleet: str, client: str) -> None:
        """Deletes the tokens of a client that is forgotten."""
        if self._tokens is not None:
            with TokenFile(self._tokens[fleet].fleet) as file:  # those that find callers are open for reading only
                file.remove_client(client)


def set_caller(request: HTTPConnection, caller: Caller) -> None:
    """Stores who sent a request."""
    request.scope[_CALLER] = caller


def caller_of(request: HTTPConnection) -> Caller:
    """Returns who sent a request."""
    caller: Caller = request.scope[_CALLER]
    return caller
