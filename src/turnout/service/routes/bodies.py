"""Reads the bodies of changes: large ones in a thread, and very many statuses in steps; others can work between."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from turnout.errors import OfferError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.live import FleetStatus
from turnout.live._internals import FleetSession, check_client_ids
from turnout.service import models
from turnout.service.calls import FleetCalls, GroupedCall, RequestKey

#: Larger bodies are read in a thread, in bytes; those of devices are not.
LARGE = 1 << 16
#: The most entries that are checked at once. No longer list has a limit of its own, so that one that is too long is
#: refused by its first piece.
PIECE = 20_000
#: The field of a body that may have very many entries, and how many are executed at once, which takes about 0.2 s.
AT_ONCE: Mapping[type[models.Body], tuple[str, int]] = {
    models.Registration: ("clients", 100_000),
    models.ReportBatch: ("reports", 2_000),
}
#: How many statuses are read in a step, and how many clients join in one; each takes less than 0.2 s.
READ_AT_ONCE, JOIN_AT_ONCE = 20_000, 100_000
Body = TypeVar("Body", bound=models.Body)
_READER = ThreadPoolExecutor(1, "turnout-bodies")  # one at a time, because each takes much memory
#: Runs Python code after each object, where the interpreter can change to another thread.
_DECODER = json.JSONDecoder(object_hook=lambda entry: entry)


async def read_body(model: type[Body], content: bytes) -> Body:
    """Returns the body of a request.

    Raises:
        RequestValidationError: If it is not valid JSON, or does not fit the model; it names the first error.
    """
    if len(content) <= LARGE:
        return _parse(model, content)
    return await asyncio.get_running_loop().run_in_executor(_READER, _parse, model, content)


def _parse(model: type[Body], content: bytes) -> Body:
    try:
        text = str(content, "utf-8-sig")
        return _validate(model, json.loads(text) if len(content) <= LARGE else _DECODER.decode(text))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    except (ValueError, RecursionError) as error:
        where = getattr(error, "pos", getattr(error, "start", 0))
        raise RequestValidationError([{"type": "json_invalid", "loc": ("body", where), "msg": str(error)}]) from error


def _validate(model: type[Body], data: Any) -> Body:
    """Returns the data as a model; fields with very many entries are validated in pieces, up to the first error."""
    items = data.items() if isinstance(data, dict) else ()
    large: dict[str, Any] = {
        name: value for name, value in items if isinstance(value, list | dict) and len(value) > PIECE
    }
    if not large:
        return model.model_validate(data)
    small = {**data, **{name: type(value)() for name, value in large.items()}}
    body, together = None, dict[str, Any]()
    for name, value in large.items():
        entries = together[name] = type(value)()
        for start, piece in _pieces(value, PIECE):
            try:
                body = model.model_validate({**small, name: piece})
            except ValidationError as error:
                errors: list[Any] = error.errors()
                for problem in errors if isinstance(piece, list) else ():
                    if problem["loc"][:1] == (name,) and len(problem["loc"]) > 1:
                        problem["loc"] = (name, problem["loc"][1] + start, *problem["loc"][2:])
                raise RequestValidationError(errors) from error
            valid = getattr(body, name)
            entries.update(valid) if isinstance(valid, dict) else entries.extend(valid)
    assert body is not None, "there are many entries"
    return body.model_copy(update=together)


def _pieces(entries: Any, size: int) -> Iterator[tuple[int, Any]]:
    """Yields a list or a mapping in parts of this size, each with the number of entries before it."""
    names = list(entries)
    for start in range(0, len(names), size):
        part = names[start : start + size]
        yield start, {name: entries[name] for name in part} if isinstance(entries, dict) else part


async def execute_in_pieces(
    calls: FleetCalls, make_call: Callable[[Any], GroupedCall], body: models.Body, key: RequestKey | None
) -> str:
    """Executes a call, with very many entries as several between which others are executed; returns the answer as JSON.

    Each piece has a key of its own. So if the request is sent again, all pieces that were executed have their answers,
    and together they are the same.

    Args:
        calls: The calls of the fleet.
        make_call: Returns the call with a body.
        body: The body of the request.
        key: The key of the request, if it has one.
    """
    name, size = AT_ONCE.get(type(body), ("", 0))
    entries = getattr(body, name, ())
    if len(entries) <= size:
        return await calls.execute(make_call(body), key)
    if isinstance(body, models.Registration):  # before the first of them joins
        await asyncio.get_running_loop().run_in_executor(_READER, check_client_ids, body.clients, OfferError)
    together: dict[str, Any] = {}
    for start, part in _pieces(entries, size):
        text = await calls.execute(make_call(body.model_copy(update={name: part})), _key_of_piece(key, start))
        answer: dict[str, Any] = json.loads(text)
        for refused in answer.get("refused", ()):
            refused["index"] += start
        together = {field: together[field] + value if start else value for field, value in answer.items()}
    return json.dumps(together, ensure_ascii=False, separators=(",", ":"))


def _key_of_piece(key: RequestKey | None, start: int) -> RequestKey | None:
    """Returns the key of a piece of a request; that of the first is the same, so that its reuse is noticed."""
    if key is None or not start:
        return key
    return RequestKey(hashlib.sha256(b"%b %d" % (key.key, start)).digest(), key.request)


def read_in_steps(
    session: FleetSession, statuses: Mapping[str, Any] | Sequence[str]
) -> Generator[None, None, FleetStatus]:
    """Returns statuses, or ids about which nothing is known, as arrays; yields after each step.

    New clients join when all statuses are valid. Rows stay valid between the steps: a client that is forgotten
    meanwhile has retired, and its row belongs to nobody else.

    Raises:
        OfferError: If an id or a status is invalid; no client joins.
    """
    ids, columns, new = list(statuses), list[Mapping[str, FloatArray]](), list[str]()
    parts = [ids[start : start + READ_AT_ONCE] for start in range(0, len(ids), READ_AT_ONCE)]
    for index, part in enumerate(parts):
        own = {client: statuses[client] if isinstance(statuses, Mapping) else None for client in part}
        with session.lock:
            new += session.new_ids(own)
            columns.append(session.features.columns(own, session.settings.model_size))
        parts[index] = list(own)  # without duplicates
        yield
    for start in range(0, len(new), JOIN_AT_ONCE):
        with session.lock:
            session.register(new[start : start + JOIN_AT_ONCE])
        yield
    found = list[IntArray]()
    for part in parts:
        with session.lock:
            known = session.fleet.rows
            found.append(np.array([known.get(client, -1) for client in part], dtype=np.int64))
        yield
    rows, first = np.unique(np.concatenate(found), return_index=True)
    kept = rows >= 0  # a client may have been forgotten since the first step
    values = {name: np.concatenate([column[name] for column in columns])[first[kept]] for name in columns[0]}
    return FleetStatus(values, rows[kept])
