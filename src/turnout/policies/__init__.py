"""Policies: each answers `ask(offer)` and takes in `tell(report)`."""

from turnout.policies.base import SelectionPolicy
from turnout.policies.checks import check_policy
from turnout.policies.fedcs import FedCS
from turnout.policies.oracle import FairOracle, Fastest
from turnout.policies.rbcsf import RBCSF
from turnout.policies.registry import POLICIES, make_policy
from turnout.policies.round_robin import RoundRobin
from turnout.policies.uniform import SkewedRandom, UniformRandom

__all__ = [
    "POLICIES",
    "RBCSF",
    "FairOracle",
    "Fastest",
    "FedCS",
    "RoundRobin",
    "SelectionPolicy",
    "SkewedRandom",
    "UniformRandom",
    "check_policy",
    "make_policy",
]
