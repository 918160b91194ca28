"""`turnout fleet serve | create | dashboard`."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import re
import signal
import socket
import ssl
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.in_process import error_of, output_of, run
from cli.processes import running, send, status_of
from dashboard.served import small_fleet
from turnout.client import FleetClient, UnavailableError
from turnout.dashboard import serving as dashboard_serving
from turnout.lab import RunStore
from turnout.live import FleetReader, RunningTurn, Scheduler
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
    assert run("fleet", "create", path, *SLOTS, "--policy", "fair-pace").stdout == (
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
        assert status_of(port, "/", later) == 404
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


# TLS, with a certificate that the test makes


def make_certificate(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """Writes a certificate of 127.0.0.1 that it signs itself, and its private key; returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "turnout test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return paths


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    run("fleet", "create", path, *SLOTS)
    return path


def test_a_client_that_trusts_the_certificate_calls_over_tls_and_others_do_not(fleet: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "service")
    other, _ = make_certificate(tmp_path, "other")
    with FleetTokens(fleet) as file:
        (device,) = file.create("device", clients=["phone-1"])
    with serving(fleet, "--certificate", certificate, "--key", key) as (_, port, lines):
        address = f"https://127.0.0.1:{port}/v1/fleets/fleet"
        assert lines[0] == f"{fleet} at {address}\n"
        with FleetClient(address, token=device.text, authorities=certificate) as client:
            turn = client.check_in()
            assert isinstance(turn, RunningTurn)
            assert client.report(turn.id, 12.5)
        for authorities in (other, None):
            with (
                FleetClient(address, token=device.text, authorities=authorities) as client,
                pytest.raises(UnavailableError, match=f"is refused: {ssl.SSLCertVerificationError.__name__}"),
            ):
                client.check_in()
        plain = FleetClient(address.replace("https", "http"), token=device.text, attempts=1)
        with plain, pytest.raises(UnavailableError):
            plain.check_in()


def test_files_that_cannot_be_used_for_tls_are_refused_before_anything_is_opened(fleet: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "service")
    other, encrypted = make_certificate(tmp_path, "other", b"secret")
    advice = "pass a certificate and its own private key as PEM files, the key without a password"
    for files in ((certificate, encrypted), (other, encrypted), (other, key), (key, certificate)):
        refused = error_of("fleet", "serve", fleet, "--no-tokens", "--certificate", files[0], "--key", files[1])
        assert f"cannot use {files[0]} and {files[1]} for TLS" in refused
        assert advice in refused
    assert "cannot use" in error_of(
        "fleet", "serve", fleet, "--no-tokens", "--certificate", certificate
    )  # without its key


# The dashboard


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
        assert status_of(port, "/api/store", {"host": "evil.example"}) == 421
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


def test_a_public_host_gets_a_new_token_each_time_which_is_printed_once(runs: Path) -> None:
    made = set()
    for _ in range(2):
        with dashboard(runs, "--host", "0.0.0.0") as (process, port, lines):
            token = re.search(r"\?token=(\S+)", lines[0])
            assert token
            made.add(token[1])
            assert status_of(port, "/api/store") == 401
            assert status_of(port, "/api/store", {"Authorization": f"Bearer {token[1]}"}) == 200
            assert status_of(port, f"/?token={token[1]}") == 303
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=MAX_WAIT)
        assert "".join([*lines, out, err]).count(token[1]) == 1
        assert "Keep the address secret: it contains the token.\n" in lines
    assert len(made) == 2
    assert min(map(len, made)) >= 32


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "h11", "plotly"])
def test_a_missing_extra_is_named_as_it_is_installed(runs: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name, *rest))
    assert f"the dashboard needs {missing}: pip install 'turnout[dashboard]'" in error_of("fleet", "dashboard", runs)


def test_a_browser_is_opened_only_with_the_option(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(dashboard_serving, "serve", lambda _, **given: given["announce"]("http://127.0.0.1:1/"))
    for arguments, expected in (([], []), (["--open"], ["http://127.0.0.1:1/"])):
        assert "http://127.0.0.1:1/" in output_of("fleet", "dashboard", runs, *arguments)
        assert opened == expected
