"""The reference of the HTTP service, generated from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from turnout.service.access.callers import Access
from turnout.service.app import make_app

Schema = Mapping[str, Any]
JSON = "application/json"
HEAD = """# HTTP calls

`turnout fleet serve` answers these calls; [the page about the service](../service.md) introduces them with curl, tokens
and TLS. Every call except `GET /healthz`, `GET /readyz` and `GET /openapi.json` needs a token of one of the roles that
are named with it (`Authorization: Bearer TOKEN`). `GET /openapi.json` returns what this page was generated from.

"""


def operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yields method, path and description of every call."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def openapi() -> Schema:
    """Returns the OpenAPI document of the service."""
    return make_app({}, Access(None)).openapi()


def http_page(document: Schema) -> str:
    """Returns the reference in Markdown, one section per call."""
    schemas = document["components"]["schemas"]
    sections = (_section(method, path, call, schemas) for method, path, call in operations(document))
    return HEAD + "\n".join(sections)


def _section(method: str, path: str, call: Schema, schemas: Schema) -> str:
    parts = [f"## {method} {path}", str(call["description"]), f"Roles: {', '.join(call['x-roles'])}."]
    parameters = [
        (f"`{each['name']}` ({each['in']})", each["schema"], each.get("description", ""), each["required"])
        for each in call.get("parameters", [])
    ]
    if parameters:
        parts.append(_table(parameters, schemas))
    body = call.get("requestBody", {}).get("content", {}).get(JSON)
    if body:
        parts += ["**Body**", *_described(body, schemas)]
    answer = call["responses"]["200"]
    content = answer.get("content", {}).get(JSON)
    described = _described(content, schemas, is_answer=True) if content else [answer["description"]]
    parts += ["**Answer**", *described]
    return "\n\n".join(parts) + "\n"


def _described(content: Schema, schemas: Schema, *, is_answer: bool = False) -> list[str]:
    """Returns a table of the fields of a body or an answer, which always has all of them, and examples."""
    schema = _resolved(content["schema"], schemas)
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", field, field.get("description", ""), name in required and not is_answer)
        for name, field in schema.get("properties", {}).items()
    ]
    examples = content.get("examples", {}).values()
    return [
        *([_table(rows, schemas)] if rows else []),
        *(f"```json\n{json.dumps(each['value'], indent=2, ensure_ascii=False)}\n```" for each in examples),
    ]


def _table(rows: list[tuple[str, Schema, str, bool]], schemas: Schema) -> str:
    lines = ["| name | type | description |", "|---|---|---|"]
    for name, schema, description, required in rows:
        needed = "Required. " if required else ""
        text = f"{needed}{description}".replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {_type(schema, schemas)} | {text} |")
    return "\n".join(lines)


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    """Follows a reference to another schema."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    found: Schema = schemas[name] if name else schema
    return found


def _type(schema: Schema, schemas: Schema) -> str:
    """Returns the type of a value in a few words."""
    if "$ref" in schema:
        fields = _resolved(schema, schemas).get("properties", {})
        return f"object ({', '.join(f'`{name}`' for name in fields)})" if fields else "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(option, schemas) for option in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], schemas)}" if "items" in schema else "list"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'], schemas)}"
    return str(schema.get("type", "any"))
