"""NVFlare's proof of concept with fair selection: a server and three clients as processes, with TLS, on this machine.
Two of the three clients train in each round. The processes are stopped afterwards. It needs NVFlare
(pip install '.[nvflare]') and takes two minutes.

    python examples/nvflare/poc.py [--out FOLDER]
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from fleet_report import print_fleet
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import PocEnv

from turnout.adapters.nvflare import select_fairly

HERE = Path(__file__).resolve().parent


def main(out: Path) -> None:
    """Provisions the processes, submits the job, waits for its end and stops the processes."""
    os.environ["NVFLARE_POC_WORKSPACE"] = str(out / "workspace")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the scripts call python3
    os.chdir(HERE)  # NVFlare looks for the training script in the working directory
    fleet = out / "fleet.turnout"
    recipe = NumpyFedAvgRecipe(
        name="poc",
        model=[0.0, 0.0, 0.0],
        min_clients=3,  # the job starts when so many clients are connected, and ends if fewer are alive
        num_rounds=6,
        train_script="client.py",
    )
    select_fairly(recipe, fleet=str(fleet), guarantee={"cohort_size": 2, "guaranteed_rate": 0.5}, deadline=300)
    environment = PocEnv(num_clients=3, extra={"login_timeout": 120})
    try:
        run = recipe.execute(environment)
        run.get_result()  # waits for the end of the job
        print(f"job {run.get_job_id()}: {run.get_status()}")
    finally:
        environment.stop()
    print_fleet(fleet)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs fair selection in processes of NVFlare on this machine.")
    parser.add_argument(
        "--out", type=Path, help="the folder for the fleet; NVFlare's workspace is there during the job"
    )
    folder = parser.parse_args().out or Path(tempfile.mkdtemp(prefix="nvflare-poc-"))
    folder.mkdir(parents=True, exist_ok=True)
    main(folder.resolve())
    print(f"\nTry: turnout fleet certify {folder / 'fleet.turnout'}")
