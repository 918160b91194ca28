"""Turns whose messages were sent."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ArrayRecord, Message

from turnout.live import GivenTurn


@dataclass(frozen=True, slots=True)
class SentTurn:
    """A turn whose message was sent.

    Attributes:
        turn: The turn.
        node: The node of the client.
        message: The message.
        arrays: The model that was sent.
        version: The number of models that were made before it.
        limit: The moment, by the monotonic clock, after which nothing is expected any more.
    """

    turn: GivenTurn
    node: int
    message: Message
    arrays: ArrayRecord
    version: int
    limit: float
