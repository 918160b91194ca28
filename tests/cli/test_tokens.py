"""`turnout fleet tokens`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cli import in_process
from cli.in_process import json_of, run
from turnout.live import Scheduler
from turnout.service.access import FleetTokens


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    Scheduler.open(path).close()
    return path


error_of = partial(in_process.error_of, "fleet", "tokens")


def test_a_token_is_printed_once_listed_and_revoked(fleet: Path) -> None:
    text = run(
        "fleet", "tokens", "create", fleet, "--role", "server", "--label", "training", "--days", "30"
    ).stdout.strip()
    with FleetTokens(fleet, read_only=True) as file:
        token = file.find(text)
    assert token is not None
    assert (token.role, token.label) == ("server", "training")
    listed = run("fleet", "tokens", "list", fleet).stdout
    for shown in (token.id, "server", "valid", "training"):
        assert shown in listed
    assert text.split("_", 2)[2] not in listed
    done = run("fleet", "tokens", "revoke", fleet, token.id)
    assert done.stdout.startswith(f"Token {token.id} (server) was revoked at ")
    with FleetTokens(fleet, read_only=True) as file:
        assert file.find(text) is None
    assert "revoked" in run("fleet", "tokens", "list", fleet).stdout


def test_a_single_token_is_printed_alone_and_can_be_revoked_by_its_text(fleet: Path) -> None:
    """A variable of a shell can hold it."""
    text = run("fleet", "tokens", "create", fleet, "--role", "device", "--client", "phone 1").stdout.removesuffix("\n")
    with FleetTokens(fleet, read_only=True) as file:
        token = file.find(text)
    assert token is not None
    assert token.client == "phone 1"
    secret = text.split("_", 2)[2]
    assert secret not in error_of("revoke", fleet, f"turnout_ffffffffffff_{secret}")
    assert secret not in run("fleet", "tokens", "revoke", fleet, text).stdout
    with FleetTokens(fleet, read_only=True) as file:
        assert file.find(text) is None


def test_every_device_gets_its_own_token(fleet: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("phone-2\n\nphone 3\n", encoding="utf-8")
    lines = run("fleet", "tokens", "create", fleet, "--role", "device", "--client", "phone-1", "--clients", ids).stdout
    texts = dict(line.rsplit(" ", 1) for line in lines.splitlines())
    assert list(texts) == ["phone-1", "phone-2", "phone 3"]
    with FleetTokens(fleet, read_only=True) as file:
        for client, text in texts.items():
            token = file.find(text)
            assert token is not None
            assert (token.role, token.client) == ("device", client)


def test_tokens_as_json(fleet: Path) -> None:
    (made,) = json_of("fleet", "tokens", "create", fleet, "--role", "viewer")
    (listed,) = json_of("fleet", "tokens", "list", fleet)
    assert {**made, "state": "valid"} == {**listed, "token": made["token"]}
    assert "token" not in listed


def test_errors_are_one_line(fleet: Path, tmp_path: Path) -> None:
    assert "role must be one of" in error_of("create", fleet, "--role", "boss")
    assert "there is no fleet at" in error_of("create", tmp_path / "none.turnout", "--role", "viewer")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n", encoding="utf-8")
    assert "has no client ids" in error_of("create", fleet, "--role", "device", "--clients", empty)
    assert "cannot read client ids" in error_of("create", fleet, "--role", "device", "--clients", tmp_path / "none.txt")
    assert "Try: --client ID names a client" in error_of("create", fleet, "--role", "device")
    assert "too few for a turnout fleet" in error_of("create", empty, "--role", "server")
    assert "has no tokens: create one first. Try: turnout fleet tokens create" in error_of("list", fleet)
    assert "has no tokens" in error_of("revoke", fleet, "abc")


def test_the_tokens_of_a_forgotten_client_are_removed(fleet: Path) -> None:
    with Scheduler.open(fleet) as scheduler:
        scheduler.register(["phone-1", "phone-2"])
    run("fleet", "tokens", "create", fleet, "--role", "device", "--client", "phone-1", "--client", "phone-2")
    assert run("fleet", "forget", fleet, "phone-1", "--yes").returncode == 0
    assert [token["client"] for token in json_of("fleet", "tokens", "list", fleet)] == ["phone-2"]
