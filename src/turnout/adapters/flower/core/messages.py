"""Exchanges messages through Flower's grid, and measures when replies arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

SHORTEST = 1e-6  # seconds: an exchange time must be positive, even below the resolution of the clock


class Messenger:
    """Sends messages and polls for replies every `poll` seconds; Flower's own grid polls every 3 s."""

    def __init__(self, grid: Grid, poll: float) -> None:
        self.grid, self.poll = grid, poll
        self._sent_at: dict[str, float] = {}

    def nodes(self) -> list[int]:
        """Returns the ids of all connected nodes."""
        return sorted(self.grid.get_node_ids())

    def push(self, messages: Sequence[Message], limit: float | None = None) -> list[str | None]:
        """Sends the messages and returns the id of each, or None for a message that could not be sent.

        With a limit, they live as long as replies are awaited.
        """
        if not messages:
            return []
        if limit is not None:
            for message in messages:
                message.metadata.ttl = lifetime(limit)
        now = time.monotonic()
        pushed = set(self.grid.push_messages(messages))
        ids = [message.metadata.message_id for message in messages]  # assigned by push_messages
        self._sent_at |= {message_id: now for message_id in ids if message_id in pushed}
        return [message_id if message_id in pushed else None for message_id in ids]

    def pull(self, ids: Iterable[str]) -> list[tuple[str, Message, float]]:
        """Returns the replies that have arrived: the id of the message, the reply, and the seconds since it was sent.

        Replies are matched by message id, because the SuperLink's reply for a disconnected node does not carry the id
        of that node.
        """
        pending = list(ids)
        if not pending:
            return []
        now = time.monotonic()  # before the call, which downloads all models one after the other
        replies = []
        for reply in self.grid.pull_messages(pending):
            message_id = reply.metadata.reply_to_message_id
            sent_at = self._sent_at.pop(message_id, None)
            if sent_at is not None:
                replies.append((message_id, reply, max(now - sent_at, SHORTEST)))
        return replies

    def forget(self, ids: Iterable[str]) -> None:
        """Stops tracking these messages; replies to them are ignored."""
        for message_id in ids:
            self._sent_at.pop(message_id, None)

    def ask(self, messages: Sequence[Message], limit: float, meanwhile: Callable[[], object]) -> list[Message]:
        """Sends all messages at once and waits for the replies up to the limit in seconds.

        Between two polls, `meanwhile` is called.
        """
        start = time.monotonic()
        pending = {message_id: None for message_id in self.push(messages, limit) if message_id is not None}
        replies: list[Message] = []
        while pending:
            for message_id, reply, _ in self.pull(pending):
                del pending[message_id]
                replies.append(reply)
            if time.monotonic() - start >= limit:
                self.forget(pending)
                break
            if pending:
                meanwhile()
                time.sleep(self.poll)
        return replies


def lifetime(limit: float) -> float:
    """Returns the lifetime in seconds of a message whose reply is awaited for `limit` seconds.

    It is longer than the limit: Flower logs an error for a reply to a message that has expired, and a reply just in
    time must not be lost.
    """
    return limit + max(5.0, limit / 10)
