"""Fair client selection for Flower: works around any strategy, in simulation and in deployment.

strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
settings = {"cohort_size": 8, "guaranteed_rate": 0.1}
fair = FairSelection(strategy, Scheduler.open("fleet.turnout", settings=settings))
result = fair.start(grid=grid, initial_arrays=arrays, num_rounds=100)

Names are imported on first use, so that a client imports nothing of the server.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports
from turnout.adapters.flower import requirement as requirement  # first: its error names the package to install

if TYPE_CHECKING:
    from turnout.adapters.flower.core.nodes import identify_clients as identify_clients
    from turnout.adapters.flower.flower_api import restrict_grid as restrict_grid
    from turnout.adapters.flower.selection import FairSelection as FairSelection
    from turnout.adapters.flower.settings import ClientSettings as ClientSettings
    from turnout.adapters.flower.settings import ExchangeSettings as ExchangeSettings
    from turnout.adapters.flower.settings import VersionSettings as VersionSettings

__getattr__, __dir__ = lazy_exports(__name__)
