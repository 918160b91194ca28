"""Names of runs as names of folders."""

from __future__ import annotations

import re

#: The longest name of a folder that common file systems accept has 255 bytes.
LONGEST = 120


def file_name(run: str) -> str:
    """Returns the name of a run as the name of a folder.

    >>> file_name("rbcsf (speed_weight 5), seed 0")
    'rbcsf-speed_weight-5-seed-0'
    """
    name = re.sub(r"[^\w.=-]+", "-", run, flags=re.ASCII).strip("-.")[:LONGEST].rstrip("-.")
    return name or "run"
