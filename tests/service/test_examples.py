"""The examples of the OpenAPI document fit its schemas, and are what a running service accepts and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from service.served import Reply, Service, served
from turnout.service.examples import ERRORS, EXAMPLES, add_examples

JSON = "application/json"
ROUNDS = {"settings": {"cohort_size": 2}, "deadline": 60.0, "allow_infeasible": True}
SLOTS = {"concurrency": 2, "settings": {"guaranteed_rate": "1/60", "tolerance": 1.0}, "deadline": 300.0}
#: Objects whose names are data.
FREE = ("reasons", "numbers", "failed")


class Operation(NamedTuple):
    """An operation of the document."""

    method: str
    path: str
    data: dict[str, Any]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("examples"), {"fleet": ROUNDS, "devices": SLOTS}) as running:
        yield running


def operations(document: dict[str, Any]) -> dict[str, Operation]:
    return {
        operation["operationId"]: Operation(method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def read_document(service: Service) -> dict[str, Any]:
    document: dict[str, Any] = service.send("GET", "/openapi.json", role=None).data
    return document


def test_every_operation_has_examples_that_fit_its_schemas(service: Service) -> None:
    document = read_document(service)
    found = operations(document)
    assert set(found) == set(EXAMPLES)

    def check(schema: dict[str, Any], value: Any) -> None:
        Draft202012Validator({**schema, "components": document["components"]}).validate(value)

    for operation in found.values():
        assert operation.data["responses"]["200"]["description"] != "Successful Response"
        contents = list(operation.data["responses"]["200"]["content"].values())
        assert len(contents) == 1
        if operation.method == "POST":
            contents.append(operation.data["requestBody"]["content"][JSON])
        for content in contents:
            assert content["examples"]
            for example in content["examples"].values():
                check(content["schema"], example["value"])
        for status in operation.data["responses"]:
            if status != "200":
                content = operation.data["responses"][status]["content"][JSON]
                assert content["example"] == {"error": ERRORS[int(status)]}
                check(content["schema"], content["example"])
        for parameter in operation.data.get("parameters", []):
            check(parameter["schema"], parameter["example"])


#: Calls in an order in which all are accepted: the operation, the title of the body or the query, and the role.
STORY = [
    ("fleet", "list_fleets", "", "viewer"),
    ("fleet", "register", "three", "server"),
    ("fleet", "round_state", "", "viewer"),
    ("fleet", "choose", "with statuses", "server"),
    ("fleet", "abandon_round", "the open round", "server"),
    ("fleet", "choose", "nothing is known", "server"),
    ("fleet", "round_state", "", "viewer"),
    ("fleet", "report", "in a round", "device"),
    ("fleet", "report_failure", "in a round", "server"),
    ("fleet", "status", "", "viewer"),
    ("fleet", "close_round", "now", "server"),
    ("fleet", "choose", "with statuses", "server"),
    ("fleet", "report_batch", "of the latest round", "server"),
    ("fleet", "close_round", "now", "server"),
    ("fleet", "certificate", "?limit=20", "viewer"),
    ("fleet", "explain", "?client=phone-1&round=1", "viewer"),
    ("fleet", "history", "?client=phone-1&limit=20", "viewer"),
    ("fleet", "events", "?after=0&follow=false", "viewer"),
    ("fleet", "amend", "deadline and tolerance", "operator"),
    ("fleet", "retire", "a client", "operator"),
    ("fleet", "forget", "a client", "operator"),
    ("devices", "check_in", "a device for itself", "device"),
    ("devices", "check_in", "a server for a device", "server"),
    ("devices", "report", "of a turn", "device"),
    ("devices", "report_failure", "of a turn", "server"),
    ("devices", "fill", "with statuses", "server"),
    ("devices", "fill", "nothing is known", "server"),
    ("devices", "in_flight", "", "viewer"),
    ("devices", "status", "", "viewer"),
]


def test_a_service_accepts_every_body_and_answers_in_the_form_of_an_example(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": ROUNDS, "devices": SLOTS}) as service:
        found = operations(read_document(service))
        sent = {(name, title) for _, name, title, _ in STORY if EXAMPLES[name].bodies}
        assert sent == {(name, title) for name, examples in EXAMPLES.items() for title in examples.bodies}
        for fleet, name, title, role in STORY:
            method, path, data = found[name]
            examples = EXAMPLES[name]
            assert role in data["x-roles"]
            body = examples.bodies[title] if method == "POST" else None
            address = path.replace("{fleet}", fleet) + (title if method == "GET" else "")
            reply = service.send(method, address, body, role=role, fleet=fleet)
            assert reply.status == 200, (name, title, reply)
            for answer in stream_events(reply) if name == "events" else [reply.data]:
                assert any(has_form(answer, example) for example in examples.answers.values()), (name, answer)


def stream_events(reply: Reply) -> list[dict[str, str]]:
    """Returns the fields of each event of a stream that has ended."""
    parts = reply.body.decode().split("\n\n")[:-1]
    assert len(parts) > 1
    return [dict(line.split(": ", 1) for line in part.split("\n")) for part in parts]


def has_form(value: Any, example: Any) -> bool:
    """Returns whether two values have the same names and types; lists are compared by their first items."""
    if isinstance(value, dict) and isinstance(example, dict):
        return set(value) == set(example) and all(
            name in FREE or has_form(value[name], example[name]) for name in value
        )
    if isinstance(value, list) and isinstance(example, list):
        return not value or not example or has_form(value[0], example[0])
    numbers = (int, float)
    if isinstance(value, bool) or isinstance(example, bool) or not isinstance(value, numbers):
        return type(value) is type(example)
    return isinstance(example, numbers)


def test_what_has_no_examples_is_left_as_it_is() -> None:
    other = {"operationId": "another", "responses": {"200": {"description": "x"}}}
    known = {
        "operationId": next(iter(EXAMPLES)),
        "requestBody": {"content": {JSON: {}}},
        "responses": {"200": {"content": {JSON: {"schema": {}}}}, "409": {"content": {JSON: {}}}},
        "parameters": [{"name": "unheard_of"}],
    }
    document: dict[str, Any] = {"paths": {"/other": {"get": dict(other)}, "/known": {"post": known}}}
    add_examples(document)
    assert document["paths"]["/other"] == {"get": other}
    assert known["parameters"] == [{"name": "unheard_of"}]
    assert known["responses"]["409"]["content"][JSON] == {"example": {"error": ERRORS[409]}}  # type: ignore[index]
    assert list(known["responses"]) == ["200", "409"]


def test_forms_that_differ_are_noticed() -> None:
    assert has_form({"a": 1, "b": [{"c": None}]}, {"a": 2.5, "b": [{"c": None}, {}]})
    assert not has_form({"a": 1}, {"a": 1, "b": 2})
    assert not has_form({"a": [{"c": 1}]}, {"a": [{"d": 1}]})
    assert not has_form({"a": "1"}, {"a": 1})
    assert not has_form({"a": True}, {"a": 1})
    assert not has_form({"a": None}, {"a": 1})
