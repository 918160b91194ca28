"""The same client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from turnout.client.fleet import FleetClient
from turnout.client.transport import ServiceEvent

#: The most calls of an AsyncFleetClient at the same time.
THREADS = 32
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _in_thread(
    method: Callable[Concatenate[FleetClient, Parameters], Result],
) -> Callable[Concatenate[AsyncFleetClient, Parameters], Coroutine[Any, Any, Result]]:
    """Returns a method that calls one of FleetClient in a thread."""

    @wraps(method)
    async def call(self: AsyncFleetClient, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        bound = partial(method, self.client, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self.threads, bound)

    return call


class AsyncFleetClient:
    """The same as `FleetClient`, for asyncio; at most 32 calls are running at the same time.

    Args:
        client: The client, which `close` closes.
    """

    def __init__(self, client: FleetClient) -> None:
        self.client, self.threads = client, ThreadPoolExecutor(THREADS, "turnout-client")

    register = _in_thread(FleetClient.register)
    clients = _in_thread(FleetClient.clients)
    settings = _in_thread(FleetClient.settings)
    amend = _in_thread(FleetClient.amend)
    retire = _in_thread(FleetClient.retire)
    forget = _in_thread(FleetClient.forget)
    choose = _in_thread(FleetClient.choose)
    close_round = _in_thread(FleetClient.close_round)
    abandon_round = _in_thread(FleetClient.abandon_round)
    round_state = _in_thread(FleetClient.round_state)
    round = _in_thread(FleetClient.round)
    check_in = _in_thread(FleetClient.check_in)
    fill = _in_thread(FleetClient.fill)
    running = _in_thread(FleetClient.running)
    report = _in_thread(FleetClient.report)
    report_many = _in_thread(FleetClient.report_many)
    report_failure = _in_thread(FleetClient.report_failure)
    status = _in_thread(FleetClient.status)
    certificate = _in_thread(FleetClient.certificate)
    explain = _in_thread(FleetClient.explain)
    history = _in_thread(FleetClient.history)

    async def events(self, after: int | None = None, *, follow: bool = True) -> AsyncIterator[ServiceEvent]:
        """Yields what happens, as `FleetClient.events` does; a stream that is waited for takes one of the calls."""
        events, loop = self.client.events(after, follow=follow), asyncio.get_running_loop()
        try:
            while (event := await loop.run_in_executor(self.threads, next, events, None)) is not None:
                yield event
        finally:
            events.close()  # otherwise the thread would wait for the next event although nobody does

    async def close(self) -> None:
        """Ends the streams, waits for calls that are running, and closes all connections."""
        self.client.close()
        await asyncio.to_thread(self.threads.shutdown)
        self.client.close()

    async def __aenter__(self) -> AsyncFleetClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
