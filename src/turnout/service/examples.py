"""Examples of requests and answers, for the OpenAPI document.

Those of rounds are of a fleet `fleet` with a cohort of two, those of turns of a fleet `devices` with two slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON, STREAM = "application/json", "text/event-stream"
_STATUSES = {"statuses": {"phone-1": {"free_cpu": 1.5, "bandwidth": 3.0}, "phone-2": None}}
_CLIENTS = {"clients": ["phone-1", "phone-2"]}
_REASONS = {"optimistic": 7.55, "usual": 6.25, "behind": 0.033, "price": 6.47, "urgent": 0.0, "objective": 1.08}
_TURN = {"id": 1, "client": "phone-1", "deadline": 300.0, "reasons": _REASONS}
_ROUND = {"round": 1, "cohort": ["phone-1", "phone-2"], "deadline": 60.0, "wanted": 2}
_ARRIVED = {
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
_FAILED = {**_ARRIVED, "client": "phone-2", "outcome": "failed", "seconds": None, "loss": None, "why": "out of memory"}
_PROMISE = {
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
    "clock": "round",
}
_OWED = {"unserved": False, "owed": 0.0, "forfeited": 0.0}
_STATE = {
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
    "suspects": [],
    "promise": _PROMISE,
    "notices": [],
}
_WITHOUT_ROUNDS = {
    **_STATE,
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


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of an operation, each with a title: the bodies of requests, and the answers."""

    answers: Mapping[str, Any]
    bodies: Mapping[str, Any] = field(default_factory=dict)


#: The examples of each operation, by its id.
EXAMPLES: Mapping[str, Examples] = {
    "list_fleets": Examples({"one fleet": {"fleets": ["fleet"]}}),
    "register": Examples({"three new clients": {"new": 3}}, {"three": {"clients": ["phone-1", "phone-2", "phone-3"]}}),
    "amend": Examples(
        {"two changes": {"changed": ["deadline", "tolerance"]}},
        {"deadline and tolerance": {"settings": {"deadline": 120, "tolerance": 1.5}}},
    ),
    "retire": Examples({"done": {}}, {"a client": {"client": "phone-3"}}),
    "forget": Examples({"done": {}}, {"a client": {"client": "phone-3"}}),
    "choose": Examples({"a cohort of two": _ROUND}, {"with statuses": _STATUSES, "nothing is known": _CLIENTS}),
    "close_round": Examples({"one arrived, one failed": {"round": 1, "turns": [_ARRIVED, _FAILED]}}, {"now": {}}),
    "abandon_round": Examples({"the round": {"round": 1}}, {"the open round": {}}),
    "round_state": Examples(
        {"open": {"open": _ROUND, "ready": False}, "no round is open": {"open": None, "ready": False}}
    ),
    "check_in": Examples(
        {
            "a turn": {"turn": _TURN, "wait": None},
            "no turn now": {"turn": None, "wait": {"seconds": 15.0, "why": "all 2 slots are in use"}},
        },
        {
            "a device for itself": {"status": {"free_cpu": 1.5, "bandwidth": 3.0}},
            "a server for a device": {"client": "phone-2"},
        },
    ),
    "fill": Examples({"one turn": {"turns": [_TURN]}}, {"with statuses": _STATUSES, "nothing is known": _CLIENTS}),
    "in_flight": Examples({"one turn": {"turns": [_TURN]}}),
    "report": Examples(
        {"recorded": {"new": True}, "it was recorded before": {"new": False}},
        {
            "of a turn": {"turn": 1, "seconds": 12.5, "loss": 0.7},
            "in a round": {"client": "phone-1", "round": 1, "seconds": 12.5, "loss": 0.7},
        },
    ),
    "report_batch": Examples(
        {
            "one was refused": {
                "new": 1,
                "refused": [{"index": 1, "error": "'phone-9' was not selected in any round: check the id"}],
            }
        },
        {
            "of the latest round": {
                "reports": [{"client": "phone-1", "seconds": 12.5, "loss": 0.7}, {"client": "phone-9", "seconds": 9.0}]
            }
        },
    ),
    "report_failure": Examples(
        {"recorded": {"new": True}, "it was recorded before": {"new": False}},
        {
            "of a turn": {"turn": 2, "why": "out of memory"},
            "in a round": {"client": "phone-2", "round": 1, "why": "out of memory"},
        },
    ),
    "status": Examples({"with rounds": _STATE, "without rounds": _WITHOUT_ROUNDS}),
    "certificate": Examples(
        {
            "three clients": {
                "promise": _PROMISE,
                "clients": [
                    {"client": "phone-2", "turns": 0, "promised": 0.3, "behind": 0.3, "status": "kept", **_OWED},
                    {"client": "phone-3", "turns": 0, "promised": 0.0, "behind": 0.0, "status": "kept", **_OWED},
                    {"client": "phone-1", "turns": 2, "promised": 0.3, "behind": -1.7, "status": "kept", **_OWED},
                ],
                "of": 3,
            }
        }
    ),
    "explain": Examples(
        {
            "selected": {
                "round": 2,
                "client": "phone-1",
                "policy": "fair-pace",
                "standing": "chosen",
                "exact": True,
                "sentence": "phone-1 was chosen because all available clients were.",
                "numbers": {"seconds": 4.86, "owed": 4.25, "usual": 9.375, "behind": -0.7, "allowed": 1.85},
            }
        }
    ),
    "history": Examples({"one turn": {"turns": [_ARRIVED], "of": 1}}),
    "events": Examples(
        {
            "a closed round": {
                "id": "2",
                "event": "closed",
                "data": '{"round":1,"turns":[{"client":"phone-1","outcome":"arrived","seconds":12.5}]}',
            },
            "the state": {
                "id": "2",
                "event": "state",
                "data": '{"round":1,"is_open":false,"ready":false,"arrived":0,"wanted":0}',
            },
        }
    ),
}
#: An example of each parameter, by its name.
PARAMETERS: Mapping[str, Any] = {
    "fleet": "fleet",
    "client": "phone-1",
    "round": 1,
    "limit": 20,
    "after": 0,
    "follow": False,
    "Last-Event-ID": 2,
    "Idempotency-Key": "8c6bd8f1-4d1f-4b0e-9d2e-7a5f6f1f8a55",
}
#: An example of the error of each status.
ERRORS: Mapping[int, str] = {
    400: "the body is not valid JSON, from character 11 on",
    401: "this service needs a token: send the header Authorization: Bearer …",
    403: "this token is of the device 'phone-1': it cannot call for 'phone-2'",
    404: "there is no fleet 'fleets' for this token: check the address",
    409: "no round is open: choose first",
    410: "the events from 1 to 40 are no longer kept: begin after event 40",
    413: "the body must have at most 65,536 bytes: send less at a time",
    415: "the body must be JSON: send the header Content-Type: application/json",
    421: "a service without tokens accepts only localhost or 127.0.0.1 as the host name",
    422: "seconds: input should be greater than 0",
    429: "1,000 calls are waiting already: try again soon",
    431: "the headers are too large",
    503: "the service is shutting down: try again soon",
}


def add_examples(schema: dict[str, Any]) -> None:
    """Adds the examples to an OpenAPI document, and describes each answer by its schema."""
    for methods in schema["paths"].values():
        for operation in methods.values():
            examples = EXAMPLES.get(operation["operationId"])
            if examples is None:
                continue
            if examples.bodies:
                operation["requestBody"]["content"][JSON]["examples"] = _titled(examples.bodies)
            success = operation["responses"]["200"]
            answer = success["content"].get(JSON) or success["content"][STREAM]
            answer["examples"] = _titled(examples.answers)
            if "$ref" in answer["schema"]:
                model = answer["schema"]["$ref"].rpartition("/")[2]
                success["description"] = schema["components"]["schemas"][model]["description"]
            for status, text in ERRORS.items():
                if str(status) in operation["responses"]:
                    operation["responses"][str(status)]["content"][JSON]["example"] = {"error": text}
            for parameter in operation.get("parameters", []):
                if parameter["name"] in PARAMETERS:
                    parameter["example"] = PARAMETERS[parameter["name"]]


def _titled(examples: Mapping[str, Any]) -> dict[str, Any]:
    """Returns examples as OpenAPI names them."""
    return {title.replace(" ", "-"): {"summary": title, "value": value} for title, value in examples.items()}
