"""The bodies of requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
    """Unknown fields are refused: they are usually mistyped."""

    model_config = ConfigDict(extra="forbid", strict=False)


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [values]})


# Requests


class Registration(Body):
    """Clients that join before they are first available."""

    model_config = _example(clients=["phone-1", "phone-2"])
    clients: Annotated[list[ClientId], Field(min_length=1)]


class CheckIn(Body):
    """A device asks for work."""

    model_config = _example(client="phone-1", status={"free_cpu": 1.5, "bandwidth": 3.0})
    client: Annotated[ClientId | None, Field(description="A device may leave it out: its token names it.")] = None
    status: Annotated[Status | None, Field(description="null if nothing is known.")] = None


class Available(Body):
    """The clients that are available now: either their statuses or, if nothing is known about them, their ids."""

    model_config = _example(statuses={"phone-1": {"free_cpu": 1.5, "bandwidth": 3.0}, "phone-2": None})
    statuses: Annotated[dict[str, Status | None] | None, Field(description="Their statuses by id.")] = None
    clients: Annotated[list[ClientId] | None, Field(description="Their ids, instead of statuses.")] = None

    @model_validator(mode="after")
    def _check(self) -> Available:
        if (self.statuses is None) == (self.clients is None):
            raise ValueError("send either statuses or clients")
        return self

    @property
    def offered(self) -> dict[str, Any] | list[str]:
        """The statuses or the ids, as the scheduler takes them."""
        return self.statuses if self.statuses is not None else self.clients or []


class Outcome(Body):
    """Whose outcome is reported: of a turn or, in a fleet with rounds, of a client in a round."""

    client: Annotated[ClientId | None, Field(description="A device may leave it out: its token names it.")] = None
    turn: Annotated[Number | None, Field(description="The id of the turn, in a fleet with a concurrency.")] = None
    round: Annotated[Number | None, Field(description="The round; by default the latest.")] = None

    @model_validator(mode="after")
    def _check(self) -> Outcome:
        if self.turn is not None and self.round is not None:
            raise ValueError("send either turn or round")
        return self


class Report(Outcome):
    """The update of a client has arrived."""

    model_config = _example(client="phone-1", seconds=12.5, loss=0.7)
    seconds: Annotated[
        Seconds | None,
        Field(description="From sending the model until the update arrived; by default since the selection."),
    ] = None
    loss: Annotated[Value | None, Field(description="The mean training loss, for policies that use it.")] = None


class Failure(Outcome):
    """A client has failed, which does not change its learned speed."""

    model_config = _example(client="phone-1", why="out of memory")
    why: Annotated[str, Field(min_length=1, max_length=100_000, description="Cut off after 2,000 characters.")]


class ReportBatch(Body):
    """Many reports, each of which is recorded or refused by itself."""

    model_config = _example(reports=[{"client": "phone-1", "seconds": 12.5}, {"client": "phone-2", "seconds": 9.0}])
    reports: Annotated[list[Report], Field(min_length=1, max_length=10_000)]


class Closing(Body):
    """Closes the round with the clients that have reported."""

    model_config = _example()
    after: Annotated[
        Seconds | None,
        Field(description="Without a deadline, missing clients took at least so long; by default until now."),
    ] = None


class Nothing(Body):
    """An empty object."""

    model_config = _example()


class Amendment(Body):
    """Settings to change from the next round on; docs/operating.md describes them."""

    model_config = _example(settings={"deadline": 120, "tolerance": 1.5})
    settings: Annotated[dict[str, Any], Field(min_length=1, max_length=50)]


class ClientName(Body):
    """A client."""

    model_config = _example(client="phone-1")
    client: ClientId


# Answers


class Reply(BaseModel):
    """Clients must ignore fields that they do not know: later versions may add some."""


class Error(Reply):
    """Why a request was refused, and what to do."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"error": "no round is open: choose first"}]})
    error: str


class Fleets(Reply):
    """The fleets that the token may use."""

    fleets: list[str]


class Registered(Reply):
    """How many of the clients are new."""

    new: int


class Turn(Reply):
    """A turn that a client was given."""

    id: Annotated[int, Field(description="The result is reported with it.")]
    client: str
    deadline: Annotated[float | None, Field(description="The seconds after which the client is late.")]
    reasons: Annotated[dict[str, float | None], Field(description="The policy's reasons.")]


class Wait(Reply):
    """There is no turn now."""

    seconds: Annotated[float, Field(description="Check in again after so many seconds.")]
    why: str


class CheckedIn(Reply):
    """Either a turn, or how long to wait."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"turn": None, "wait": {"seconds": 15, "why": "all 8 slots are in use"}}]}
    )
    turn: Turn | None
    wait: Wait | None


class Round(Reply):
    """An open round."""

    round: int
    cohort: Annotated[list[str], Field(description="The ids of the selected clients: send them the model.")]
    deadline: Annotated[float | None, Field(description="The seconds after which clients are late.")]
    wanted: Annotated[int, Field(description="The number of updates after which the round can be closed.")]


class RoundState(Reply):
    """The open round, if any, and whether it can be closed."""

    open: Round | None
    ready: Annotated[bool, Field(description="Enough clients have reported, or the deadline has passed.")]


class RecordedTurn(Reply):
    """A turn with its outcome."""

    round: Annotated[int, Field(description="The round or, without rounds, the id of the turn.")]
    client: str
    outcome: Annotated[str, Field(description='"out" while nothing was reported.')]
    seconds: float | None
    loss: float | None
    why: str | None
    at: Annotated[str | None, Field(description="When the outcome was recorded.")]
    late_seconds: Annotated[float | None, Field(description="The actual time of a late client.")]
    late_at: Annotated[str | None, Field(description="When that time was recorded (ISO 8601).")]


class ClosedRound(Reply):
    """A closed round with the outcomes of its cohort."""

    round: int
    turns: list[RecordedTurn]


class Turns(Reply):
    """Turns that were given."""

    turns: list[Turn]


class Recorded(Reply):
    """Whether the outcome is new; false if the same was recorded before."""

    new: bool


class Refused(Reply):
    """A report of a batch that was not recorded."""

    index: Annotated[int, Field(description="Its place in the batch, from 0.")]
    error: str


class RecordedBatch(Reply):
    """How many reports are new, and which were refused."""

    new: int
    refused: list[Refused]


class Abandoned(Reply):
    """The round that was cancelled."""

    round: int


class Amended(Reply):
    """The names of the settings that differ from before."""

    changed: list[str]


class Done(Reply):
    """It is done."""


class Promise(Reply):
    """Whether the promise is kept."""

    status: Literal["kept", "behind", "broken"]
    sentence: str
    tolerance: float
    clients: int
    kept: int
    behind: int
    broken: int
    unserved: int
    retired: int
    retired_broken: int
    worst: str | None
    worst_behind: float
    since: int | None
    clock: Literal["round", "decision"]


class FleetState(Reply):
    """The state of a fleet."""

    fleet: str
    clients: int
    retired: int
    round: Annotated[int, Field(description="The open or last round; without rounds, the last decision.")]
    is_open: bool
    elapsed: Annotated[float | None, Field(description="The seconds since the selection; null if unknown.")]
    deadline: float | None
    wanted: int
    slots: Annotated[int | None, Field(description="The concurrency; null with rounds.")]
    out: Annotated[list[str], Field(description="Clients that have not reported; at most 1,000.")]
    arrived: list[str]
    failed: dict[str, str]
    suspects: Annotated[
        list[str],
        Field(description="Clients whose reported times do not fit the statuses that they send; at most 1,000."),
    ]
    promise: Promise | None
    notices: list[str]


class Standing(Reply):
    """What a client was promised and got."""

    client: str
    turns: int
    promised: float
    behind: float
    status: str
    unserved: bool
    owed: float
    forfeited: float


class CertificatePage(Reply):
    """The promise, and the clients that are furthest behind or the one that was asked for."""

    promise: Promise
    clients: list[Standing]
    of: Annotated[int, Field(description="The number of all clients.")]


class Explanation(Reply):
    """Why a client was selected, or was not."""

    round: int
    client: str
    policy: str
    standing: str
    exact: bool
    sentence: str
    numbers: dict[str, float | None]


class History(Reply):
    """The newest turns of a client, oldest first."""

    turns: list[RecordedTurn]
    of: Annotated[int, Field(description="The number of all its turns that are kept.")]
