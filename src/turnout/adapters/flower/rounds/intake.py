"""Takes replies as they arrive: errors are failures, the others are judged together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from flwr.app import Error, Message, MetricRecord

from turnout.adapters.common.models import as_loss
from turnout.adapters.flower.rounds.replies import ReplyJudge
from turnout.adapters.flower.setup import TrainingSetup
from turnout.adapters.flower.wire import pop_client_info
from turnout.log import get_log

log = get_log("flwr")
EXPIRED = (3, 4)  # Flower's error codes for a message, or a reply, that is no longer stored
#: The seconds until a reply arrived, and the reply.
Arrival = tuple[float, Message]


class ReplyIntake(ABC):
    """Judges the replies of a round, or of the turns of a fleet without rounds; each has a key.

    Args:
        setup: The strategy, the fleet, and how replies are read.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup, self._scheduler = setup, setup.scheduler
        self._judge = ReplyJudge(1, setup.weight_key)
        self._received: dict[str, Arrival] = {}  # replies that are not judged yet

    @abstractmethod
    def _client(self, key: str) -> str:
        """Returns the client of a reply."""

    @abstractmethod
    def _fail(self, key: str, why: str) -> None:
        """Reports that a turn has failed."""

    @property
    @abstractmethod
    def _errors(self) -> list[Message]:
        """The error replies, which the strategy gets as well."""

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
        self._setup.nodes.record(node, pop_client_info(reply.content))
        self._received[key] = (seconds, reply)
        problem = self._judge.add(key, sent.content, reply.content)
        if problem is not None and self._setup.is_checked:
            self._refuse(key, problem)

    def _accepted(self, *, is_final: bool) -> dict[str, Arrival]:
        """Returns the replies that are accepted now; those that are refused are failures of their clients."""
        accepted, refused = self._judge.settle(is_final=is_final)
        if not self._setup.is_checked:
            accepted, refused = list(self._received), {}
        for key, problem in refused.items():
            self._refuse(key, problem)
        return {key: self._received.pop(key) for key in accepted}

    def _refuse(self, key: str, problem: str) -> None:
        del self._received[key]
        log.warning("turnout: the reply of %s is not used: %s", self._client(key), problem)
        self._fail(key, f"its reply cannot be used: {problem}")

    def _loss(self, reply: Message) -> float | None:
        """Returns the training loss in a reply, for policies that use it; None if it is missing or not finite."""
        key = self._setup.loss_key
        for record in reply.content.values():
            loss = as_loss(record.get(key)) if isinstance(record, MetricRecord) and key else None
            if loss is not None:
                return loss
        return None


def report_late(who: str, reply: Message, seconds: float, report: Callable[[float], object]) -> None:
    """Reports the exchange time of a reply that arrived too late to be aggregated.

    Args:
        who: The client, and when it was late, for the log.
        reply: The reply.
        seconds: The seconds until it arrived.
        report: Reports the time to the scheduler.
    """
    if reply.has_error():
        log.info("turnout: %s, did not come back: %s", who, _error_text(_plain_error(reply.error)))
        return
    report(seconds)
    log.info("turnout: %s, was back after %.1f s", who, seconds)


def _plain_error(error: Error) -> Error:
    """Returns the error with a shorter reason if a message expired: Flower's text explains how it stores messages."""
    return Error(error.code, "no reply before its message expired") if error.code in EXPIRED else error


def _error_text(error: Error) -> str:
    """Returns the reason of an error reply with its code."""
    return f"{error.reason or 'no reason given'} (code {error.code})"
