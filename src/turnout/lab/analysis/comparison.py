"""Comparisons of runs: only rounds that all of them have are compared."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.lab.columns import RoundColumns


def common_length(lengths: Iterable[int]) -> int:
    """Returns the number of rounds that all runs have.

    >>> common_length([50, 30, 50])
    30
    """
    shortest = min(lengths, default=0)
    if shortest < 1:
        raise SettingError("a run without rounds cannot be compared: play it, or leave it out")
    return shortest


def first_rounds(columns: RoundColumns, count: int) -> RoundColumns:
    """Returns the first `count` rounds of a run; the run itself if it has no more."""
    count = as_count("count", count, SettingError)
    if len(columns) <= count:
        return columns
    return RoundColumns.from_records(islice(columns.records(), count), clients=columns.clients)
