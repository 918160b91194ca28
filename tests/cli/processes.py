"""Runs commands that serve as processes of their own, and sends requests to them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from requesting import Reply, send_request


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


def send(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
    """Sends a request with a body in JSON."""
    sent = {"content-type": "application/json", **(headers or {})}
    return send_request(port, method, path, None if body is None else json.dumps(body).encode(), sent)


def status_of(port: int, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Returns the status of a GET request."""
    return send(port, "GET", path, headers=headers).status
