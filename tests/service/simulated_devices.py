"""Devices and servers that call a service which is killed again and again, and a ledger of what it has answered.

The ledger is a file beside the fleet, with a line before each call and a line after each answer. It knows nothing about
the fleet's file, so that the two can be compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from service.forked import ENDED, Forker
from waiting import MAX_WAIT, wait_until

#: The longest pause between two check-ins of a device, in seconds: shorter than it is asked for, to have more of them.
MAX_PAUSE = 0.5
#: The pause before a call that was not answered is sent again, and between two requests of a page.
PAUSE = 0.05
#: Every so many calls that have changed something are sent a second time, with the same key.
REPEATED = 7


class ForkedProcess:
    """A process whose output is in a file."""

    def __init__(self, forker: Forker, function: str, *arguments: str | Path, output: Path) -> None:
        output.touch()
        self._forker, self._output, self._start = forker, output, output.stat().st_size
        self._status: int | None = None
        self.number = forker.start(function, *arguments, output=output)

    def find(self, pattern: str) -> str:
        """Waits until the output has a line that begins with a pattern; returns the first group of it."""
        line = wait_until(
            lambda: re.search(rf"^(?:{pattern}|{ENDED}).*\n", self.text, re.M), f"{pattern} in the output"
        )
        assert line is not None
        assert not line[0].startswith(ENDED), self.text
        return line[1]

    @property
    def text(self) -> str:
        """What it has written."""
        return self._output.read_text(encoding="utf-8")[self._start :]

    def end(self, number: int = 0) -> int:
        """Sends a signal, and waits until the process has ended; returns its exit status. By default only waits."""
        if self._status is None:
            os.kill(self.number, number)
            self._status = self._forker.wait(self.number)
        return self._status

    def kill(self) -> None:
        """Kills the process if it still runs."""
        self.end(signal.SIGKILL)


class RestartedService:
    """`turnout fleet serve` with its page: a process that can be killed, and started again on another port."""

    def __init__(self, forker: Forker, *fleets: Path) -> None:
        self._forker, self._fleets, self._log = forker, fleets, fleets[0].with_suffix(".log")
        self._process: ForkedProcess | None = None
        self.port = 0

    def launch(self) -> None:
        """Starts the process."""
        self._process = ForkedProcess(self._forker, "service.forked:serve", *self._fleets, output=self._log)

    def start(self) -> None:
        """Starts the process, and waits until it listens."""
        self.launch()
        assert self._process is not None
        self.port = int(self._process.find(r"[^ ]+ at http://[^ ]+:(\d+)/v1/"))

    @property
    def process(self) -> int:
        """The number of the running process."""
        assert self._process is not None
        return self._process.number

    def kill(self) -> None:
        """Kills the process at once, without a chance to write anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Asks the process to end; returns its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        return 0 if process is None else process.end(number)


class Ledger:
    """What was sent and what was answered, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)
        #: The number of calls that were answered, and how many of them were reports.
        self.acknowledged, self.reported = 0, 0

    def note(self, step: str, *, path: str, **values: Any) -> None:
        """Writes a line; `step`: "before" or "after" a call."""
        self._file.write(json.dumps({"step": step, "path": path, **values}) + "\n")
        self.acknowledged += step == "after"
        self.reported += step == "after" and path in ("reports", "failures")

    def entries(self, step: str, path: str) -> list[dict[str, Any]]:
        """Returns the lines of a step of the calls of a path, a pattern, in the order in which they were written."""
        lines = map(json.loads, self._path.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["step"] == step and re.fullmatch(path, line["path"])]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Connection:
    """A connection to a service, which is opened again when that was killed."""

    def __init__(self, service: RestartedService, fleet: str, token: str) -> None:
        self._service, self.fleet, self._token = service, fleet, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, content: bytes = b"", key: str = "") -> tuple[int, Any]:
        """Returns the status and the JSON of the answer; raises OSError or EOFError if there is none."""
        reader = await self.open(method, path, content, key)
        headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", headers)
        assert length, headers
        return int(headers.split()[1]), json.loads(await reader.readexactly(int(length[1])))

    async def open(self, method: str, path: str, content: bytes = b"", key: str = "") -> asyncio.StreamReader:
        """Sends a request, and returns the stream from which its answer can be read."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._service.port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
        if content:
            head += f"Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {len(content)}\r\n"
        writer.write(f"{head}\r\n".encode() + content)
        await writer.drain()
        return reader

    def disconnect(self) -> None:
        """Closes the connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()


class Caller:
    """A device or a server: sends one call after the other, each until it is answered, with the same key."""

    def __init__(self, connection: Connection, ledger: Ledger) -> None:
        self._connection, self._ledger, self._changes = connection, ledger, 0

    async def call(self, path: str, body: Mapping[str, Any], **noted: Any) -> Any:
        """Returns the answer to a call that must succeed; `noted` is written to the ledger, too."""
        key, content = str(uuid4()), json.dumps(body).encode()
        self._ledger.note("before", path=path, body=body, **noted)
        answer = await self._send(path, key, content)
        self._ledger.note("after", path=path, body=body, answer=answer, **noted)
        if path != "check-ins" or answer["turn"] is not None:
            self._changes += 1
            if self._changes % REPEATED == 0:
                assert await self._send(path, key, content) == answer
        return answer

    async def _send(self, path: str, key: str, content: bytes) -> Any:
        while True:
            try:
                status, answer = await self._connection.send(
                    "POST", f"/v1/fleets/{self._connection.fleet}/{path}", content, key
                )
            except (OSError, EOFError):  # it was killed, or is not there yet
                self._connection.disconnect()
                await asyncio.sleep(PAUSE)
                continue
            if status not in (429, 503):
                assert status == 200, (path, content, status, answer)
                return answer
            await asyncio.sleep(PAUSE)


class ReportingProcess:
    """Another process with a `Reporter`; devices report through it instead of calling the service."""

    def __init__(self, forker: Forker, fleet: Path, ledger: Ledger) -> None:
        self._ledger, self._turn = ledger, asyncio.Lock()
        self._process = ForkedProcess(forker, "service.attached:report", fleet, output=fleet.with_suffix(".reporter"))
        self._port = int(self._process.find(r"(\d+)"))
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, path: str, body: Mapping[str, Any], client: str) -> None:
        """Reports what a device would have sent to the service."""
        self._ledger.note("before", path=path, body=body, client=client)
        outcome = {name: body[name] for name in ("seconds", "why") if name in body}
        async with self._turn:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            line = {"client": client, "round": body.get("turn", body.get("round")), **outcome}
            writer.write(json.dumps(line).encode() + b"\n")
            answer = await reader.readline()
        assert answer, self._process.text
        self._ledger.note("after", path=path, body=body, client=client, answer=json.loads(answer))

    def disconnect(self) -> None:
        """Ends the process after what it has been sent."""
        if self._streams is not None:
            self._streams[1].close()

    def end(self) -> None:
        """Waits until the process has ended, without an error."""
        assert self._process.end() == 0, self._process.text

    def kill(self) -> None:
        """Kills the process if it still runs."""
        self._process.kill()


class PageReader:
    """Reads the page of a fleet as a browser does: its stream of changes, and its data after each."""

    def __init__(self, stream: Connection, data: Connection) -> None:
        self._stream, self._data = stream, data
        #: The number of answers, and the last round that they have shown.
        self.answers, self.round = 0, 0

    async def run(self, simulation: Simulation) -> None:
        """Follows the page until all devices have ended."""
        while not simulation.is_stopping:
            try:
                await self._read(is_reading=True)  # so that the data are never those of a later service than the stream
                reader = await self._stream.open("GET", f"/fleets/{self._stream.fleet}/api/live")
                while not simulation.is_stopping:
                    line = await asyncio.wait_for(reader.readline(), MAX_PAUSE)
                    if line.startswith(b"data:"):
                        await self._read(is_reading=json.loads(line[5:])["reading"] is not None)
                    elif not line:
                        break
            except (OSError, EOFError):  # it was killed, or the page has not changed for a while
                self._data.disconnect()
            self._stream.disconnect()
            await asyncio.sleep(PAUSE)

    async def _read(self, *, is_reading: bool) -> None:
        status, data = await self._data.send("GET", f"/fleets/{self._data.fleet}/api/overview")
        assert status == 200, (status, data)
        self.answers += 1
        if not is_reading:  # after a start, it reads the file in parts
            assert data["round"] >= self.round, (data["round"], self.round)  # nothing that was shown is taken back
            self.round = data["round"]


class Simulation:
    """Runs devices, and perhaps a server, in an event loop of their own thread until it is stopped."""

    def __init__(self) -> None:
        self._is_stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether callers should finish what they have begun, and end."""
        return self._is_stopping.is_set()

    def start(self, *callers: Callable[[], Awaitable[None]], endings: Sequence[Callable[[], None]] = ()) -> None:
        """Runs all callers at the same time, and then calls the endings."""

        async def run() -> None:
            try:
                await asyncio.gather(*(caller() for caller in callers))
            finally:
                for end in endings:
                    end()

        def work() -> None:
            try:
                asyncio.run(run())
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work, name="devices")
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a caller."""
        if self._error is not None:
            raise self._error

    def wait_for(self, condition: Callable[[], bool], description: str) -> None:
        """Waits until a condition holds, or a caller has failed."""
        wait_until(lambda: self._error is not None or condition(), description)
        self.check()

    def stop(self) -> None:
        """Lets all callers finish what they have begun."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(MAX_WAIT)
            assert not self._thread.is_alive(), "a device still waits for an answer"
        self.check()


async def device_with_turns(
    caller: Caller, client: str, simulation: Simulation, reporter: Caller | ReportingProcess
) -> None:
    """Checks in, trains for no time, and reports, each turn with seconds of its own."""
    number = 0
    while not simulation.is_stopping:
        answer = await caller.call("check-ins", {"status": {"free_cpu": 1.5, "bandwidth": 3.0}}, client=client)
        if answer["turn"] is None:
            await asyncio.sleep(min(answer["wait"]["seconds"], MAX_PAUSE))
            continue
        number += 1
        await _report(reporter, client, number, {"turn": answer["turn"]["id"]})


async def device_with_rounds(
    client: str, invitations: asyncio.Queue[int | None], reporter: Caller | ReportingProcess
) -> None:
    """Reports for every round for which it is invited."""
    number = 0
    while (round_ := await invitations.get()) is not None:
        number += 1
        await _report(reporter, client, number, {"round": round_})
        invitations.task_done()


async def _report(reporter: Caller | ReportingProcess, client: str, number: int, turn: dict[str, int]) -> None:
    """Reports a turn, each with seconds of its own: every tenth has failed."""
    if number % 10 == 0:
        await reporter.call("failures", {**turn, "why": f"failure {number}"}, client=client)
    else:
        await reporter.call("reports", {**turn, "seconds": 1 + number / 1000}, client=client)


async def server_with_rounds(
    caller: Caller, invitations: Mapping[str, asyncio.Queue[int | None]], simulation: Simulation
) -> None:
    """Selects cohorts, waits for their reports and closes the rounds."""
    while not simulation.is_stopping:
        opened = await caller.call("rounds", {"clients": list(invitations)})
        for client in opened["cohort"]:
            invitations[client].put_nowait(opened["round"])
        for client in opened["cohort"]:
            await invitations[client].join()
        await caller.call(f"rounds/{opened['round']}/close", {})
    for queue in invitations.values():
        queue.put_nowait(None)
