"""Devices and servers that call a service which is killed again and again, and a ledger of what it has answered.

The ledger is a file beside the fleet, with a line before each call and a line after each answer. It knows nothing about
the fleet's file, so that the two can be compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from killing import environment
from waiting import MAX_WAIT, wait_until

#: The longest pause between two check-ins of a device, in seconds: shorter than it is asked for, to have more of them.
MAX_PAUSE = 0.5


class RestartedService:
    """`turnout fleet serve` as a process that can be killed and started again, on another port each time."""

    def __init__(self, *fleets: Path) -> None:
        self._fleets = fleets
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> None:
        """Starts the process, and waits until it listens."""
        command = [sys.executable, "-u", "-m", "turnout", "fleet", "serve", *map(str, self._fleets), "--port", "0"]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), "NO_COLOR": "1", "COLUMNS": "1000"},
        )
        assert self._process.stdout is not None
        lines = [""]
        while not lines[-1].startswith("Press Ctrl-C"):
            lines.append(self._process.stdout.readline())
            assert lines[-1], f"the service did not start: {lines}"
        port = re.search(r":(\d+)/v1/", "".join(lines))
        assert port, lines
        self.port = int(port[1])

    @property
    def process(self) -> int:
        """The number of the running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kills the process at once, without a chance to write anything."""
        self._end(lambda process: process.kill())

    def stop(self) -> int:
        """Asks the process to end; returns its exit status."""
        return self._end(lambda process: process.terminate())

    def _end(self, end: Callable[[subprocess.Popen[str]], None]) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        end(process)
        status = process.wait(MAX_WAIT)
        assert process.stdout is not None
        process.stdout.close()
        return status


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


class Caller:
    """A device or a server: sends one call after the other, each until it is answered, with the same key."""

    def __init__(self, service: RestartedService, ledger: Ledger, fleet: str, token: str) -> None:
        self._service, self._ledger, self._fleet, self._token = service, ledger, fleet, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, path: str, body: Mapping[str, Any], **noted: Any) -> Any:
        """Returns the answer to a call that must succeed; `noted` is written to the ledger, too."""
        key, content = str(uuid4()), json.dumps(body).encode()
        self._ledger.note("before", path=path, body=body, **noted)
        while True:
            try:
                status, answer = await self._send(path, key, content)
            except (OSError, EOFError):  # it was killed, or is not there yet
                self.disconnect()
                await asyncio.sleep(0.05)
                continue
            if status in (429, 503):
                await asyncio.sleep(0.05)
                continue
            assert status == 200, (path, body, status, answer)
            self._ledger.note("after", path=path, body=body, answer=answer, **noted)
            return answer

    async def _send(self, path: str, key: str, content: bytes) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._service.port)
        reader, writer = self._streams
        head = (
            f"POST /v1/fleets/{self._fleet}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._token}\r\nIdempotency-Key: {key}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", headers)
        assert length, headers
        return int(headers.split()[1]), json.loads(await reader.readexactly(int(length[1])))

    def disconnect(self) -> None:
        """Closes the connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()


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

    def start(self, *callers: Callable[[], Any]) -> None:
        """Runs all callers, which are coroutine functions, at the same time."""

        async def run() -> None:
            await asyncio.gather(*(caller() for caller in callers))

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


async def device_with_turns(caller: Caller, client: str, simulation: Simulation) -> None:
    """Checks in, trains for no time, and reports, each turn with seconds of its own."""
    number = 0
    while not simulation.is_stopping:
        answer = await caller.call("check-ins", {"status": {"free_cpu": 1.5, "bandwidth": 3.0}}, client=client)
        if answer["turn"] is None:
            await asyncio.sleep(min(answer["wait"]["seconds"], MAX_PAUSE))
            continue
        number += 1
        body = {"turn": answer["turn"]["id"], "seconds": 1 + number / 1000, "loss": number / 10}
        await caller.call("reports", body, client=client)
    caller.disconnect()


async def device_with_rounds(caller: Caller, client: str, invitations: asyncio.Queue[int | None]) -> None:
    """Reports for every round for which it is invited: every tenth time that it has failed."""
    number = 0
    while (round_ := await invitations.get()) is not None:
        number += 1
        if number % 10 == 0:
            await caller.call("failures", {"round": round_, "why": f"failure {number}"}, client=client)
        else:
            await caller.call("reports", {"round": round_, "seconds": 1 + number / 1000}, client=client)
        invitations.task_done()
    caller.disconnect()


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
    caller.disconnect()


TORTURE = int(os.environ.get("TURNOUT_TORTURE", "1"))
