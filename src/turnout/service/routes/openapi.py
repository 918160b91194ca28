"""The OpenAPI document of the service, as far as FastAPI does not write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.service.replies import Problem, read_examples
from turnout.service.routes.routing import ROLES_FIELD, TAGS
from turnout.web.access import READERS
from turnout.web.errors import PROBLEM

DESCRIPTION = """Client selection for federated learning, over HTTP.

Send the token as `Authorization: Bearer …`. Roles (`x-roles` of each operation): *device* checks in and reports for its
own client, *server* selects clients and closes rounds, *viewer* reads, *operator* does everything. Send an
`Idempotency-Key` with every POST, and the same key again if you get no answer, 429 or 503: it is executed once. Errors
are `application/problem+json`; programs tell them apart by `code`. Lists have a `next`: pass it as `after` to get the
following entries. Clients must ignore fields that they do not know.
"""
#: The headers that the answers refer to.
HEADERS: Mapping[str, Any] = {
    "Retry-After": {
        "description": "After how many seconds to send the call again, with the same Idempotency-Key.",
        "schema": {"type": "integer", "minimum": 0, "examples": [1]},
    },
    "RateLimit-Policy": {
        "description": "How many calls (q) a token may send within so many seconds (w); missing if there is no limit.",
        "schema": {"type": "string", "examples": ['"token";q=30;w=3']},
    },
    "RateLimit": {
        "description": "How many calls are left (r), and after how many seconds (t) all are allowed again.",
        "schema": {"type": "string", "examples": ['"token";r=29;t=1']},
    },
}


#: What the probes answer.
STATE: Mapping[str, Any] = {
    "description": "The state of the service.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["status"],
                "properties": {"status": {"type": "string"}},
                "examples": [{"status": "ok"}],
            }
        }
    },
}
FIGURES: Mapping[str, Any] = {"description": "The figures.", "content": {"text/plain": {"schema": {"type": "string"}}}}


def _get(name: str, description: str, responses: Mapping[str, Any], **further: Any) -> dict[str, Any]:
    """Returns the description of a path for monitors."""
    described = {"operationId": name, "summary": name.capitalize(), "description": description, "tags": ["service"]}
    return {"get": {**described, "security": [], "responses": responses, **further}}


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Completes the document that FastAPI has written, in place, and returns it."""
    schema["info"]["contact"] = {"name": "Whoever runs this service"}
    schema["servers"] = [{"url": "/", "description": "The service from which this document was read."}]
    schema["tags"] = [{"name": tag, "description": text} for tag, (text, _) in TAGS.items()]
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for methods in schema["paths"].values():
        for operation in methods.values():
            refused = operation["responses"].get("422", {})
            if PROBLEM not in refused.get("content", {}):  # FastAPI adds it wherever there is any parameter
                operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, examples in read_examples().items():  # not in the models, because FastAPI drops null in their examples
        if name in schemas:
            schemas[name]["examples"] = examples
    components["headers"] = dict(HEADERS)
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token of the fleet; `x-roles` names the roles."}
    }
    paths = schema["paths"]
    refusals = {status: text for status, text in paths["/v1/fleets"]["get"]["responses"].items() if status != "200"}
    refusals["403"] = {**refusals["401"], "description": "A device must not read them."}
    paths["/healthz"] = _get("healthz", "Says that the process runs.", {"200": STATE})
    paths["/readyz"] = _get("readyz", "Says whether changes can be stored; 503 if not.", {"200": STATE, "503": STATE})
    paths["/metrics"] = _get(
        "metrics",
        "Figures for Prometheus about the fleets that the token may read.",
        {"200": FIGURES, **refusals},
        **{"security": [{"token": []}], ROLES_FIELD: list(READERS)},
    )
    return schema
