"""The clients and the settings of a fleet."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.errors import ReportError
from turnout.live import Scheduler
from turnout.live._internals import StoredAnswer, forget_in_steps
from turnout.service import models, replies
from turnout.service.calls import Answer
from turnout.service.routes.routing import FLEET, OPERATORS, SERVERS, Resource
from turnout.web.access import Caller

CLIENTS = Resource()


@CLIENTS.change(f"{FLEET}/clients", SERVERS, replies.Registered)
def register(scheduler: Scheduler, body: models.Registration, _: Caller) -> Answer:
    """Adds clients before they are first available. Clients that are selected or check in join by themselves."""
    return Answer({"new": scheduler.register(body.clients)})


@CLIENTS.change(f"{FLEET}/amendments", OPERATORS, replies.Amended)
def amend(scheduler: Scheduler, body: models.Amendment, _: Caller) -> Answer:
    """Changes settings of the fleet from the next round on."""
    if "features" in body.settings:
        raise ReportError("features cannot be amended over HTTP: amend them in Python")
    return Answer({"changed": scheduler.amend(**body.settings)})


@CLIENTS.change(f"{FLEET}/retirements", OPERATORS, replies.Empty)
def retire(scheduler: Scheduler, body: models.ClientName, _: Caller) -> Answer:
    """Excludes a client that has left for good."""
    scheduler.retire(body.client)
    return Answer({})


@CLIENTS.stepped_change(f"{FLEET}/removals", OPERATORS, replies.Empty)
def forget(scheduler: Scheduler, body: models.ClientName, answer: StoredAnswer | None) -> Iterator[None]:
    """Removes the id and all reports of a client, and its tokens; its turns stay in the certificate."""
    return forget_in_steps(scheduler, body.client, answer)
