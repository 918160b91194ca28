"""What policies that reckon with data sizes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_floats, refuse_where, require_length
from turnout.kernel.rounds import RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.observations import LastLosses, append_rows


class SizedPolicy(SelectionPolicy):
    """Wants `cohort_size` clients, and knows how much data each has: `sizes`, or None where all have the same."""

    def __init__(self, clients: int, *, cohort_size: int, sizes: npt.ArrayLike | None) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self._sizes_given = sizes is not None
        self.sizes = per_client_setting("sizes", sizes, self.clients)

    def add(self, count: int) -> None:
        """New clients have as much data as any; refused where each was given its own size."""
        if self._sizes_given and as_count("count", count, SettingError, least=0):
            raise SettingError(
                f"{self.name} was given the data sizes of {self.clients} clients, so {count} more cannot join: build "
                "it anew with the sizes of all, or with sizes=None"
            )
        super().add(count)
        self.sizes = append_rows(self.sizes, count, 1.0)


class ByLosses(SizedPolicy):
    """Chooses by the loss that each client told last, and keeps nothing else."""

    def __init__(self, clients: int, *, cohort_size: int, sizes: npt.ArrayLike | None) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes)
        self.losses = LastLosses(self.clients)

    def tell(self, report: RoundReport) -> None:
        """Remember the losses."""
        self.check_report(report)
        self.losses.learn_from(report)

    def add(self, count: int) -> None:
        """New clients have had no turn."""
        super().add(count)
        self.losses.add(count)

    def state(self) -> dict[str, Any]:
        """The last losses."""
        return self.losses.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.losses.restore(state)


def per_client_setting(field: str, values: npt.ArrayLike | None, clients: int) -> FloatArray:
    """A setting with one number a client, none negative and not all 0; all 1 where it is None."""
    if values is None:
        return np.ones(clients)
    array = np.array(as_floats(field, values, 1, SettingError))
    require_length(field, array, clients, "clients", SettingError)
    refuse_where(array < 0, field, array, "must not be negative", SettingError)
    if not array.any():
        raise SettingError(f"{field} must not all be 0: give at least one client more, or None where all are equal")
    return array
