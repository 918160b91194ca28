"""A policy for turnout."""

from own_policy.policy import OwnPolicy

__all__ = ["OwnPolicy"]
