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
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cli.in_process import run
from dashboard.served import small_fleet
from turnout.cli import main
from turnout.dashboard import serving
from turnout.store import RunStore

PATIENCE = 60.0


def refused(*arguments: str) -> str:
    """One line on standard error, and exit code 2."""
    told, words, code = run("dashboard", *arguments)
    assert (told, code) == ("", 2)
    assert words.startswith("error: ")
    assert words.count("\n") == 1
    return words


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command as a process, and what it has said up to that it can be ended."""
    program = [sys.executable, "-W", "error::ResourceWarning", "-m", "turnout", "dashboard", *arguments]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "300", **environment}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline()]
            while said[-1] and not said[-1].startswith("Ctrl-C"):
                said.append(process.stdout.readline())
            yield process, said
        finally:
            if process.poll() is None:
                process.kill()


def port_of(said: list[str]) -> int:
    found = re.search(r":(\d+)/", said[0])
    assert found, said
    return int(found[1])


def asked(port: int, path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())
    finally:
        connection.close()


def test_it_says_where_answers_and_ends_with_ctrl_c(folder: Path) -> None:
    """Also while a page listens; without a word, and as if nothing had happened: that is how it is ended."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=5)
    with running(str(path), "--port", "0") as (process, said):
        assert re.fullmatch(rf"{re.escape(str(path))} at http://127\.0\.0\.1:\d+/\n", said[0])
        assert said[1:] == ["Ctrl-C ends it.\n"]
        port = port_of(said)
        assert asked(port, "/api/store")["name"] == "fleet.turnout"
        listener = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            listener.request("GET", "/api/live")
            stream = listener.getresponse()
            assert stream.readline() == b"event: change\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
            with stream:
                stream.read()
        finally:
            listener.close()
        assert (process.returncode, out, err) == (0, "", "")


def test_off_loopback_it_says_what_that_means(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    with running(str(path), "--port", "0", "--host", "0.0.0.0", TURNOUT_TOKEN="from the environment") as (
        process,
        said,
    ):
        assert said[0].endswith("/?token=from%20the%20environment\n")
        assert "Others can reach this" in said[1]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (out, err) == ("", "")
        assert process.returncode in (0, -signal.SIGTERM)


def test_what_cannot_be_shown_is_said_in_a_line(folder: Path) -> None:
    assert "there is no file" in refused(str(folder / "nothing.turnout"))
    (folder / "text.turnout").write_text("no store at all, but a text that is long enough to look into " * 3)
    assert str(folder / "text.turnout") in refused(str(folder / "text.turnout"))
    assert refused(str(folder))
    (folder / "empty.turnout").touch()
    assert "empty.turnout" in refused(str(folder / "empty.turnout"))


def test_a_port_that_is_taken_is_said_in_a_line(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = refused(str(path), "--port", str(taken.getsockname()[1]))
    assert "--host ADDRESS and --port NUMBER select another address" in words


def test_a_short_token_is_refused(folder: Path) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    assert "at least 12 plain characters" in refused(str(path), "--token", "short")


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "plotly"])
def test_without_the_extra_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    path, real = folder / "runs.turnout", importlib.util.find_spec
    RunStore(path).close()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name, *rest))
    words = refused(str(path))
    assert f"the dashboard needs {missing}: pip install 'turnout[dashboard]'" in words


def test_a_browser_is_opened_only_when_that_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = folder / "runs.turnout", list[str]()
    RunStore(path).close()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(serving, "serve", lambda _, **given: given["announce"]("http://127.0.0.1:1/"))
    for arguments, expected in (([], []), (["--open"], ["http://127.0.0.1:1/"])):
        with (
            patch.object(sys, "argv", ["turnout", "dashboard", str(path), *arguments]),
            redirect_stdout(io.StringIO()) as told,
            pytest.raises(SystemExit) as ended,
        ):
            main()
        assert ended.value.code == 0
        assert "http://127.0.0.1:1/" in told.getvalue()
        assert opened == expected
