"""Simulated worlds, and functions that play policies in them and store the runs.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.simulator.checks import check_world
from turnout.simulator.paper import PaperWorld
from turnout.simulator.plans import RunPlan
from turnout.simulator.play import play
from turnout.simulator.slots import SlotRun
from turnout.simulator.sweep import play_into, play_plan, sweep
from turnout.simulator.traces.world import TraceWorld
from turnout.simulator.world import World
from turnout.simulator.worlds import make_world, register_world, world_names

__all__ = [
    "PaperWorld",
    "RunPlan",
    "SlotRun",
    "TraceWorld",
    "World",
    "check_world",
    "make_world",
    "play",
    "play_into",
    "play_plan",
    "register_world",
    "sweep",
    "world_names",
]
