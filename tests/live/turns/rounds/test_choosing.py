"""The size of a cohort with over-commitment."""

from __future__ import annotations

import pytest

from turnout.live.turns.rounds.choosing import _smallest_sufficient


@pytest.mark.parametrize("smallest", [1, 2, 5])
@pytest.mark.parametrize("needed", range(1, 30))
def test_the_smallest_sufficient_cohort_is_found(smallest: int, needed: int) -> None:
    largest = 24
    tried: list[int] = []

    def is_sufficient(size: int) -> bool:
        tried.append(size)
        return size >= needed

    assert _smallest_sufficient(is_sufficient, smallest, largest) == min(max(needed, smallest), largest)
    assert len(tried) <= 12
    assert len(set(tried)) == len(tried)
