"""Runs three rounds of a recipe with three simulated clients: `python recipe_job.py MODULE.CLASS FOLDER`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from nvflare.recipe import SimEnv

from turnout.adapters.nvflare import select_fairly


def main(path: str, out: Path) -> None:
    """Runs the recipe; the fleet and the workspace are in the folder afterwards."""
    os.chdir(Path(__file__).parent)  # NVFlare looks for the training script in the working directory
    module, _, name = path.rpartition(".")
    arguments: dict[str, Any] = {"model": [0.0, 0.0]}
    if ".pt." in module:
        import torch

        arguments["model"] = torch.nn.Linear(2, 1)
    if name == "FedOptRecipe":
        optimizer = {"path": "torch.optim.SGD", "args": {"lr": 1.0}, "config_type": "dict"}
        arguments |= {"optimizer_args": optimizer, "train_args": "differences"}
    recipe = getattr(importlib.import_module(module), name)(
        name="simulated", min_clients=2, num_rounds=3, train_script="adding_client.py", **arguments
    )
    select_fairly(recipe, fleet=str(out / "fleet.turnout"), guarantee={"guaranteed_rate": 0.5}, deadline=120)
    recipe.execute(SimEnv(num_clients=3, workspace_root=str(out / "workspace")))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
