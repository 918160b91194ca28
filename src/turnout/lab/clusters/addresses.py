"""Addresses of clusters, and the errors of those that cannot be reached."""

from __future__ import annotations

import importlib.util
import socket

from turnout.errors import ClusterError, SettingError

#: How long to wait for an answer of a cluster, in seconds.
ANSWER_SECONDS = 10.0


def require_package(module: str, backend: str) -> None:
    """Raises SettingError, which says what to install, if a package is missing."""
    if importlib.util.find_spec(module) is None:
        raise SettingError(f"the backend {backend} needs the package {module}: pip install 'turnout[cluster]'")


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of an address such as "10.0.0.5:6379" or "ray://head:10001"."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingError(f"the address of a cluster must be 'auto' or HOST:PORT, not {address!r}", argument="address")
    return host.strip("[]"), int(port)


def check_listening(address: str, backend: str, advice: str) -> None:
    """Raises ClusterError if nothing listens at this address.

    The clients of the frameworks retry for a long time, and their messages do not name the reason.
    """
    try:
        socket.create_connection(split_address(address), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise unreachable(backend, address, error.strerror or str(error) or type(error).__name__, advice) from error


def unreachable(backend: str, address: str, reason: str, advice: str) -> ClusterError:
    """Returns the error for a cluster that does not answer."""
    return ClusterError(f"no {backend} cluster answers at {address} ({reason}): {advice}")
