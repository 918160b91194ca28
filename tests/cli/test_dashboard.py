from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cli import in_process
from dashboard.served import small_fleet
from turnout.cli import main
from turnout.dashboard import serving
from turnout.lab import RunStore
from waiting import LONGEST_WAIT

error_of = partial(in_process.error_of, "fleet", "dashboard")


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Runs the command as a process, and yields it with the lines that it prints when it starts."""
    program = [sys.executable, "-W", "error::ResourceWarning", "-m", "turnout", "fleet", "dashboard", *arguments]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "300", **environment}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] and not lines[-1].startswith("Press Ctrl-C"):
                lines.append(process.stdout.readline())
            yield process, lines
        finally:
            if process.poll() is None:
                process.kill()


def port_of(lines: list[str]) -> int:
    match = re.search(r":(\d+)/", lines[0])
    assert match, lines
    return int(match[1])


def get_json(port: int, path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())
    finally:
        connection.close()


def status_of(port: int, path: str, headers: dict[str, str] | None = None) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT)
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def test_it_prints_its_address_answers_and_stops_with_ctrl_c(folder: Path) -> None:
    """Ctrl-C ends it with exit code 0 and without output, also while a page is connected."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=5)
    with running(str(path), "--port", "0") as (process, lines):
        assert re.fullmatch(rf"{re.escape(str(path))} at http://127\.0\.0\.1:\d+/\n", lines[0])
        assert lines[1:] == ["Press Ctrl-C to stop.\n"]
        port = port_of(lines)
        assert get_json(port, "/api/store")["name"] == "fleet.turnout"
        listener = HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT)
        try:
            listener.request("GET", "/api/live")
            stream = listener.getresponse()
            assert stream.readline() == b"event: change\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LONGEST_WAIT)
            with stream:
                stream.read()
        finally:
            listener.close()
        assert (process.returncode, out, err) == (0, "", "")


def test_it_warns_if_other_machines_can_reach_it(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    with running(str(path), "--port", "0", "--host", "0.0.0.0", TURNOUT_TOKEN="from the environment") as (
        process,
        lines,
    ):
        assert re.search(r" at http://0\.0\.0\.0:\d+/\n", lines[0])
        assert "Other machines can reach this address" in lines[1]
        assert lines[2] == "To open the page, add ?token= and your token to the address.\n"
        assert "from the environment" not in "".join(lines)
        address = port_of(lines)
        assert status_of(address, "/api/store") == 401
        assert status_of(address, "/api/store", {"Authorization": "Bearer from the environment"}) == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LONGEST_WAIT)
        assert (out, err) == ("", "")
        assert process.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize("given", ["option", pytest.param("environment", marks=pytest.mark.thorough), "file"])
def test_a_token_of_the_user_is_never_printed(folder: Path, given: str) -> None:
    path, token, file = folder / "runs.turnout", "my-own-secret-token", folder / "token"
    RunStore(path).close()
    file.write_text(f"{token}\n")
    options = {"option": ["--token", token], "file": ["--token-file", str(file)], "environment": []}[given]
    environment = {"TURNOUT_TOKEN": token} if given == "environment" else {}
    with running(str(path), "--port", "0", *options, **environment) as (process, lines):
        port = port_of(lines)
        statuses = [
            status_of(port, f"/?token={token}"),
            status_of(port, "/api/store"),
            status_of(port, "/api/store", {"Authorization": f"Bearer {token}"}),
            status_of(port, f"/nothing?token={token}", {"Authorization": f"Bearer {token}"}),
        ]
        with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_WAIT) as raw:
            raw.sendall(f"GET /?token={token}\x00 HTTP/1.1\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 400")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST_WAIT)
    assert statuses == [303, 401, 200, 404]
    assert token not in "".join([*lines, out, err])


def test_a_generated_token_is_printed_once(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    with running(str(path), "--port", "0", "--host", "0.0.0.0") as (process, lines):
        found = re.search(r"\?token=(\S+)", lines[0])
        assert found
        assert status_of(port_of(lines), "/api/store", {"Authorization": f"Bearer {found[1]}"}) == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST_WAIT)
    assert "".join([*lines, out, err]).count(found[1]) == 1
    assert "Keep the address secret: it contains the token.\n" in lines


def test_a_token_file_must_hold_a_token(folder: Path) -> None:
    path, file = folder / "runs.turnout", folder / "token"
    RunStore(path).close()
    assert "cannot read a token from" in error_of(str(path), "--token-file", str(file))
    file.write_text("\n")
    assert "at least 12 printable ASCII characters" in error_of(str(path), "--token-file", str(file))


def test_a_file_that_is_no_store_is_reported_in_one_line(folder: Path) -> None:
    assert "there is no file" in error_of(str(folder / "nothing.turnout"))
    (folder / "text.turnout").write_text("no store at all, but a text that is long enough to look into " * 3)
    assert str(folder / "text.turnout") in error_of(str(folder / "text.turnout"))
    assert error_of(str(folder))
    (folder / "empty.turnout").touch()
    assert "empty.turnout" in error_of(str(folder / "empty.turnout"))


def test_an_occupied_port_is_reported_in_one_line(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        error = error_of(str(path), "--port", str(occupied.getsockname()[1]))
    assert "--host ADDRESS and --port NUMBER select another address" in error


def test_a_short_token_is_an_error(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    assert "at least 12 printable ASCII characters" in error_of(str(path), "--token", "short")


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "h11", "plotly"])
def test_a_missing_extra_is_named_with_its_installation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    path, real = folder / "runs.turnout", importlib.util.find_spec
    RunStore(path).close()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name, *rest))
    assert f"the dashboard needs {missing}: pip install 'turnout[dashboard]'" in error_of(str(path))


def test_a_browser_is_opened_only_with_the_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = folder / "runs.turnout", list[str]()
    RunStore(path).close()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(serving, "serve", lambda _, **given: given["announce"]("http://127.0.0.1:1/"))
    for arguments, expected in (([], []), (["--open"], ["http://127.0.0.1:1/"])):
        with (
            patch.object(sys, "argv", ["turnout", "fleet", "dashboard", str(path), *arguments]),
            redirect_stdout(io.StringIO()) as result,
            pytest.raises(SystemExit) as ended,
        ):
            main()
        assert ended.value.code == 0
        assert "http://127.0.0.1:1/" in result.getvalue()
        assert opened == expected
