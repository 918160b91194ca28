"""Child processes that `make coverage` does not measure."""

from __future__ import annotations

import os
from collections.abc import Mapping


def unmeasured(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns these environment variables without those with which coverage.py measures a child process.

    A test needs it if coverage.py disturbs what it examines: the modules that a program loads, or what happens when a
    signal interrupts it at any moment, which may be within coverage.py.
    """
    return {name: value for name, value in environment.items() if not name.startswith("COVERAGE_")}
