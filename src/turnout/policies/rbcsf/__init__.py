"""RBCS-F, the policy of the paper, and its extensions."""

from turnout.policies.rbcsf.policy import RBCSF

__all__ = ["RBCSF"]
