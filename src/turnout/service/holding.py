"""The check-ins of a fleet that are held, and when each of them is woken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from turnout.live import Scheduler
from turnout.live._internals import news_since

#: The most check-ins of a fleet that are held; further ones are answered at once. Each of them takes a connection.
MAX_HELD = 1000
#: How often it is looked for turns whose deadline has passed, or that another process has reported, in seconds.
LOOK_SECONDS = 1.0


class HeldCheckIn:
    """A check-in that is held, in its event loop.

    Attributes:
        woken: Set when the device should check in again, or is answered.
        is_over: Whether it is answered then.
        is_replaced: Whether it is, because its client has called again: this answer is probably read by nobody.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()
        self.is_over = self.is_replaced = False

    def wake(self) -> None:
        """Wakes it; any thread may do so."""
        try:
            self._loop.call_soon_threadsafe(self.woken.set)
        except RuntimeError:
            if not self._loop.is_closed():  # the server has ended, and nobody waits
                raise


class HeldCheckIns:
    """The check-ins of a fleet that are held: one for each client, the oldest first.

    Nobody asks for them. After each group of calls, and every second, the thread of the fleet looks for news: clients
    that were given turns check in again, and after the end of turns the device that has waited for the longest time
    does, which fills the slots among all devices that wait.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._places: dict[str, HeldCheckIn] = {}
        self._decision = self._free = 0
        self._is_ending = False

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def placing(self, client: str) -> Iterator[HeldCheckIn | None]:
        """Opens a block in which a client waits; None if too many do. An earlier call of the client is answered."""
        with self._mutex:
            earlier, place = self._places.pop(client, None), None
            if len(self._places) < MAX_HELD and not self._is_ending:
                place = self._places[client] = HeldCheckIn()
        if earlier is not None:
            earlier.is_over = earlier.is_replaced = True
            earlier.wake()
        try:
            yield place
        finally:
            with self._mutex:
                if place is not None and self._places.get(client) is place:
                    del self._places[client]

    def look(self, scheduler: Scheduler) -> None:
        """Wakes those for whom something has changed; the thread of the fleet calls it."""
        if not self._places:
            return
        news = news_since(scheduler, self._decision)
        with self._mutex:
            places = [self._places[client] for client in news.given if client in self._places]
            # One check-in fills all slots from those that are kept; slots that are still free need further ones.
            needed = max(int(news.has_ended), news.free if news.free > self._free else 0)
            places += islice(self._places.values(), needed)
            self._decision, self._free = news.decision, news.free
        for place in places:
            place.wake()

    def end(self) -> None:
        """Answers all of them, because the service is shutting down."""
        with self._mutex:
            self._is_ending = True
            places = list(self._places.values())
        for place in places:
            place.is_over = True
            place.wake()
