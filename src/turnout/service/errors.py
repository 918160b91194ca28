"""The errors of the service, and the HTTP status of every error."""

from __future__ import annotations

from starlette.requests import Request

from turnout.errors import OfferError, ReportError, StoreError, TurnoutError
from turnout.live._internals import StaleError
from turnout.web.guard import READING

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
    (TurnoutError, 409),
)


def status_of(request: Request, error: TurnoutError) -> int:
    """Returns the HTTP status of an error; a query that names an unknown client is not found."""
    if request.method in READING and isinstance(error, ReportError):
        return 404
    return next(status for kind, status in STATUSES if isinstance(error, kind))
