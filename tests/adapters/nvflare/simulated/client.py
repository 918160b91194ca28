"""The training script of the simulated clients: one raises an error, one takes longer than the deadline."""

from __future__ import annotations

import time

import nvflare.client as flare


def main() -> None:
    """Trains whenever the server sends a model."""
    flare.init()
    site = flare.get_site_name()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        if site == "site-3":
            raise RuntimeError("no data")
        if site == "site-4":
            time.sleep(12)
        params = {name: value + 1 for name, value in received.params.items()}
        flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
