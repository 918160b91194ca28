"""The check of trained models, and of losses and signals, that every adapter makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


def model_problem(
    arrays: Mapping[str, Any],
    before: Callable[[], Iterable[Mapping[str, Any]]],
    values_of: Callable[[Any], Any] = lambda array: array,
) -> str | None:
    """Returns why a model cannot be used: an array cannot be read, or contains NaN or infinity; None if it can.

    Arrays that were not finite before may stay so: the mask of an attention layer, for example, contains infinity.

    Args:
        arrays: the arrays of the model, by name.
        before: returns the model, in one of several mappings, before it was trained.
        values_of: returns the values of an array, for NumPy or PyTorch; anything else is not checked.
    """
    for name, array in arrays.items():
        try:
            is_finite = _is_finite(values_of(array))
        except Exception as error:  # what is raised depends on the bytes that were sent
            return f"its array {name!r} cannot be read: {error}"
        if not is_finite and all(name not in model or _is_finite(values_of(model[name])) for model in before()):
            return f"its array {name!r} contains values that are not finite"
    return None


def as_loss(value: object) -> float | None:
    """Returns a training loss, for policies that use it; None if it is missing or not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def as_signals(metrics: Mapping[str, object], declared: Iterable[str]) -> dict[str, float]:
    """Returns the metrics of a client that have the name of a declared signal and are finite numbers."""
    values = {name: as_loss(metrics.get(name)) for name in declared}
    return {name: value for name, value in values.items() if value is not None}


def _is_finite(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())
    isfinite = getattr(values, "isfinite", None)  # a method of a PyTorch tensor
    return isfinite is None or bool(isfinite().all())
