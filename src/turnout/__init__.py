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
    from turnout.policies import CSUCB as CSUCB
    from turnout.policies import CSUCBQ as CSUCBQ
    from turnout.policies import E3CS as E3CS
    from turnout.policies import POLICIES as POLICIES
    from turnout.policies import RBCSF as RBCSF
    from turnout.policies import REFL as REFL
    from turnout.policies import UCBCS as UCBCS
    from turnout.policies import WRAPPERS as WRAPPERS
    from turnout.policies import ActiveFL as ActiveFL
    from turnout.policies import CoolDown as CoolDown
    from turnout.policies import DataSize as DataSize
    from turnout.policies import Eligible as Eligible
    from turnout.policies import ExcludeBusy as ExcludeBusy
    from turnout.policies import FairOracle as FairOracle
    from turnout.policies import FairPace as FairPace
    from turnout.policies import Fastest as Fastest
    from turnout.policies import FedCS as FedCS
    from turnout.policies import Oort as Oort
    from turnout.policies import Overcommit as Overcommit
    from turnout.policies import PowerOfChoice as PowerOfChoice
    from turnout.policies import Quota as Quota
    from turnout.policies import RoundRobin as RoundRobin
    from turnout.policies import SelectionPolicy as SelectionPolicy
    from turnout.policies import SkewedRandom as SkewedRandom
    from turnout.policies import TiFL as TiFL
    from turnout.policies import UniformRandom as UniformRandom
    from turnout.policies import WarmUp as WarmUp
    from turnout.policies import WithGuarantee as WithGuarantee
    from turnout.policies import check_policy as check_policy
    from turnout.policies import make_policy as make_policy
    from turnout.policies import policy_names as policy_names
    from turnout.policies import register_policy as register_policy
    from turnout.policies.explain.explanation import Explanation as Explanation
else:
    __getattr__, __dir__ = lazy_exports(__name__)
