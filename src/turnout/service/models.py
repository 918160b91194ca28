"""The bodies of requests; examples.json has examples of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

ClientId = Annotated[str, Field(min_length=1, max_length=1024, description="The id of a client.", examples=["phone-1"])]
Number = Annotated[int, Field(ge=1, le=2**62)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Value = Annotated[float, Field(allow_inf_nan=False)]
Status = Annotated[
    dict[str, Value],
    Field(
        description="One number for each feature of the fleet; by default free_cpu in cores, and bandwidth in units of "
        "model_size per second.",
        examples=[{"free_cpu": 1.5, "bandwidth": 3.0}],
    ),
]


class Body(BaseModel):
    """Unknown fields are refused, which are usually mistyped, and so are values of another type, such as "1" for 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Registration(Body):
    """Clients that join before they are first available."""

    clients: Annotated[list[ClientId], Field(min_length=1)]


class CheckIn(Body):
    """A device asks for work."""

    client: Annotated[ClientId | None, Field(description="A device may leave it out: its token names it.")] = None
    status: Annotated[Status | None, Field(description="null if nothing is known.")] = None


class Available(Body):
    """The clients that are available now: either their statuses or, if nothing is known about them, their ids."""

    statuses: Annotated[dict[str, Status | None] | None, Field(description="Their statuses by id.")] = None
    clients: Annotated[list[ClientId] | None, Field(description="Their ids, instead of statuses.")] = None
    cold: Annotated[
        list[ClientId],
        Field(description="Those that have just started: the time of their next exchange is not learned."),
    ] = []

    @model_validator(mode="after")
    def _check(self) -> Available:
        if (self.statuses is None) == (self.clients is None):
            raise ValueError("send either statuses or clients")
        return self

    @property
    def offered(self) -> dict[str, Any] | list[str]:
        """The statuses or the ids, as the scheduler takes them."""
        return self.statuses if self.statuses is not None else self.clients or []


class OutcomeRequest(Body):
    """Whose outcome is reported: of a turn or, in a fleet with rounds, of a client in a round."""

    client: Annotated[ClientId | None, Field(description="A device may leave it out: its token names it.")] = None
    turn: Annotated[Number | None, Field(description="The id of the turn, in a fleet with a concurrency.")] = None
    round: Annotated[Number | None, Field(description="The round; by default the latest.")] = None

    @model_validator(mode="after")
    def _check(self) -> OutcomeRequest:
        if self.turn is not None and self.round is not None:
            raise ValueError("send either turn or round")
        return self


class Report(OutcomeRequest):
    """The update of a client has arrived."""

    seconds: Annotated[
        Seconds | None,
        Field(description="From sending the model until the update arrived; by default since the selection."),
    ] = None
    loss: Annotated[Value | None, Field(description="The mean training loss, for policies that use it.")] = None
    signals: Annotated[
        dict[str, Value] | None,
        Field(
            description="Numbers by the names that the setting `signals` declares; one outside its range is ignored."
        ),
    ] = None


class Failure(OutcomeRequest):
    """A client has failed, which does not change its learned speed."""

    why: Annotated[str, Field(min_length=1, max_length=100_000, description="Cut off after 2,000 characters.")]


class ReportBatch(Body):
    """Many reports, each of which is recorded or refused by itself."""

    reports: Annotated[list[Report], Field(min_length=1, max_length=10_000)]


class Closing(Body):
    """Closes the round with the clients that have reported."""

    after: Annotated[
        Seconds | None,
        Field(description="Without a deadline, missing clients took at least so long; by default until now."),
    ] = None


class Nothing(Body):
    """An empty object."""


class AmendmentRequest(Body):
    """Settings to change from the next round on; docs/operating.md describes them."""

    settings: Annotated[dict[str, Any], Field(min_length=1, max_length=50)]


class ClientName(Body):
    """A client."""

    client: ClientId
