"""Storage of runs: rounds in columns, and many runs in one file.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.store.columns import RoundColumns
from turnout.store.info import RunInfo
from turnout.store.runs import RunStore
from turnout.store.tables import RunTable

__all__ = ["RoundColumns", "RunInfo", "RunStore", "RunTable"]
