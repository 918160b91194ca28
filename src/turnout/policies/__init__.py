"""Selection policies: each answers `ask(offer)` and learns from `tell(report)`.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports

if TYPE_CHECKING:
    from turnout.policies.base import SelectionPolicy as SelectionPolicy
    from turnout.policies.baselines import DataSize as DataSize
    from turnout.policies.baselines import FairOracle as FairOracle
    from turnout.policies.baselines import Fastest as Fastest
    from turnout.policies.baselines import FedCS as FedCS
    from turnout.policies.baselines import RoundRobin as RoundRobin
    from turnout.policies.baselines import SkewedRandom as SkewedRandom
    from turnout.policies.baselines import UniformRandom as UniformRandom
    from turnout.policies.checks import check_policy as check_policy
    from turnout.policies.fair_pace import FairPace as FairPace
    from turnout.policies.published.availability import E3CS as E3CS
    from turnout.policies.published.availability import REFL as REFL
    from turnout.policies.published.losses import UCBCS as UCBCS
    from turnout.policies.published.losses import ActiveFL as ActiveFL
    from turnout.policies.published.losses import PowerOfChoice as PowerOfChoice
    from turnout.policies.published.oort import Oort as Oort
    from turnout.policies.published.times import CSUCB as CSUCB
    from turnout.policies.published.times import CSUCBQ as CSUCBQ
    from turnout.policies.published.times import TiFL as TiFL
    from turnout.policies.rbcsf import RBCSF as RBCSF
    from turnout.policies.registry import POLICIES as POLICIES
    from turnout.policies.registry import WRAPPERS as WRAPPERS
    from turnout.policies.registry import make_policy as make_policy
    from turnout.policies.registry import policy_names as policy_names
    from turnout.policies.registry import register_policy as register_policy
    from turnout.policies.wrappers.guarantee import WithGuarantee as WithGuarantee
    from turnout.policies.wrappers.offers import CoolDown as CoolDown
    from turnout.policies.wrappers.offers import Eligible as Eligible
    from turnout.policies.wrappers.offers import ExcludeBusy as ExcludeBusy
    from turnout.policies.wrappers.offers import Overcommit as Overcommit
    from turnout.policies.wrappers.offers import Quota as Quota
    from turnout.policies.wrappers.offers import WarmUp as WarmUp
else:
    __getattr__, __dir__ = lazy_exports(__name__)
