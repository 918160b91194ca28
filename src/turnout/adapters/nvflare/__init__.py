"""Fair client selection for NVFlare: for recipes, for controllers, in the simulator and in deployment.

    select_fairly(recipe, fleet="/srv/fleet.turnout", guarantee={"guaranteed_rate": 0.1}, deadline=600)

The rest of the job stays as it is.
"""

from turnout.adapters.nvflare import requirement as requirement  # first: its error names the package to install
from turnout.adapters.nvflare.controllers import FairFedAvg, FairFedAvgLR, FairScaffold, FairScatterAndGather
from turnout.adapters.nvflare.recipes import select_fairly
from turnout.adapters.nvflare.selection import FairSelection
from turnout.adapters.nvflare.status import StatusReporter

__all__ = [
    "FairFedAvg",
    "FairFedAvgLR",
    "FairScaffold",
    "FairScatterAndGather",
    "FairSelection",
    "StatusReporter",
    "select_fairly",
]
