"""The plausible range of contexts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError, TurnoutError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Value,
    as_contexts,
    as_floats,
    refuse_where,
    require_length,
)
from turnout.kernel.rounds import as_known_or_unknown


@dataclass(frozen=True, slots=True, eq=False)
class ContextRange(Value):
    """The lowest and highest plausible value of each feature, declared once and checked every round.

    An implausible context widens the confidence band and makes its client look attractive, so it must be refused
    before it is used.

    >>> from turnout.errors import OfferError
    >>> plausible = ContextRange(lowest=[0.1, 0, 0], highest=[10, 1, 1000])
    >>> plausible.check([[0.5, 1, 7], [0.5, 1, 1e5]], OfferError)
    Traceback (most recent call last):
    turnout.errors.OfferError: contexts[1, 2] = 100000.0 is outside the declared range [0, 1000]
    """

    lowest: FloatArray
    highest: FloatArray

    def __post_init__(self) -> None:
        lowest = as_floats("lowest", self.lowest, 1, SettingError)
        highest = as_floats("highest", self.highest, 1, SettingError)
        require_length("highest", highest, len(lowest), "features in lowest", SettingError)
        refuse_where(lowest > highest, "lowest", lowest, "is above the highest of its feature", SettingError)
        self._set(lowest=lowest, highest=highest)

    def check(
        self,
        contexts: npt.ArrayLike,
        error: type[TurnoutError],
        rows: IntArray | None = None,
        *,
        available: BoolArray | None = None,
    ) -> None:
        """Raises `error` if a context lies outside the range.

        Args:
            contexts: One row of features per client.
            error: The type of the error to raise.
            rows: The clients that the contexts belong to; by default all clients in order.
            available: A mask of the contexts to check; contexts of unavailable clients have no meaning.
        """
        values = as_contexts(contexts, error) if error is not ReportError else as_known_or_unknown(contexts)
        if values.shape[1] != len(self.lowest):
            raise error(f"contexts have {values.shape[1]} features, but the declared range has {len(self.lowest)}")
        for feature, (low, high) in enumerate(zip(self.lowest, self.highest, strict=True)):
            column = values[:, feature]
            if len(column) == 0 or (column.min() >= low and column.max() <= high):
                continue
            wrong = (column < low) | (column > high)
            if available is not None:
                wrong &= available
            if not wrong.any():
                continue
            index = int(np.flatnonzero(wrong)[0])
            row = index if rows is None else int(rows[index])
            raise error(
                f"contexts[{row}, {feature}] = {column[index]} is outside the declared range [{low:g}, {high:g}]"
            )
