"""A grid around Flower's: it can show a few nodes only, and stamps replies when they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

Train = Callable[["TimedGrid", list[Message], float | None], list[Message]]
POLL = 0.2  # seconds between two looks for replies
SHORTEST = 1e-6  # seconds: clocks are coarser than what is next door is near


class TimedGrid(Grid):
    """All of Flower's grid, and clocks. Flower's own way to wait looks for replies every three seconds.

    `train`: who takes care of messages that ask for training, if somebody does.
    """

    def __init__(self, grid: Grid, poll: float, train: Train | None = None) -> None:
        self.inner, self.poll, self._train = grid, poll, train
        self._pushed: dict[str, float] = {}

    def push(self, messages: Sequence[Message]) -> list[str | None]:
        """Send them: the id of each, None for one that could not be sent."""
        before = time.monotonic()
        pushed = set(self.inner.push_messages(messages))
        ids = [message.metadata.message_id for message in messages]  # the grid has set them
        self._pushed |= {one: before for one in ids if one in pushed}
        return [one if one in pushed else None for one in ids]

    def pull(self, ids: Iterable[str]) -> list[tuple[str, Message, float]]:
        """What has come by now: the id of the message, the reply to it, and after how many seconds.

        A reply of the SuperLink about a node that is gone does not name the node: its message's id does.
        """
        wanted = list(ids)
        if not wanted:
            return []
        now = time.monotonic()  # before: what follows fetches all models, one after the other
        replies = []
        for reply in self.inner.pull_messages(wanted):
            sent = reply.metadata.reply_to_message_id
            pushed = self._pushed.pop(sent, None)
            if pushed is not None:
                replies.append((sent, reply, max(now - pushed, SHORTEST)))
        return replies

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody waits for these any more."""
        for one in ids:
            self._pushed.pop(one, None)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push all, and pull until all are answered or time is up."""
        sent = list(messages)
        if not sent:
            return []
        if self._train is not None and sent[0].metadata.message_type.split(".")[0] == MessageType.TRAIN:
            return self._train(self, sent, timeout)
        ends = None if timeout is None else time.monotonic() + timeout
        if timeout is not None:
            for message in sent:
                message.metadata.ttl = timeout
        waiting = {one for one in self.push(sent) if one is not None}
        replies: list[Message] = []
        while waiting:
            for one, reply, _ in self.pull(waiting):
                waiting.discard(one)
                replies.append(reply)
            if not waiting or (ends is not None and time.monotonic() >= ends):
                break
            time.sleep(self.poll)
        self.forget(waiting)
        return replies

    def get_node_ids(self) -> list[int]:
        """All that are connected."""
        return sorted(self.inner.get_node_ids())

    def get_nodes(self) -> Any:
        """The same, as Flower describes them."""
        return self.inner.get_nodes()

    # The rest is Flower's.

    def set_run(self, run: Any) -> None:
        """Flower's."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """Flower's."""
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Flower's."""
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Flower's."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Flower's."""
        return self.inner.pull_messages(message_ids)


class NarrowGrid(TimedGrid):
    """The same grid with only these nodes in it: whoever samples all of them has sampled the cohort."""

    def __init__(self, grid: TimedGrid, nodes: Iterable[int]) -> None:
        super().__init__(grid, grid.poll)
        self._nodes = sorted(nodes)

    def get_node_ids(self) -> list[int]:
        """The chosen."""
        return list(self._nodes)

    def get_nodes(self) -> Any:
        """The same, as Flower describes them."""
        return [node for node in self.inner.get_nodes() if node.node_id in self._nodes]


def showing(grid: Grid, nodes: Iterable[int]) -> Grid:
    """A grid in which only these nodes are connected: for rules of one's own before any strategy chooses."""
    return NarrowGrid(grid if isinstance(grid, TimedGrid) else TimedGrid(grid, POLL), nodes)
