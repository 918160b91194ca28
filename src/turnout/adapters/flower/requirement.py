"""Is there a Flower that we can talk to?"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

OLDEST = (1, 22)  # the first whose Message API is whole


def check_flower() -> None:
    """Say what to install where there is none, or one that is too old; what has no version is trusted."""
    if find_spec("flwr") is None:
        raise ModuleNotFoundError(
            "Flower is not installed: pip install 'turnout[flower]', or 'turnout[flower-sim]' to simulate", name="flwr"
        )
    try:
        found = version("flwr")
    except PackageNotFoundError:  # a nightly build goes by another name
        return
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise ImportError(
            f"Flower {found} is too old: turnout needs 1.22 or newer (pip install --upgrade flwr)", name="flwr"
        )


check_flower()
