"""Whatever is sent to any operation, with any role: the answer is one that the OpenAPI document describes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from killing import TORTURE
from service.served import ROUNDS, SLOTS, Service, served
from turnout.live._internals import examine
from turnout.service.app import make_app
from turnout.service.fleet import FleetAccess
from turnout.service.routes.routing import REFUSALS
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


@pytest.mark.thorough
@SCHEMA.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=5 * TORTURE, suppress_health_check=list(HealthCheck))
def test_every_answer_is_described(case: Any, service: Service, session: Any) -> None:
    if case.operation.path.endswith("/events"):  # a stream that waits for further events does not end
        case.query = {**(case.query or {}), "follow": "false"}
    named = dict(case.path_parameters or {})
    sent = (case.method, named, case.query, dict(case.headers or {}), case.cookies, case.body)
    turn = zlib.crc32(ascii(sent).encode())
    is_read = case.operation.method.upper() == "GET"
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


DOCUMENT = make_app({}, FleetAccess(None)).openapi()
#: A valid body of each change: the last example of the document.
VALID: dict[str, dict[str, Any]] = {
    path.removeprefix("/v1/fleets/{fleet}").replace("{round}", "1"): DOCUMENT["components"]["schemas"][
        methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    ]["examples"][-1]
    for path, methods in DOCUMENT["paths"].items()
    if "post" in methods
}
HUGE, DEEP = "9" * 5000, 30_000
#: Values that replace each value of a valid body, as JSON or nearly so.
VALUES = {
    "null": "null",
    "true": "true",
    "a string": '"x"',
    "an empty string": '""',
    "a long string": json.dumps("x" * 2000),
    "a control character": '"\\u0000"',
    "a lone surrogate": '"\\ud800"',
    "a number as a string": '"1"',
    "zero": "0",
    "a negative number": "-1",
    "a fraction": "1.5",
    "a huge integer": HUGE,
    "a negative huge integer": f"-{HUGE}",
    "a huge exponent": "1e999999",
    "a tiny number": "1e-999999",
    "not a number": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "an empty list": "[]",
    "an empty object": "{}",
    "a list of everything": '[null, true, 1, "x", {}, []]',
    "a nested object": '{"phone-1": {"free_cpu": {"x": 1}}}',
    "a deep list": "[" * DEEP + "]" * DEEP,
    "a deep object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "a status with a lone surrogate": '{"\\udfff": {"free_cpu": 1, "bandwidth": 1}}',
    "a status with NaN": '{"phone-1": {"free_cpu": NaN, "bandwidth": 1}}',
    "a status with a huge number": f'{{"phone-1": {{"free_cpu": {HUGE}, "bandwidth": 1}}}}',
}
#: Whole bodies.
BODIES = {
    "nothing": b"",
    "spaces": b"  \r\n",
    "not JSON": b"hello",
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"client": "phone-1"}'.encode("utf-16"),
    "invalid UTF-8": b'{"client": "\xff\xfe"}',
    "an encoded surrogate": b'{"client": "\xed\xa0\x80"}',
    "NUL bytes": b"\x00" * 100,
    "two documents": b"{}{}",
    "a comma too many": b'{"client": "phone-1",}',
    "single quotes": b"{'client': 'phone-1'}",
    "an unknown field": b'{"clinet": "phone-1"}',
    "a field of Python": b'{"__class__": "x", "__dict__": {}}',
    "an open string": b'{"client": "phone',
    "a deep list that never ends": b"[" * DEEP,
    "a deep object that never ends": b'{"a":' * DEEP,
    **{name: value.encode() for name, value in VALUES.items()},
}


def check(service: Service, path: str, body: bytes, fleets: Iterable[str] = FLEETS) -> None:
    """Sends a body to these fleets: it is accepted, or refused with a reason and a documented status."""
    for fleet in fleets:
        reply = service.post(path, body, fleet=fleet)
        assert reply.status == 200 or reply.status in REFUSALS, (path, body[:200], reply)
        assert reply.status not in (401, 403, 429, 431, 503), reply
        assert reply.status == 200 or 0 < len(reply.error) <= 2000, reply
        assert b"Traceback" not in reply.body


@pytest.fixture(autouse=True)
def _sound(service: Service) -> Iterator[None]:
    yield
    assert service.send("GET", "/readyz", role=None).status == 200


@pytest.mark.parametrize("path", VALID)
def test_bodies_that_are_no_objects_or_no_json(service: Service, path: str) -> None:
    """Each body is sent to the fleets in turn: none depends on what a fleet has."""
    names, first = tuple(FLEETS), list(VALID).index(path)
    for number, body in enumerate(BODIES.values(), start=first):
        check(service, path, body, [names[number % len(names)]])


@pytest.mark.thorough
@pytest.mark.parametrize("path", VALID)
def test_every_value_replaced_by_every_other(service: Service, path: str) -> None:
    for name in VALID[path]:
        for value in VALUES.values():
            members = [f"{json.dumps(key)}: {json.dumps(own)}" for key, own in VALID[path].items() if key != name]
            check(service, path, ("{" + ", ".join([*members, f'"{name}": {value}']) + "}").encode())


@pytest.mark.parametrize("path", VALID)
def test_the_last_of_two_equal_fields_counts_and_both_must_be_json(service: Service, path: str) -> None:
    valid = json.dumps(VALID[path])
    for name in VALID[path]:
        check(service, path, f'{{"{name}": 5, {valid[1:]}'.encode())
        check(service, path, f'{valid[:-1]}, "{name}": 5}}'.encode())
        reply = service.post(path, f'{valid[:-1]}, "{name}": }}'.encode(), fleet="rounds")
        assert reply.status == 400


@pytest.mark.parametrize("path", [path for path in VALID if VALID[path]])
def test_a_truncated_body_is_never_executed(service: Service, path: str) -> None:
    valid = json.dumps(VALID[path]).encode()
    for length in (*range(1, len(valid) - 1, 3), len(valid) - 1):
        reply = service.post(path, valid[:length], fleet="rounds")
        assert (reply.status, "not valid JSON" in reply.error) == (400, True)


def test_a_body_in_chunks_of_one_byte_is_read_as_a_whole(service: Service) -> None:
    if (opened := service.ok("/round", fleet="rounds")["open"]) is not None:  # while a round is open, nobody joins
        service.ok(f"/rounds/{opened['round']}/close", {}, fleet="rounds")
    body = json.dumps({"clients": ["chunked-é"]}, ensure_ascii=False).encode()
    chunks = [body[at : at + 1] for at in range(len(body))]
    assert service.post_chunked("/clients", chunks, fleet="rounds") == (200, b'{"new":1}')
    assert service.post_chunked("/clients", [body], fleet="rounds") == (200, b'{"new":0}')


def test_chunks_that_are_damaged_or_invalid_json_are_refused(service: Service) -> None:
    assert service.post_chunked("/clients", [b'{"clients": ', b"[1"], fleet="rounds")[0] == 400
    assert service.post_chunked("/clients", [], fleet="rounds")[0] == 400
    assert service.post_chunked("/clients", [b"{}"], b"zz\r\n\r\n", fleet="rounds")[0] == 400


def test_the_files_are_sound_after_all_of_this(service: Service) -> None:
    for fleet, calls in service.fleets.items():
        assert service.get("", role="viewer", fleet=fleet).status == 200
        assert [finding for finding in examine(calls.scheduler.path) if finding.ok is False] == []
