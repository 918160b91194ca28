"""`turnout fleet serve` and `turnout fleet create`."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cli.in_process import error_of, run
from cli.processes import running, send, status_of
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import examine
from turnout.service import serving as serving_module
from turnout.service.access import FleetTokens
from turnout.web.access import Role
from waiting import MAX_WAIT

SLOTS = ("--concurrency", "2", "--guaranteed-rate", "1/20", "--deadline", "300")


serving = partial(running, "serve")


def bearer(fleet: Path, role: Role, client: str | None = None) -> dict[str, str]:
    with FleetTokens(fleet) as file:
        (new,) = file.create(role, clients=[] if client is None else [client])
    return {"authorization": f"Bearer {new.text}"}


def test_a_fleet_is_created_with_settings_of_its_own_and_of_its_policy(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    done = run("fleet", "create", path, *SLOTS, "--policy", "fair-pace")
    assert done.stdout == (
        f"{path} is a fleet with 2 slots and the policy fair-pace.\n"
        f"Next: turnout fleet tokens create {path} --role server, and turnout fleet serve {path}\n"
    )
    with FleetReader(path) as scheduler:
        settings = scheduler.settings
    assert (settings.concurrency, settings.deadline, settings.persist_statuses) == (2, 300.0, True)
    assert settings.settings["guaranteed_rate"] == "1/20"
    assert "exists already" in error_of("fleet", "create", path)
    other = tmp_path / "other.turnout"
    wrapped = ("--policy", "with-guarantee:policy=oort,settings.clip=0.5", "--cohort-size", "3", "--tolerance", "1")
    assert run("fleet", "create", other, *wrapped, "--no-persist-statuses").returncode == 0
    with FleetReader(other) as scheduler:
        settings = scheduler.settings
    assert not settings.persist_statuses
    assert settings.settings == {"policy": "oort", "settings": {"clip": 0.5, "cohort_size": 3}, "tolerance": 1}
    for options, message in (
        (("--deadline", "soon"), "deadline must be a number or 'auto', got 'soon'"),
        (("--min-turn-interval", "5"), "min_turn_interval needs a concurrency"),
        (("--speed-weight", "2"), "the policy fair-pace has no setting 'speed_weight'"),
        (("--policy", "fair-pace:pace=2"), "fair-pace has no setting 'pace'"),
    ):
        assert message in error_of("fleet", "create", tmp_path / "x.turnout", *options)
        assert not (tmp_path / "x.turnout").exists()


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_service_from_start_to_a_graceful_end(tmp_path: Path, end: signal.Signals) -> None:
    path = tmp_path / "fleet.turnout"
    run("fleet", "create", path, *SLOTS)
    server, viewer, device = bearer(path, "server"), bearer(path, "viewer"), bearer(path, "device", "phone-1")
    with serving(path) as (process, port, lines):
        assert lines == [
            f"{path} at http://127.0.0.1:{port}/v1/fleets/fleet\n",
            f"Dashboard of fleet at http://127.0.0.1:{port}/; open it once with ?token= and a token of a server, a "
            "viewer or an operator\n",
            "Press Ctrl-C to stop.\n",
        ]
        status, _, body = send(port, "POST", "/v1/fleets/fleet/check-ins", {}, device)
        assert (status, json.loads(body)["turn"]["client"]) == (200, "phone-1")
        status, _, body = send(port, "GET", "/v1/fleets/fleet/turns", headers=server)
        assert (status, len(json.loads(body)["turns"])) == (200, 1)
        # The dashboard
        assert status_of(port, "/") == 401
        assert status_of(port, "/", device) == 401
        assert status_of(port, "/", viewer) == 200
        assert send(port, "POST", "/", {}, server)[0] == 405
        status, _, body = send(port, "GET", "/api/store", headers=viewer)
        assert (status, json.loads(body)["name"]) == (200, "fleet.turnout")
        assert b'turnout_up{fleet="fleet"} 1' in send(port, "GET", "/metrics", headers=viewer)[2]
        token = viewer["authorization"].partition(" ")[2]
        status, headers, _ = send(port, "GET", f"/?token={token}")
        assert status == 303
        cookie = {"cookie": headers["set-cookie"].partition(";")[0]}
        assert status_of(port, "/api/overview", cookie) == 200
        assert status_of(port, "/v1/fleets/fleet", cookie) == 401  # no cookies: no forged requests
        stream = HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)  # it must not delay the end
        stream.request("GET", "/api/live", headers=viewer)
        assert stream.getresponse().readline().startswith(b"event: change")
        process.send_signal(end)
        _, errors = process.communicate(timeout=MAX_WAIT)
        stream.close()
        assert (process.returncode, errors) == (0, "")
    assert not path.with_name(f"{path.name}-wal").exists()  # it was closed
    with Scheduler.open(path) as scheduler:
        assert [turn.client for turn in scheduler.running()] == ["phone-1"]
    assert all(finding.ok is not False for finding in examine(path))


def test_a_killed_service_has_kept_what_it_answered(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    run("fleet", "create", path, *SLOTS)
    server = bearer(path, "server")
    once = {**server, "idempotency-key": "1"}
    with serving(path, "--no-page") as (process, port, _):
        first = send(port, "POST", "/v1/fleets/fleet/turns", {"clients": ["a", "b"]}, once)
        assert first[0] == 200
        process.kill()
        process.wait()
    with serving(path, "--no-page") as (process, port, _):
        again = send(port, "POST", "/v1/fleets/fleet/turns", {"clients": ["a", "b"]}, once)
        assert (again[0], again[2]) == (200, first[2])  # the answer, not two more turns
        assert len(json.loads(send(port, "GET", "/v1/fleets/fleet/turns", headers=server)[2])["turns"]) == 2
        assert status_of(port, "/", server) == 404


def test_several_fleets_and_no_tokens(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("fleet", "create", tmp_path / f"{name}.turnout", "--deadline", "300")
    with serving(tmp_path / "one.turnout", tmp_path / "two.turnout", "--no-tokens") as (process, port, lines):
        assert "Every program on this machine may do everything: no token is needed.\n" in lines
        assert json.loads(send(port, "GET", "/v1/fleets")[2]) == {"fleets": ["one", "two"]}
        for name in ("one", "two"):
            assert f'<a href="/fleets/{name}/">{name}</a>' in send(port, "GET", "/")[2].decode()
            assert json.loads(send(port, "GET", f"/fleets/{name}/api/store")[2])["name"] == f"{name}.turnout"
        assert send(port, "GET", "/v1/fleets/two", headers={"host": "evil.example"})[0] == 421
        for path in ("/", "/fleets/one/api/store"):
            assert send(port, "GET", path, headers={"host": "evil.example"})[0] == 421
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=MAX_WAIT)
        assert (process.returncode, errors) == (0, "")


def test_a_backup_of_a_fleet_that_is_served_has_its_tokens_and_can_be_served(tmp_path: Path) -> None:
    path, copy = tmp_path / "fleet.turnout", tmp_path / "copy.turnout"
    run("fleet", "create", path, *SLOTS)
    server = {**bearer(path, "server"), "idempotency-key": "1"}
    with serving(path, "--no-page") as (process, port, _):
        first = send(port, "POST", "/v1/fleets/fleet/turns", {"clients": ["a", "b"]}, server)
        later = bearer(path, "viewer")  # while it runs
        done = run("fleet", "backup", path, copy)
        assert done.stdout == f"{copy} has all 2 turns of 2 clients.\n"
        for query in ("status", "doctor"):
            assert run("fleet", query, path).returncode == 0
        for command in (("amend", path, "--deadline", "20"), ("retire", path, "a"), ("compact", path)):
            assert "is being written by" in error_of("fleet", *command)
        process.send_signal(signal.SIGTERM)
        assert process.wait(MAX_WAIT) == 0
    with serving(copy, "--no-page") as (_, port, _):
        assert status_of(port, "/v1/fleets/copy", later) == 200
        turns = send(port, "GET", "/v1/fleets/copy/turns", headers=later)[2]
        assert json.loads(turns)["turns"] == json.loads(first[2])["turns"]


def test_errors_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    run("fleet", "create", path)
    assert "has no tokens: create one first. Try: turnout fleet tokens create FLEET --role server" in error_of(
        "fleet", "serve", path
    )
    missing = error_of("fleet", "serve", tmp_path / "none.turnout", "--no-tokens")
    assert "there is no fleet at" in missing
    assert "Try: turnout fleet create FLEET" in missing
    assert "must not listen on it" in error_of("fleet", "serve", path, "--no-tokens", "--host", "0.0.0.0")
    assert "would have the same name" in error_of("fleet", "serve", path, path, "--no-tokens")
    assert "there is no file" in error_of("fleet", "serve", path, "--no-tokens", "--certificate", tmp_path / "none.pem")
    (tmp_path / "text.pem").write_text("no certificate")
    refused = error_of("fleet", "serve", path, "--no-tokens", "--certificate", tmp_path / "text.pem")
    assert "pass a certificate and its own private key as PEM files" in refused
    with Scheduler.open(path):
        assert "is being written by" in error_of("fleet", "serve", path, "--no-tokens")


@pytest.mark.parametrize(("missing", "advice"), [("fastapi", "turnout[service]"), ("plotly", "without it: --no-page")])
def test_a_missing_extra_says_how_to_install_it(tmp_path: Path, missing: str, advice: str) -> None:
    find = importlib.util.find_spec
    with patch.object(importlib.util, "find_spec", lambda name: None if name == missing else find(name)):
        assert advice in error_of("fleet", "serve", tmp_path / "fleet.turnout")


@pytest.mark.parametrize(("host", "is_warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_it_warns_if_other_machines_can_reach_it_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, is_warned: bool
) -> None:
    path = tmp_path / "fleet.turnout"
    run("fleet", "create", path)
    bearer(path, "server")

    def announce_only(*_: Any, announce: Callable[[str], None], skip: Callable[[Path, str], None], **__: Any) -> None:
        skip(Path("b.turnout"), "it is damaged")
        announce(f"http://{host}:8080")

    monkeypatch.setattr(serving_module, "serve", announce_only)
    shown = run("fleet", "serve", path, "--host", host).stdout
    assert "b.turnout is not served yet, and is tried again from time to time: it is damaged\n" in shown
    assert f"{path} at http://{host}:8080/v1/fleets/fleet\n" in shown
    assert ("Other machines can reach this address, and the connection is not encrypted." in shown) == is_warned
