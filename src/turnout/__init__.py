"""Client selection for federated learning: short rounds, and a guaranteed share of the turns for every client."""

from turnout.kernel.errors import TurnoutError
from turnout.kernel.rounds import RoundOffer, RoundRecord, RoundReport, Selection
from turnout.policies import POLICIES, RBCSF, SelectionPolicy, check_policy, make_policy

__version__ = "0.1.0"

__all__ = [
    "POLICIES",
    "RBCSF",
    "RoundOffer",
    "RoundRecord",
    "RoundReport",
    "Selection",
    "SelectionPolicy",
    "TurnoutError",
    "check_policy",
    "make_policy",
]
