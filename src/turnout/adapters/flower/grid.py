"""Wraps Flower's grid: measures when replies arrive, and can restrict the set of visible nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

#: Sends messages and returns the replies to them; the number is the timeout in seconds.
Handler = Callable[["TimedGrid", list[Message], float | None], list[Message]]
POLL = 0.2  # seconds between two polls for replies
SHORTEST = 1e-6  # seconds: an exchange time must be positive, even below the resolution of the clock


def lifetime(limit: float) -> float:
    """Returns the lifetime in seconds of a message whose reply is awaited for `limit` seconds.

    It is longer than the limit: Flower logs an error for a reply to a message that has expired, and a reply just in
    time must not be lost.
    """
    return limit + max(5.0, limit / 10)


class TimedGrid(Grid):
    """A grid that measures exchange times and polls every `poll` seconds; Flower's own grid polls every 3 s.

    `handlers` send the messages of some types, such as "train", in place of this grid.
    """

    def __init__(self, grid: Grid, poll: float, handlers: Mapping[str, Handler] | None = None) -> None:
        self.inner, self.poll, self._handlers = grid, poll, handlers or {}
        self._sent_at: dict[str, float] = {}
        self.meanwhile: Callable[[], None] = lambda: None  # called while `ask` waits, between two polls

    def push(self, messages: Sequence[Message]) -> list[str | None]:
        """Sends the messages and returns the id of each, or None for a message that could not be sent."""
        now = time.monotonic()
        pushed = set(self.inner.push_messages(messages))
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
        for reply in self.inner.pull_messages(pending):
            message_id = reply.metadata.reply_to_message_id
            sent_at = self._sent_at.pop(message_id, None)
            if sent_at is not None:
                replies.append((message_id, reply, max(now - sent_at, SHORTEST)))
        return replies

    def forget(self, ids: Iterable[str]) -> None:
        """Stops tracking these messages; replies to them are ignored."""
        for message_id in ids:
            self._sent_at.pop(message_id, None)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sends all messages and polls until every reply has arrived or the timeout has expired."""
        sent = list(messages)
        if not sent:
            return []
        handler = self._handlers.get(sent[0].metadata.message_type.split(".")[0])
        if handler is not None:
            return handler(self, sent, timeout)
        return self.ask(sent, math.inf if timeout is None else timeout)

    def ask(self, messages: Sequence[Message], limit: float) -> list[Message]:
        """Sends all messages at once and waits for the replies up to the limit in seconds."""
        start = time.monotonic()
        if math.isfinite(limit):
            for message in messages:
                message.metadata.ttl = lifetime(limit)
        pending = {message_id: None for message_id in self.push(messages) if message_id is not None}
        replies: list[Message] = []
        while pending:
            for message_id, reply, _ in self.pull(pending):
                del pending[message_id]
                replies.append(reply)
            if time.monotonic() - start >= limit:
                self.forget(pending)
                break
            if pending:
                self.meanwhile()
                time.sleep(self.poll)
        return replies

    def get_node_ids(self) -> list[int]:
        """Returns the ids of all connected nodes."""
        return sorted(self.inner.get_node_ids())

    def get_nodes(self) -> Any:
        """Returns Flower's description of all connected nodes."""
        return self.inner.get_nodes()

    # The remaining methods delegate to Flower's grid.

    def set_run(self, run: Any) -> None:
        """Delegates to Flower's grid."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """Delegates to Flower's grid."""
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Delegates to Flower's grid.

        Args:
            content: the records of the message.
            message_type: "train", "evaluate" or "query", with an optional action after a dot.
            dst_node_id: the id of the receiving node.
            group_id: the group of the message, usually the round.
            ttl: the lifetime of the message in seconds; None for Flower's default.
        """
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Delegates to Flower's grid."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Delegates to Flower's grid."""
        return self.inner.pull_messages(message_ids)


class RestrictedGrid(TimedGrid):
    """A view of a grid that lists only some nodes: a strategy that samples all of them samples exactly the cohort."""

    def __init__(self, grid: TimedGrid, nodes: Iterable[int]) -> None:
        super().__init__(grid, grid.poll)
        self._nodes = sorted(nodes)

    def get_node_ids(self) -> list[int]:
        """Returns the ids of the visible nodes."""
        return list(self._nodes)

    def get_nodes(self) -> Any:
        """Returns Flower's description of the visible nodes."""
        visible = set(self._nodes)
        return [node for node in self.inner.get_nodes() if node.node_id in visible]


def restrict_grid(grid: Grid, nodes: Iterable[int]) -> Grid:
    """Returns a view of the grid in which only these nodes are connected.

    Use it to apply your own eligibility rules before a strategy samples clients.
    """
    return RestrictedGrid(grid if isinstance(grid, TimedGrid) else TimedGrid(grid, POLL), nodes)
