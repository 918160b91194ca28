"""A client of `turnout fleet serve`, with the standard library only.

TurnoutError
 └─ ServiceError             a call over HTTP has failed
     ├─ RefusedError         the service has refused it, and would refuse it again
     └─ UnavailableError     there was no answer, or the service was too busy, as often as it was tried
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import secrets
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from turnout.errors import SettingError, TurnoutError
from turnout.live import GivenTurn, Wait

__all__ = [
    "AsyncFleetClient",
    "FleetClient",
    "OpenedRound",
    "RefusedError",
    "ServiceError",
    "ServiceEvent",
    "UnavailableError",
]

#: The statuses after which a call is tried again: the service, or a proxy before it, cannot execute it now.
RETRIED = (429, 502, 503, 504)
#: The pause before the second attempt is up to this many seconds, and doubles with each attempt up to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
#: The largest answer that is read, in bytes.
MOST_BYTES = 1 << 28
#: The most reports that are sent in one request.
REPORTS_AT_ONCE = 10_000
#: The most calls of an AsyncFleetClient at the same time.
THREADS = 32
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ServiceError(TurnoutError):
    """A call over HTTP has failed.

    Attributes:
        status: The HTTP status; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RefusedError(ServiceError):
    """The service has refused the call, with the message of the library."""


class UnavailableError(ServiceError):
    """There was no answer, or the service was too busy, as often as it was tried."""


@dataclass(frozen=True, slots=True)
class OpenedRound:
    """A round that was opened.

    Attributes:
        round: Its number.
        cohort: The ids of the selected clients.
        deadline: The seconds after which a client is late, or None.
        wanted: The number of updates after which it can be closed.
    """

    round: int
    cohort: list[str]
    deadline: float | None
    wanted: int


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """Something that happened in a fleet.

    Attributes:
        kind: "joined", "retired", "forgotten", "amended", "closed" or "filled"; or "state", which is sent whenever the
            reports of the open round, or the turns under way, have changed.
        data: What happened, as the service describes it.
        number: The number of the event; that of the event before it for "state".
    """

    kind: str
    data: dict[str, Any]
    number: int


class FleetClient:
    """Calls a fleet that `turnout fleet serve` serves; its methods are those of `Scheduler`.

    Threads may share a client.

    A call that gets no answer, or is refused because the service is busy, is sent again, with the same key: the service
    executes it once.

    Args:
        address: The address of the fleet, such as "http://127.0.0.1:8080/v1/fleets/fleet".
        token: The token; None if the service needs none.
        timeout: The seconds to wait for an answer.
        attempts: How often a call is sent at most.
        authorities: A file of certificate authorities (PEM) for an address with https; by default those of the system.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        attempts: int = 8,
        authorities: Path | None = None,
    ) -> None:
        parts = urlsplit(address)
        is_fleet = re.search(r"/v1/fleets/[^/]+/?$", parts.path) is not None  # a proxy may put something before it
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_fleet or parts.query or parts.fragment:
            raise SettingError(
                f"address must be that of a fleet, such as http://127.0.0.1:8080/v1/fleets/fleet, got {address!r}"
            )
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise SettingError("token must be one line of ASCII characters without spaces: strip what surrounds it")
        if attempts < 1:
            raise SettingError(f"attempts must be at least 1, got {attempts}")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._timeout, self._attempts = timeout, attempts
        self._headers = {"accept": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._tls = ssl.create_default_context(cafile=authorities) if parts.scheme == "https" else None
        self._local = threading.local()
        self._mutex = threading.Lock()
        self._connections: list[http.client.HTTPConnection] = []

    # Clients and settings

    def register(self, clients: Sequence[str]) -> int:
        """Adds clients before they are first available; returns how many of them are new."""
        return int(self._post("clients", {"clients": list(clients)})["new"])

    def amend(self, /, **settings: Any) -> list[str]:
        """Changes settings of the fleet from the next round on; returns the names of those that differ."""
        return list(self._post("amendments", {"settings": settings})["changed"])

    def retire(self, client: str) -> None:
        """Excludes a client that has left for good."""
        self._post("retirements", {"client": client})

    def forget(self, client: str) -> None:
        """Removes the id, all reports and the tokens of a client."""
        self._post("removals", {"client": client})

    # Rounds

    def choose(self, statuses: Mapping[str, Any] | Collection[str]) -> OpenedRound:
        """Selects the cohort of the next round; while a round is open, returns it again.

        Args:
            statuses: The available clients: statuses by id (a mapping of numbers, a ClientStatus or None), or ids.
        """
        found = self._post("rounds", _available(statuses))
        return OpenedRound(found["round"], found["cohort"], found["deadline"], found["wanted"])

    def close_round(self, after: float | None = None) -> dict[str, Any]:
        """Closes the round with the clients that have reported; returns its number and its turns."""
        return self._post("rounds/close", {"after": after})

    def abandon_round(self) -> int:
        """Cancels a round without any reports; returns its number."""
        return int(self._post("rounds/abandon", {})["round"])

    def round_state(self) -> dict[str, Any]:
        """Returns the open round ("open", or None), and whether it can be closed ("ready")."""
        return self._get("round")

    # Turns without rounds

    def check_in(self, client: str | None = None, status: Any = None) -> GivenTurn | Wait:
        """Asks for work: returns a turn, or how long to wait. With the token of a device, leave out the client."""
        found = self._post("check-ins", {"client": client, "status": _plain(status)})
        if found["turn"] is not None:
            return _turn(found["turn"])
        return Wait(found["wait"]["seconds"], found["wait"]["why"])

    def fill(self, statuses: Mapping[str, Any] | Collection[str]) -> list[GivenTurn]:
        """Gives one client a turn for every free slot; returns the new turns."""
        return [_turn(turn) for turn in self._post("turns", _available(statuses))["turns"]]

    def in_flight(self) -> list[GivenTurn]:
        """Returns the turns whose results are not known yet."""
        return [_turn(turn) for turn in self._get("turns")["turns"]]

    # Outcomes

    def report(
        self,
        client: str | int | None = None,
        seconds: float | None = None,
        *,
        loss: float | None = None,
        round: int | None = None,
    ) -> bool:
        """Records that the update of a client arrived; returns False if that was recorded before.

        Args:
            client: The id of the client, or of the turn in a fleet with a concurrency. With the token of a device in a
                fleet with rounds, leave it out.
            seconds: The exchange time; by default the time since the selection.
            loss: The mean training loss.
            round: The round in which the client was selected; by default the latest.
        """
        return bool(self._post("reports", {**_whose(client, round), "seconds": seconds, "loss": loss})["new"])

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> tuple[int, dict[str, str]]:
        """Records many arrivals; returns how many are new, and for those that were refused, why.

        Unlike that of `Scheduler`, it records all reports that are valid although others are refused.
        """
        ids, new = list(seconds), 0
        refused: dict[str, str] = {}
        for start in range(0, len(ids), REPORTS_AT_ONCE):
            part = ids[start : start + REPORTS_AT_ONCE]
            reports = [
                {"client": client, "seconds": seconds[client], "loss": (losses or {}).get(client), "round": round}
                for client in part
            ]
            found = self._post("reports/batch", {"reports": reports})
            new += found["new"]
            refused |= {part[entry["index"]]: entry["error"] for entry in found["refused"]}
        return new, refused

    def report_failure(self, client: str | int | None, why: str, *, round: int | None = None) -> bool:
        """Records that a client failed, and why; returns False if that was recorded before."""
        return bool(self._post("failures", {**_whose(client, round), "why": why})["new"])

    # Queries

    def status(self) -> dict[str, Any]:
        """Returns the state of the fleet, and whether its promise is kept."""
        return self._get("")

    def certificate(self, client: str | None = None, *, limit: int = 20) -> dict[str, Any]:
        """Returns what a client, or those that are furthest behind, were promised and got."""
        return self._get("certificate", client=client, limit=limit)

    def explain(self, client: str, round: int | None = None) -> dict[str, Any]:
        """Explains why a client was selected in a round, by default the latest, or what it lacked."""
        return self._get("explanation", client=client, round=round)

    def history(self, client: str, *, limit: int = 100) -> list[dict[str, Any]]:
        """Returns the newest turns of a client, oldest first, with their outcomes."""
        return list(self._get("history", client=client, limit=limit)["turns"])

    def events(self, after: int | None = None, *, follow: bool = True) -> Iterator[ServiceEvent]:
        """Yields what happens; if the stream breaks off, it is opened again after the last event that was yielded.

        Args:
            after: The number of the last event that you have; 0 for all that are kept; by default from now on.
            follow: Whether to wait for further events; otherwise, the iteration ends after the newest.

        Raises:
            RefusedError: If the next events are no longer kept.
            UnavailableError: If the stream cannot be opened again.
        """
        failures, problem = 0, ""
        while failures < self._attempts:
            if failures:
                time.sleep(_pause(failures, 0.0))
            connection = self._make_connection()
            try:
                for event in self._stream(connection, after, follow=follow):
                    failures, after = 0, event.number
                    yield event
                if not follow:
                    return
            except (OSError, http.client.HTTPException, UnavailableError) as error:
                failures, problem = failures + 1, f"{type(error).__name__}: {error}"
            finally:
                connection.close()
        raise UnavailableError(f"{self._host} did not send its events in {self._attempts} attempts: {problem}")

    def close(self) -> None:
        """Closes all connections; later calls open new ones."""
        with self._mutex:
            connections, self._connections = self._connections, []
            self._local = threading.local()
        for connection in connections:
            connection.close()

    def __repr__(self) -> str:
        return f"FleetClient({self._host!r}, {self._path!r})"  # without the token

    def __enter__(self) -> FleetClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Requests

    def _get(self, path: str, **query: Any) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", f"{path}?{urlencode(given, quote_via=quote)}" if given else path, None, {})

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in body.items() if value is not None}
        headers = {"content-type": "application/json", "idempotency-key": secrets.token_urlsafe(18)}
        return self._call("POST", path, json.dumps(given).encode(), headers)

    def _call(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> dict[str, Any]:
        """Sends a request until it is answered, at most `attempts` times."""
        address = f"{self._path}/{path}" if path and not path.startswith("?") else f"{self._path}{path}"
        problem, retry_after, status = "", 0.0, None
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(_pause(attempt, retry_after))
            try:
                status, retry_after, content = self._send(method, address, body, headers)
            except (OSError, http.client.HTTPException) as error:
                problem, retry_after, status = f"{type(error).__name__}: {error}", 0.0, None
                continue
            data = _parse(content)
            if status == 200 and data is not None:
                return data
            problem = str((data or {}).get("error", f"the answer has status {status}, and is not JSON"))
            if status not in RETRIED:
                raise RefusedError(problem, status)
        raise UnavailableError(
            f"{self._host} did not execute {method} {address.partition('?')[0]} in {self._attempts} attempts: "
            f"{problem}",
            status,
        )

    def _send(
        self, method: str, address: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, float, bytes]:
        """Returns the status of the answer, the seconds after which to try again, and its body."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._connect()
        try:
            connection.request(method, address, body, {**self._headers, **headers})
            response = connection.getresponse()
            content = _read(response)
        except BaseException:
            connection.close()  # it is opened again by the next request
            raise
        pause = response.getheader("retry-after", "")
        return response.status, float(pause) if pause.isdecimal() else 0.0, content

    def _stream(
        self, connection: http.client.HTTPConnection, after: int | None, *, follow: bool
    ) -> Iterator[ServiceEvent]:
        """Yields the events of one stream until it ends."""
        query = {"follow": "true" if follow else "false"} | ({} if after is None else {"after": str(after)})
        connection.request("GET", f"{self._path}/events?{urlencode(query)}", headers=self._headers)
        response = connection.getresponse()
        if response.status != 200:
            data = _parse(_read(response)) or {}
            kind = UnavailableError if response.status in RETRIED else RefusedError
            raise kind(str(data.get("error", f"the answer has status {response.status}")), response.status)
        fields: dict[str, str] = {}
        while line := response.readline(MOST_BYTES):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                data = json.loads(fields["data"])
                if fields["event"] == "stale":
                    raise RefusedError(str(data["error"]), 410)
                if fields["event"] == "trouble":
                    raise UnavailableError(str(data["error"]), 503)
                yield ServiceEvent(fields["event"], data, int(fields["id"]))
                fields = {}

    def _connect(self) -> http.client.HTTPConnection:
        """Returns a new connection of this thread; it is opened with the first request."""
        connection = self._make_connection()
        with self._mutex:
            self._connections.append(connection)
            self._local.connection = connection
        return connection

    def _make_connection(self) -> http.client.HTTPConnection:
        make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._tls is not None:
            make = partial(http.client.HTTPSConnection, context=self._tls)
        return make(self._host, self._port, timeout=self._timeout)


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
    """The same as `FleetClient`, for asyncio; at most 32 calls are under way at the same time.

    Args:
        client: The client, which `close` closes.
    """

    def __init__(self, client: FleetClient) -> None:
        self.client, self.threads = client, ThreadPoolExecutor(THREADS, "turnout-client")

    register = _in_thread(FleetClient.register)
    amend = _in_thread(FleetClient.amend)
    retire = _in_thread(FleetClient.retire)
    forget = _in_thread(FleetClient.forget)
    choose = _in_thread(FleetClient.choose)
    close_round = _in_thread(FleetClient.close_round)
    abandon_round = _in_thread(FleetClient.abandon_round)
    round_state = _in_thread(FleetClient.round_state)
    check_in = _in_thread(FleetClient.check_in)
    fill = _in_thread(FleetClient.fill)
    in_flight = _in_thread(FleetClient.in_flight)
    report = _in_thread(FleetClient.report)
    report_many = _in_thread(FleetClient.report_many)
    report_failure = _in_thread(FleetClient.report_failure)
    status = _in_thread(FleetClient.status)
    certificate = _in_thread(FleetClient.certificate)
    explain = _in_thread(FleetClient.explain)
    history = _in_thread(FleetClient.history)

    async def events(self, after: int | None = None, *, follow: bool = True) -> AsyncIterator[ServiceEvent]:
        """Yields what happens, as `FleetClient.events` does; a stream that is waited for takes one of the calls."""
        found, loop = self.client.events(after, follow=follow), asyncio.get_running_loop()
        while (event := await loop.run_in_executor(self.threads, next, found, None)) is not None:
            yield event

    async def close(self) -> None:
        """Waits for calls that are under way, and closes all connections."""
        await asyncio.to_thread(self.threads.shutdown)
        self.client.close()

    async def __aenter__(self) -> AsyncFleetClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _pause(attempt: int, retry_after: float) -> float:
    """Returns the seconds before an attempt: random, so that clients that failed together do not return together."""
    return min(retry_after, LONGEST_PAUSE) + random.uniform(0, min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE))


def _read(response: http.client.HTTPResponse) -> bytes:
    """Returns the body of an answer; raises HTTPException if a part of it is missing, or if it is too large."""
    size, parts = response.length or 0, []
    if response.length is not None and size <= MOST_BYTES:
        return response.read()  # with a number of bytes, it would not notice that some are missing
    while size <= MOST_BYTES and (part := response.read(1 << 16)):
        parts.append(part)
        size += len(part)
    if size > MOST_BYTES:
        raise http.client.HTTPException(f"the answer has more than {MOST_BYTES:,} bytes")
    return b"".join(parts)


def _parse(content: bytes) -> dict[str, Any] | None:
    """Returns the object of an answer; None if it is none, for example a page of a proxy."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _available(statuses: Mapping[str, Any] | Collection[str]) -> dict[str, Any]:
    if isinstance(statuses, str):
        raise SettingError(f"statuses must be a mapping of ids to statuses or a list of ids, got {statuses!r}")
    if isinstance(statuses, Mapping):
        return {"statuses": {client: _plain(status) for client, status in statuses.items()}}
    return {"clients": sorted(statuses) if isinstance(statuses, set | frozenset) else list(statuses)}


def _plain(status: Any) -> Any:
    """Returns a status as a mapping of numbers; None if nothing is known."""
    return asdict(status) if is_dataclass(status) and not isinstance(status, type) else status


def _whose(client: str | int | None, round: int | None) -> dict[str, Any]:
    if isinstance(client, int):
        return {"turn": client}
    return {"client": client, "round": round}


def _turn(data: Mapping[str, Any]) -> GivenTurn:
    return GivenTurn(data["id"], data["client"], data["deadline"], data["reasons"])
