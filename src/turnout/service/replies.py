"""The answers to requests, as the OpenAPI document describes them; examples.json has examples of them."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from turnout.service.errors import ALL_CODES

DATE_TIME = {"format": "date-time"}


@cache
def read_examples() -> dict[str, list[Any]]:
    """Returns the examples by the names of their schemas: rounds of a cohort of two, turns of two slots."""
    text = resources.files("turnout.service").joinpath("examples.json").read_text(encoding="utf-8")
    examples: dict[str, list[Any]] = json.loads(text)
    return examples


#: A time of the wall clock.
Moment = Annotated[str | None, Field(description="By the wall clock in UTC, in ISO 8601.", json_schema_extra=DATE_TIME)]
Next = Annotated[str | None, Field(description="Pass it as `after` to get the following entries; null at the end.")]


class Reply(BaseModel):
    """Clients must ignore fields that they do not know: later versions may add some."""


class Problem(Reply):
    """Why a request was refused, and what to do (RFC 9457)."""

    type: Annotated[str, Field(description="Always about:blank: the code says what it is.")]
    title: Annotated[str, Field(description="The name of the status.")]
    status: int
    code: Annotated[str, Field(description="What the problem is, for programs.", json_schema_extra={"enum": ALL_CODES})]
    detail: Annotated[str, Field(description="What is wrong and what to do, for people; the text may change.")]


class Fleets(Reply):
    """The fleets that the token may use."""

    fleets: list[str]


class Registered(Reply):
    """How many of the clients are new."""

    new: int


class TurnReply(Reply):
    """A turn that a client was given."""

    id: Annotated[int, Field(description="The result is reported with it.")]
    client: str
    deadline: Annotated[float | None, Field(description="The seconds after which the client is late.")]
    selected_at: Moment
    deadline_at: Annotated[Moment, Field(description="When the client is late; null if it never is.")]
    reasons: Annotated[dict[str, float | None], Field(description="The policy's reasons.")]


class WaitReply(Reply):
    """There is no turn now."""

    seconds: Annotated[float, Field(description="Check in again after so many seconds.")]
    why: str


class CheckInReply(Reply):
    """Either a turn, or how long to wait."""

    turn: TurnReply | None
    wait: WaitReply | None


class Round(Reply):
    """An open round."""

    round: int
    cohort: Annotated[list[str], Field(description="The ids of the selected clients: send them the model.")]
    deadline: Annotated[float | None, Field(description="The seconds after which clients are late.")]
    selected_at: Moment
    deadline_at: Annotated[Moment, Field(description="When clients are late; null if they never are.")]
    target_size: Annotated[int, Field(description="The number of updates after which the round can be closed.")]


class SelectedClientReply(Reply):
    """What is known about a client of a cohort."""

    client: str
    expected_seconds: Annotated[float | None, Field(description="null if it was never timed, or has just started.")]
    timed: Annotated[bool, Field(description="Whether a time of it was learned before.")]
    behind: Annotated[float | None, Field(description="The turns that it is behind; null without a promise.")]


class SelectedRound(Round):
    """A round that was opened, and what is known about its clients."""

    clients: Annotated[list[SelectedClientReply], Field(description="In the order of the cohort.")]


class RoundState(Reply):
    """The open round, if any, and whether it can be closed."""

    open: Round | None
    ready: Annotated[bool, Field(description="Enough clients have reported, or the deadline has passed.")]


class RecordedTurnReply(Reply):
    """A turn with its outcome."""

    round: Annotated[int, Field(description="The round or, without rounds, the id of the turn.")]
    client: str
    outcome: Annotated[str, Field(description='"out" while nothing was reported.')]
    seconds: float | None
    loss: float | None
    signals: dict[str, float] | None
    why: str | None
    at: Annotated[Moment, Field(description="When the outcome was recorded.")]
    late_seconds: Annotated[float | None, Field(description="The time that a late client reported.")]
    late_at: Annotated[Moment, Field(description="When that time was recorded.")]


class RoundPage(Reply):
    """A round with the outcomes of its turns."""

    round: int
    is_open: bool
    turns: list[RecordedTurnReply]
    next: Next


class Turns(Reply):
    """Turns that were given."""

    turns: list[TurnReply]
    next: Next


class RecordReply(Reply):
    """Whether the outcome is new; false if the same was recorded before."""

    new: bool


class Refused(Reply):
    """A report of a batch that was not recorded."""

    index: Annotated[int, Field(description="Its place in the batch, from 0.")]
    code: str
    detail: str


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
    etag: Annotated[str, Field(description="The tag of the settings as they are now.")]


class FeatureReply(Reply):
    """A number that every status has."""

    name: str
    low: Annotated[float, Field(description="The smallest credible value.")]
    high: Annotated[float, Field(description="The largest credible value.")]
    unit: str


class SettingsReply(Reply):
    """The settings of the fleet, as the last amendment left them."""

    settings: Annotated[dict[str, Any], Field(description="By name; docs/settings.md describes them.")]
    features: list[FeatureReply]
    target_size: Annotated[int | None, Field(description="The number of updates that a round needs; 1 without rounds.")]
    etag: Annotated[str, Field(description="Changes with the settings: for If-Match.")]


class ClientReply(Reply):
    """A client."""

    client: str
    retired: bool
    backed_off_until: Annotated[int | None, Field(description="The last round of its back-off, if it is backed off.")]
    last_round: Annotated[int | None, Field(description="The last round from which it returned, if it ever did.")]
    suspect: Annotated[bool, Field(description="Its reported times do not fit the statuses that it sends.")]


class ClientPage(Reply):
    """Clients, in the order in which they joined."""

    clients: list[ClientReply]
    of: Annotated[int, Field(description="The number of all clients.")]
    next: Next


class Empty(Reply):
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
    unit: Literal["round", "decision"]


class FleetReply(Reply):
    """The state of a fleet."""

    fleet: str
    clients: int
    retired: int
    round: Annotated[int, Field(description="The open or last round; without rounds, the last decision.")]
    is_open: bool
    elapsed: Annotated[float | None, Field(description="The seconds since the selection; null if unknown.")]
    deadline: float | None
    target_size: int
    slots: Annotated[int | None, Field(description="The concurrency; null with rounds.")]
    out: Annotated[list[str], Field(description="Clients that have not reported; at most 1,000.")]
    arrived: list[str]
    failed: dict[str, str]
    behind: Annotated[dict[str, float], Field(description="The clients furthest behind, by at least one turn.")]
    backing_off: Annotated[dict[str, int], Field(description="The clients that are backed off, and until which round.")]
    worst: Annotated[str | None, Field(description="The client that is furthest behind.")]
    suspects: Annotated[
        list[str],
        Field(description="Clients whose reported times do not fit the statuses that they send; at most 1,000."),
    ]
    promise: Promise | None
    notices: list[str]


class SelectionOutcome(Reply):
    """What a client was promised and got."""

    client: str
    turns: int
    promised: float
    behind: float
    status: str
    unserved: bool
    owed: Annotated[float | None, Field(description="The queue of owed turns; null if the policy has none.")]
    forfeited: float
    backed_off: Annotated[int, Field(description="The rounds in which it was backed off, which earn nothing.")]


class CertificatePage(Reply):
    """The promise, and the clients that are furthest behind or the one that was asked for."""

    promise: Promise
    clients: list[SelectionOutcome]
    of: Annotated[int, Field(description="The number of all clients.")]
    next: Next


class ExplanationReply(Reply):
    """Why a client was selected, or was not."""

    round: int
    client: str
    policy: str
    outcome: str
    exact: bool
    sentence: str
    numbers: dict[str, float | None]


class History(Reply):
    """The turns of a client, newest first."""

    turns: list[RecordedTurnReply]
    of: Annotated[int, Field(description="The number of all its turns that are kept.")]
    next: Next
