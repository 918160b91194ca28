"""What the pages share: numbers for JSON, fewer points than rounds, and what a page is about."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import UNKNOWN, Ledger
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray

POINTS = 300
DIGITS = 6
SHOWN_ROWS = 60
LARGEST_PAGE = 500
RECENTLY = 100  # rounds in which a change of a client is worth a word
FLAGS = ("context", "changed", "resting", "retired", "seldom")


class Page(NamedTuple):
    """A part of a long list: its number from 1, how many there are, and where it begins and ends."""

    number: int
    pages: int
    start: int
    end: int


def number(value: float | int | None) -> float | int | None:
    """As JSON can say it: nothing for what is not known, and not more digits than a person reads."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(f"{value:.{DIGITS}g}")


def numbers(values: npt.ArrayLike) -> list[Any]:
    """The same of many."""
    return [number(one) for one in np.asarray(values).tolist()]


def counted(value: int) -> int | None:
    """A count, or nothing where it was not counted."""
    return None if value == UNKNOWN else int(value)


def bins(count: int, most: int = POINTS) -> IntArray:
    """Where each of at most so many bins begins, and the end of the last."""
    width = max(1, -(-count // most))
    return np.append(np.arange(0, count, width), count)


def binned(rounds: npt.ArrayLike, values: npt.ArrayLike, most: int = POINTS) -> tuple[list[Any], FloatArray]:
    """The last round of each bin, and in each bin the mean, the least and the most, (3, bins)."""
    x, y = np.asarray(rounds), np.asarray(values, dtype=np.float64)
    if not len(y):
        return [], np.empty((3, 0))
    edges = bins(len(y), most)
    starts, widths = edges[:-1], np.diff(edges)
    known = np.isfinite(y)
    sums = np.add.reduceat(np.where(known, y, 0.0), starts)
    there = np.add.reduceat(known.astype(np.int64), starts)
    mean = np.divide(sums, there, out=np.full(len(widths), np.nan), where=there > 0)
    low = np.minimum.reduceat(np.where(known, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(known, y, -np.inf), starts)
    return x[edges[1:] - 1].tolist(), np.stack([mean, low, high])


def histogram(values: FloatArray, most: int = 40) -> dict[str, Any]:
    """How many values lie in each of equally wide bins; whole numbers of units are not torn apart."""
    known = values[np.isfinite(values)]
    if not len(known):
        return {"edges": [], "counts": []}
    low, high = float(known.min()), float(known.max())
    if high - low <= 1e-9 * max(abs(low), abs(high), 1.0):
        half = max(abs(low) * 0.05, 0.005)
        return {"edges": numbers([low - half, high + half]), "counts": [len(known)]}
    counts, edges = np.histogram(known, bins=min(most, max(8, int(math.sqrt(len(known))))), range=(low, high))
    return {"edges": numbers(edges), "counts": counts.tolist()}


def about(watch: Watch, source: Source | None) -> dict[str, Any]:
    """What every page says at its top."""
    reading = watch.reading if source is None else source.reading
    told: dict[str, Any] = {
        "run": None,
        "name": "",
        "policy": "",
        "clients": 0,
        "rounds": 0,
        "planned": None,
        "promise": None,
        "finished": False,
        "reading": None if reading is None else {"done": reading[0], "of": reading[1]},
        "version": watch.version,
    }
    if source is None:
        return told
    ledger = source.ledger
    return {
        **told,
        "run": source.run,
        "name": source.name,
        "policy": source.policy,
        "clients": ledger.clients,
        "rounds": len(ledger),
        "planned": source.planned,
        "finished": source.finished,
        "promise": promise(ledger),
    }


def promise(ledger: Ledger) -> dict[str, Any] | None:
    """The terms, or None where nothing was promised."""
    queues = ledger.queues
    if queues is None or not ledger.clients:
        return None
    rates = queues.guaranteed_rates
    return {
        "least": number(float(rates.min())),
        "most": number(float(rates.max())),
        "accrual": queues.accrual,
        "paid": ledger.paid,
        "cap": None if queues.max_owed is None else number(float(queues.max_owed)),
    }


def certificate(ledger: Ledger) -> dict[str, Any]:
    """Whether the promise holds, and what that means."""
    found = ledger.certificate()
    if found is None:
        return {"holds": None, "words": "This policy promises nothing, so there is nothing to hold."}
    if not found.holds:
        broken = int((~found.kept).sum())
        return {"holds": False, "words": f"{broken:,} clients have had less than was promised and is owed."}
    owed = float(found.owed.max(initial=0.0))
    lost = int((found.forfeited >= 1).sum())
    words = "Every client has had what it was promised, but for what it is still owed"
    words += f": at most {owed:.2f} turns." if owed else "; nobody is owed anything."
    if lost:
        words += f" {lost:,} clients have forfeited turns to the cap."
    return {"holds": True, "words": words}


def owed(ledger: Ledger) -> FloatArray:
    """Turns owed to each client now; NaN where nothing is promised."""
    queues = ledger.queues
    return np.full(ledger.clients, np.nan) if queues is None else queues.owed


def promised(ledger: Ledger) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Turns promised to each client so far, forfeited, and taken as far as they were paid; NaN where not promised."""
    found = ledger.certificate()
    if found is None:
        nothing = np.full(ledger.clients, np.nan)
        return nothing, nothing, nothing
    return found.promised, found.forfeited, found.turns.astype(np.float64)


def flags(source: Source) -> dict[str, BoolArray]:
    """What is to be said of each client."""
    ledger = source.ledger
    changed_in = ledger.numbers["changed_in"]
    found = {
        "context": ledger.doubted(),
        "changed": (changed_in > 0) & (changed_in > ledger.last - RECENTLY),
        "retired": ledger.retired,
    }
    return {**found, **source.more_flags()}


def flags_of(source: Source, rows: IntArray) -> list[list[str]]:
    """The words for each of these clients."""
    found = flags(source)
    return [[word for word in FLAGS if word in found and found[word][row]] for row in rows.tolist()]


def page_of(total: int, number: int, size: int) -> Page:
    """The page of this number, or the last there is."""
    if not 1 <= size <= LARGEST_PAGE:
        raise SettingError(f"size must lie between 1 and {LARGEST_PAGE}, not {size}")
    if number < 1:
        raise SettingError(f"page must be 1 or more, not {number}")
    pages = max(1, -(-total // size))
    number = min(number, pages)
    return Page(number, pages, (number - 1) * size, min(number * size, total))


def in_order(ledger: Ledger, order: str) -> IntArray:
    """All rows: as they joined, or those first that are owed most, or have had the most turns."""
    if order == "id":
        return np.arange(ledger.clients)
    if order not in ("owed", "turns"):
        raise SettingError(f"order must be owed, id or turns, not {order!r}")
    values = owed(ledger) if order == "owed" and ledger.queues is not None else ledger.numbers["turns"]
    return np.argsort(-values, kind="stable")
