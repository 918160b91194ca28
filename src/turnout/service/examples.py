"""Examples of bodies, answers and events, for the OpenAPI document."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_examples() -> dict[str, list[Any]]:
    """Returns the examples by the names of their schemas: rounds of a cohort of two, turns of two slots."""
    text = resources.files("turnout.service").joinpath("examples.json").read_text(encoding="utf-8")
    examples: dict[str, list[Any]] = json.loads(text)
    return examples
