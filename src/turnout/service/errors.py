"""The errors of the service, and the HTTP status of every error."""

from __future__ import annotations

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from turnout.errors import OfferError, ReportError, SettingError, StoreError, TurnoutError
from turnout.live._internals import StaleError
from turnout.log import printable

#: The longest text of an error: messages may quote what was sent.
LONGEST_TEXT = 1000
#: After how many seconds a caller that was refused for a short time should try again.
RETRY_SECONDS = 1


#: What a request gets for which there is no route.
NO_ROUTE = {
    404: "there is no such path: GET /openapi.json lists all calls",
    405: "this path has no such method: GET /openapi.json lists all calls",
}


class BusyError(TurnoutError):
    """Too many calls are waiting."""


class StoppingError(TurnoutError):
    """The service is shutting down and accepts no more calls."""


class ReusedKeyError(TurnoutError):
    """A key was used for another request before."""


class DeniedError(TurnoutError):
    """The token does not allow the call."""


class MissingClientError(TurnoutError):
    """A request names no client, and neither does its token."""


class UnknownFleetError(TurnoutError):
    """There is no such fleet, or the token is of another one."""


#: The status of each kind of error; the first that fits counts.
STATUSES: tuple[tuple[type[TurnoutError], int], ...] = (
    (BusyError, 429),
    (StoppingError, 503),
    (StaleError, 410),
    (StoreError, 503),
    (DeniedError, 403),
    (UnknownFleetError, 404),
    (ReusedKeyError, 422),
    (MissingClientError, 422),
    (OfferError, 422),
    (ReportError, 409),
    (SettingError, 409),
    (TurnoutError, 409),
)


def status_of(error: TurnoutError, *, is_query: bool = False) -> int:
    """Returns the HTTP status of an error; a query that names an unknown client is not found."""
    if is_query and isinstance(error, ReportError):
        return 404
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def error_response(text: str, status: int) -> JSONResponse:
    """Returns the response to a request that is refused."""
    headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else None
    shown = printable(text)
    return JSONResponse({"error": shown[:LONGEST_TEXT]}, status, headers=headers)


def library_error(request: Request, error: Exception) -> JSONResponse:
    """Answers with the message of the library."""
    assert isinstance(error, TurnoutError)
    return error_response(str(error), status_of(error, is_query=request.method in ("GET", "HEAD")))


def validation_error(_: Request, error: Exception) -> JSONResponse:
    """Answers with the first field that is invalid, and why."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(f"the body is not valid JSON, from character {first['loc'][-1]} on", 400)
    where = ".".join(str(part)[:100] for part in first["loc"] if part != "body")
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return error_response(f"{where}: {message}" if where else message, 422)


def http_error(_: Request, error: Exception) -> JSONResponse:
    """Answers to requests that no route can answer."""
    assert isinstance(error, HTTPException)
    response = error_response(NO_ROUTE.get(error.status_code, str(error.detail).lower()), error.status_code)
    response.headers.update(error.headers or {})
    return response
