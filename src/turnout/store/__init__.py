"""Storage of runs: rounds in columns, and many runs in one file."""

from turnout.store.columns import RoundColumns
from turnout.store.runs import RunInfo, RunStore

__all__ = ["RoundColumns", "RunInfo", "RunStore"]
