"""A world for turnout."""

from own_world.world import OwnWorld

__all__ = ["OwnWorld"]
