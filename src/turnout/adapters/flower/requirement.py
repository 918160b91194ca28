"""Checks at import time that a supported version of Flower is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

OLDEST = (1, 22)  # the first version with a complete Message API


def check_flower() -> None:
    """Raises an error with the install command if Flower is missing or too old.

    A build without version metadata is accepted.
    """
    if find_spec("flwr") is None:
        raise ModuleNotFoundError(
            "Flower is not installed: pip install 'turnout[flower]', or 'turnout[flower-sim]' to simulate", name="flwr"
        )
    try:
        installed = version("flwr")
    except PackageNotFoundError:  # nightly builds are distributed under another name
        return
    parts = re.match(r"(\d+)\.(\d+)", installed)
    if parts is not None and (int(parts[1]), int(parts[2])) < OLDEST:
        raise ImportError(
            f"Flower {installed} is too old: turnout needs 1.22 or newer (pip install --upgrade flwr)", name="flwr"
        )


check_flower()
