"""Rounds: the list of rounds, and the clients of one; Speed model: predicted and actual exchange times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.columns import ROUND_REASONS, RUNNING, TURN_REASONS, UNKNOWN
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import (
    PageNumber,
    RoundNumber,
    Since,
    Size,
    first_since,
    flags,
    histogram,
    mean_by_round,
    mean_of,
    page_of,
    plain,
)
from turnout.errors import ReportError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.live import Turn
from turnout.live._internals import ARRIVED, CUT_OFF, FAILED, KINDS, LATE, REDUNDANT, OpenRound

OUT = "out"
EMPTY: dict[str, Any] = {
    **dict.fromkeys(("number", "first", "last", "seconds", "available_count", "target_size", "threshold", "objective")),
    **dict.fromkeys(("opened", "closed", "turn")),
    "is_open": False,
    "unit": "turns",
    "summary": "",
    "rows": [],
}


def rounds(source: Source, *, page: PageNumber = 1, size: Size = 50) -> dict[str, Any]:
    """Returns a page of the list of rounds, newest first."""
    total, starts = len(source.ledger), source.ledger.starts
    shown, paging = page_of(total, page, size)
    indices = range(total - 1 - shown.start, total - 1 - shown.stop, -1)
    rows = [_round_row(source, index, slice(int(starts[index]), int(starts[index + 1]))) for index in indices]
    return {**paging, "size": size, "rows": rows}


def round_detail(source: Source, *, number: RoundNumber = None) -> dict[str, Any]:
    """Returns a round, by default the newest, with the prediction and the outcome of each chosen client."""
    ledger, opened = source.ledger, source.open_round()
    newest = source.newest_round
    data: dict[str, Any] = {"first": ledger.first_after + 1 if newest else None, "last": newest or None}
    number = newest if number is None else number
    if not newest:
        return {**EMPTY, **data}
    if opened is not None and opened[0].round == number > ledger.last_round:
        return {**_open_round(*opened), **data}
    place = ledger.find_round(number)
    if place is None:
        suffix = " yet" if source.reading is not None else ""
        first = ledger.first_after + 1
        raise ReportError(f"there is no {ledger.unit} {number}{suffix}: choose one from {first} to {newest}")
    index, turns = place
    row = _round_row(source, index, turns)
    reasons = source.failures(number) if row["failed"] else {}
    rows = [_turn_row(source, turn, row["bottleneck"], reasons) for turn in range(turns.start, turns.stop)]
    is_open = row["turn"] is not None and row["turn"]["outcome"] == OUT
    if is_open:
        running_turns = {running_turn.decision: running_turn for running_turn, _ in source.running()}
        row["seconds"] = running_turns[number].elapsed if number in running_turns else None
    return {
        **data,
        **{name: row[name] for name in ("turn", "seconds", "available_count", "threshold", "objective", "unit")},
        "number": number,
        "is_open": is_open,
        "target_size": row["cohort"],
        "opened": _timestamp(ledger, "started", index),
        "closed": _timestamp(ledger, "finished", index),
        "summary": _summary(row),
        "rows": rows,
    }


def _round_row(source: Source, index: int, turns: slice) -> dict[str, Any]:
    ledger = source.ledger
    kinds = ledger.turn_column("kinds")[turns]
    available = int(ledger.round_column("available_count")[index])
    slowest = _slowest(kinds, ledger.turn_column("times")[turns], float(ledger.round_column("seconds")[index]))
    bottleneck = None if slowest is None else int(ledger.turn_column("chosen")[turns][slowest])
    row = {
        "round": ledger.round_column("rounds")[index],
        "seconds": ledger.round_column("seconds")[index],
        "cohort": len(kinds),
        "back": int((kinds < CUT_OFF).sum()),
        "late": int(((kinds == LATE) | (kinds == CUT_OFF)).sum()),
        "failed": int((kinds == FAILED).sum()),
        "bottleneck": None if bottleneck is None else source.id_of(bottleneck),
        "bottleneck_failed": slowest is not None and int(kinds[slowest]) == FAILED,
        "threshold": ledger.round_column("threshold")[index],
        "objective": ledger.round_column("objective")[index],
        "unit": _unit(ledger.turn_column("price")[turns]),
        "available_count": None if available == UNKNOWN else available,
        "turn": _turn_of(source, index),
    }
    values: dict[str, Any] = plain(row)
    return values


def _slowest(kinds: IntArray, times: FloatArray, duration: float) -> int | None:
    """Returns the index of the client that the round waited for: the slowest, or a failed one if that took longer."""
    waited = np.where(kinds == REDUNDANT, np.nan, times)
    slowest = int(np.nanargmax(waited)) if np.isfinite(waited).any() else None
    failed = np.flatnonzero(kinds == FAILED)
    if len(failed) and (slowest is None or waited[slowest] < duration):
        return int(failed[0])
    return slowest


def _turn_row(source: Source, turn: int, bottleneck: str | None, reasons: dict[int, str]) -> dict[str, Any]:
    ledger: Ledger = source.ledger
    row = int(ledger.turn_column("chosen")[turn])
    client = source.id_of(row)
    predicted, band = float(ledger.turn_column("predicted")[turn]), float(ledger.turn_column("band")[turn])
    return {
        "id": client,
        **{name: ledger.turn_column(name)[turn] for name in TURN_REASONS},
        "predicted": predicted,
        "low": max(predicted - band, 0.0),
        "high": predicted + band,
        "seconds": ledger.turn_column("times")[turn],
        "outcome": _kind_name(int(ledger.turn_column("kinds")[turn])),
        "loss": ledger.turn_column("losses")[turn],
        "bottleneck": client == bottleneck,
        "why": reasons.get(row),
    }


def _unit(prices: FloatArray) -> str:
    """Returns the unit of the objective: seconds if the policy gives turns a price."""
    return "seconds" if np.isfinite(prices).any() else "turns"


def _timestamp(ledger: Ledger, name: str, index: int) -> str | None:
    seconds = ledger.round_column(name)[index]
    if not ledger.is_dated or np.isnan(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _summary(row: dict[str, Any]) -> str:
    if row["turn"] is not None:
        return _decision_summary(row)
    if not row["cohort"]:
        return "No client was chosen in this round."
    text = f"{pluralize(row['cohort'], 'client')} chosen"
    text += f" of {row['available_count']:,} available" if row["available_count"] is not None else ""
    text += f": {row['back']} returned"
    text += f", {row['late']} late" if row["late"] else ""
    text += f", {row['failed']} failed" if row["failed"] else ""
    text += f". The round took {row['seconds']:.2f} s"
    if row["bottleneck"] is None:
        text += "."
    elif row["bottleneck_failed"]:
        text += f": the server waited for {row['bottleneck']}, which failed."
    else:
        text += f" and ended with {row['bottleneck']}, the slowest client."
    if row["threshold"] is not None:
        difference = row["seconds"] - row["threshold"]
        text += (
            f" The policy assumed {row['threshold']:.2f} s for its slowest client; the round took "
            f"{abs(difference):.2f} s {'longer' if difference >= 0 else 'less'}."
        )
    return text


def _open_round(opened: OpenRound, turns: list[Turn]) -> dict[str, Any]:
    """Returns the open round; its turns have no predictions yet."""
    index_of = {row: index for index, row in enumerate(opened.rows.tolist())}
    reasons = {name: np.asarray(value) for name, value in opened.reasons.items()}
    per_client = [name for name in TURN_REASONS if name in reasons and reasons[name].ndim == 1]
    rows = [
        {
            **dict.fromkeys((*TURN_REASONS, "predicted", "low", "high")),
            **{name: float(reasons[name][index_of[turn.row]]) for name in per_client},
            "id": turn.id,
            "seconds": turn.seconds,
            "outcome": turn.kind or OUT,
            "loss": turn.loss,
            "bottleneck": False,
            "why": turn.why,
        }
        for turn in turns
    ]
    arrived = sum(turn.kind == KINDS[ARRIVED] for turn in turns)
    deadline = "" if opened.deadline is None else f" The deadline is {opened.deadline:.1f} s after the selection."
    return {
        **EMPTY,
        **{name: float(reasons[name]) for name in ROUND_REASONS if name in reasons},
        "number": opened.round,
        "is_open": True,
        "seconds": opened.elapsed,
        "available_count": int(opened.available.sum()),
        "target_size": opened.target_size,
        "unit": "seconds" if "price" in reasons else "turns",
        "opened": opened.opened,
        "summary": (
            f"This round is open: {pluralize(arrived, 'chosen client', 'have', of=len(turns))} arrived, the target is "
            f"{opened.target_size}.{deadline}"
        ),
        "rows": rows,
    }


def _kind_name(kind: int) -> str:
    """Returns the outcome of a turn; "out" if it has not ended yet."""
    return OUT if kind == RUNNING else KINDS[kind]


def _turn_of(source: Source, index: int) -> dict[str, Any] | None:
    """Returns the client, the outcome, the predicted time and the staleness of a turn without rounds."""
    ledger = source.ledger
    if ledger.slots is None:
        return None
    return {
        "id": source.id_of(int(ledger.turn_column("chosen")[index])),
        "outcome": _kind_name(int(ledger.turn_column("kinds")[index])),
        "predicted": ledger.turn_column("predicted")[index],
        "staleness": ledger.round_column("staleness")[index],
        "stale_in": ledger.stale_in,
    }


def _decision_summary(row: dict[str, Any]) -> str:
    """Returns what a decision was and what came of it; `row` is the decision as the list has it."""
    turn, seconds = row["turn"], row["seconds"]
    text = f"{turn['id']} was given a turn"
    if row["available_count"] is not None:
        text += f", as one of {pluralize(row['available_count'], 'idle client')}"
    if turn["outcome"] == OUT:
        return f"{text}. It is running{'' if seconds is None else f' since {seconds:.1f} s'}."
    if turn["outcome"] == KINDS[FAILED]:
        return f"{text}. It failed after {seconds:.2f} s."
    if turn["outcome"] == KINDS[LATE]:
        return f"{text}. It was late: its deadline passed after {seconds:.2f} s."
    text += f". Its update arrived after {seconds:.2f} s"
    if turn["staleness"] is not None:
        text += f"; its staleness was {turn['staleness']:g} {turn['stale_in']}"
    if turn["predicted"] is not None:
        text += f". The model had predicted {turn['predicted']:.2f} s"
    return f"{text}."


MAX_POINTS = 1500
BAND_PARTS, MIN_BAND_TURNS = 10, 40
MAX_FLAGS = 100
FLAG_TEXTS = {
    "context": "its context predicts its times with an error of {:.0f} %, its own typical time with {:.0f} %",
    "changed": "its times departed from the predictions in {} {}",
}


def speed(source: Source, *, since: Since = None) -> dict[str, Any]:
    """Returns predicted and actual times with a 90 % band, residuals, the error by round, and flagged clients."""
    ledger = source.ledger
    predicted, actual = ledger.turn_column("predicted"), ledger.turn_column("times")
    judged = np.flatnonzero(np.isfinite(predicted) & (ledger.turn_column("kinds") < LATE) & (actual > 0))
    shown = judged[-MAX_POINTS:]
    band, inside = _band(predicted[shown], actual[shown])
    error = actual[judged] - predicted[judged]
    rounds = ledger.round_of_each_turn
    x, by_round = mean_by_round(rounds[judged], np.abs(error), first=first_since(ledger, since))
    return {
        "empty_reason": None if len(judged) or not len(ledger) else _empty_reason(source),
        "known": int((ledger.history.arrived > 0).sum()),
        "points": {
            "id": [source.id_of(row) for row in ledger.turn_column("chosen")[shown].tolist()],
            "round": rounds[shown],
            "predicted": predicted[shown],
            "actual": actual[shown],
        },
        "band": band,
        "inside": inside,
        "exploration": ledger.exploration if len(judged) else None,
        "error": {"x": x, "mean_abs": by_round},
        "mean_abs": mean_of(np.abs(error)),
        "bias": mean_of(error),
        "residuals": histogram(error[-20 * MAX_POINTS :]),
        "flags": _flags(source) if len(judged) else [],
    }


def _empty_reason(source: Source) -> str:
    if source.ledger.model is None:
        return "This run was recorded without contexts, so exchange times cannot be predicted from them."
    since = "an earlier round" if source.ledger.slots is None else "its first turn"
    return f"No client has been chosen twice yet. Times are predicted once a client has returned from {since}."


def _band(predicted: FloatArray, actual: FloatArray) -> tuple[dict[str, Any] | None, float | None]:
    """Returns the band of 90 % of the older half of these times by prediction, and the share of the newer half inside.

    A share near 0.9 means that past errors predict new ones; a much smaller share means that clients have changed.
    """
    older = len(predicted) // 2
    if older < MIN_BAND_TURNS:
        return None, None
    order = np.argsort(predicted[:older], kind="stable")
    parts = np.array_split(order, min(BAND_PARTS, older // (MIN_BAND_TURNS // 2)))
    centres = np.array([predicted[part].mean() for part in parts])
    errors = [actual[part] - predicted[part] for part in parts]
    low, high = (np.array([np.quantile(part_errors, share) for part_errors in errors]) for share in (0.05, 0.95))
    ends = np.array([predicted.min(), *centres[1:-1], predicted.max()])  # covers all predictions
    error = actual[older:] - predicted[older:]
    bounds = (np.interp(predicted[older:], centres, edge) for edge in (low, high))
    inside = (error >= next(bounds)) & (error <= next(bounds))
    band = {"predicted": ends, "low": np.maximum(ends + low, 0.0), "high": ends + high}
    return band, float(inside.mean())


def _flags(source: Source) -> list[dict[str, Any]]:
    ledger, masks = source.ledger, flags(source)
    rows = []
    for kind in ("context", "changed"):
        for row in np.flatnonzero(masks[kind])[:MAX_FLAGS].tolist():
            if kind == "context":
                errors = ledger.history.context_errors[row], ledger.history.typical_errors[row]
                text = FLAG_TEXTS[kind].format(*(100 * error for error in errors))
            else:
                text = FLAG_TEXTS[kind].format(ledger.unit, int(ledger.counters["changed_in"][row]))
            rows.append({"id": source.id_of(row), "kind": kind, "text": text})
    return rows
