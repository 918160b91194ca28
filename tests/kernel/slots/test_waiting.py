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


def test_a_client_that_asks_rarely_is_urgent_earlier_but_not_before_half_of_the_tolerance() -> None:
    """It is 0.6 turns behind a tolerance of 1, and earns 0.02 turns with each of two decisions per second."""
    often = ClientPace(rate=0.02, tolerance=1.0, behind=0.6, usual=6.0, interval=0.0)
    assert paced_wait(SERVER, often, -600.0) > SERVER.shortest_wait
    assert paced_wait(SERVER, often._replace(interval=10.0), -600.0) == SERVER.shortest_wait  # it may be 0.58 behind
    rarely = often._replace(behind=0.45, interval=1000.0)
    assert paced_wait(SERVER, rarely, -600.0) > SERVER.shortest_wait  # it may be 0.5 behind, however rarely it asks


def test_a_client_waits_for_longer_while_it_has_a_head_start() -> None:
    """Its usual time is 6 s, so it wins against a score of −6 with a room of 0.5, which it has after half of its slack.

    With a head start of 1 turn, of which 0.02 fade with each decision, the slack of 1.5 turns shrinks twice as fast.
    """
    client = ClientPace(rate=0.02, tolerance=1.02, behind=0.0, usual=6.0, interval=0.0)
    assert paced_wait(SERVER, client, -6.0) == pytest.approx(0.5 / 0.02 / 2 / 2)
    waiting = client._replace(head_start=1.0, fading=0.02)
    assert paced_wait(SERVER, waiting, -6.0) == pytest.approx(1.5 / 0.04 / 2 / 2)
    assert paced_wait(SERVER, waiting._replace(head_start=0.2), -6.0) == pytest.approx(0.5 / 0.02 / 2 / 2)
