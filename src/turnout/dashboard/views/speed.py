"""Speed model: what was foretold, what came, and whose times it no longer explains."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views.common import about, binned, flags, histogram, number, numbers
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.scheduler import LATE

MOST_DOTS = 1500
BAND_PARTS, ENOUGH_FOR_A_BAND = 10, 40
MOST_FLAGS = 100
WORDS = {
    "context": "what it reports explains its times worse than its habit does ({:.0f} % off, against {:.0f} %)",
    "changed": "its times moved away from what was foretold in round {}",
}


def speed(watch: Watch, source: Source | None) -> dict[str, Any]:
    """Predicted against actual, with the band, residuals, drift and lie flags."""
    told: dict[str, Any] = {"about": about(watch, source)}
    nothing: dict[str, Any] = {
        "known": 0,
        "points": {"id": [], "round": [], "predicted": [], "actual": []},
        "band": None,
        "inside": None,
        "exploration": None,
        "error": {"x": [], "mean_abs": []},
        "mean_abs": None,
        "bias": None,
        "residuals": {"edges": [], "counts": []},
        "flags": [],
    }
    if source is None or not len(source.ledger):
        return {**told, **nothing, "why_not": None}
    ledger = source.ledger
    predicted, actual = ledger.turn_column("predicted"), ledger.turn_column("times")
    judged = np.flatnonzero(np.isfinite(predicted) & (ledger.turn_column("kinds") < LATE) & (actual > 0))
    known = int((ledger.history.arrived > 0).sum())
    if not len(judged):
        return {**told, **nothing, "known": known, "why_not": _why_not(source)}
    shown = judged[-MOST_DOTS:]
    band, inside = _band(predicted[shown], actual[shown])
    error = actual[judged] - predicted[judged]
    rounds = ledger.round_of_each_turn
    x, by_round = _by_round(rounds[judged], np.abs(error))
    return {
        **told,
        "why_not": None,
        "known": known,
        "points": {
            "id": [source.id_of(row) for row in ledger.turn_column("chosen")[shown].tolist()],
            "round": rounds[shown].tolist(),
            "predicted": numbers(predicted[shown]),
            "actual": numbers(actual[shown]),
        },
        "band": band,
        "inside": inside,
        "exploration": number(ledger.exploration),
        "error": {"x": x, "mean_abs": by_round},
        "mean_abs": number(np.abs(error).mean()),
        "bias": number(error.mean()),
        "residuals": histogram(error[-20 * MOST_DOTS :]),
        "flags": _flags(source),
    }


def _why_not(source: Source) -> str:
    if source.ledger.model is None:
        return "This run was kept without contexts, so nothing can be foretold from them."
    return "Nobody has been chosen twice yet: a time is foretold from a client's earlier ones."


def _by_round(rounds: IntArray, error: FloatArray) -> tuple[list[Any], list[Any]]:
    numbers_, places = np.unique(rounds, return_inverse=True)
    means = np.bincount(places, error) / np.bincount(places)
    x, (mean, _, _) = binned(numbers_, means)
    return x, numbers(mean)


def _band(predicted: FloatArray, actual: FloatArray) -> tuple[dict[str, Any] | None, float | None]:
    """Where 9 in 10 of the older half of these times lay, by prediction; and the part of the newer half inside it.

    Around 0.9 the past foretells; far less, and clients are no longer what they were.
    """
    older = len(predicted) // 2
    if older < ENOUGH_FOR_A_BAND:
        return None, None
    order = np.argsort(predicted[:older], kind="stable")
    parts = np.array_split(order, min(BAND_PARTS, older // (ENOUGH_FOR_A_BAND // 2)))
    centres = np.array([predicted[part].mean() for part in parts])
    wrong = [actual[part] - predicted[part] for part in parts]
    low, high = (np.array([np.quantile(one, share) for one in wrong]) for share in (0.05, 0.95))
    ends = np.array([predicted.min(), *centres[1:-1], predicted.max()])  # as far as there are predictions
    error = actual[older:] - predicted[older:]
    bounds = (np.interp(predicted[older:], centres, edge) for edge in (low, high))
    inside = (error >= next(bounds)) & (error <= next(bounds))
    told = {
        "predicted": numbers(ends),
        "low": numbers(np.maximum(ends + low, 0.0)),
        "high": numbers(ends + high),
    }
    return told, number(float(inside.mean()))


def _flags(source: Source) -> list[dict[str, Any]]:
    ledger, found = source.ledger, flags(source)
    told = []
    for kind in ("context", "changed"):
        for row in np.flatnonzero(found[kind])[:MOST_FLAGS].tolist():
            if kind == "context":
                errors = ledger.history.context_errors[row], ledger.history.typical_errors[row]
                text = WORDS[kind].format(*(100 * error for error in errors))
            else:
                text = WORDS[kind].format(int(ledger.numbers["changed_in"][row]))
            told.append({"id": source.id_of(row), "kind": kind, "text": text})
    return told
