"""How long a device waits equals the formula of the module, term by term."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.kernel.slots.waiting import ClientPace, ServerPace, paced_wait

SERVER = ServerPace(decisions_per_second=2.0, mean_turn=4.0, slots=8, clients=40)


def literal_wait(server: ServerPace, client: ClientPace, score: float) -> float:
    """Computes the wait as the formula is written, with one name for each of its terms."""
    pace, half = server.decisions_per_second, client.tolerance / 2
    allowed = client.tolerance - client.rate * (1 + pace * client.interval)
    if allowed < half:
        allowed = half
    at_least = server.mean_turn / server.slots
    if client.behind >= allowed:
        return at_least
    wins_at = -math.inf
    if client.usual > score:
        wins_at = allowed - allowed * client.usual / (client.usual - score)
    target = wins_at if wins_at < allowed else allowed
    seconds = (target - client.behind) / (client.rate * pace)
    crowd = server.clients / (4 * pace)
    return max((seconds if seconds > crowd else crowd) / 2, at_least)


@given(
    st.builds(
        ServerPace,
        decisions_per_second=st.floats(0.01, 50),
        mean_turn=st.floats(0.1, 500),
        slots=st.integers(1, 200),
        clients=st.integers(1, 5000),
    ),
    st.builds(
        ClientPace,
        rate=st.floats(1e-4, 0.5),
        tolerance=st.floats(0.5, 5),
        behind=st.floats(-5, 6),
        usual=st.floats(0.1, 500),
        interval=st.floats(0, 300),
    ),
    st.floats(-1000, 600),
)
def test_the_wait_equals_a_literal_computation(server: ServerPace, client: ClientPace, score: float) -> None:
    assert paced_wait(server, client, score) == pytest.approx(literal_wait(server, client, score), rel=1e-9)


def test_a_client_that_asks_rarely_is_urgent_earlier_but_not_before_half_of_the_tolerance() -> None:
    """It is 0.6 turns behind a tolerance of 1, and earns 0.02 turns with each of two decisions per second."""
    often = ClientPace(rate=0.02, tolerance=1.0, behind=0.6, usual=6.0, interval=0.0)
    assert paced_wait(SERVER, often, -600.0) > SERVER.shortest_wait
    assert paced_wait(SERVER, often._replace(interval=10.0), -600.0) == SERVER.shortest_wait  # it may be 0.58 behind
    rarely = often._replace(behind=0.45, interval=1000.0)
    assert paced_wait(SERVER, rarely, -600.0) > SERVER.shortest_wait  # it may be 0.5 behind, however rarely it asks
