"""The contract between the API and the page: every key of every response, its type and its limits."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from turnout.dashboard.views.clients import COLUMNS
from turnout.dashboard.views.common import SHOWN_ROWS


class Maybe(NamedTuple):
    """A value of this shape, or null."""

    shape: Any


class Many(NamedTuple):
    """A list of values of this shape, with at most `most` entries."""

    shape: Any
    most: int


class Columns(NamedTuple):
    """An object with lists of values of these shapes, all of the same length and with at most `most` entries."""

    shapes: dict[str, Any]
    most: int


class Named(NamedTuple):
    """An object with arbitrary keys."""

    shape: Any


class OneOf(NamedTuple):
    """One of these strings."""

    values: tuple[str, ...]


class Count(NamedTuple):
    """An integer; never null."""


class Number(NamedTuple):
    """A number, or null if it is unknown."""


NUMBER, COUNT = Number(), Count()
POINTS, DOTS, PAGE = 301, 2000, 500
LINE = Many(NUMBER, POINTS)


def numbers(*names: str) -> dict[str, Any]:
    """Returns the shapes of these numbers."""
    return dict.fromkeys(names, NUMBER)


def counts(*names: str) -> dict[str, Any]:
    """Returns the shapes of these counts."""
    return dict.fromkeys(names, COUNT)


def lines(*names: str) -> Columns:
    """Returns the shape of lines in a chart."""
    return Columns(numbers(*names), POINTS)


BINS = {"edges": Many(NUMBER, 41), "counts": Many(COUNT, 40)}
FLAGS = Many(OneOf(("context", "changed", "backing_off", "retired", "rarely_available", "too_few_rounds")), 6)
OUTCOME = OneOf(("arrived", "late", "failed", "redundant", "cut_off"))
STATUS = OneOf(("kept", "behind", "broken"))
SHARE_OF = OneOf(("all rounds", "the rounds it was available for", "all turns", "the turns given while it was there"))
READING = Maybe({"done": COUNT, "of": COUNT})
ABOUT = {
    "run": Maybe(COUNT),
    "name": str,
    "policy": str,
    "clients": COUNT,
    "rounds": COUNT,
    "planned": Maybe(COUNT),
    "slots": Maybe(COUNT),
    "unit": OneOf(("round", "decision")),
    "promise": Maybe(
        {**numbers("least", "most", "tolerance", "cap"), "of": SHARE_OF, "counts": OneOf(("selected", "completed"))}
    ),
    **dict.fromkeys(("has_queue", "backs_off"), bool),
    "certificate": {"status": Maybe(STATUS), "text": str},
    "share_of": SHARE_OF,
    "finished": bool,
    "reading": READING,
    "clock": Maybe(Columns(counts("rounds", "at"), POINTS)),
    "version": COUNT,
}
STANDING = {"id": str, "status": STATUS, "turns": COUNT, **numbers("behind", "promised", "share")}
FIGURE = {"mean": NUMBER, "half": NUMBER}
CLIENT = {
    "id": str,
    "turns": COUNT,
    **numbers("share", "counted", "promised", "behind", "tolerance"),
    "status": Maybe(STATUS),
    "backed_off": COUNT,
    **numbers("owed", "forfeited", "offered", "mean_seconds", "reliability", "last_round"),
    "flags": FLAGS,
}
TURN = {
    "id": str,
    "outcome": OneOf((*OUTCOME.values, "out")),
    "predicted": NUMBER,
    "staleness": NUMBER,
    "stale_in": OneOf(("updates", "versions")),
}
ROUND = {
    "about": ABOUT,
    "turn": Maybe(TURN),
    "number": Maybe(COUNT),
    "first": Maybe(COUNT),
    "last": Maybe(COUNT),
    "is_open": bool,
    **numbers("seconds", "available_count", "target_size", "threshold", "objective"),
    "unit": OneOf(("turns", "seconds")),
    "opened": Maybe(str),
    "closed": Maybe(str),
    "summary": str,
    "rows": Many(
        {
            "id": str,
            **numbers("optimistic", "predicted", "low", "high", "seconds"),
            "outcome": OneOf((*OUTCOME.values, "out")),
            **numbers("owed", "usual", "behind", "price"),
            "loss": NUMBER,
            "bottleneck": bool,
            "why": Maybe(str),
        },
        100_000,
    ),
}
PAGES = {"about": ABOUT, "total": COUNT, "page": COUNT, "pages": COUNT}
RUN = {
    **counts("id", "rounds", "clients"),
    **dict.fromkeys(("name", "policy", "world"), str),
    **dict.fromkeys(("seed", "planned"), Maybe(COUNT)),
    "finished": bool,
}
SHAPES: dict[str, Any] = {
    "store": {
        "version": COUNT,
        "kind": OneOf(("runs", "fleet")),
        "name": str,
        "turnout": str,
        "live": bool,
        "last_error": Maybe(str),
        "runs_total": COUNT,
        "runs": Many(RUN, 500),
    },
    "overview": {
        "about": ABOUT,
        "round": COUNT,
        "open": Maybe({**counts("round", "target_size", "out", "back", "failed"), **numbers("elapsed", "deadline")}),
        "recent_of": COUNT,
        **numbers("mean_round", "recent_round", "p95_round", "total_time", "available_count", "cohort"),
        "least_share": NUMBER,
        "least": Maybe({"id": str}),
        "jain": NUMBER,
        "worst": Maybe(STANDING),
        "rounds": lines("x", "mean", "low", "high"),
        "shortfall": Maybe({"x": LINE, "largest": LINE, "ever": NUMBER, "tolerance": NUMBER}),
        "outcomes": Named(COUNT),
        "is_attended": Maybe(bool),
        "events": Many({"round": COUNT, "kind": str, "id": Maybe(str), "text": Maybe(str)}, 12),
        "warnings": Many({"level": OneOf(("error", "warning", "note")), "text": str, "id": Maybe(str)}, 20),
        "behind": Many(STANDING, 8),
        "slots": Maybe(
            {
                **counts("of", "updates", "recent_of"),
                **numbers("rate", "recent_rate", "elapsed", "staleness", "largest_staleness"),
                "stale_in": OneOf(("updates", "versions")),
                "curve": lines("x", "rate"),
            }
        ),
        "running": Many(
            {
                "turn": COUNT,
                "id": str,
                **numbers("age", "deadline", "price", "behind"),
                "outcome": OneOf((*OUTCOME.values, "out")),
            },
            50,
        ),
    },
    "fairness": {
        "about": ABOUT,
        "unserved": {"total": COUNT, "ids": Many(str, 20)},
        "owed_note": Maybe(str),
        **numbers("least_share", "jain", "gini"),
        "shares": BINS,
        "taken_vs_promised": Maybe(
            Columns({"ids": str, "status": STATUS, **numbers("turns", "promised", "behind", "owed")}, DOTS)
        ),
        "lorenz": lines("x", "y"),
        "worst_over_time": {"x": LINE, "least_share": LINE, "promised": NUMBER},
    },
    "clients": {**PAGES, "size": COUNT, "sort": str, "order": OneOf(("asc", "desc")), "rows": Many(CLIENT, PAGE)},
    "queues": {
        "about": ABOUT,
        "empty_reason": Maybe(str),
        "curve": Maybe(lines("x", "worst", "mean", "p95")),
        "now": Maybe(BINS),
        "cap": NUMBER,
        "owed_note": Maybe(str),
    },
    "turns": {
        **PAGES,
        "order": OneOf(("behind", "owed", "id", "turns")),
        "x": Many(COUNT, COLUMNS + 1),
        "ids": Many(str, SHOWN_ROWS),
        "width": COUNT,
        "counts": Many(Many(COUNT, COLUMNS + 1), SHOWN_ROWS),
        **dict.fromkeys(("available", "resting"), Maybe(Many(Many(NUMBER, COLUMNS + 1), SHOWN_ROWS))),
    },
    "speed": {
        "about": ABOUT,
        "empty_reason": Maybe(str),
        "known": COUNT,
        "points": Columns({"id": str, "round": COUNT, **numbers("predicted", "actual")}, 1500),
        "band": Maybe(lines("predicted", "low", "high")),
        "error": lines("x", "mean_abs"),
        **numbers("exploration", "inside", "mean_abs", "bias"),
        "residuals": BINS,
        "flags": Many({"id": str, "kind": OneOf(("context", "changed")), "text": str}, 200),
    },
    "rounds": {
        **PAGES,
        "rows": Many(
            {
                **counts("round", "cohort", "back", "late", "failed"),
                "bottleneck": Maybe(str),
                "bottleneck_failed": bool,
                **numbers("seconds", "threshold", "objective", "available_count"),
                "unit": OneOf(("turns", "seconds")),
                "turn": Maybe(TURN),
            },
            PAGE,
        ),
    },
    "round": ROUND,
    "client": {
        "about": ABOUT,
        **CLIENT,
        "promise_text": Maybe(str),
        "rank": Maybe(COUNT),
        "joined": COUNT,
        "strip": {
            "x": Many(COUNT, COLUMNS + 1),
            "width": COUNT,
            **dict.fromkeys(("available", "resting"), Maybe(Many(NUMBER, COLUMNS + 1))),
            "chosen": Many(COUNT, COLUMNS + 1),
        },
        "times": Columns({"round": COUNT, "outcome": OUTCOME, **numbers("seconds", "predicted", "low", "high")}, 500),
        "next": str,
    },
    "explain": {
        "round": COUNT,
        "client": str,
        "outcome": str,
        "exact": bool,
        "sentence": str,
        **numbers(
            "seconds", "owed", "threshold", "objective", "margin", "missing_turns", "rounds_until", "longer", "worth"
        ),
        "instead": Many(str, 1000),
        "unit": OneOf(("turns", "seconds")),
        **numbers("usual", "behind", "allowed"),
        "next": Maybe(str),
    },
    "training": {
        "about": ABOUT,
        "metrics": Many(str, 100),
        "metric": Maybe(str),
        "groups": Many(
            {
                "name": str,
                "runs": COUNT,
                "is_current": bool,
                **dict.fromkeys(("rounds", "seconds", "mean"), LINE),
                **dict.fromkeys(("low", "high"), Maybe(LINE)),
            },
            24,
        ),
        "losses": Maybe(lines("x", "mean")),
    },
    "compare": {
        "about": ABOUT,
        "reference_rate": NUMBER,
        "share_of": Maybe(str),
        "empty_reason": Maybe(str),
        "groups": Many(
            {
                "name": str,
                "policy": str,
                "runs": Many(COUNT, 400),
                "rounds": COUNT,
                "curve": lines("x", "seconds"),
                "true_times": bool,
                "status": Maybe(STATUS),
                "tolerance": NUMBER,
                **dict.fromkeys(("mean_round", "p95_round", "total_time", "jain"), FIGURE),
                **dict.fromkeys(("least_share", "shortfall", "worst_shortfall", "accuracy"), Maybe(FIGURE)),
                **dict.fromkeys(("rate", "mean_turn", "staleness"), Maybe(FIGURE)),
            },
            24,
        ),
    },
    "runs": {
        "about": ABOUT,
        "total": COUNT,
        "pending": COUNT,
        "rows": Many(
            {
                **RUN,
                "settings": Named(str),
                "true_times": bool,
                "figures": Maybe(Named(NUMBER)),
                "status": Maybe(STATUS),
            },
            500,
        ),
        "reference_rate": NUMBER,
        "share_of": Maybe(str),
    },
    "system": {
        "about": ABOUT,
        "store": {
            "name": str,
            "kind": OneOf(("runs", "fleet")),
            "bytes": NUMBER,
            "log_bytes": NUMBER,
            "writer": Maybe(str),
            "changed": Maybe(str),
        },
        "gaps": Maybe({"round_median": NUMBER, "between_median": NUMBER}),
        "versions": Named(str),
        "uptime": NUMBER,
        "memory_bytes": NUMBER,
    },
}
#: Other lists of a response that must have the same length.
SAME_LENGTH: dict[str, list[tuple[str, ...]]] = {
    "overview": [("shortfall.x", "shortfall.largest")],
    "fairness": [("worst_over_time.x", "worst_over_time.least_share")],
    "turns": [("ids", "counts", "available", "resting"), ("x", "counts.0", "available.0", "resting.0")],
    "client": [("strip.x", "strip.available", "strip.resting", "strip.chosen")],
    "training": [tuple(f"groups.0.{name}" for name in ("rounds", "seconds", "mean", "low", "high"))],
}


def strict_json(body: bytes) -> Any:
    """Parses JSON and refuses NaN and Infinity, as a browser does."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(body, parse_constant=refuse)


def assert_matches_contract(route: str, data: Any) -> None:
    """Checks the shape of a response and the lengths of related lists."""
    check(data, SHAPES[route], route)
    for names in SAME_LENGTH.get(route, []):
        lengths = {name: len(values) for name in names if (values := _at(data, name)) is not None}
        assert len(set(lengths.values())) <= 1, (route, lengths)


def check(value: Any, shape: Any, where: str) -> None:
    """Raises AssertionError if a value does not have this shape."""
    match shape:
        case Maybe(inner):
            if value is not None:
                check(value, inner, where)
        case Many(inner, most):
            assert isinstance(value, list), (where, value)
            assert len(value) <= most, (where, len(value))
            for index, item in enumerate(value):
                check(item, inner, f"{where}.{index}")
        case Columns(shapes, most):
            check(value, {name: Many(inner, most) for name, inner in shapes.items()}, where)
            assert len({len(value[name]) for name in shapes}) == 1, where
        case Named(inner):
            assert isinstance(value, dict), (where, value)
            for name, item in value.items():
                check(item, inner, f"{where}.{name}")
        case OneOf(values):
            assert value in values, (where, value)
        case Count():
            assert type(value) is int, (where, value)
        case Number():
            assert value is None or type(value) in (int, float), (where, value)
        case dict():
            assert isinstance(value, dict), (where, value)
            for name, inner in shape.items():
                assert name in value, f"{where} has no {name}"
                check(value[name], inner, f"{where}.{name}")
        case type():
            assert type(value) is shape, (where, value)
        case _:
            raise AssertionError(f"no such shape: {shape!r}")


def _at(data: Any, name: str) -> Any:
    for key in name.split("."):
        if data is None:
            return None
        data = (data[int(key)] if int(key) < len(data) else None) if key.isdecimal() else data[key]
    return data
