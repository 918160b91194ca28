"""The size of a cohort with over-commitment."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.kernel.rounds import Selection
from turnout.live.turns.rounds.choosing import _smallest_sufficient


@pytest.mark.parametrize("smallest", [1, 2, 5])
@pytest.mark.parametrize("needed", range(1, 30))
def test_the_smallest_sufficient_cohort_is_found(smallest: int, needed: int) -> None:
    largest = 24
    tried: list[int] = []

    def try_size(size: int) -> tuple[Selection, bool]:
        tried.append(size)
        return Selection(1, np.arange(size)), size >= needed

    found = _smallest_sufficient(try_size, smallest, largest)
    assert len(found.clients) == min(max(needed, smallest), largest)
    assert len(tried) <= 12
    assert len(set(tried)) == len(tried)
