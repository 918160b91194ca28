"""Who calls a server, what the caller may do, and which hosts only this machine can reach."""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from turnout.errors import SettingError

_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::\d+)?")
#: device: checks in and reports for its own client. server: selects and closes, reports for every client. viewer:
#: reads. operator: everything, and alone changes settings and forgets clients.
Role = Literal["device", "server", "operator", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)
#: Who may read everything about a fleet.
READERS: tuple[Role, ...] = ("server", "operator", "viewer")
MIN_TOKEN = 12


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is a loopback address, which only this machine can reach.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_loopback(header: str) -> bool:
    """Returns whether a Host header names a loopback address.

    A server without tokens must check this, to prevent DNS rebinding: a foreign name may resolve to this machine, but
    the browser sends it as the Host.

    >>> names_loopback("localhost:8080"), names_loopback("[::1]:8080"), names_loopback("example.org:8080")
    (True, True, False)
    """
    name = _HOST.fullmatch(header)
    return name is not None and is_loopback(name[1])


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    Attributes:
        role: What the caller may do.
        fleet: The only fleet that the caller may use; None for all.
        client: The only client for which a device may call; None for other roles.
        token: The id of the token; "" if the server needs none.
    """

    role: Role
    fleet: str | None = None
    client: str | None = None
    token: str = ""

    def may_use(self, fleet: str) -> bool:
        """Returns whether the caller may use a fleet in its role."""
        return self.fleet in (None, fleet)


class Allowance(NamedTuple):
    """Whether a caller may call now.

    Attributes:
        seconds: 0, or the seconds after which the caller may call.
        headers: What the answer says about it: names and values.
    """

    seconds: float
    headers: tuple[tuple[bytes, bytes], ...] = ()


#: That of callers without a limit.
UNLIMITED = Allowance(0.0)


class Access(Protocol):
    """Finds the caller of a request by its token."""

    @property
    def needs_token(self) -> bool:
        """Whether a request needs a token; a server that needs none serves this machine only."""

    def caller(self, text: str) -> Caller | None:
        """Returns the caller with this token; None if the token gives no access.

        Raises:
            StoreError: If the tokens cannot be read.
        """


class SharedToken:
    """One token for everyone who may read; without it, every program of this machine may.

    Args:
        token: The token, or None.
        host: The address on which the server listens.

    Raises:
        SettingError: If the token is weak, or missing although other machines can reach the host.
    """

    def __init__(self, token: str | None, host: str = "127.0.0.1") -> None:
        if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
            raise SettingError(f"the token must have at least {MIN_TOKEN} printable ASCII characters")
        if token is None and not is_loopback(host):
            raise SettingError(f"other machines can reach {host}: pass a token")
        self._secret = None if token is None else token.encode()

    @property
    def needs_token(self) -> bool:
        """Whether there is a token."""
        return self._secret is not None

    def caller(self, text: str) -> Caller | None:
        """Returns a viewer if the text is the token, which is compared in constant time."""
        if self._secret is None or hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._secret):
            return Caller("viewer")
        return None
