"""Answers to requests that fail: a problem in JSON (RFC 9457) with a stable code, and a status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from turnout.errors import TurnoutError
from turnout.log import printable

PROBLEM = "application/problem+json"
#: What a service says in place of an error that may name files of its machine.
UNREADABLE = "this fleet cannot be read now: see the log of the service"
#: The longest text of an error: messages may quote what was sent, such as an id of 1,024 bytes.
MAX_TEXT = 2000
#: After how many seconds a caller that was refused for a short time should try again.
RETRY_SECONDS = 1
#: The names of statuses as of RFC 9110, where older versions of Python have other ones.
TITLES: Mapping[int, str] = {413: "Content Too Large", 422: "Unprocessable Content"}
#: The code of an error about which nothing but its status is known.
CODES: Mapping[int, str] = {
    400: "malformed",
    401: "no_access",
    403: "denied",
    404: "not_found",
    405: "no_such_method",
    408: "too_slow",
    409: "conflict",
    410: "no_longer_kept",
    413: "too_large",
    415: "not_json",
    421: "wrong_host",
    422: "invalid",
    429: "too_often",
    431: "headers_too_large",
    500: "fault",
    503: "unavailable",
}


def error_response(
    text: str, status: int, headers: Mapping[str, str] | None = None, *, code: str | None = None
) -> JSONResponse:
    """Returns the response to a request that is refused; its code is by default that of the status."""
    retry = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
    title, code = TITLES.get(status, HTTPStatus(status).phrase), code or CODES.get(status, "error")
    detail = printable(text)[:MAX_TEXT]
    problem = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}
    return JSONResponse(problem, status, headers={**retry, **(headers or {})}, media_type=PROBLEM)


class ErrorAnswers:
    """Answers errors of the library, invalid requests, and requests for which there is no route.

    Args:
        status_of: Returns the status of an error of the library.
        code_of: Returns its code; None for that of the status.
        invalid: The status of a request with an invalid value.
        no_route: What is said about requests for which there is no route, by status.
    """

    #: The errors that are answered; all others are faults of the server.
    KINDS = (TurnoutError, RequestValidationError, HTTPException)

    def __init__(
        self,
        status_of: Callable[[Request, TurnoutError], int],
        *,
        code_of: Callable[[TurnoutError], str | None] = lambda _: None,
        invalid: int = 422,
        no_route: Mapping[int, str] | None = None,
    ) -> None:
        self._status_of, self._code_of = status_of, code_of
        self._invalid, self._no_route = invalid, no_route or {}

    def add_to(self, app: FastAPI) -> None:
        """Lets an application answer its errors so."""
        for kind in self.KINDS:
            app.add_exception_handler(kind, self)

    def __call__(self, request: Request, error: Exception) -> Response:
        """Returns the answer to a request."""
        if isinstance(error, TurnoutError):
            return error_response(str(error), self._status_of(request, error), code=self._code_of(error))
        if isinstance(error, RequestValidationError):
            return self._invalid_request(error)
        assert isinstance(error, HTTPException)
        text = self._no_route.get(error.status_code, str(error.detail).lower())
        return error_response(text, error.status_code, error.headers)

    def _invalid_request(self, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            text = f"the body is not valid JSON, from character {first['loc'][-1]} on; it must be UTF-8"
            return error_response(text, 400)
        where = ".".join(str(part)[:100] for part in first["loc"] if part not in ("body", "query", "path", "header"))
        message = str(first["msg"]).removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        return error_response(f"{where}: {message}" if where else message, self._invalid)
