"""The loop of a training server without rounds, whose devices come to the service by themselves.

    TURNOUT_ADDRESS=http://127.0.0.1:8080/v1/fleets/fleet TURNOUT_TOKEN=… python examples/service/server.py

It needs a service (demo.py starts one) and turnout without extras. A real server would send models to the devices and
aggregate what they return; the service decides whose turn it is.
"""

import os
import time

from turnout.client import FleetClient

BUFFER = 20


def main() -> None:
    """Fills free slots and prints the state of the fleet after every 20 turns, until the process ends."""
    version = 0
    with FleetClient(os.environ["TURNOUT_ADDRESS"], token=os.environ["TURNOUT_TOKEN"], attempts=100) as client:
        while True:
            client.fill([])  # ends late turns, and gives free slots to devices that wait, also while none checks in
            status = client.status()
            if status["round"] // BUFFER > version:
                version = status["round"] // BUFFER
                training, promise = len(status["out"]), status["promise"]["sentence"]
                print(f"version {version} of the model; {training} devices train; {promise}", flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    main()
