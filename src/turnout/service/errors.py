"""The errors of the service, and the HTTP status and the code of every error."""

from __future__ import annotations

from starlette.requests import Request

from turnout import errors
from turnout.live._internals import StaleError
from turnout.web.errors import CODES
from turnout.web.guard import READING

#: What a request gets for which there is no route.
NO_ROUTE = {
    404: "there is no such path: GET /openapi.json lists all calls",
    405: "this path has no such method: GET /openapi.json lists all calls",
}


class BusyError(errors.TurnoutError):
    """Too many calls are waiting."""


class StandbyError(errors.StoreError):
    """Another process writes the fleet: this service waits until it can take over."""


class StoppingError(errors.TurnoutError):
    """The service is shutting down and accepts no more calls."""


class ReusedKeyError(errors.TurnoutError):
    """A key was used for another request before."""


class DeniedError(errors.TurnoutError):
    """The token does not allow the call."""


class MissingClientError(errors.TurnoutError):
    """A request names no client, and neither does its token."""


class UnknownFleetError(errors.TurnoutError):
    """There is no such fleet, or the token is of another one."""


class FutureEventError(errors.TurnoutError):
    """There is no such event yet: the fleet may have been restored from a backup."""


class AmendedError(errors.TurnoutError):
    """The settings were amended since the caller read them."""


class ClosedRoundError(errors.TurnoutError):
    """The round that a call names is closed already."""


class OtherRoundError(errors.TurnoutError):
    """The round that a call names is not the open one."""


class UnknownRoundError(errors.TurnoutError):
    """There is no such round, or it is no longer kept."""


class CursorError(errors.TurnoutError):
    """A cursor is not one that an answer had."""


#: The status and the code of each kind of error; the first that fits counts.
PROBLEMS: tuple[tuple[type[errors.TurnoutError], int, str], ...] = (
    (BusyError, 429, "busy"),
    (StoppingError, 503, "stopping"),
    (StaleError, 410, "no_longer_kept"),
    (FutureEventError, 410, "no_such_event"),
    (StandbyError, 503, "standby"),
    (errors.StoreError, 503, "unavailable"),
    (DeniedError, 403, "denied"),
    (UnknownFleetError, 404, "unknown_fleet"),
    (UnknownRoundError, 404, "unknown_round"),
    (AmendedError, 412, "amended"),
    (ClosedRoundError, 409, "round_closed"),
    (OtherRoundError, 409, "round_not_open"),
    (CursorError, 422, "invalid_cursor"),
    (ReusedKeyError, 422, "key_reused"),
    (MissingClientError, 422, "client_missing"),
    (errors.OfferError, 422, "invalid_offer"),
    (errors.InfeasiblePromise, 409, "infeasible_promise"),
    (errors.FleetKindError, 409, "wrong_kind_of_fleet"),
    (errors.SettingError, 422, "invalid_setting"),
    (errors.UnknownClientError, 409, "unknown_client"),
    (errors.UnknownTurnError, 409, "unknown_turn"),
    (errors.ReportedBeforeError, 409, "reported_before"),
    (errors.NoOpenRoundError, 409, "no_open_round"),
    (errors.OpenRoundError, 409, "round_open"),
    (errors.StateError, 409, "no_clients"),
    (errors.ReportError, 409, "refused"),
    (errors.TurnoutError, 409, "conflict"),
)
#: All codes, for those who write clients.
ALL_CODES = tuple(sorted({*CODES.values(), *(code for _, _, code in PROBLEMS)}))


def status_of(request: Request, error: errors.TurnoutError) -> int:
    """Returns the HTTP status of an error; a query that names an unknown client is not found."""
    if request.method in READING and isinstance(error, errors.ReportError):
        return 404
    return next(status for kind, status, _ in PROBLEMS if isinstance(error, kind))


def code_of(error: errors.TurnoutError) -> str:
    """Returns the code of an error."""
    return next(code for kind, _, code in PROBLEMS if isinstance(error, kind))
