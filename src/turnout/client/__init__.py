"""A client of `turnout fleet serve`, with the standard library only.

TurnoutError
 └─ ServiceError             a call over HTTP has failed
     ├─ RefusedError         the service has refused it, and would refuse it again
     └─ UnavailableError     there was no answer, or the service was too busy, as often as it was tried
"""

from turnout.client.fleet import AsyncFleetClient, FleetClient, OpenedRound
from turnout.client.transport import EventStream, RefusedError, ServiceError, ServiceEvent, UnavailableError

__all__ = [
    "AsyncFleetClient",
    "EventStream",
    "FleetClient",
    "OpenedRound",
    "RefusedError",
    "ServiceError",
    "ServiceEvent",
    "UnavailableError",
]
