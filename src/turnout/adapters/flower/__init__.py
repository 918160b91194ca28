"""Fair client selection for Flower: works around any strategy, in simulation and in deployment.

strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
settings = {"cohort_size": 8, "guaranteed_rate": 0.1}
fair = FairSelection(strategy, Scheduler.open("fleet.turnout", settings=settings))
result = fair.start(grid=grid, initial_arrays=arrays, num_rounds=100)
"""

from turnout.adapters.flower import requirement as requirement  # first: its error names the package to install
from turnout.adapters.flower.discovery.nodes import identify_clients
from turnout.adapters.flower.grid import restrict_grid
from turnout.adapters.flower.selection import FairSelection

__all__ = ["FairSelection", "identify_clients", "restrict_grid"]
