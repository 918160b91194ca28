"""A client of a fleet, whose methods are those of `Scheduler`, and the same for asyncio."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from turnout.client.transport import RefusedError, ServiceEvent, Transport
from turnout.closing import Closable
from turnout.errors import SettingError
from turnout.live import RunningTurn, Wait

#: The most reports that are sent in one request.
REPORTS_AT_ONCE = 10_000
#: The entries of a list that are read with one request.
ENTRIES_AT_ONCE = 10_000
#: The most calls of an AsyncFleetClient at the same time.
THREADS = 32
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OpenedRound:
    """A round that was opened.

    Attributes:
        round: Its number.
        cohort: The ids of the selected clients.
        deadline: The seconds after which a client is late, or None.
        target_size: The number of updates after which it can be closed.
        selected_at: When it was opened, by the wall clock of the service in UTC, in ISO format.
        deadline_at: When a client is late, in the same form, or None.
        clients: What is known about each of the cohort: its "client", its "expected_seconds" (or None), whether it was
            "timed" before, and how many turns it is "behind" (None without a promise).
    """

    round: int
    cohort: list[str]
    deadline: float | None
    target_size: int
    selected_at: str
    deadline_at: str | None
    clients: list[dict[str, Any]]


class FleetClient(Transport, Closable):
    """Calls a fleet that `turnout fleet serve` serves; its methods are those of `Scheduler`.

    Threads may share a client.

    A call that gets no answer, or is refused because the service is busy, is sent again, with the same key: the service
    executes it once.

    Args:
        address: The address of the fleet, such as "http://127.0.0.1:8080/v1/fleets/fleet"; several, as a list or
            separated by commas, if services take over from each other: each attempt asks one after the other.
        token: The token; None if the service needs none.
        timeout: The seconds to wait for an answer.
        attempts: How often a call is sent at most.
        authorities: A file of certificate authorities (PEM) for an address with https; by default those of the system.
    """

    # Clients and settings

    def register(self, clients: Sequence[str]) -> int:
        """Adds clients before they are first available; returns how many of them are new."""
        return int(self._post("clients", {"clients": list(clients)})["new"])

    def clients(self) -> list[dict[str, Any]]:
        """Returns all clients in the order in which they joined: their ids, and whether they have retired."""
        return self._all("clients", "clients")

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the fleet ("settings"), its features, and a tag for `amend` ("etag")."""
        return self._get("settings")

    def amend(self, /, *, if_match: str | None = None, **settings: Any) -> list[str]:
        """Changes settings of the fleet from the next round on; returns the names of those that differ.

        Args:
            if_match: The "etag" of `settings`; if they were amended since, the call is refused.
            settings: The new values.
        """
        headers = {} if if_match is None else {"if-match": if_match}
        return list(self._post("amendments", {"settings": settings}, headers)["changed"])

    def retire(self, client: str) -> None:
        """Excludes a client that has left for good."""
        self._post("retirements", {"client": client})

    def forget(self, client: str) -> None:
        """Removes the id, all reports and the tokens of a client."""
        self._post("removals", {"client": client})

    # Rounds

    def choose(self, statuses: Mapping[str, Any] | Collection[str], *, cold: Collection[str] = ()) -> OpenedRound:
        """Selects the cohort of the next round; while a round is open, returns it again.

        Args:
            statuses: The available clients: statuses by id (a mapping of numbers, a ClientStatus or None), or ids.
            cold: The ids of those that have just started: how long their exchange takes is not learned.
        """
        opened = self._post("rounds", _available(statuses, cold))
        return OpenedRound(**{each.name: opened[each.name] for each in fields(OpenedRound)})

    def close_round(self, after: float | None = None, *, round: int | None = None) -> dict[str, Any]:
        """Closes a round with the clients that have reported; returns its number and its turns.

        Args:
            after: Without a deadline, missing clients took at least so many seconds; by default until now.
            round: The number of the round; by default the one that is open when the call begins.
        """
        return self._post(f"rounds/{self._open_round(round)}/close", {"after": after})

    def abandon_round(self, *, round: int | None = None) -> int:
        """Cancels a round without any reports, by default the open one; returns its number."""
        return int(self._post(f"rounds/{self._open_round(round)}/abandon", {})["round"])

    def round_state(self) -> dict[str, Any]:
        """Returns the open round ("open", or None), and whether it can be closed ("ready")."""
        return self._get("round")

    def round(self, round: int) -> dict[str, Any]:
        """Returns a round, open or closed: whether it "is_open", and all its "turns" with their outcomes."""
        is_open = self._get(f"rounds/{round}", limit=1)["is_open"]
        return {"round": round, "is_open": is_open, "turns": self._all(f"rounds/{round}", "turns")}

    # Turns without rounds

    def check_in(self, client: str | None = None, status: Any = None, *, wait: int = 0) -> RunningTurn | Wait:
        """Asks for work: returns a turn, or how long to wait. With the token of a device, leave out the client.

        Args:
            client: The client.
            status: Its status: a mapping of numbers, a ClientStatus, or None if nothing is known.
            wait: For how many seconds the service may wait for a turn before it answers; it waits for at most 60. The
                timeout begins after them.
        """
        headers = {"prefer": f"wait={wait}"} if wait else {}
        answer = self._post("check-ins", {"client": client, "status": _plain(status)}, headers, wait)
        if answer["turn"] is not None:
            return _turn(answer["turn"])
        return Wait(answer["wait"]["seconds"], answer["wait"]["why"])

    def fill(self, statuses: Mapping[str, Any] | Collection[str], *, cold: Collection[str] = ()) -> list[RunningTurn]:
        """Gives one client a turn for every free slot; returns the new turns. The arguments are those of `choose`."""
        return [_turn(turn) for turn in self._post("turns", _available(statuses, cold))["turns"]]

    def running(self) -> list[RunningTurn]:
        """Returns the turns whose results are not known yet."""
        return [_turn(turn) for turn in self._all("turns", "turns")]

    # Outcomes

    def report(
        self,
        client: str | int | None = None,
        seconds: float | None = None,
        *,
        loss: float | None = None,
        signals: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> bool:
        """Records that the update of a client arrived; returns False if that was recorded before.

        Args:
            client: The id of the client, or of the turn in a fleet with a concurrency. With the token of a device in a
                fleet with rounds, leave it out.
            seconds: The exchange time; by default the time since the selection.
            loss: The mean training loss.
            signals: Numbers by the names of signals that the fleet declares.
            round: The round in which the client was selected; by default the latest.
        """
        return bool(self._post("reports", _report(client, round, seconds, loss, signals))["new"])

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        signals: Mapping[str, Mapping[str, float]] | None = None,
        round: int | None = None,
    ) -> tuple[int, dict[str, str]]:
        """Records many arrivals; returns how many are new, and for those that were refused, why.

        Unlike that of `Scheduler`, it records all reports that are valid although others are refused.
        """
        ids, new, losses, signals = list(seconds), 0, losses or {}, signals or {}
        refused: dict[str, str] = {}
        for start in range(0, len(ids), REPORTS_AT_ONCE):
            part = ids[start : start + REPORTS_AT_ONCE]
            reports = [
                _report(client, round, seconds[client], losses.get(client), signals.get(client)) for client in part
            ]
            answer = self._post("reports/batch", {"reports": reports})
            new += answer["new"]
            refused |= {part[entry["index"]]: entry["detail"] for entry in answer["refused"]}
        return new, refused

    def report_failure(self, client: str | int | None, why: str, *, round: int | None = None) -> bool:
        """Records that a client failed, and why; returns False if that was recorded before."""
        return bool(self._post("failures", {**_whose(client, round), "why": why})["new"])

    # Queries

    def status(self) -> dict[str, Any]:
        """Returns the state of the fleet, and whether its promise is kept."""
        return self._get("")

    def certificate(self, client: str | None = None, *, limit: int = 20, after: str | None = None) -> dict[str, Any]:
        """Returns what a client, or those that are furthest behind, were promised and got.

        The value of "next", passed as `after`, gives the clients that follow; it is None at the end.
        """
        return self._get("certificate", client=client, limit=limit, after=after)

    def explain(self, client: str, round: int | None = None) -> dict[str, Any]:
        """Explains why a client was selected in a round, by default the latest, or what it lacked."""
        return self._get("explanation", client=client, round=round)

    def history(self, client: str, *, limit: int = 100) -> list[dict[str, Any]]:
        """Returns the newest turns of a client, oldest first, with their outcomes."""
        return list(reversed(self._get("history", client=client, limit=limit)["turns"]))

    def __repr__(self) -> str:
        return f"FleetClient({self._hosts!r}, {self._servers[0].path!r})"  # without the token

    # Requests

    def _get(self, path: str, **query: Any) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", f"{path}?{urlencode(given, quote_via=quote)}" if given else path, None, {})

    def _all(self, path: str, name: str) -> list[dict[str, Any]]:
        """Returns all entries of a list, one part after the other."""
        entries: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            part = self._get(path, limit=ENTRIES_AT_ONCE, after=after)
            entries += part[name]
            after = part["next"]
            if after is None:
                return entries

    def _post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, patience: float = 0.0
    ) -> dict[str, Any]:
        given = {name: value for name, value in body.items() if value is not None}
        sent = {"content-type": "application/json", "idempotency-key": secrets.token_urlsafe(18), **(headers or {})}
        return self._call("POST", path, json.dumps(given).encode(), sent, patience)

    def _open_round(self, round: int | None) -> int:
        """Returns the number of a round; by default that of the open one."""
        if round is not None:
            return round
        opened = self.round_state()["open"]
        if opened is None:
            raise RefusedError("no round is open: choose first", 409, "no_open_round")
        return int(opened["round"])


def _available(statuses: Mapping[str, Any] | Collection[str], cold: Collection[str]) -> dict[str, Any]:
    if isinstance(statuses, str):
        raise SettingError(f"statuses must be a mapping of ids to statuses or a list of ids, got {statuses!r}")
    started = {"cold": sorted(cold)} if cold else {}
    if isinstance(statuses, Mapping):
        return {"statuses": {client: _plain(status) for client, status in statuses.items()}, **started}
    return {"clients": sorted(statuses) if isinstance(statuses, set | frozenset) else list(statuses), **started}


def _plain(status: Any) -> Any:
    """Returns a status as a mapping of numbers; None if nothing is known."""
    return asdict(status) if is_dataclass(status) and not isinstance(status, type) else status


def _whose(client: str | int | None, round: int | None) -> dict[str, Any]:
    if isinstance(client, int):
        return {"turn": client}
    return {"client": client, "round": round}


def _report(
    client: str | int | None, round: int | None, seconds: float | None, loss: Any, signals: Any
) -> dict[str, Any]:
    return {**_whose(client, round), "seconds": seconds, "loss": loss, "signals": signals}


def _turn(data: Mapping[str, Any]) -> RunningTurn:
    return RunningTurn(data["id"], data["client"], data["deadline"], data["reasons"], data["selected_at"])


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
