"""Runs the examples of the HTTP service: the demonstration, and a device in JavaScript."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from documents import check_command
from service.served import SLOTS, Service, served
from turnout.live import FleetReader
from turnout.live._internals import examine
from waiting import MAX_WAIT, wait_until

EXAMPLES = Path(__file__).parent.parent / "examples" / "service"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.mark.framework
def test_the_demonstration_survives_a_killed_device_and_names_the_liar(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--folder", str(tmp_path), "--turns", "60"]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^The dashboard: http://127\.0\.0\.1:\d+/\?token=turnout_", done.stdout)
    assert "phone-07 │" in done.stdout
    assert "was killed while it trained: " in done.stdout
    assert "said that each turn took 0.001 s: suspected" in done.stdout
    assert re.search(r"^The promise is \w+: ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^phone-13 tried a second report of turn \d+: not counted$", done.stdout, re.MULTILINE)
    refused = "phone-13 tried a report for phone-01: refused with status 403: this token is of the device 'phone-13'"
    assert refused in done.stdout
    assert "accepted" not in (tmp_path / "phone-13.log").read_text()
    fleet = tmp_path / "phones.turnout"
    assert all(finding.ok is not False for finding in examine(fleet))
    with FleetReader(fleet) as scheduler:
        killed, liar = scheduler.history("phone-07"), scheduler.history("phone-13")
        assert [turn.kind for turn in killed[-1:]] == ["late"]
        assert {turn.seconds for turn in liar if turn.kind == "arrived"} == {0.001}
        assert len({turn.round for turn in liar}) == len(liar)
        assert "phone-13" in scheduler.status().suspects


def run_device(address: str, token: str, turns: int = 3) -> subprocess.CompletedProcess[str]:
    """Runs the device in JavaScript."""
    return subprocess.run(
        ["node", str(EXAMPLES / "device.mjs"), str(turns)],
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_WAIT,
        env={**os.environ, "TURNOUT_ADDRESS": address, "TURNOUT_TOKEN": token},
    )


def outcomes(service: Service) -> list[str]:
    return [turn["outcome"] for turn in service.ok("/history?client=phone-1")["turns"]]


def test_the_loop_of_a_server_goes_on_with_a_new_fleet(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        address, token = f"http://127.0.0.1:{service.port}/v1/fleets/fleet", service.tokens["fleet"]["operator"]
        env = {**os.environ, "TURNOUT_ADDRESS": address, "TURNOUT_TOKEN": token}
        server = subprocess.Popen([sys.executable, str(EXAMPLES / "server.py")], env=env, stderr=subprocess.DEVNULL)
        try:
            fleet = service.fleets["fleet"]
            wait_until(lambda: fleet.grouped >= 2 or server.poll() is not None, "two calls of the server")
            assert server.poll() is None
            nothing: dict[str, object] = {"turns": [], "next": None}
            assert service.ok("/turns", {"clients": []}) == service.ok("/turns", {"statuses": {}}) == nothing
        finally:
            server.kill()
            server.wait()


@needs_node
def test_a_device_in_javascript_takes_its_turns(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        address = f"http://127.0.0.1:{service.port}/v1/fleets/fleet"
        done = run_device(address, service.tokens["fleet"]["device"])
        assert done.returncode == 0, done.stderr
        recorded = re.findall(r"^turn (\d+): recorded$", done.stdout, re.MULTILINE)
        assert recorded == ["1", "2", "3"]
        assert outcomes(service) == ["arrived"] * 3
        refused = run_device(address, service.tokens["fleet"]["viewer"])
        assert refused.returncode != 0
        assert "403 denied: the role viewer does not allow this" in refused.stderr


class _LossyProxy(BaseHTTPRequestHandler):
    """Passes requests on; the first answer to every key is lost, because the connection breaks."""

    target = 0
    keys: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        connection = HTTPConnection("127.0.0.1", self.target, timeout=MAX_WAIT)
        connection.request("POST", self.path, body, dict(self.headers.items()))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        self.keys.append(self.headers["idempotency-key"])
        self.close_connection = True
        if self.keys.count(self.keys[-1]) == 1:
            return
        self.send_response(response.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""


@contextmanager
def lossy_proxy(port: int) -> Iterator[tuple[int, list[str]]]:
    """Runs a proxy before a service; yields its port, and the keys of the requests that it has passed on."""
    keys: list[str] = []
    handler = type("Handler", (_LossyProxy,), {"target": port, "keys": keys})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy.server_port, keys
        finally:
            proxy.shutdown()
            thread.join()


@needs_node
def test_a_device_in_javascript_sends_calls_without_answer_again_with_the_same_key(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service, lossy_proxy(service.port) as (port, keys):
        done = run_device(f"http://127.0.0.1:{port}/v1/fleets/fleet", service.tokens["fleet"]["device"], 2)
        assert done.returncode == 0, done.stderr
        # The second attempt gets the answer of the first, which says that the report is new.
        assert re.findall(r"^turn (\d+): (.+)$", done.stdout, re.MULTILINE) == [("1", "recorded"), ("2", "recorded")]
        assert outcomes(service) == ["arrived"] * 2
    assert len(keys) == 2 * len(set(keys))
    assert len(set(keys)) >= 4


@pytest.mark.parametrize(("name", "count"), [("Dockerfile", 3), ("turnout.service", 3)])
def test_the_commands_of_the_deployment_files_exist(name: str, count: int) -> None:
    text = (EXAMPLES / name).read_text()
    assert "ot run by the tests of this project" in text
    lines = re.findall(r"(?:bin/| )(turnout fleet (?:create|tokens create|serve) .+)$", text, re.MULTILINE)
    image = re.search(r"^CMD (\[.+\])$", text, re.MULTILINE)
    commands = [shlex.split(line) for line in lines] + ([["turnout", *json.loads(image[1])]] if image else [])
    assert len(commands) == count
    for command in commands:
        check_command(command)
    assert re.search(r"^(USER|User=)\s?turnout$", text, re.MULTILINE)  # not root
