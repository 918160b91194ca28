"""Helpers of several pages: values for JSON, binning of long series, pagination, and the description of a source."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from fastapi import Query

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.certificate import SHARE_OF, SHARE_OF_TURNS, STATUSES, Accrual
from turnout.kernel.fairness import FairnessQueues

#: Parameters of requests. A view has them as keyword-only arguments, whose names are those of the request.
Run = Annotated[int | None, Query(ge=1)]
RoundNumber = Annotated[int | None, Query(ge=1)]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]
Size = Annotated[int, Query(ge=1, le=500)]
Text = Annotated[str, Query(max_length=1000)]
#: Only the rounds that began in the last so many seconds; by default all.
Since = Annotated[int | None, Query(ge=1, le=10**9)]
#: How a map orders clients: by joining, or by turns behind, owed or taken, largest first.
ClientOrder = Literal["behind", "owed", "id", "turns"]
POINTS = 300
DIGITS = 6
SHOWN_ROWS = 60
RECENT_CHANGE_ROUNDS = 100  # rounds for which a change of a client is flagged
FLAGS = ("context", "changed", "backing_off", "retired", "rarely_available", "too_few_rounds")
#: Why a client with a surplus can be owed turns; shown wherever there is one.
OWED_WITH_SURPLUS = "the queue of owed turns never falls below 0, so early extra turns do not count against later turns"


def plain(value: Any) -> Any:
    """Returns a value for JSON, with arrays as lists and numbers rounded to six significant digits.

    NaN and infinity, which JSON cannot represent, become None.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and value.ndim == 1:
            return [_rounded(item) for item in value.tolist()]
        return [plain(part) for part in value] if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    return _rounded(float(value))


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{DIGITS}g}")


def mean_of(values: npt.NDArray[Any]) -> float | None:
    """Returns the mean; None if there are no values."""
    return float(values.mean()) if len(values) else None


def bin_edges(count: int, limit: int = POINTS) -> IntArray:
    """Returns the edges of at most `limit` bins of equal width that cover `count` values."""
    width = max(1, -(-count // limit))
    return np.append(np.arange(0, count, width), count)


def bin_series(
    rounds: npt.ArrayLike, values: npt.ArrayLike, limit: int = POINTS, *, first: int = 0
) -> tuple[IntArray, FloatArray]:
    """Returns the last round of each bin, and the mean, minimum and maximum of each bin, shape (3, bins).

    Rounds before the `first` are left out.
    """
    x, y = np.asarray(rounds), np.asarray(values, dtype=np.float64)
    begin = int(np.searchsorted(x, first))
    x, y = x[begin:], y[begin:]
    if not len(y):
        return x, np.empty((3, 0))
    edges = bin_edges(len(y), limit)
    starts, widths = edges[:-1], np.diff(edges)
    known = np.isfinite(y)
    sums = np.add.reduceat(np.where(known, y, 0.0), starts)
    counts = np.add.reduceat(known.astype(np.int64), starts)
    mean = np.divide(sums, counts, out=np.full(len(widths), np.nan), where=counts > 0)
    low = np.minimum.reduceat(np.where(known, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(known, y, -np.inf), starts)
    return x[edges[1:] - 1], np.stack([mean, low, high])


def mean_by_round(rounds: IntArray, values: FloatArray, *, first: int = 0) -> tuple[IntArray, FloatArray]:
    """Returns rounds from the `first` on, and the mean of the values of each; long series are binned."""
    unique_rounds, indices = np.unique(rounds, return_inverse=True)
    x, (mean, _, _) = bin_series(unique_rounds, np.bincount(indices, values) / np.bincount(indices), first=first)
    return x, mean


def histogram(values: FloatArray, limit: int = 40) -> dict[str, Any]:
    """Returns a histogram of the finite values with equally wide bins, or with one bin if all values are equal."""
    known = values[np.isfinite(values)]
    if not len(known):
        return {"edges": [], "counts": []}
    low, high = float(known.min()), float(known.max())
    if high - low <= 1e-9 * max(abs(low), abs(high), 1.0):
        half = max(abs(low) * 0.05, 0.005)
        return {"edges": [low - half, high + half], "counts": [len(known)]}
    counts, edges = np.histogram(known, bins=min(limit, max(8, int(math.sqrt(len(known))))), range=(low, high))
    return {"edges": edges, "counts": counts}


def first_since(ledger: Ledger, since: int | None) -> int:
    """Returns the first round that began in the last `since` seconds; 0 without a limit."""
    if since is None:
        return 0
    recent = np.flatnonzero(ledger.round_column("started") >= time.time() - since)
    return int(ledger.round_column("rounds")[recent[0]]) if len(recent) else ledger.last_round + 1


def clock(source: Source, since: int | None) -> dict[str, Any] | None:
    """Returns when rounds began, in milliseconds since 1970; None for a run, whose rounds have no time of the day."""
    ledger = source.ledger
    if source.run is not None or not len(ledger):
        return None
    begin = int(np.searchsorted(ledger.round_column("rounds"), first_since(ledger, since)))
    edges = begin + bin_edges(len(ledger) - begin)
    shown = np.unique(np.append(edges[:1], edges[1:] - 1)) if begin < len(ledger) else edges[:0]
    at = np.rint(1000 * ledger.round_column("started")[shown]).astype(np.int64)
    return {"rounds": ledger.round_column("rounds")[shown], "at": at}


def about(watch: Watch, source: Source, since: int | None = None) -> dict[str, Any]:
    """Returns the description of the source that every page shows in its header."""
    ledger = source.ledger
    return {
        "run": source.run,
        "name": source.name,
        "policy": source.policy,
        "clients": ledger.clients,
        "rounds": ledger.last_round,
        "planned": source.planned,
        "slots": ledger.slots,
        "unit": ledger.unit,
        "promise": promise(ledger),
        "has_queue": queue_of(ledger) is not None,
        "backs_off": bool(ledger.counters["backed_off"].any()),
        "certificate": certificate(source),
        "share_of": share_of(ledger, ledger.share_accrual),
        "finished": source.finished,
        "reading": source.reading,
        "clock": clock(source, since),
        "version": watch.state.version,
    }


def queue_of(ledger: Ledger) -> FairnessQueues | None:
    """Returns the queue of owed turns by which the policy selects; None if it selects in another way."""
    return ledger.queues if ledger.policy is not None and ledger.policy.selects_by_queue else None


def share_of(ledger: Ledger, accrual: Accrual) -> str:
    """Returns what a share of turns is a share of, in words."""
    return (SHARE_OF if ledger.slots is None else SHARE_OF_TURNS)[accrual]


def promise(ledger: Ledger) -> dict[str, Any] | None:
    """Returns the terms of the guarantee; None if the policy guarantees nothing."""
    queues = ledger.queues
    if queues is None or not ledger.clients:
        return None
    rates = queues.guaranteed_rates
    return {
        "least": rates.min(),
        "most": rates.max(),
        "of": share_of(ledger, queues.accrual),
        "counts": ledger.counts,
        "tolerance": tolerance_of(ledger),
        "cap": queues.max_owed,
    }


def certificate(source: Source) -> dict[str, Any]:
    """Returns the status of the promise, and the sentence that `Certificate.summary` has for it.

    The status is None if there is nothing to judge; the text then says why.
    """
    summary = source.ledger.promise_summary()
    if summary is None:
        return {"status": None, "text": _nothing_to_judge(source)}
    text = f"{summary.sentence(source.name_of)}."
    ledger, resting = source.ledger, source.ledger.counters["backed_off"][~source.ledger.retired]
    if ledger.share_accrual == "available" and (total := int(resting.sum())):
        text += (
            f" {pluralize(int((resting > 0).sum()), 'client')} earned nothing in {ledger.unit.pluralize(total)} of "
            "back-off after missed turns."
        )
    return {"status": summary.status, "text": text}


def _nothing_to_judge(source: Source) -> str:
    if source.last_error is not None:
        return "The promise cannot be judged."
    if source.reading is not None and source.ledger.policy is None:
        return "The promise is judged when the records have been read."
    if not source.ledger.clients:
        return source.no_clients
    return "This policy guarantees no turns."


def tolerance_of(ledger: Ledger) -> float | None:
    """Returns how many turns a client may be behind; None if the policy guarantees nothing."""
    summary = ledger.promise_summary()
    return None if summary is None else summary.tolerance


class ClientPromises(NamedTuple):
    """What each client was promised and got; all arrays are NaN, and levels -1, if the policy guarantees nothing.

    Attributes:
        promised: The promised turns.
        turns: The turns that count: with counts="completed" only those whose updates arrived in time.
        behind: Promised turns minus turns that count; negative for a surplus.
        owed: The queue of owed turns; NaN if the policy does not select by it.
        forfeited: The turns lost because of the cap.
        levels: The statuses, as indices into `turnout.kernel.certificate.STATUSES`.
        unserved: The clients that were there for too few rounds to be served.
    """

    promised: FloatArray
    turns: npt.NDArray[Any]
    behind: FloatArray
    owed: FloatArray
    forfeited: FloatArray
    levels: IntArray
    unserved: BoolArray

    def status(self, row: int) -> str | None:
        """Returns the status of a client; None if the policy guarantees nothing."""
        level = int(self.levels[row])
        return None if level < 0 else STATUSES[level]

    @property
    def owed_with_surplus(self) -> BoolArray:
        """Whether each client is owed turns although it is ahead of its promise."""
        mask: BoolArray = (self.behind < 0) & (self.owed > 0)
        return mask


def promises_of(ledger: Ledger) -> ClientPromises:
    """Returns what each client was promised and got."""
    certified = ledger.certificate()
    if certified is None:
        unknown, none = np.full(ledger.clients, np.nan), np.zeros(ledger.clients, dtype=np.bool_)
        return ClientPromises(*(unknown,) * 5, np.full(ledger.clients, -1, dtype=np.int64), none)
    promises = ClientPromises(*(getattr(certified, name) for name in ClientPromises._fields))
    return promises if queue_of(ledger) is not None else promises._replace(owed=np.full(ledger.clients, np.nan))


def owed_note(promises: ClientPromises) -> str | None:
    """Explains why clients with a surplus are owed turns; None if there are none."""
    total = int(promises.owed_with_surplus.sum())
    if not total:
        return None
    return f"{pluralize(total, 'client', 'are')} owed turns in spite of a surplus: {OWED_WITH_SURPLUS}."


def flags(source: Source) -> dict[str, BoolArray]:
    """Returns for each flag the clients that have it."""
    ledger = source.ledger
    recent = RECENT_CHANGE_ROUNDS * (ledger.slots or 1)
    changed_in = ledger.counters["changed_in"]
    shared = {
        "context": ledger.history.suspects(),
        "changed": (changed_in > 0) & (changed_in > ledger.last_round - recent),
        "retired": ledger.retired,
        "too_few_rounds": promises_of(ledger).unserved & ~ledger.retired,
    }
    return {**shared, **source.extra_flags()}


def page_of(total: int, number: int, size: int) -> tuple[slice, dict[str, int]]:
    """Returns the part of a list on the page with this number, or on the last page, and what a response says of it."""
    pages = max(1, -(-total // size))
    number = min(number, pages)
    shown = slice((number - 1) * size, min(number * size, total))
    return shown, {"total": total, "page": number, "pages": pages}


def client_page(source: Source, order: ClientOrder, page: int) -> tuple[dict[str, Any], IntArray]:
    """Returns the part of a response that says which clients a map shows, and their rows."""
    ledger = source.ledger
    promises = promises_of(ledger)
    values = {"owed": promises.owed, "behind": promises.behind}.get(order, ledger.counters["turns"])
    values = ledger.counters["turns"] if np.isnan(values).all() else values
    rows = np.arange(ledger.clients) if order == "id" else np.argsort(-values, kind="stable")
    part, paging = page_of(len(rows), page, SHOWN_ROWS)
    shown = rows[part]
    return {"order": order, **paging, "ids": [source.id_of(row) for row in shown.tolist()]}, shown
