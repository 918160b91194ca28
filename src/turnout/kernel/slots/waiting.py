"""How long a device that is given no turn should wait before it asks again.

With λ decisions per second, client i earns rate_i · λ turns per second. It is b_i turns behind, and may be

    a_i = max(tolerance − rate_i · (1 + λ · interval_i), tolerance/2)

turns behind if it asks every `interval_i` seconds. A client with the usual time s_i competes with the score
s_i − price_i, and the smallest score is given the turn. So it wins against θ, the median of the scores that won
recently, when its turn has the price s_i − θ. Let r_i be the room with that price (`room_at`), and let h be what is
left of the head start, of which f turns fade with each decision. The client has this room after

    max((a_i − b_i − r_i) / rate_i, (a_i − b_i + h − r_i) / (rate_i + f))        −∞ if s_i ≤ θ

decisions. It should wait for half of the time until then, or until it is urgent. Of n clients, each waits for at
least n/(8λ) seconds, so that not all of them ask for every turn. Nobody waits for less than the mean time between two
decisions, and urgent clients for no more than that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from turnout.kernel.pace.prices import room_at

#: A client waits for the time in which this part of all clients could be given a turn.
QUARTER = 4.0


class ServerPace(NamedTuple):
    """How fast a server gives turns.

    Attributes:
        decisions_per_second: The turns that it gives per second (λ).
        mean_turn: The mean seconds of a turn.
        slots: The number of slots.
        clients: The number of clients that ask for turns (n).
    """

    decisions_per_second: float
    mean_turn: float
    slots: int
    clients: int

    @property
    def shortest_wait(self) -> float:
        """The mean seconds until a slot is free, if all are in use."""
        return self.mean_turn / self.slots

    @property
    def plain_wait(self) -> float:
        """The seconds that a client waits if nothing is known about what its turn is worth."""
        return max(self.clients / (QUARTER * self.decisions_per_second), self.shortest_wait)


class ClientPace(NamedTuple):
    """What the wait of one client depends on.

    Attributes:
        rate: Its guaranteed share of the decisions.
        tolerance: How many turns it may be behind.
        behind: How many turns it is behind (b).
        usual: The usual seconds of its turns (s).
        interval: The seconds between its questions.
        head_start: What is left of the head start, in turns (h).
        fading: The turns of the head start that fade with each decision (f).
    """

    rate: float
    tolerance: float
    behind: float
    usual: float
    interval: float
    head_start: float = 0.0
    fading: float = 0.0


def paced_wait(server: ServerPace, client: ClientPace, winning_score: float) -> float:
    """Returns the seconds after which a client should ask again, if its turns have a price.

    Args:
        server: How fast the server gives turns.
        client: The client.
        winning_score: The median of the scores that won recently (θ).

    >>> server = ServerPace(decisions_per_second=2.0, mean_turn=4.0, slots=8, clients=40)
    >>> paced_wait(server, ClientPace(rate=0.02, tolerance=1.0, behind=0.0, usual=6.0, interval=0.0), -6.0)
    6.125
    >>> paced_wait(server, ClientPace(rate=0.02, tolerance=1.0, behind=0.98, usual=6.0, interval=0.0), -6.0)
    0.5
    """
    rate, pace = client.rate, server.decisions_per_second
    allowed = max(client.tolerance - rate * (1 + pace * client.interval), client.tolerance / 2)
    slack = allowed - client.behind
    if slack <= 0:
        return server.shortest_wait
    decisions = -math.inf
    if rate and client.usual > winning_score:  # without a guarantee nobody becomes urgent
        missing = slack - room_at(client.usual - winning_score, client.usual, allowed)
        wins = max(missing / rate, (missing + client.head_start) / (rate + client.fading))
        decisions = min(wins, slack / rate)
    return max(max(decisions, server.clients / QUARTER) / pace / 2, server.shortest_wait)
