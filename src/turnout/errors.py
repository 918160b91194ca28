"""What can go wrong, as a tree.

TurnoutError
 ├─ SettingError            a setting that cannot be used
 │   ├─ InfeasiblePromise   a guaranteed rate that no policy could keep
 │   └─ KernelError         the kernel asked for by TURNOUT_KERNEL cannot be had
 ├─ OfferError              a RoundOffer that is malformed, or lacks what the policy needs
 ├─ SelectionError          a Selection that is malformed
 ├─ ReportError             a RoundReport that is malformed, or names unknown clients
 ├─ StateError              a saved state that does not fit
 ├─ DatasetError            a dataset that is missing, damaged or cannot be fetched
 ├─ TrainingError           training that broke off
 ├─ StoreError              a store that cannot be opened, or must not take what it is given
 └─ PolicyCheckError        check_policy found a promise broken
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any


class TurnoutError(Exception):
    """The root: catch this to catch everything turnout raises on purpose."""


class SettingError(TurnoutError, ValueError):
    """A setting has a value that cannot be used."""


class InfeasiblePromise(SettingError):
    """No policy can keep this promise: `largest_rate` could be kept, or `cohort_size` would do.

    `largest_rate` is the largest rate that every client could be promised alike; where clients are
    promised different rates it is None and `scale` tells by what all of them must be multiplied.
    `clients` are the rows that are promised more turns together than they can be given.
    """

    def __init__(
        self,
        message: str,
        *,
        largest_rate: Fraction | None,
        scale: float,
        cohort_size: int | None,
        clients: tuple[int, ...],
    ) -> None:
        super().__init__(message)
        self.largest_rate = largest_rate
        self.scale = scale
        self.cohort_size = cohort_size
        self.clients = clients

    def __reduce__(self) -> tuple[Any, ...]:
        """It travels between processes with its numbers."""
        numbers = {name: getattr(self, name) for name in ("largest_rate", "scale", "cohort_size", "clients")}
        return partial(InfeasiblePromise, **numbers), (str(self),)


class KernelError(SettingError):
    """TURNOUT_KERNEL asks for a kernel that cannot be had."""


class OfferError(TurnoutError, ValueError):
    """An offer is malformed, or lacks what the policy needs."""


class SelectionError(TurnoutError, ValueError):
    """A selection is malformed."""


class ReportError(TurnoutError, ValueError):
    """A report is malformed, or names clients that do not exist."""


class StateError(TurnoutError, ValueError):
    """A saved state does not fit the object that should take it in."""


class DatasetError(TurnoutError):
    """A dataset is missing, damaged or cannot be fetched."""


class TrainingError(TurnoutError):
    """Training that broke off."""


class StoreError(TurnoutError):
    """A store cannot be opened or read, or must not take what it is given."""


class PolicyCheckError(TurnoutError, AssertionError):
    """A policy breaks a promise that every policy keeps."""
