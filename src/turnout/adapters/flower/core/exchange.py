"""Sends a round's training messages and reports every outcome to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from turnout.adapters.common.round_texts import describe_selection, expected_seconds
from turnout.adapters.flower.core.cohort import FlowerRound
from turnout.adapters.flower.core.intake import Arrival, ReplyIntake
from turnout.adapters.flower.core.messages import SHORTEST
from turnout.adapters.flower.core.parts import Parts
from turnout.adapters.flower.core.progress import EndedRound
from turnout.log import get_log

log = get_log("flwr")


class Exchange(ReplyIntake):
    """Runs the message exchange of each round and reports each reply to the scheduler as soon as it arrives.

    Late replies are reported during later rounds.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._current: FlowerRound

    def collect(self, number: int, config: ConfigRecord) -> list[Message] | None:
        """Selects a cohort and exchanges its messages; returns None if nobody is available."""
        current, self._errors = self.selector.select(), []
        self._current = current
        self.limit = self._limit(current.opened.deadline)
        asked = describe_selection([each for each in current.selected if each.client in current.nodes])
        log.info("turnout: round %d asks %s", number, asked or "no clients: none is available")
        if not current.nodes:
            self._end({})
            return None
        self._run(self._messages(number, config, current.nodes.values()))
        return current.earliest_replies() + self._errors

    def end(self, number: int, arrays: ArrayRecord | None, metrics: dict[str, Any]) -> EndedRound:
        """Ends the round."""
        del arrays
        current = self._current
        return EndedRound(number, current.opened.round, metrics, current.waited, expected_seconds(current.selected))

    def _run(self, messages: Sequence[Message]) -> None:
        """Waits until enough replies arrived, every outcome is known or time is up."""
        current, messenger = self._current, self._messenger
        self._drop_expired(current.opened.round - 1)
        start, self._judge.needed = time.monotonic(), current.opened.target_size
        clients = {node: client for client, node in current.nodes.items()}
        pending: dict[str, tuple[str, Message]] = {}
        for message, message_id in zip(messages, messenger.push(messages, self.limit), strict=True):
            client = clients[message.metadata.dst_node_id]
            if message_id is None:
                self._fail(client, "the message could not be sent")
            else:
                pending[message_id] = (client, message)
        while pending:
            for message_id, reply, seconds in messenger.pull([*pending, *self._late]):
                if message_id in pending:
                    client, message = pending.pop(message_id)
                    self._take(client, current.nodes[client], message, reply, seconds)
                else:
                    self._take_late(message_id, reply, seconds)
            self._settle(is_final=False)
            if not pending or self._has_enough() or time.monotonic() - start >= self.limit:
                break
            time.sleep(messenger.poll)
        self._settle(is_final=True)
        current.waited = max(time.monotonic() - start, SHORTEST)
        self._end({sent: client for sent, (client, _) in pending.items()})

    def _client(self, key: str) -> str:
        return key

    def _fail(self, key: str, why: str) -> None:
        if key not in self._current.recorded:
            self._scheduler.report_failure(key, why, round=self._current.opened.round)

    def _settle(self, *, is_final: bool) -> None:
        """Reports the replies that are judged now."""
        accepted = self._accepted(is_final=is_final)
        self._current.arrived |= accepted
        self._record(accepted)

    def _has_enough(self) -> bool:
        """Returns whether no more replies are needed."""
        return self._current.enough

    def _end(self, pending: Mapping[str, str]) -> None:
        """Ends the round; the messages to these clients were not answered, and may be later."""
        number, recorded = self._current.opened.round, self._current.recorded
        self._late |= {sent: (client, number) for sent, client in pending.items() if client not in recorded}

    def _record(self, replies: Mapping[str, Arrival]) -> None:
        """Reports replies in one transaction, unless their clients have reported before a restart."""
        new = {client: reply for client, reply in replies.items() if client not in self._current.recorded}
        declared = self._scheduler.settings.signals
        reported = {client: self._reported(reply, declared) for client, (_, reply) in new.items()}
        if new:
            self._scheduler.report_many(
                {client: seconds for client, (seconds, _) in new.items()},
                losses={client: loss for client, (loss, _) in reported.items() if loss is not None},
                signals={client: signals for client, (_, signals) in reported.items() if signals},
                round=self._current.opened.round,
            )
