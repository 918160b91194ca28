"""Runs seven rounds with four clients in NVFlare's simulator: `python job.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from turnout.adapters.nvflare import FairFedAvg, StatusReporter


def main(out: Path) -> None:
    """Runs the job; the fleet and the workspace are in the folder afterwards."""
    os.chdir(Path(__file__).parent)  # NVFlare looks for the training script in the working directory
    job = FedJob(name="simulated")
    job.set_app_packages(["turnout"])
    job.to_server(NPModelPersistor(), id="persistor")
    job.to_server(
        FairFedAvg(
            num_clients=2,
            num_rounds=7,
            selection={
                "fleet": str(out / "fleet.turnout"),
                "guarantee": {"guaranteed_rate": 0.25},
                "deadline": 6,
                "backoff_after": 1,
            },
        )
    )
    job.to_clients(ScriptRunner(script="client.py", framework=FrameworkType.NUMPY))
    job.to_clients(StatusReporter())
    job.simulator_run(str(out / "workspace"), n_clients=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
