"""Runs commands that serve as processes of their own, and sends requests to them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from waiting import MAX_WAIT


@contextmanager
def running(*arguments: str | Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int, list[str]]]:
    """Runs a command of `turnout fleet` on a free port; yields it with its port and the lines with which it starts."""
    program = [sys.executable, "-u", "-W", "error::ResourceWarning", "-m", "turnout", "fleet"]
    program += [*map(str, arguments), "--port", "0"]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "300", **environment}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] and not lines[-1].startswith("Press Ctrl-C"):
                lines.append(process.stdout.readline())
            port = re.search(r"https?://\S+?:(\d+)/", "".join(lines))
            assert port, (lines, process.stderr and process.stderr.read())
            yield process, int(port[1]), lines
        finally:
            if process.poll() is None:
                process.kill()


def send(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    """Returns the status, the headers and the body of a response."""
    sent = {"content-type": "application/json", **(headers or {})}
    connection = HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def status_of(port: int, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Returns the status of a GET request."""
    return int(send(port, "GET", path, headers=headers)[0])
