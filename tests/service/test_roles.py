"""Every route × method × role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.served import ROUNDS, SLOTS, Service, served
from turnout.service.access.tokens import FleetTokens
from turnout.web.access import ROLES

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
DEVICE, SERVER, OPERATOR, VIEWER = "device", "server", "operator", "viewer"
READERS = {SERVER, OPERATOR, VIEWER}
#: Who may use which method of which path, and with which body; everything else is refused.
ALLOWED: dict[str, dict[str, tuple[set[str], Any]]] = {
    "/v1/fleets": {"GET": ({DEVICE, SERVER, OPERATOR, VIEWER}, None)},
    "/v1/fleets/fleet": {"GET": (READERS, None)},
    "/v1/fleets/fleet/clients": {"GET": (READERS, None), "POST": ({SERVER, OPERATOR}, {"clients": ["phone-1"]})},
    "/v1/fleets/fleet/settings": {"GET": (READERS, None)},
    "/v1/fleets/fleet/amendments": {"POST": ({OPERATOR}, {"settings": {"deadline": 20}})},
    "/v1/fleets/fleet/retirements": {"POST": ({OPERATOR}, {"client": "nobody"})},
    "/v1/fleets/fleet/removals": {"POST": ({OPERATOR}, {"client": "nobody"})},
    "/v1/fleets/fleet/rounds": {"POST": ({SERVER, OPERATOR}, {"clients": ["phone-1"]})},
    "/v1/fleets/fleet/rounds/1": {"GET": (READERS, None)},
    "/v1/fleets/fleet/rounds/1/close": {"POST": ({SERVER, OPERATOR}, {})},
    "/v1/fleets/fleet/rounds/1/abandon": {"POST": ({SERVER, OPERATOR}, {})},
    "/v1/fleets/fleet/round": {"GET": (READERS, None)},
    "/v1/fleets/fleet/check-ins": {"POST": ({DEVICE, SERVER, OPERATOR}, {"client": "phone-1"})},
    "/v1/fleets/fleet/turns": {"GET": (READERS, None), "POST": ({SERVER, OPERATOR}, {"clients": ["phone-1"]})},
    "/v1/fleets/fleet/reports": {"POST": ({DEVICE, SERVER, OPERATOR}, {"client": "phone-1", "seconds": 1.0})},
    "/v1/fleets/fleet/reports/batch": {"POST": ({SERVER, OPERATOR}, {"reports": [{"client": "phone-1"}]})},
    "/v1/fleets/fleet/failures": {"POST": ({DEVICE, SERVER, OPERATOR}, {"client": "phone-1", "why": "broken"})},
    "/v1/fleets/fleet/certificate": {"GET": (READERS, None)},
    "/v1/fleets/fleet/explanation?client=phone-1": {"GET": (READERS, None)},
    "/v1/fleets/fleet/history?client=phone-1": {"GET": (READERS, None)},
    "/v1/fleets/fleet/events?follow=false": {"GET": (READERS, None)},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("roles"), {"fleet": ROUNDS, "other": SLOTS}) as running:
        running.ok("/clients", {"clients": ["phone-1"]})
        yield running


def test_the_table_names_every_route(service: Service) -> None:
    paths = service.send("GET", "/openapi.json", role=None).data["paths"]
    documented = {
        (path.replace("{fleet}", "fleet").replace("{round}", "1"), method.upper(), frozenset(operation["x-roles"]))
        for path, methods in paths.items()
        for method, operation in methods.items()
        if path.startswith("/v1")
    }
    expected = {
        (path.partition("?")[0], method, frozenset(roles))
        for path, methods in ALLOWED.items()
        for method, (roles, _) in methods.items()
    }
    assert documented == expected


@pytest.mark.parametrize("path", ALLOWED)
def test_each_role_may_do_exactly_what_the_table_says(service: Service, path: str) -> None:
    for number, method in enumerate(METHODS):
        allowed = {**ALLOWED[path], **({"HEAD": ALLOWED[path]["GET"]} if "GET" in ALLOWED[path] else {})}
        roles, body = allowed.get(method, (set(), {}))
        sent = None if method in ("GET", "HEAD", "OPTIONS", "TRACE", "BREW") else body
        # What a path does not have is missing for every role, so each such method is tried with one of them.
        for role in ROLES if method in allowed else [ROLES[number % len(ROLES)]]:
            reply = service.send(method, path, sent, role=role)
            status = reply.status
            if method not in allowed:
                assert status == 405, (method, role, status)
                assert set(reply.headers["allow"].split(", ")) == allowed.keys()
            elif role in roles:
                assert status in (200, 404, 409), (role, status)  # 404, 409: refused by the library, not by the role
            else:
                assert status == 403, (role, status)


@pytest.mark.parametrize("path", [*ALLOWED, "/v1/", "/v1", "/v1/nothing", "/v1/fleets/nothing"])
def test_nothing_is_answered_without_a_valid_token(service: Service, path: str) -> None:
    wrong = ("", "turnout", service.tokens["fleet"]["operator"][:-1] + "-")
    for number, method in enumerate(METHODS):
        sent: Any = None if method in ("GET", "HEAD", "OPTIONS") else {}
        for token in (None, wrong[number % len(wrong)]):
            reply = service.send(method, path, sent, role=None, token=token)
            assert reply.status == 401, (method, token)
            assert reply.headers["www-authenticate"] == ('Bearer error="invalid_token"' if token else "Bearer")


@pytest.mark.parametrize("path", [path for path in ALLOWED if path != "/v1/fleets"])
def test_a_token_of_another_fleet_finds_nothing(service: Service, path: str) -> None:
    for method, (_, body) in ALLOWED[path].items():
        reply = service.send(method, path, body, fleet="other")
        assert (reply.status, reply.error) == (404, "there is no fleet 'fleet' for this token: check the address")
    missing = service.send("GET", "/v1/fleets/missing", fleet="other")
    assert (missing.status, missing.error) == (404, "there is no fleet 'missing' for this token: check the address")


def test_each_token_lists_only_its_own_fleet(service: Service) -> None:
    assert service.send("GET", "/v1/fleets", role="viewer").data == {"fleets": ["fleet"]}
    assert service.send("GET", "/v1/fleets", role="viewer", fleet="other").data == {"fleets": ["other"]}


def test_public_paths_need_no_token_and_reveal_no_fleet(service: Service) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json"):
        reply = service.send("GET", path, role=None)
        assert reply.status == 200
        assert b"phone" not in reply.body or path == "/openapi.json"
        assert b"turnout_" not in reply.body
    assert service.send("GET", "/docs", role=None).status == 401


def test_a_token_that_is_revoked_or_created_while_the_service_runs_is_noticed(service: Service) -> None:
    with FleetTokens(service.fleets["fleet"].scheduler.path) as file:
        (new,) = file.create("viewer")
        assert service.send("GET", "/v1/fleets/fleet", token=new.text).status == 200
        file.revoke(new.token.id)
    assert service.send("GET", "/v1/fleets/fleet", token=new.text).status == 401
    for scheme in ("Basic", "bearer", "BEARER"):
        headers = {"authorization": f"{scheme} {service.tokens['fleet']['viewer']}"}
        expected = 401 if scheme == "Basic" else 200
        assert service.send("GET", "/v1/fleets/fleet", role=None, headers=headers).status == expected


# Devices


def test_a_device_reports_and_fails_only_for_its_own_client(service: Service) -> None:
    for path, body in (
        ("/check-ins", {}),
        ("/reports", {"seconds": 1.0}),
        ("/failures", {"why": "broken"}),
    ):
        reply = service.post(path, {"client": "phone-2", **body}, role="device")
        assert (reply.status, reply.error) == (
            403,
            "this token is of the device 'phone-1': it cannot call for 'phone-2'",
        )
        assert service.post(path, body, role="server").error == "client is missing: name the client"


def test_a_device_cannot_report_the_turn_of_another(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        other = service.ok("/check-ins", {"client": "phone-2"})["turn"]
        own = service.ok("/check-ins", {}, role="device")["turn"]
        for path, body in (("/reports", {"seconds": 1.0}), ("/failures", {"why": "broken"})):
            reply = service.post(path, {"turn": other["id"], **body}, role="device")
            assert (reply.status, reply.error) == (403, "turn 1 was not given to 'phone-1': check the id of the turn")
            named = service.post(path, {"turn": other["id"], "client": "phone-2", **body}, role="device")
            assert named.status == 403
            wrong = service.post(path, {"turn": other["id"], "client": "phone-1", **body}, role="server")
            assert wrong.status == 403
        assert service.ok("/reports", {"turn": own["id"], "seconds": 2.0}, role="device") == {"new": True}
        assert [turn["client"] for turn in service.ok("/turns")["turns"]] == ["phone-2"]
        assert service.ok("/reports", {"turn": other["id"], "client": "phone-2"}, role="server") == {"new": True}
