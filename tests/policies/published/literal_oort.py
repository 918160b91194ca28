"""The Oort that ours is held against is the one it is measured against."""

from __future__ import annotations

from turnout.bench.literal_oort import LiteralOort

__all__ = ["LiteralOort"]
