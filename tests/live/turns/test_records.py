"""The availability in recorded offers, with one bit per client."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.live.turns.records import pack_availability, unpack_availability, was_available


@pytest.mark.parametrize("clients", [1, 7, 8, 9, 16, 17, 2000])
def test_a_client_was_available_as_its_bit_says_and_not_before_it_joined(clients: int) -> None:
    available = np.random.default_rng(clients).random(clients) < 0.5
    packed = pack_availability(available)
    assert unpack_availability(packed, clients).tolist() == available.tolist()
    assert [was_available(packed, row) for row in range(clients)] == available.tolist()
    assert not any(was_available(packed, row) for row in range(clients, clients + 20))
