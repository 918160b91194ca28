"""Checks at import time that a supported version of NVFlare is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

OLDEST = (2, 7)  # the first version with recipes


def check_nvflare() -> None:
    """Raises an error with the install command if NVFlare is missing or too old.

    A build without version metadata is accepted.
    """
    if find_spec("nvflare") is None:
        raise ModuleNotFoundError("NVFlare is not installed: pip install 'turnout[nvflare]'", name="nvflare")
    try:
        installed = version("nvflare")
    except PackageNotFoundError:  # nightly builds are distributed under another name
        return
    parts = re.match(r"(\d+)\.(\d+)", installed)
    if parts is not None and (int(parts[1]), int(parts[2])) < OLDEST:
        raise ImportError(
            f"NVFlare {installed} is too old: turnout needs 2.7 or newer (pip install --upgrade nvflare)",
            name="nvflare",
        )


check_nvflare()
