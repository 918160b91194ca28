"""Makes seven versions of a model with twelve devices in NVFlare's simulator: `python edge_job.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.edge.aggregators.model_update_dxo_factory import ModelUpdateDXOAggrFactory
from nvflare.edge.assessors.buff_device_manager import BuffDeviceManager
from nvflare.edge.assessors.buff_model_manager import BuffModelManager
from nvflare.edge.assessors.model_update import ModelUpdateAssessor
from nvflare.edge.tools.edge_job import EdgeJob


def main(out: Path) -> None:
    """Runs the job; the fleet and the workspace are in the folder afterwards."""
    os.chdir(Path(__file__).parent)  # NVFlare copies the device into the job
    from edge_device import AddingDevice  # type: ignore[import-not-found]

    from turnout.adapters.nvflare.edge import fill_fairly  # needs NVFlare 2.9

    job = EdgeJob("edge", "edge")
    job.configure_simulation(AddingDevice(), num_devices=12, num_workers=4)
    job.configure_client(ModelUpdateDXOAggrFactory(), max_model_versions=10)
    persistor = job.to_server(NPModelPersistor(), id="persistor")
    models = job.to_server(BuffModelManager(num_updates_for_model=3), id="model_manager")
    devices = job.to_server(BuffDeviceManager(4), id="device_manager")
    job.configure_server(ModelUpdateAssessor(persistor, models, devices, max_model_version=7))
    fill_fairly(job, fleet=str(out / "fleet.turnout"), guarantee={"guaranteed_rate": "1/20"}, deadline=60)
    job.simulator_run(str(out / "workspace"), n_clients=1, threads=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
