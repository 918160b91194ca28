"""A learner for turnout."""

from own_learner.learner import build_own_learner

__all__ = ["build_own_learner"]
