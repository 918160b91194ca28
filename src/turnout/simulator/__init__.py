"""Worlds to play in, the loop that plays, and what to make of the records."""

from turnout.simulator.paper import PaperWorld
from turnout.simulator.plans import RunPlan, make_world
from turnout.simulator.play import play
from turnout.simulator.sweep import play_into, play_plan, sweep
from turnout.simulator.traces.world import TraceWorld
from turnout.simulator.world import World

__all__ = ["PaperWorld", "RunPlan", "TraceWorld", "World", "make_world", "play", "play_into", "play_plan", "sweep"]
