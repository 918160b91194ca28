"""Selection policies: each answers `ask(offer)` and learns from `tell(report)`.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports

if TYPE_CHECKING:
    from turnout.policies.base import SelectionPolicy as SelectionPolicy
    from turnout.policies.baselines.data_size import DataSize as DataSize
    from turnout.policies.baselines.fedcs import FedCS as FedCS
    from turnout.policies.baselines.oracle import FairOracle as FairOracle
    from turnout.policies.baselines.oracle import Fastest as Fastest
    from turnout.policies.baselines.round_robin import RoundRobin as RoundRobin
    from turnout.policies.baselines.uniform import SkewedRandom as SkewedRandom
    from turnout.policies.baselines.uniform import UniformRandom as UniformRandom
    from turnout.policies.checks import check_policy as check_policy
    from turnout.policies.fair_pace import FairPace as FairPace
    from turnout.policies.published.active_fl import ActiveFL as ActiveFL
    from turnout.policies.published.cs_ucb import CSUCB as CSUCB
    from turnout.policies.published.cs_ucb import CSUCBQ as CSUCBQ
    from turnout.policies.published.e3cs import E3CS as E3CS
    from turnout.policies.published.oort import Oort as Oort
    from turnout.policies.published.power_of_choice import PowerOfChoice as PowerOfChoice
    from turnout.policies.published.refl import REFL as REFL
    from turnout.policies.published.tifl import TiFL as TiFL
    from turnout.policies.published.ucb_cs import UCBCS as UCBCS
    from turnout.policies.rbcsf.policy import RBCSF as RBCSF
    from turnout.policies.registry import POLICIES as POLICIES
    from turnout.policies.registry import WRAPPERS as WRAPPERS
    from turnout.policies.registry import make_policy as make_policy
    from turnout.policies.registry import policy_names as policy_names
    from turnout.policies.registry import register_policy as register_policy
    from turnout.policies.wrappers.busy import ExcludeBusy as ExcludeBusy
    from turnout.policies.wrappers.cooldown import CoolDown as CoolDown
    from turnout.policies.wrappers.eligible import Eligible as Eligible
    from turnout.policies.wrappers.guarantee import WithGuarantee as WithGuarantee
    from turnout.policies.wrappers.quota import Quota as Quota
    from turnout.policies.wrappers.warmup import WarmUp as WarmUp
else:
    __getattr__, __dir__ = lazy_exports(__name__)
