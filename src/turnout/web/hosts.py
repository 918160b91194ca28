"""Host names and addresses that only this machine can reach."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::\d+)?")


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
