"""The examples of the OpenAPI document fit its schemas, and are what a running service accepts and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from service.served import Service, served

JSON = "application/json"
ROUNDS = {"settings": {"cohort_size": 2}, "deadline": 60.0, "allow_infeasible": True}
SLOTS = {"concurrency": 2, "settings": {"guaranteed_rate": "1/60", "tolerance": 1.0}, "deadline": 300.0}
#: Objects whose names are data.
FREE = ("reasons", "numbers", "failed", "settings")


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
        if path.startswith("/v1")
        for method, operation in methods.items()
    }


def read_document(service: Service) -> dict[str, Any]:
    document: dict[str, Any] = service.send("GET", "/openapi.json", role=None).data
    return document


def examples_of(document: dict[str, Any], content: dict[str, Any]) -> list[Any]:
    """Returns the examples of a body or an answer: those of its schema."""
    schema = content["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    examples: list[Any] = schema["examples"]
    return examples


def test_every_operation_has_examples_that_fit_its_schemas(service: Service) -> None:
    document = read_document(service)

    def check(schema: dict[str, Any], value: Any) -> None:
        Draft202012Validator({**schema, "components": document["components"]}).validate(value)

    for operation in operations(document).values():
        assert operation.data["responses"]["200"]["description"] != "Successful Response"
        contents = list(operation.data["responses"]["200"]["content"].values())
        assert len(contents) == 1
        if operation.method == "POST":
            contents.append(operation.data["requestBody"]["content"][JSON])
            assert "Idempotency-Key" in {parameter["name"] for parameter in operation.data["parameters"]}
        for content in contents:
            assert examples_of(document, content)
            for example in examples_of(document, content):
                check(content["schema"], example)
        for parameter in operation.data.get("parameters", []):
            for example in parameter["schema"].get("examples", []):
                check(parameter["schema"], example)


#: Calls in an order in which all are accepted: the operation, the number of its example or its query, and the role.
STORY: list[tuple[str, str, int | str, str]] = [
    ("fleet", "list_fleets", "", "viewer"),
    ("fleet", "register", 0, "server"),
    ("fleet", "list_clients", "?limit=2", "viewer"),
    ("fleet", "settings", "", "viewer"),
    ("fleet", "round_state", "", "viewer"),
    ("fleet", "choose", 0, "server"),
    ("fleet", "abandon_round", 0, "server"),
    ("fleet", "choose", 1, "server"),
    ("fleet", "round_state", "", "viewer"),
    ("fleet", "report", 1, "device"),
    ("fleet", "report_failure", 1, "server"),
    ("fleet", "status", "", "viewer"),
    ("fleet", "close_round", 0, "server"),
    ("fleet", "show_round", "", "viewer"),
    ("fleet", "choose", 0, "server"),
    ("fleet", "report_batch", 0, "server"),
    ("fleet", "close_round", 0, "server"),
    ("fleet", "certificate", "?limit=20", "viewer"),
    ("fleet", "explain", "?client=phone-1&round=1", "viewer"),
    ("fleet", "history", "?client=phone-1&limit=20", "viewer"),
    ("fleet", "events", "?after=0&follow=false", "viewer"),
    ("fleet", "amend", 0, "operator"),
    ("fleet", "retire", 0, "operator"),
    ("fleet", "forget", 0, "operator"),
    ("devices", "check_in", 0, "device"),
    ("devices", "check_in", 1, "server"),
    ("devices", "report", 0, "device"),
    ("devices", "report_failure", 0, "server"),
    ("devices", "fill", 0, "server"),
    ("devices", "fill", 1, "server"),
    ("devices", "running", "", "viewer"),
    ("devices", "status", "", "viewer"),
]


def test_a_service_accepts_every_body_and_answers_in_the_form_of_an_example(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": ROUNDS, "devices": SLOTS}) as service:
        document = read_document(service)
        described = operations(document)
        bodies = {
            name: examples_of(document, operation.data["requestBody"]["content"][JSON])
            for name, operation in described.items()
            if operation.method == "POST"
        }
        sent = {(name, which) for _, name, which, _ in STORY if isinstance(which, int)}
        assert sent == {(name, number) for name, examples in bodies.items() for number in range(len(examples))}
        assert {name for _, name, *_ in STORY} == set(described)
        for fleet, name, which, role in STORY:
            method, path, data = described[name]
            assert role in data["x-roles"]
            body = bodies[name][which] if isinstance(which, int) else None
            round_ = service.fleets[fleet].scheduler.round
            address = path.format(fleet=fleet, round=round_) + (which if isinstance(which, str) else "")
            reply = service.send(method, address, body, role=role, fleet=fleet)
            assert reply.status == 200, (name, which, reply)
            (content,) = data["responses"]["200"]["content"].values()
            forms = examples_of(document, content)
            if name == "events":
                forms = stream_events(forms[0])
            for answer in stream_events(reply.body.decode()) if name == "events" else [reply.data]:
                assert any(has_form(answer, example) for example in forms), (name, answer)


def stream_events(text: str) -> list[dict[str, str]]:
    """Returns the fields of each event of a stream that has ended."""
    parts = text.split("\n\n")[:-1]
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


def test_forms_that_differ_are_noticed() -> None:
    assert has_form({"a": 1, "b": [{"c": None}]}, {"a": 2.5, "b": [{"c": None}, {}]})
    assert not has_form({"a": 1}, {"a": 1, "b": 2})
    assert not has_form({"a": [{"c": 1}]}, {"a": [{"d": 1}]})
    assert not has_form({"a": "1"}, {"a": 1})
    assert not has_form({"a": True}, {"a": 1})
    assert not has_form({"a": None}, {"a": 1})
