"""Flower with fair selection: around any of its strategies, in simulation and in deployment.

strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
fair = FairSelection(strategy, Scheduler.open("fleet.turnout", settings={"cohort_size": 8, "guaranteed_rate": 0.1}))
result = fair.start(grid=grid, initial_arrays=arrays, num_rounds=100)
"""

from turnout.adapters.flower import requirement as requirement  # first: it says what to install
from turnout.adapters.flower.grid import showing
from turnout.adapters.flower.nodes import clients_of
from turnout.adapters.flower.selection import FairSelection

__all__ = ["FairSelection", "clients_of", "showing"]
