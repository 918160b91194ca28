"""Selection policies: each answers `ask(offer)` and learns from `tell(report)`.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports
from turnout.policies.registry import BUILT_IN_POLICIES, BUILT_IN_WRAPPERS

if TYPE_CHECKING:
    from turnout.policies.base import SelectionPolicy
    from turnout.policies.baselines.data_size import DataSize
    from turnout.policies.baselines.fedcs import FedCS
    from turnout.policies.baselines.oracle import FairOracle, Fastest
    from turnout.policies.baselines.round_robin import RoundRobin
    from turnout.policies.baselines.uniform import SkewedRandom, UniformRandom
    from turnout.policies.checks import check_policy
    from turnout.policies.fair_pace import FairPace
    from turnout.policies.published.active_fl import ActiveFL
    from turnout.policies.published.cs_ucb import CSUCB, CSUCBQ
    from turnout.policies.published.e3cs import E3CS
    from turnout.policies.published.oort import Oort
    from turnout.policies.published.power_of_choice import PowerOfChoice
    from turnout.policies.published.refl import REFL
    from turnout.policies.published.tifl import TiFL
    from turnout.policies.published.ucb_cs import UCBCS
    from turnout.policies.rbcsf.policy import RBCSF
    from turnout.policies.registry import POLICIES, WRAPPERS, make_policy, policy_names, register_policy
    from turnout.policies.wrappers.busy import ExcludeBusy
    from turnout.policies.wrappers.cooldown import CoolDown
    from turnout.policies.wrappers.eligible import Eligible
    from turnout.policies.wrappers.guarantee import WithGuarantee
    from turnout.policies.wrappers.overcommit import Overcommit
    from turnout.policies.wrappers.quota import Quota
    from turnout.policies.wrappers.warmup import WarmUp
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            **{module: tuple(names.values()) for module, names in (BUILT_IN_POLICIES | BUILT_IN_WRAPPERS).items()},
            "base": ("SelectionPolicy",),
            "checks": ("check_policy",),
            "registry": ("POLICIES", "WRAPPERS", "make_policy", "policy_names", "register_policy"),
        },
    )

__all__ = [
    "CSUCB",
    "CSUCBQ",
    "E3CS",
    "POLICIES",
    "RBCSF",
    "REFL",
    "UCBCS",
    "WRAPPERS",
    "ActiveFL",
    "CoolDown",
    "DataSize",
    "Eligible",
    "ExcludeBusy",
    "FairOracle",
    "FairPace",
    "Fastest",
    "FedCS",
    "Oort",
    "Overcommit",
    "PowerOfChoice",
    "Quota",
    "RoundRobin",
    "SelectionPolicy",
    "SkewedRandom",
    "TiFL",
    "UniformRandom",
    "WarmUp",
    "WithGuarantee",
    "check_policy",
    "make_policy",
    "policy_names",
    "register_policy",
]
