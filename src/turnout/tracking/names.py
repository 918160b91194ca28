"""Names of runs as names of folders, and names of nested settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: The longest name of a folder that common file systems accept has 255 bytes.
LONGEST = 120


def file_name(run: str) -> str:
    """Returns the name of a run as the name of a folder.

    >>> file_name("rbcsf (speed_weight 5), seed 0")
    'rbcsf-speed_weight-5-seed-0'
    """
    name = re.sub(r"[^\w.=-]+", "-", run, flags=re.ASCII).strip("-.")[:LONGEST].rstrip("-.")
    return name or "run"


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings as one mapping; lists become JSON.

    >>> flat_settings({"policy": "rbcsf", "settings": {"speed_weight": 5}, "weights": [1, 2]})
    {'policy': 'rbcsf', 'settings.speed_weight': 5, 'weights': '[1, 2]'}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = value
        else:
            flat[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False, default=str)
    return flat
