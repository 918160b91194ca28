"""Speed model: predicted and actual exchange times, and the clients that the model does not explain."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views.common import Since, first_since, flags, histogram, mean_by_round, mean_of
from turnout.kernel.arrays import FloatArray
from turnout.live._internals import LATE

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
    band = {
        "predicted": ends,
        "low": np.maximum(ends + low, 0.0),
        "high": ends + high,
    }
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
