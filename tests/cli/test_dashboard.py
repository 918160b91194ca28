from __future__ import annotations

import importlib.util
import json
import re
import signal
import socket
import webbrowser
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest

from cli import in_process
from cli.processes import running, send, status_of
from dashboard.served import small_fleet
from turnout.dashboard import serving
from turnout.lab import RunStore
from waiting import MAX_WAIT

error_of = partial(in_process.error_of, "fleet", "dashboard")


dashboard = partial(running, "dashboard")


@pytest.fixture
def runs(folder: Path) -> Path:
    """An empty store of runs."""
    path = folder / "runs.turnout"
    RunStore(path).close()
    return path


def test_it_prints_its_address_answers_and_stops_with_ctrl_c(folder: Path) -> None:
    """Ctrl-C ends it with exit code 0 and without output, also while a page is connected."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=5)
    with dashboard(path) as (process, port, lines):
        assert re.fullmatch(rf"{re.escape(str(path))} at http://127\.0\.0\.1:\d+/\n", lines[0])
        assert lines[1:] == ["Press Ctrl-C to stop.\n"]
        assert json.loads(send(port, "GET", "/api/store")[2])["name"] == "fleet.turnout"
        listener = HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)
        try:
            listener.request("GET", "/api/live")
            stream = listener.getresponse()
            assert stream.readline() == b"event: change\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=MAX_WAIT)
            with stream:
                stream.read()
        finally:
            listener.close()
        assert (process.returncode, out, err) == (0, "", "")


def test_it_warns_if_other_machines_can_reach_it(runs: Path) -> None:
    with dashboard(runs, "--host", "0.0.0.0", TURNOUT_TOKEN="from the environment") as (process, address, lines):
        assert re.search(r" at http://0\.0\.0\.0:\d+/\n", lines[0])
        assert "Other machines can reach this address" in lines[1]
        assert lines[2] == "To open the page, add ?token= and your token to the address.\n"
        assert "from the environment" not in "".join(lines)
        assert status_of(address, "/api/store") == 401
        assert status_of(address, "/api/store", {"Authorization": "Bearer from the environment"}) == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=MAX_WAIT)
        assert (out, err) == ("", "")
        assert process.returncode in (0, -signal.SIGTERM)


def test_a_token_of_the_user_is_never_printed(runs: Path) -> None:
    token = "my-own-secret-token"
    with dashboard(runs, "--token", token) as (process, port, lines):
        statuses = [
            status_of(port, f"/?token={token}"),
            status_of(port, "/api/store"),
            status_of(port, "/api/store", {"Authorization": f"Bearer {token}"}),
            status_of(port, f"/nothing?token={token}", {"Authorization": f"Bearer {token}"}),
        ]
        with socket.create_connection(("127.0.0.1", port), timeout=MAX_WAIT) as raw:
            raw.sendall(f"GET /?token={token}\x00 HTTP/1.1\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 400")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=MAX_WAIT)
    assert statuses == [303, 401, 200, 404]
    assert token not in "".join([*lines, out, err])


def test_a_generated_token_is_printed_once(runs: Path) -> None:
    with dashboard(runs, "--host", "0.0.0.0") as (process, port, lines):
        token = re.search(r"\?token=(\S+)", lines[0])
        assert token
        assert status_of(port, "/api/store", {"Authorization": f"Bearer {token[1]}"}) == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=MAX_WAIT)
    assert "".join([*lines, out, err]).count(token[1]) == 1
    assert "Keep the address secret: it contains the token.\n" in lines


def test_a_token_must_be_long(runs: Path) -> None:
    assert "at least 12 printable ASCII characters" in error_of(runs, "--token", "short")


def test_a_file_that_is_no_store_is_reported_in_one_line(folder: Path) -> None:
    assert "there is no file" in error_of(folder / "nothing.turnout")
    (folder / "empty.turnout").touch()
    assert "empty.turnout" in error_of(folder / "empty.turnout")


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "h11", "plotly"])
def test_a_missing_extra_is_named_with_its_installation(
    runs: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name, *rest))
    assert f"the dashboard needs {missing}: pip install 'turnout[dashboard]'" in error_of(runs)


def test_a_browser_is_opened_only_with_the_option(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(serving, "serve", lambda _, **given: given["announce"]("http://127.0.0.1:1/"))
    for arguments, expected in (([], []), (["--open"], ["http://127.0.0.1:1/"])):
        assert "http://127.0.0.1:1/" in in_process.output_of("fleet", "dashboard", runs, *arguments)
        assert opened == expected
