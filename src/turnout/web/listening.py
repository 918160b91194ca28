"""Sockets on which a server listens."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from turnout.errors import SettingError

#: The number of connections that may wait to be accepted.
BACKLOG = 128


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


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Returns the URL of a server that listens on a socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
