"""Holds check-ins until their devices are given turns, as the header `Prefer: wait=30` asks (RFC 7240)."""

from __future__ import annotations

import asyncio
import json
import time

from starlette.requests import Request
from starlette.responses import Response

from turnout.live import Scheduler
from turnout.service.calls import Answer, FleetCalls, GroupedCall, RequestKey
from turnout.service.holding import HeldCheckIn
from turnout.web.guard import JSON, is_still_allowed

#: The longest time for which a check-in is held, in seconds; proxies often close connections that are silent longer.
MAX_SECONDS = 60
#: Where the scope of a request says for how many seconds it was held.
HELD_FIELD = "turnout.held_seconds"
#: The header in the OpenAPI document.
PARAMETER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`wait=30`: a device that would be told to wait is answered as soon as it is given a turn, or after "
    f"30 seconds; at most {MAX_SECONDS}, and at most `status_ttl`. The answer then has `Preference-Applied: wait`. A "
    "newer check-in of the same client ends the wait.",
    "schema": {"type": "string"},
    "example": "wait=30",
}


def preferred_seconds(request: Request) -> int:
    """Returns for how many seconds a request may be held; 0 if it does not ask for it."""
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        seconds = value.strip().strip('"')
        if name.strip().lower() == "wait" and seconds.isascii() and seconds.isdecimal():
            return min(int(seconds[:9]), MAX_SECONDS)
    return 0


class WaitingCheckIn:
    """A check-in that may be held.

    Args:
        calls: The calls of the fleet.
        request: The request; it ends if the device disconnects.
        key: The key of the request, if it has one.
        check_in: Checks the device in.
        listen: Does the same for a device that is told when it is given a turn.
    """

    def __init__(
        self, calls: FleetCalls, request: Request, key: RequestKey | None, check_in: GroupedCall, listen: GroupedCall
    ) -> None:
        self._calls, self._request, self._key = calls, request, key
        self._check_in, self._listen = check_in, listen
        self._ttl = float(MAX_SECONDS)

    async def answer(self, client: str, seconds: float) -> Response:
        """Answers when the client is given a turn, or after so many seconds."""
        with self._calls.held.placing(client) as place:
            if place is None:
                return Response(await self._calls.execute(self._check_in, self._key), media_type=JSON)
            gone = asyncio.ensure_future(_disconnection(self._request))
            try:
                text = await self._wait(place, gone, seconds)
            finally:
                gone.cancel()
        is_held = HELD_FIELD in self._request.scope
        return Response(text, media_type=JSON, headers={"preference-applied": "wait"} if is_held else None)

    async def _wait(self, place: HeldCheckIn, gone: asyncio.Future[None], seconds: float) -> str:
        """Returns the answer for a device that waits in its place; `gone` is done when it has disconnected."""
        start = time.monotonic()
        while True:
            place.woken.clear()
            text = await self._calls.execute(self._note_ttl, self._key)
            wait, left = json.loads(text)["wait"], start + min(seconds, self._ttl) - time.monotonic()
            if wait is None:
                return text
            self._request.scope.setdefault(HELD_FIELD, 0.0)
            if left > 0 and not place.is_over:
                woken = asyncio.ensure_future(place.woken.wait())
                await asyncio.wait((woken, gone), timeout=min(left, wait["seconds"]), return_when="FIRST_COMPLETED")
                woken.cancel()
                self._request.scope[HELD_FIELD] = time.monotonic() - start
            if gone.done() or place.is_replaced or not is_still_allowed(self._request.scope):
                return text  # without a turn that nobody would take
            if place.is_over or time.monotonic() >= start + min(seconds, self._ttl):
                return await self._calls.execute(self._check_in, self._key)

    def _note_ttl(self, scheduler: Scheduler) -> Answer:
        """Checks the device in, and notes for how long its status is used."""
        self._ttl = scheduler.settings.status_ttl
        return self._listen(scheduler)


async def _disconnection(request: Request) -> None:
    """Returns when the caller has gone; its body was received before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
