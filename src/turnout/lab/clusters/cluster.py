"""What the clusters have in common: their address, their number of workers, and the errors of those that are gone."""

from __future__ import annotations

import importlib.util
import socket
from typing import ClassVar

from turnout.errors import ClusterError, SettingError, first_line
from turnout.kernel.arrays import as_count
from turnout.kernel.backend import available_cores
from turnout.lab.runs.executors import Executor

#: How long to wait for an answer of a cluster, in seconds.
ANSWER_SECONDS = 10.0


class Cluster(Executor):
    """An executor on a cluster, connected while it is open (`with`).

    Args:
        address: "auto" or HOST:PORT of a running cluster; None starts one on this machine, and ends it at the end.
        workers: The number of processes if the cluster is started; by default one per core.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    advice: ClassVar[str]  # how a cluster is started

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise SettingError(
                f"the backend {self.name.lower()} needs the package {self.package}: pip install 'turnout[cluster]'"
            )
        if address is not None and workers is not None:
            raise SettingError(
                "the number of workers is that of the cluster: omit it, or omit the address", argument="workers"
            )
        if address not in (None, "auto"):
            _split_address(str(address))
        self.address = address
        self._started = available_cores() if workers is None else as_count("workers", workers, SettingError)

    def check_listening(self, address: str) -> None:
        """Raises ClusterError if nothing listens at this address.

        The clients of the frameworks retry for a long time, and their messages do not name the reason.
        """
        try:
            socket.create_connection(_split_address(address), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise self.unreachable(address, error) from error

    def unreachable(self, address: str, error: Exception) -> ClusterError:
        """Returns the error for a cluster that does not answer."""
        reason = getattr(error, "strerror", None) or first_line(error)
        return ClusterError(f"no {self.name} cluster answers at {address} ({reason}): {self.advice}")

    def lacks_module(self, error: BaseException) -> ClusterError:
        """Returns the error for a worker that cannot import a module."""
        return ClusterError(f"a worker of {self.name} lacks a module ({error}): install turnout on every machine")


def _split_address(address: str) -> tuple[str, int]:
    """Returns host and port of an address such as "10.0.0.5:6379" or "ray://head:10001"."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingError(f"the address of a cluster must be 'auto' or HOST:PORT, not {address!r}", argument="address")
    return host.strip("[]"), int(port)
