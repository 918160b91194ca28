"""Client selection for federated learning: short rounds, and a guaranteed share of the turns for every client.

Everything in `__all__` is public and imported on first use. docs/api.md lists the public packages.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports
from turnout.version import __version__ as __version__

if TYPE_CHECKING:
    from turnout.errors import CheckError as CheckError
    from turnout.errors import ClusterError as ClusterError
    from turnout.errors import DatasetError as DatasetError
    from turnout.errors import FleetKindError as FleetKindError
    from turnout.errors import InfeasiblePromise as InfeasiblePromise
    from turnout.errors import InterruptedCallError as InterruptedCallError
    from turnout.errors import InterruptedGroupError as InterruptedGroupError
    from turnout.errors import KernelError as KernelError
    from turnout.errors import NoOpenRoundError as NoOpenRoundError
    from turnout.errors import OfferError as OfferError
    from turnout.errors import OpenRoundError as OpenRoundError
    from turnout.errors import OtherWriterError as OtherWriterError
    from turnout.errors import PluginError as PluginError
    from turnout.errors import PolicyCheckError as PolicyCheckError
    from turnout.errors import ReportedBeforeError as ReportedBeforeError
    from turnout.errors import ReportError as ReportError
    from turnout.errors import SelectionError as SelectionError
    from turnout.errors import SettingError as SettingError
    from turnout.errors import StateError as StateError
    from turnout.errors import StoreError as StoreError
    from turnout.errors import TrainingError as TrainingError
    from turnout.errors import TurnoutError as TurnoutError
    from turnout.errors import UnknownClientError as UnknownClientError
    from turnout.errors import UnknownTurnError as UnknownTurnError
    from turnout.kernel.certificate import Certificate as Certificate
    from turnout.kernel.cohort_problem import CohortProblem as CohortProblem
    from turnout.kernel.guarantee import Guarantee as Guarantee
    from turnout.kernel.rounds import LateArrivals as LateArrivals
    from turnout.kernel.rounds import RoundOffer as RoundOffer
    from turnout.kernel.rounds import RoundRecord as RoundRecord
    from turnout.kernel.rounds import RoundReport as RoundReport
    from turnout.kernel.rounds import Selection as Selection
    from turnout.live import ClientStatus as ClientStatus
    from turnout.live import FleetReader as FleetReader
    from turnout.live import FleetStatus as FleetStatus
    from turnout.live import Reporter as Reporter
    from turnout.live import RunningTurn as RunningTurn
    from turnout.live import Scheduler as Scheduler
    from turnout.live import Wait as Wait
    from turnout.policies import *  # noqa: F403
    from turnout.policies.explain.explanation import Explanation as Explanation
else:
    __getattr__, __dir__ = lazy_exports(__name__)
