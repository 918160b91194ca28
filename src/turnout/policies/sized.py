"""Base classes of policies that know how much data each client has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_floats, refuse_where, require_length
from turnout.kernel.rounds import RoundReport
from turnout.policies.base import CohortPolicy
from turnout.policies.observations import LastSignal


class SizedPolicy(CohortPolicy):
    """Selects `cohort_size` clients, and knows the data size of each: `sizes`, or None if all are equal."""

    def __init__(self, clients: int, *, cohort_size: int, sizes: npt.ArrayLike | None, seed: int = 0) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        self._sizes_given = sizes is not None
        self.sizes = per_client_setting("sizes", sizes, self.clients)

    def add(self, count: int) -> None:
        """Appends clients of size 1; refused if `sizes` was given, because theirs are unknown."""
        if self._sizes_given and as_count("count", count, SettingError, least=0):
            raise SettingError(
                f"{self.name} has the data sizes of {self.clients} clients, so {count} more cannot join: build a new "
                "policy with the sizes of all clients, or with sizes=None"
            )
        super().add(count)
        self.sizes = np.append(self.sizes, np.ones(count))


class LossBasedPolicy(SizedPolicy):
    """Selects by the last loss of each client, and keeps no other state."""

    def __init__(self, clients: int, *, cohort_size: int, sizes: npt.ArrayLike | None, seed: int) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        self.losses = LastSignal(self.clients)
        self._remember_part("losses", self.losses, self.losses.forget)

    def tell(self, report: RoundReport) -> None:
        """Stores the reported losses."""
        super().tell(report)
        self.losses.learn_from(report)


def per_client_setting(field: str, values: npt.ArrayLike | None, clients: int) -> FloatArray:
    """Returns a setting with one non-negative number per client, not all of them 0; all 1 if it is None."""
    if values is None:
        return np.ones(clients)
    array = np.array(as_floats(field, values, 1, SettingError))
    require_length(field, array, clients, "clients", SettingError)
    refuse_where(array < 0, field, array, "must not be negative", SettingError)
    if not array.any():
        raise SettingError(f"{field} must not all be 0: give one client a positive number, or pass None for equal ones")
    return array
