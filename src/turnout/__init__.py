"""Client selection for federated learning: short rounds, and a guaranteed share of the turns for every client."""

from typing import TYPE_CHECKING, Any

from turnout.errors import TurnoutError
from turnout.kernel.rounds import RoundOffer, RoundRecord, RoundReport, Selection
from turnout.policies import POLICIES, RBCSF, SelectionPolicy, check_policy, make_policy
from turnout.version import __version__ as __version__

if TYPE_CHECKING:
    from turnout.scheduler import ClientStatus, Scheduler
else:

    def __getattr__(name: str) -> Any:
        """The scheduler is imported when it is first asked for: it needs SQLite, and simulations do not."""
        if name not in ("ClientStatus", "Scheduler"):
            raise AttributeError(f"module 'turnout' has no attribute {name!r}")
        import turnout.scheduler

        return getattr(turnout.scheduler, name)


__all__ = [
    "POLICIES",
    "RBCSF",
    "ClientStatus",
    "RoundOffer",
    "RoundRecord",
    "RoundReport",
    "Scheduler",
    "Selection",
    "SelectionPolicy",
    "TurnoutError",
    "check_policy",
    "make_policy",
]
