"""Virtual nodes in this process: a grid without a SuperLink, to measure what the selection costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid

RUN = 1  # the number of the Flower run
FIRST_NODE = 1000


class VirtualGrid(Grid):
    """Calls the client app of a node when a message is pushed; its reply is there at once.

    Messages and replies are serialized and parsed, as on their way to another process.

    Args:
        app: the client app of all nodes.
        nodes: the number of nodes; node i has the partition-id i.
        are_named: whether the grid knows the nodes by name, like a SuperLink at which they are registered.
    """

    def __init__(self, app: ClientApp, nodes: int, *, are_named: bool = True) -> None:
        self._app, self._are_named = app, are_named
        self._partitions = {FIRST_NODE + partition: partition for partition in range(nodes)}
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        _identify_sender()

    def get_node_ids(self) -> list[int]:
        """Returns the ids of all nodes."""
        return list(self._partitions)

    def get_nodes(self) -> Any:
        """Returns the descriptions of all nodes."""
        return [
            SimpleNamespace(
                node_id=node,
                name=f"client-{partition}" if self._are_named else "",
                owner_name="",
                location="",
                public_key=b"",
                registered_at="",
            )
            for node, partition in self._partitions.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Delivers the messages and keeps the replies."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._answer(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Returns the replies to these messages."""
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Delivers the messages and returns the replies."""
        del timeout  # nothing is waited for
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        config: dict[str, bool | float | int | str] = {"partition-id": self._partitions[node], "free_cpu": 1.0}
        reply = self._app(_copy(message), Context(RUN, node, {**config, "bandwidth": 1.0}, RecordDict(), {}))
        reply.metadata.__dict__["_src_node_id"] = node
        reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return _copy(reply)

    def set_run(self, run: Any) -> None:
        """Does nothing: there is only one run."""

    @property
    def run(self) -> Any:
        """There is no SuperLink that could describe the run."""
        raise NotImplementedError("virtual nodes have no run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Returns a message.

        Args:
            content: the records of the message.
            message_type: "train", "evaluate" or "query", with an optional action after a dot.
            dst_node_id: the id of the receiving node.
            group_id: the group of the message.
            ttl: the lifetime of the message in seconds.
        """
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def _copy(message: Message) -> Message:
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


def _identify_sender() -> None:
    """Tells Flower 1.41 and newer who sends messages in this process, which the SuperLink does otherwise."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ModuleNotFoundError:
        return
    try:
        TaskIdentity.run_id  # noqa: B018 - raises an error if it is not set
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
