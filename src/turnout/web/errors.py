"""Answers to requests that fail: {"error": text}, and a status."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from turnout.errors import TurnoutError
from turnout.log import printable

#: The longest text of an error: messages may quote what was sent, such as an id of 1,024 bytes.
MAX_TEXT = 2000
#: After how many seconds a caller that was refused for a short time should try again.
RETRY_SECONDS = 1


def error_response(text: str, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns the response to a request that is refused."""
    retry = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
    return JSONResponse({"error": printable(text)[:MAX_TEXT]}, status, headers={**retry, **(headers or {})})


class ErrorAnswers:
    """Answers errors of the library, invalid requests, and requests for which there is no route.

    Args:
        status_of: Returns the status of an error of the library.
        invalid: The status of a request with an invalid value.
        no_route: What is said about requests for which there is no route, by status.
    """

    #: The errors that are answered; all others are faults of the server.
    KINDS = (TurnoutError, RequestValidationError, HTTPException)

    def __init__(
        self,
        status_of: Callable[[Request, TurnoutError], int],
        *,
        invalid: int = 422,
        no_route: Mapping[int, str] | None = None,
    ) -> None:
        self._status_of, self._invalid, self._no_route = status_of, invalid, no_route or {}

    def add_to(self, app: FastAPI) -> None:
        """Lets an application answer its errors so."""
        for kind in self.KINDS:
            app.add_exception_handler(kind, self)

    def __call__(self, request: Request, error: Exception) -> Response:
        """Returns the answer to a request."""
        if isinstance(error, TurnoutError):
            return error_response(str(error), self._status_of(request, error))
        if isinstance(error, RequestValidationError):
            return self._invalid_request(error)
        assert isinstance(error, HTTPException)
        text = self._no_route.get(error.status_code, str(error.detail).lower())
        return error_response(text, error.status_code, error.headers)

    def _invalid_request(self, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return error_response(f"the body is not valid JSON, from character {first['loc'][-1]} on", 400)
        where = ".".join(str(part)[:100] for part in first["loc"] if part not in ("body", "query"))
        message = str(first["msg"]).removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        return error_response(f"{where}: {message}" if where else message, self._invalid)
