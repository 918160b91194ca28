"""The errors that turnout raises on purpose.

TurnoutError
 ├─ SettingError            a setting has an invalid value
 │   ├─ InfeasiblePromise   no policy can keep the guaranteed rate
 │   ├─ FleetKindError      a fleet of another kind is needed: with rounds, with slots, or with a guarantee
 │   ├─ PluginError         a policy, world or learner is unknown, or cannot be loaded
 │   └─ KernelError         TURNOUT_KERNEL or TURNOUT_THREADS cannot be satisfied
 ├─ OfferError              a RoundOffer is malformed, or lacks data that the policy needs
 ├─ SelectionError          a Selection is malformed
 ├─ ReportError             a RoundReport is malformed, or names unknown clients
 │   ├─ UnknownClientError  no client of the fleet has this id
 │   ├─ UnknownTurnError    the client was not selected, or there is no such turn
 │   ├─ ReportedBeforeError another outcome of the turn was reported before
 │   ├─ NoOpenRoundError    a round must be open
 │   └─ OpenRoundError      no round must be open
 ├─ StateError              a saved state does not match the object that should restore it
 ├─ DatasetError            a dataset is missing or corrupt, or its download failed
 ├─ TrainingError           training stopped with an error
 ├─ ClusterError            a cluster cannot be reached, or its workers fail
 ├─ StoreError              a store cannot be opened, read or written
 │   ├─ OtherWriterError        another process writes the store
 │   └─ InterruptedCallError    nothing of the call was stored: repeat it
 │       └─ InterruptedGroupError   a call failed in a group of changes: repeat each by itself
 └─ CheckError              a plug-in violates its contract
     └─ PolicyCheckError    check_policy found that a policy violates the contract
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # it is needed for annotations only, and importing it takes milliseconds
    from pathlib import Path

Known = TypeVar("Known")


class TurnoutError(Exception):
    """Base class of all errors that turnout raises on purpose.

    Messages name Python arguments. The attributes let a user interface add advice in its own terms. Every attribute has
    a default, so that an error can be pickled: it is rebuilt from its message, and its attributes are copied.

    Attributes:
        argument: The name of the argument to change, or None if the error is not about one argument.
        dataset: The name of the dataset that must be downloaded, or None.
        damaged: The path of the damaged file, or None.
    """

    def __init__(
        self,
        *args: object,
        argument: str | None = None,
        dataset: str | None = None,
        damaged: Path | None = None,
    ) -> None:
        super().__init__(*args)
        self.argument = argument
        self.dataset = dataset
        self.damaged = damaged


class SettingError(TurnoutError, ValueError):
    """A setting has an invalid value."""


class InfeasiblePromise(SettingError):
    """No policy can keep the guaranteed rate.

    Attributes:
        largest_rate: The largest rate that could be guaranteed to every client. None if clients have different
            rates; `scale` is then the factor by which all rates must be multiplied.
        scale: The factor that makes the rates feasible.
        cohort_size: The smallest cohort size for which the given rates are feasible, or None if there is none.
        clients: The rows of the clients whose guaranteed turns together exceed what they can get.
        slots: Without rounds, the number of slots with which every client could have an equal share of the turns; None
            if it makes no difference, and with rounds.
    """

    def __init__(
        self,
        message: str,
        *,
        largest_rate: Fraction | None = None,
        scale: float = 1.0,
        cohort_size: int | None = None,
        clients: tuple[int, ...] = (),
        slots: int | None = None,
    ) -> None:
        super().__init__(message)
        self.slots = slots
        self.largest_rate = largest_rate
        self.scale = scale
        self.cohort_size = cohort_size
        self.clients = clients


class FleetKindError(SettingError):
    """A fleet of another kind is needed: with rounds, with slots, or with a guarantee."""


class KernelError(SettingError):
    """The kernel named by TURNOUT_KERNEL is not available, or TURNOUT_THREADS is no number of threads."""


class PluginError(SettingError):
    """A policy, world or learner is unknown, or cannot be loaded.

    Attributes:
        name: Its name.
    """

    def __init__(self, message: str, *, name: str = "", argument: str | None = None) -> None:
        super().__init__(message, argument=argument)
        self.name = name


class OfferError(TurnoutError, ValueError):
    """An offer is malformed, or lacks data that the policy needs."""


class SelectionError(TurnoutError, ValueError):
    """A selection is malformed."""


class ReportError(TurnoutError, ValueError):
    """A report is malformed, or names unknown clients."""


class UnknownClientError(ReportError):
    """No client of the fleet has this id."""


class UnknownTurnError(ReportError):
    """The client was not selected, or there is no such turn."""


class ReportedBeforeError(ReportError):
    """Another outcome of the turn was reported before; the first is kept."""


class NoOpenRoundError(ReportError):
    """A round must be open, and none is."""


class OpenRoundError(ReportError):
    """A round is open, and must be closed or abandoned first."""


class StateError(TurnoutError, ValueError):
    """A saved state does not match the object that should restore it."""


class DatasetError(TurnoutError):
    """A dataset is missing or corrupt, or its download failed."""


class TrainingError(TurnoutError):
    """Training stopped with an error."""


class ClusterError(TurnoutError):
    """A cluster cannot be reached, or its workers fail again and again."""


class StoreError(TurnoutError):
    """A store cannot be opened, read or written."""


class OtherWriterError(StoreError):
    """Another process writes the store, or has taken it over."""


class InterruptedCallError(StoreError):
    """A call was interrupted, for example because the database could not be reached, and nothing of it was stored."""


class InterruptedGroupError(InterruptedCallError):
    """A call failed in a group of changes, of which nothing was stored: each call can be repeated by itself."""


class CheckError(TurnoutError, AssertionError):
    """A plug-in violates the contract of its kind."""


class PolicyCheckError(CheckError):
    """A policy violates the contract that every policy must keep."""


def first_line(error: BaseException) -> str:
    """Returns the first line of the message of an error, or its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns " (did you mean '…'?)" with the closest known name, or an empty string.

    >>> suggestion("cohort_sise", ["cohort_size", "seed"])
    " (did you mean 'cohort_size'?)"
    """
    import difflib  # imported only when a name was mistyped

    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def look_up(noun: str, name: str, known: Mapping[str, Known]) -> Known:
    """Returns what has this name; raises SettingError, with all known names, if nothing has."""
    if name not in known:
        raise SettingError(f"unknown {noun} {name!r}{suggestion(name, known)}; there are {', '.join(known)}")
    return known[name]
