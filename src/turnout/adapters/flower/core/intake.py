"""Takes replies as they arrive: errors are failures, the others are judged together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from turnout.adapters.common.models import as_loss, as_signals
from turnout.adapters.flower.core.cohort import CohortSelector
from turnout.adapters.flower.core.parts import Parts
from turnout.adapters.flower.core.progress import EndedRound
from turnout.adapters.flower.flower_api import EXPIRED, restrict_grid
from turnout.adapters.flower.wire import pop_client_info
from turnout.errors import SettingError
from turnout.log import get_log

log = get_log("flwr")
#: The seconds until a reply arrived, and the reply.
Arrival = tuple[float, Message]


class ReplyIntake(ABC):
    """Collects the replies of a round, or of the turns of a fleet without rounds; each has a key.

    Args:
        parts: The strategy, the fleet, and how replies are read.

    Attributes:
        selector: Selects clients.
        limit: The seconds that the server waits for replies at present.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._scheduler, self._judge = parts, parts.scheduler, parts.judge
        self._messenger, self.selector = parts.messenger, CohortSelector(parts)
        self.limit = self._limit(parts.scheduler.settings.deadline)
        self._received: dict[str, Arrival] = {}  # replies that are not judged yet
        self._errors: list[Message] = []  # error replies, which the strategy gets as well
        self._late: dict[str, tuple[str, int]] = {}  # by message: the client, and its round or turn

    @abstractmethod
    def collect(self, number: int, config: ConfigRecord) -> list[Message] | None:
        """Trains for round `number`, with these settings; returns what to aggregate, or None if nobody was asked."""

    @abstractmethod
    def end(self, number: int, arrays: ArrayRecord | None, metrics: dict[str, Any]) -> EndedRound:
        """Ends the round with the model that was made, or None if it is unchanged, and the strategy's metrics."""

    def step(self) -> None:
        """Does what can be done while the server waits for evaluations."""
        return

    def _limit(self, deadline: float | str | None) -> float:
        """Returns the seconds that the server waits for replies."""
        return min(self._parts.timeout, deadline) if isinstance(deadline, int | float) else self._parts.timeout

    def _messages(self, number: int, config: ConfigRecord, nodes: Collection[int]) -> list[Message]:
        """Returns the messages of the strategy, which sees only these nodes; SettingError unless each gets one."""
        strategy, arrays = self._parts.strategy, self._parts.progress.arrays
        view = restrict_grid(self._messenger.grid, nodes)
        messages = list(strategy.configure_train(number, arrays, config, view))
        recipients = [message.metadata.dst_node_id for message in messages]
        if sorted(recipients) != sorted(nodes):
            missing, others = sorted(set(nodes) - set(recipients)), sorted(set(recipients) - set(nodes))
            problems = [f"sends nothing to the selected nodes {missing}"] if missing else []
            problems += [f"sends messages to the nodes {others}, which are not selected"] if others else []
            raise SettingError(
                f"{type(strategy).__name__} {' and '.join(problems) or 'sends several messages to one node'}: "
                "FairSelection needs a strategy that sends one message to each visible node"
            )
        return messages

    @abstractmethod
    def _client(self, key: str) -> str:
        """Returns the client of a reply."""

    @abstractmethod
    def _fail(self, key: str, why: str) -> None:
        """Reports that a turn has failed."""

    def _take(self, key: str, node: int, sent: Message, reply: Message, seconds: float) -> None:
        """Takes a reply that arrived in time.

        Args:
            key: The key of the reply.
            node: The node that was asked.
            sent: The message to the node.
            reply: Its reply.
            seconds: The seconds until the reply arrived.
        """
        if reply.has_error():
            reply.error = _plain_error(reply.error)
            self._errors.append(reply)
            self._fail(key, _error_text(reply.error))
            return
        self._parts.nodes.record(node, pop_client_info(reply.content))
        self._received[key] = (seconds, reply)
        problem = self._judge.add(key, sent.content, reply.content)
        if problem is not None:
            self._refuse(key, problem)

    def _accepted(self, *, is_final: bool) -> dict[str, Arrival]:
        """Returns the replies that are accepted now; those that are refused are failures of their clients."""
        accepted, refused = self._judge.settle(is_final=is_final)
        for key, problem in refused.items():
            self._refuse(key, problem)
        return {key: self._received.pop(key) for key in accepted}

    def _refuse(self, key: str, problem: str) -> None:
        del self._received[key]
        log.warning("turnout: the reply of %s is not used: %s", self._client(key), problem)
        self._fail(key, f"its reply cannot be used: {problem}")

    def _reported(self, reply: Message, declared: Collection[str]) -> tuple[float | None, dict[str, float] | None]:
        """Returns the training loss in a reply, None if it is missing or not finite, and the declared signals."""
        key = self._parts.settings.loss_key
        if not key and not declared:
            return None, None
        records = [record for record in reply.content.values() if isinstance(record, MetricRecord)]
        losses = (as_loss(record.get(key)) for record in records if key)
        loss = next((loss for loss in losses if loss is not None), None)
        metrics = {name: value for record in records for name, value in record.items()} if declared else {}
        return loss, as_signals(metrics, declared) or None

    def _take_late(self, message_id: str, reply: Message, seconds: float) -> None:
        """Reports the exchange time of a reply that arrived too late to be aggregated."""
        (client, number), has_rounds = self._late.pop(message_id), self._scheduler.settings.has_rounds
        who = f"{client}, late in the fleet's round {number}" if has_rounds else f"{client}, late"
        if reply.has_error():
            log.info("turnout: %s, did not come back: %s", who, _error_text(_plain_error(reply.error)))
            return
        self._scheduler.report(client if has_rounds else number, seconds, round=number if has_rounds else None)
        log.info("turnout: %s, was back after %.1f s", who, seconds)

    def _drop_expired(self, newest: int) -> None:
        """Forgets late messages whose times can no longer be learned after this round or decision."""
        window = self._scheduler.settings.late_turns
        expired = [message_id for message_id, (_, number) in self._late.items() if newest - number >= window]
        self._messenger.forget(expired)
        for message_id in expired:
            del self._late[message_id]


def _plain_error(error: Error) -> Error:
    """Returns the error with a shorter reason if a message expired: Flower's text explains how it stores messages."""
    return Error(error.code, "no reply before its message expired") if error.code in EXPIRED else error


def _error_text(error: Error) -> str:
    """Returns the reason of an error reply with its code."""
    return f"{error.reason or 'no reason given'} (code {error.code})"
