"""Rounds: all of them, and one: who, why, who was the bottleneck."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import about, counted, number, page_of
from turnout.dashboard.watch import Watch
from turnout.errors import ReportError
from turnout.scheduler import ARRIVED, FAILED, KINDS, LATE, OUTRUN, SURPLUS, OpenRound, Turn

NOTHING: dict[str, Any] = {
    **dict.fromkeys(("number", "first", "last", "seconds", "volunteers", "wanted", "threshold", "objective")),
    **dict.fromkeys(("opened", "closed")),
    "is_open": False,
    "words": "",
    "rows": [],
}


def rounds(watch: Watch, source: Source | None, *, page: int, size: int) -> dict[str, Any]:
    """A page of the list, newest first."""
    told: dict[str, Any] = {"about": about(watch, source)}
    total = 0 if source is None else len(source.ledger)
    place = page_of(total, page, size)
    rows = []
    if source is not None:
        starts = source.ledger.starts
        places = range(total - 1 - place.start, total - 1 - place.end, -1)
        rows = [_line(source, one, slice(int(starts[one]), int(starts[one + 1]))) for one in places]
    return {**told, "total": total, "page": place.number, "pages": place.pages, "size": size, "rows": rows}


def one_round(watch: Watch, source: Source | None, *, wanted: int | None) -> dict[str, Any]:
    """Everyone who was chosen, what was expected of each, and what came."""
    told: dict[str, Any] = {"about": about(watch, source)}
    if source is None:
        return {**told, **NOTHING}
    ledger, opened = source.ledger, source.open_round()
    newest = ledger.last if opened is None else max(opened[0].round, ledger.last)
    told = {**told, "first": 1 if newest else None, "last": newest or None}
    chosen = newest if wanted is None else wanted
    if not newest:
        return {**told, **NOTHING}
    if opened is not None and opened[0].round == chosen > ledger.last:
        return {**told, **_open(*opened)}
    turns = ledger.turns_of_round(chosen)
    if turns is None:
        reading = " yet" if source.reading is not None else ""
        raise ReportError(f"there is no round {chosen}{reading}: they count from 1 to {newest}")
    place = int(np.searchsorted(ledger.round_column("rounds"), chosen))
    line = _line(source, place, turns)
    why = source.failures(chosen) if line["failed"] else {}
    rows = [_turn(source, at, line["bottleneck"], why) for at in range(turns.start, turns.stop)]
    return {
        **told,
        "number": chosen,
        "is_open": False,
        "seconds": line["seconds"],
        "volunteers": line["volunteers"],
        "wanted": line["cohort"],
        "threshold": line["threshold"],
        "objective": line["objective"],
        "opened": _moment(ledger.round_column("opened")[place]),
        "closed": _moment(ledger.round_column("closed")[place]),
        "words": _words(line),
        "rows": rows,
    }


def _line(source: Source, place: int, turns: slice) -> dict[str, Any]:
    ledger = source.ledger
    kinds, times = ledger.turn_column("kinds")[turns], ledger.turn_column("times")[turns]
    waited = np.where(kinds == SURPLUS, np.nan, times)
    slowest = int(np.nanargmax(waited)) if np.isfinite(waited).any() else None
    row = None if slowest is None else int(ledger.turn_column("chosen")[turns][slowest])
    return {
        "round": int(ledger.round_column("rounds")[place]),
        "seconds": number(ledger.round_column("seconds")[place]),
        "cohort": len(kinds),
        "back": int((kinds < OUTRUN).sum()),
        "late": int(((kinds == LATE) | (kinds == OUTRUN)).sum()),
        "failed": int((kinds == FAILED).sum()),
        "bottleneck": None if row is None else source.id_of(row),
        "threshold": number(ledger.round_column("threshold")[place]),
        "objective": number(ledger.round_column("objective")[place]),
        "volunteers": counted(int(ledger.round_column("volunteers")[place])),
    }


def _turn(source: Source, at: int, bottleneck: str | None, why: dict[int, str]) -> dict[str, Any]:
    ledger: Ledger = source.ledger
    row = int(ledger.turn_column("chosen")[at])
    client = source.id_of(row)
    predicted, band = float(ledger.turn_column("predicted")[at]), float(ledger.turn_column("band")[at])
    return {
        "id": client,
        "optimistic": number(ledger.turn_column("optimistic")[at]),
        "predicted": number(predicted),
        "low": number(max(predicted - band, 0.0)),
        "high": number(predicted + band),
        "seconds": number(ledger.turn_column("times")[at]),
        "outcome": KINDS[int(ledger.turn_column("kinds")[at])],
        "owed": number(ledger.turn_column("owed")[at]),
        "loss": number(ledger.turn_column("losses")[at]),
        "bottleneck": client == bottleneck,
        "why": why.get(row),
    }


def _moment(seconds: float) -> str | None:
    return None if np.isnan(seconds) else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _words(line: dict[str, Any]) -> str:
    if not line["cohort"]:
        return "Nobody was chosen in this round."
    of = f" of {line['volunteers']:,} who volunteered" if line["volunteers"] is not None else ""
    said = f"{line['cohort']} clients were chosen{of}; {line['back']} came back"
    missing = [f"{line[word]} {words}" for word, words in (("late", "were late"), ("failed", "failed")) if line[word]]
    said += f", {' and '.join(missing)}" if missing else ""
    said += f". It lasted {line['seconds']:.2f} s"
    said += "." if line["bottleneck"] is None else f": as long as {line['bottleneck']} took."
    if line["threshold"] is not None:
        gap = line["seconds"] - line["threshold"]
        said += (
            f" The policy expected the slowest to take at least {line['threshold']:.2f} s, and it took "
            f"{abs(gap):.2f} s {'more' if gap >= 0 else 'less'}."
        )
    return said


def _open(opened: OpenRound, turns: list[Turn]) -> dict[str, Any]:
    """The round that was handed out and is not closed yet."""
    order = {row: place for place, row in enumerate(opened.rows.tolist())}
    reasons = {name: np.asarray(value) for name, value in opened.reasons.items()}
    rows = []
    for turn in turns:
        place = order[turn.row]
        said = {
            word: number(float(reasons[word][place])) if word in reasons and reasons[word].ndim == 1 else None
            for word in ("optimistic", "owed")
        }
        rows.append(
            {
                "id": turn.id,
                **said,
                "predicted": None,
                "low": None,
                "high": None,
                "seconds": number(turn.seconds),
                "outcome": turn.kind or "out",
                "loss": number(turn.loss),
                "bottleneck": False,
                "why": turn.why,
            }
        )
    back = sum(turn.kind == KINDS[ARRIVED] for turn in turns)
    until = "" if opened.deadline is None else f" The deadline is {opened.deadline:.1f} s after the choice."
    return {
        "number": opened.round,
        "is_open": True,
        "seconds": number(opened.elapsed),
        "volunteers": int(opened.available.sum()),
        "wanted": opened.wanted,
        "threshold": number(float(reasons["threshold"])) if "threshold" in reasons else None,
        "objective": number(float(reasons["objective"])) if "objective" in reasons else None,
        "opened": opened.opened,
        "closed": None,
        "words": f"This round is open: {back} of {len(turns)} are back, {opened.wanted} are wanted.{until}",
        "rows": rows,
    }
