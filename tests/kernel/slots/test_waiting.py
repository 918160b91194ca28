"""How long a device waits equals the formula of the module, term by term."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.kernel.slots.waiting import ClientPace, ServerPace, paced_wait


def literal_wait(server: ServerPace, client: ClientPace, score: float) -> float:
    """Computes the wait as the formula is written, with one name for each of its terms."""
    pace, half = server.decisions_per_second, client.tolerance / 2
    allowed = client.tolerance - client.rate * (1 + pace * client.interval)
    if allowed < half:
        allowed = half
    at_least = server.mean_turn / server.slots
    if client.behind >= allowed:
        return at_least
    decisions = -math.inf
    if client.usual > score:
        # Until the head start has faded the room shrinks by rate + fading with each decision, then by the rate alone.
        room = allowed * client.usual / (client.usual - score)
        faded = client.head_start / client.fading if client.fading else 0.0
        decisions = (allowed - client.behind + client.head_start - room) / (client.rate + client.fading)
        if decisions > faded:
            decisions = (allowed - client.behind - room) / client.rate
    urgent = (allowed - client.behind) / client.rate
    seconds = (decisions if decisions < urgent else urgent) / pace
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
        head_start=st.sampled_from([0.0, 0.5, 4.0]),
        fading=st.sampled_from([0.01, 0.04]),
    ),
    st.floats(-1000, 600),
)
def test_the_wait_equals_a_literal_computation(server: ServerPace, client: ClientPace, score: float) -> None:
    assert paced_wait(server, client, score) == pytest.approx(literal_wait(server, client, score), rel=1e-9)
