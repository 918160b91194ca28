"""The answers to requests; their examples are those of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Parts of the examples: rounds are of a fleet with a cohort of two, turns of a fleet with two slots.
REASONS = {"optimistic": 7.55, "usual": 6.25, "behind": 0.033, "price": 6.47, "urgent": 0.0, "objective": 1.08}
TURN = {"id": 1, "client": "phone-1", "deadline": 300.0, "reasons": REASONS}
ROUND = {"round": 1, "cohort": ["phone-1", "phone-2"], "deadline": 60.0, "wanted": 2}
ARRIVED = {
    "round": 1,
    "client": "phone-1",
    "outcome": "arrived",
    "seconds": 12.5,
    "loss": 0.7,
    "why": None,
    "at": "2026-11-16T17:27:29.915+00:00",
    "late_seconds": None,
    "late_at": None,
}
FAILED = {**ARRIVED, "client": "phone-2", "outcome": "failed", "seconds": None, "loss": None, "why": "out of memory"}
PROMISE = {
    "status": "kept",
    "sentence": "kept: all 3 clients are less than one turn behind",
    "tolerance": 2.0,
    "clients": 3,
    "kept": 3,
    "behind": 0,
    "broken": 0,
    "unserved": 0,
    "retired": 0,
    "retired_broken": 0,
    "worst": "phone-3",
    "worst_behind": 0.15,
    "since": None,
    "unit": "round",
}
STATE = {
    "fleet": "fleet",
    "clients": 3,
    "retired": 0,
    "round": 1,
    "is_open": True,
    "elapsed": 20.3,
    "deadline": 60.0,
    "wanted": 2,
    "slots": None,
    "out": [],
    "arrived": ["phone-1"],
    "failed": {"phone-2": "out of memory"},
    "behind": {},
    "backing_off": {},
    "worst": "phone-3",
    "suspects": [],
    "promise": PROMISE,
    "notices": [],
}
STATE_OF_SLOTS = {
    **STATE,
    "fleet": "devices",
    "round": 4,
    "is_open": False,
    "elapsed": 0.0,
    "deadline": None,
    "wanted": 0,
    "slots": 2,
    "out": ["phone-2", "phone-3"],
    "arrived": [],
    "failed": {},
}
STANDING = {
    "client": "phone-2",
    "turns": 0,
    "promised": 0.3,
    "behind": 0.3,
    "status": "kept",
    "unserved": False,
    "owed": 0.0,
    "forfeited": 0.0,
}
REFUSED = {"index": 1, "error": "'phone-9' was not selected in any round: check the id"}
EXPLANATION = {
    "round": 2,
    "client": "phone-1",
    "policy": "fair-pace",
    "standing": "chosen",
    "exact": True,
    "sentence": "phone-1 was chosen because all available clients were.",
    "numbers": {"seconds": 4.86, "owed": 4.25, "usual": 9.375, "behind": -0.7, "allowed": 1.85},
}


def _reply(*examples: dict[str, Any]) -> ConfigDict:
    shown: list[Any] = list(examples)
    return ConfigDict(json_schema_extra={"examples": shown})


class Reply(BaseModel):
    """Clients must ignore fields that they do not know: later versions may add some."""


class Error(Reply):
    """Why a request was refused, and what to do."""

    model_config = _reply({"error": "no round is open: choose first"})
    error: str


class Fleets(Reply):
    """The fleets that the token may use."""

    model_config = _reply({"fleets": ["fleet"]})
    fleets: list[str]


class Registered(Reply):
    """How many of the clients are new."""

    model_config = _reply({"new": 3})
    new: int


class Turn(Reply):
    """A turn that a client was given."""

    model_config = _reply(TURN)
    id: Annotated[int, Field(description="The result is reported with it.")]
    client: str
    deadline: Annotated[float | None, Field(description="The seconds after which the client is late.")]
    reasons: Annotated[dict[str, float | None], Field(description="The policy's reasons.")]


class Wait(Reply):
    """There is no turn now."""

    model_config = _reply({"seconds": 15.0, "why": "all 2 slots are in use"})
    seconds: Annotated[float, Field(description="Check in again after so many seconds.")]
    why: str


class CheckInReply(Reply):
    """Either a turn, or how long to wait."""

    model_config = _reply(
        {"turn": TURN, "wait": None},
        {"turn": None, "wait": {"seconds": 15.0, "why": "all 2 slots are in use"}},
    )
    turn: Turn | None
    wait: Wait | None


class Round(Reply):
    """An open round."""

    model_config = _reply(ROUND)
    round: int
    cohort: Annotated[list[str], Field(description="The ids of the selected clients: send them the model.")]
    deadline: Annotated[float | None, Field(description="The seconds after which clients are late.")]
    wanted: Annotated[int, Field(description="The number of updates after which the round can be closed.")]


class RoundState(Reply):
    """The open round, if any, and whether it can be closed."""

    model_config = _reply({"open": ROUND, "ready": False}, {"open": None, "ready": False})
    open: Round | None
    ready: Annotated[bool, Field(description="Enough clients have reported, or the deadline has passed.")]


class RecordedTurn(Reply):
    """A turn with its outcome."""

    model_config = _reply(ARRIVED)
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

    model_config = _reply({"round": 1, "turns": [ARRIVED, FAILED]})
    round: int
    turns: list[RecordedTurn]


class Turns(Reply):
    """Turns that were given."""

    model_config = _reply({"turns": [TURN]})
    turns: list[Turn]


class Recorded(Reply):
    """Whether the outcome is new; false if the same was recorded before."""

    model_config = _reply({"new": True}, {"new": False})
    new: bool


class Refused(Reply):
    """A report of a batch that was not recorded."""

    model_config = _reply(REFUSED)
    index: Annotated[int, Field(description="Its place in the batch, from 0.")]
    error: str


class RecordedBatch(Reply):
    """How many reports are new, and which were refused."""

    model_config = _reply({"new": 1, "refused": [REFUSED]})
    new: int
    refused: list[Refused]


class Abandoned(Reply):
    """The round that was cancelled."""

    model_config = _reply({"round": 1})
    round: int


class Amended(Reply):
    """The names of the settings that differ from before."""

    model_config = _reply({"changed": ["deadline", "tolerance"]})
    changed: list[str]


class Empty(Reply):
    """It is done."""

    model_config = _reply({})


class Promise(Reply):
    """Whether the promise is kept."""

    model_config = _reply(PROMISE)
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


class FleetState(Reply):
    """The state of a fleet."""

    model_config = _reply(STATE, STATE_OF_SLOTS)
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
    behind: Annotated[dict[str, float], Field(description="The clients furthest behind, by at least one turn.")]
    backing_off: Annotated[dict[str, int], Field(description="The clients that are backed off, and until which round.")]
    worst: Annotated[str | None, Field(description="The client that is furthest behind.")]
    suspects: Annotated[
        list[str],
        Field(description="Clients whose reported times do not fit the statuses that they send; at most 1,000."),
    ]
    promise: Promise | None
    notices: list[str]


class Standing(Reply):
    """What a client was promised and got."""

    model_config = _reply(STANDING)
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

    model_config = _reply({"promise": PROMISE, "clients": [STANDING], "of": 3})
    promise: Promise
    clients: list[Standing]
    of: Annotated[int, Field(description="The number of all clients.")]


class Explanation(Reply):
    """Why a client was selected, or was not."""

    model_config = _reply(EXPLANATION)
    round: int
    client: str
    policy: str
    standing: str
    exact: bool
    sentence: str
    numbers: dict[str, float | None]


class History(Reply):
    """The newest turns of a client, oldest first."""

    model_config = _reply({"turns": [ARRIVED], "of": 1})
    turns: list[RecordedTurn]
    of: Annotated[int, Field(description="The number of all its turns that are kept.")]
