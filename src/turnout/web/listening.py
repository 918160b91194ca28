"""Sockets on which a server listens."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

from turnout.errors import SettingError
from turnout.log import get_log
from turnout.web.connections import Limits

if sys.platform != "win32":
    import resource

log = get_log("turnout.web")
#: The number of connections that may wait to be accepted.
BACKLOG = 128
#: The number of files that a server opens besides its connections.
OTHER_FILES = 200


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """Returns a socket that listens on the first of these ports that is free; 0 stands for any free port.

    Raises:
        SettingError: If none is free, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for index, port in enumerate(ports):
        listener = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # where it would let two servers listen on the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if index + 1 < len(ports):
                continue
            raise SettingError(
                f"cannot listen on {host} port {port} ({error.strerror or error}): pass another host or port",
                argument="port",
            ) from error
        else:
            return listener
    raise AssertionError("unreachable")


def allow_files(limits: Limits) -> Limits:
    """Lets the process open files for so many connections, if it may; returns limits that it can keep."""
    if sys.platform == "win32":  # has no such limit
        return limits
    needed, (soft, hard) = limits.most_connections + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # a negative number stands for no limit
        soft = needed if hard < 0 else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not 0 <= soft < needed:
        return limits
    possible = max(10, (soft - OTHER_FILES) * 9 // 10)
    log.warning("only %d connections are possible: let the process open %d files, not %d", possible, needed, soft)
    return replace(limits, connections=possible)


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Returns the URL of a server that listens on a socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
