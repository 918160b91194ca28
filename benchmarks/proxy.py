"""A proxy of a PostgreSQL cluster that cuts connections, or loses everything in silence."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from turnout.storage.address import DatabaseAddress

SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Forwards connections to a cluster, and cuts one at the message that a rule names.

    Args:
        target: The folder of the cluster.
        folder: The folder of the socket of this proxy.

    Attributes:
        rule: Returns what happens to a message of a client: "before" loses it, "after" loses the answer to it; None
            forwards both.
        fault: Called when one of them would be lost; it is forwarded nevertheless if this returns True. Otherwise the
            connection is closed, or says no more if this has called `silence`.
    """

    def __init__(self, target: Path, folder: Path) -> None:
        self.folder, self._target = folder, str(target / SOCKET)
        self.rule: Callable[[bytes], str | None] = lambda _: None
        self.fault: Callable[[], bool] = lambda: False
        self._heard = threading.Event()  # cleared while everything is lost
        self._heard.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._end, self._ended = socket.socketpair()  # the second can be read once this is closed
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, name: str) -> DatabaseAddress:
        """Returns the address of the fleet with this name."""
        return DatabaseAddress.parse(f"postgresql:///postgres?host={self.folder}&user=turnout&fleet={name}")

    def cut_at(self, text: bytes, when: str, times: int = 1) -> None:
        """Cuts the next connections in which a message contains a text, "before" or "after" the server has got it."""
        left = [when] * times
        self.rule = lambda message: left.pop() if left and text in message else None

    def silence(self) -> None:
        """Loses everything from now on, in both directions, without closing a connection."""
        self._heard.clear()

    def heal(self) -> None:
        """Ends the silence; connections in which something was lost are closed."""
        self._heard.set()

    def close(self) -> None:
        """Accepts no more connections, and ends those that are open."""
        self.heal()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end.send(b"!")
        for thread in self._threads:
            thread.join()
        self._end.close()
        self._ended.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        """Forwards a connection until one of its ends is closed, or something of it is lost."""
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):  # also if the server does not run
            server.connect(self._target)
            is_lost = False
            while True:
                for source in select.select([client, server, self._ended], [], [])[0]:
                    if source is self._ended or self._is_silent() or not (message := source.recv(65_536)):
                        return
                    when = self.rule(message) if source is client else None
                    if when == "before" or (source is server and is_lost):
                        if not self.fault():
                            self._is_silent()
                            return
                        is_lost = False
                    is_lost |= when == "after"
                    (server if source is client else client).sendall(message)

    def _is_silent(self) -> bool:
        """Returns whether everything is lost, after the end of the silence."""
        if self._heard.is_set():
            return False
        self._heard.wait()
        return True
