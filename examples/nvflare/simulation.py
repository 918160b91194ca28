"""NVFlare's simulator with fair selection: four clients, of which one always fails and one is too slow. The two other
clients train on, nobody waits longer than the deadline, and the late client's true time is learned. It needs NVFlare
(pip install '.[nvflare]') and takes a minute.

    python examples/nvflare/simulation.py [--deadline 6] [--out FOLDER]
"""

import argparse
import os
import tempfile
from pathlib import Path

from fleet_report import print_fleet
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from turnout.adapters.nvflare import select_fairly

HERE = Path(__file__).resolve().parent


def main(out: Path, deadline: float) -> None:
    """Runs seven rounds in the simulator; the slow client needs more than twice the deadline."""
    fleet = out / "fleet.turnout"
    os.chdir(HERE)  # NVFlare looks for the training script in the working directory
    recipe = NumpyFedAvgRecipe(
        name="simulation",
        model=[0.0, 0.0, 0.0],
        min_clients=2,
        num_rounds=7,
        train_script="client.py",
        train_args=f"--failing site-3 --slow site-4 --seconds {2 * deadline}",
    )
    select_fairly(recipe, fleet=str(fleet), guarantee={"guaranteed_rate": 0.25}, deadline=deadline, backoff_after=1)
    recipe.execute(SimEnv(num_clients=4, workspace_root=str(out / "workspace")))
    print_fleet(fleet)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs fair selection in NVFlare's simulator.")
    parser.add_argument("--out", type=Path, help="the folder for the fleet and NVFlare's workspace")
    parser.add_argument("--deadline", type=float, default=6.0, help="the seconds that a client has in a round")
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="nvflare-simulation-"))
    folder.mkdir(parents=True, exist_ok=True)
    main(folder.resolve(), arguments.deadline)
    print(f"\nThe fleet and the logs are in {folder}. Try: turnout fleet certify {folder / 'fleet.turnout'}")
