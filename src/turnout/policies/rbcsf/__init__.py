"""RBCS-F, the policy of the paper, and its extensions.

This package is private: use what `turnout.policies` and `turnout` export.
"""

from turnout.policies.rbcsf.policy import RBCSF

__all__ = ["RBCSF"]
