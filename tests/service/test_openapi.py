"""Whatever is sent to any operation, with any role: the answer is one that the OpenAPI document describes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from killing import TORTURE
from service.served import ROUNDS, SLOTS, Service, served
from turnout.live._internals import examine
from turnout.service.app import make_app
from turnout.service.fleet import FleetAccess
from waiting import MAX_WAIT

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: make setup")
requests = pytest.importorskip("requests", reason="schemathesis needs it")

OTHERS = ("device", "server", "viewer", None)
FLEETS = {"rounds": ROUNDS, "slots": SLOTS}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(make_app({}, FleetAccess(None)).openapi())
SCHEMA.config.generation.codec = None  # the characters are those of utf-8, but are found without a search


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("openapi"), FLEETS) as running:
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """Keeps the connection open, and asks for no proxy."""
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


#: One of so many cases is sent, by the hash of its content; of what reads, which has few cases, every valid one is.
SHARES = [4, pytest.param(1, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("share", SHARES, ids=["short", "long"])
@SCHEMA.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=5 * TORTURE, suppress_health_check=list(HealthCheck))
def test_every_answer_is_described(case: Any, service: Service, session: Any, share: int) -> None:
    if case.operation.path.endswith("/events"):  # a stream that waits for further events does not end
        case.query = {**(case.query or {}), "follow": "false"}
    named = dict(case.path_parameters or {})
    sent = (case.method, named, case.query, dict(case.headers or {}), case.cookies, case.body)
    turn, rest = divmod(zlib.crc32(ascii(sent).encode()), share)
    is_read = case.operation.method.upper() == "GET"
    is_valid = case.meta.generation.mode == schemathesis.GenerationMode.POSITIVE
    if rest and not (is_read and is_valid):
        return
    fleets = tuple(FLEETS)
    # There are far fewer cases of what reads than of what writes.
    callers: list[tuple[str, str | None]] = [
        (fleet, "operator") for fleet in (fleets if is_read else [fleets[turn % 2]])
    ]
    # Half of the other calls are those of another role, and half name a fleet that does not exist, most of the time.
    is_other_role = not named or turn // 2 % 2
    if is_other_role:
        callers.append((fleets[turn // 4 % 2], OTHERS[turn // 8 % len(OTHERS)]))
    for fleet, role in callers:
        if named:
            case.path_parameters = {**named, "fleet": fleet}
        send(case, service, session, "" if role is None else service.tokens[fleet][role])
    if not is_other_role:
        case.path_parameters = named
        send(case, service, session, service.tokens["rounds"]["operator"])


def send(case: Any, service: Service, session: Any, token: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    address = f"http://127.0.0.1:{service.port}"
    response = case.call(base_url=address, session=session, headers=headers, timeout=MAX_WAIT)
    case.validate_response(response, checks=CHECKS)


def test_the_files_are_sound_after_all_of_this(service: Service) -> None:
    for fleet, calls in service.fleets.items():
        assert service.get("", role="viewer", fleet=fleet).status == 200
        assert [finding for finding in examine(calls.scheduler.path) if finding.ok is False] == []
