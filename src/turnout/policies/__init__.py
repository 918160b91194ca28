"""Policies: each answers `ask(offer)` and takes in `tell(report)`."""

from turnout.policies.active_fl import ActiveFL
from turnout.policies.base import SelectionPolicy
from turnout.policies.checks import check_policy
from turnout.policies.cs_ucb import CSUCB, CSUCBQ
from turnout.policies.data_size import DataSize
from turnout.policies.e3cs import E3CS
from turnout.policies.fedcs import FedCS
from turnout.policies.guarantee import WithGuarantee
from turnout.policies.oort import Oort
from turnout.policies.oracle import FairOracle, Fastest
from turnout.policies.power_of_choice import PowerOfChoice
from turnout.policies.rbcsf import RBCSF
from turnout.policies.refl import REFL
from turnout.policies.registry import POLICIES, WRAPPERS, make_policy
from turnout.policies.round_robin import RoundRobin
from turnout.policies.tifl import TiFL
from turnout.policies.ucb_cs import UCBCS
from turnout.policies.uniform import SkewedRandom, UniformRandom
from turnout.policies.wrappers import CoolDown, Eligible, ExcludeBusy, Overcommit, Quota, WarmUp

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
]
