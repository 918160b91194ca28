"""Sends a round's training messages and reports every outcome to the scheduler."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from turnout.adapters.flower.grid import TimedGrid
from turnout.adapters.flower.nodes import NodeDirectory
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.adapters.flower.wire import pop_client_info
from turnout.scheduler import OpenRound, Scheduler

log = logging.getLogger("flwr")


@dataclass(slots=True)
class LiveRound:
    """A round between the selection of its cohort and its close.

    `nodes` maps each connected client of the cohort to its node. `recorded` holds the clients whose outcome was
    recorded before a restart of the server.
    """

    opened: OpenRound
    nodes: dict[str, int]
    recorded: set[str] = field(default_factory=set)
    arrived: dict[str, tuple[float, Message]] = field(default_factory=dict)
    errors: list[Message] = field(default_factory=list)
    waited: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether the target number of replies has arrived."""
        return len(self.arrived) >= self.opened.wanted

    def replies_to_aggregate(self) -> list[Message]:
        """Returns the earliest replies up to the target number, ties by row, followed by all error replies."""
        order = {client: index for index, client in enumerate(self.nodes)}
        earliest = sorted(self.arrived, key=lambda client: (self.arrived[client][0], order[client]))
        return [self.arrived[client][1] for client in earliest[: self.opened.wanted]] + self.errors


class Exchange:
    """Runs the message exchange of each round and reports each reply to the scheduler as soon as it arrives.

    Late replies are reported during later rounds.
    """

    def __init__(
        self, scheduler: Scheduler, nodes: NodeDirectory, simulated: SimulatedFleet | None, loss_key: str | None
    ) -> None:
        self._scheduler, self._nodes, self._simulated, self._loss_key = scheduler, nodes, simulated, loss_key
        self._late: dict[str, tuple[str, int]] = {}  # message id -> client and round

    def clear(self) -> None:
        """Forgets all pending messages: those of an earlier Flower run cannot be answered any more."""
        self._late.clear()

    def run(
        self, grid: TimedGrid, current: LiveRound, messages: Sequence[Message], timeout: float | None
    ) -> list[Message]:
        """Waits until enough replies arrived, every outcome is known or time is up; returns what to aggregate."""
        self._drop_expired(grid, current.opened.round - 1)
        start, limit = time.monotonic(), self.limit(current.opened, timeout)
        clients = {node: client for client, node in current.nodes.items()}
        pending: dict[str, str] = {}
        for message, message_id in zip(messages, grid.push(messages), strict=True):
            client = clients[message.metadata.dst_node_id]
            if message_id is None:
                self._report_failure(current, client, "the message could not be sent")
            else:
                pending[message_id] = client
        while pending:
            for message_id, reply, seconds in grid.pull([*pending, *self._late]):
                if message_id in pending:
                    self._handle_reply(current, pending.pop(message_id), reply, seconds)
                else:
                    self._handle_late_reply(*self._late.pop(message_id), reply, seconds)
            if not pending or (current.enough and not self._simulated) or time.monotonic() - start >= limit:
                break
            time.sleep(grid.poll)
        current.waited = time.monotonic() - start
        if self._simulated is not None:
            grid.forget(pending)
            self._apply_simulated_times(current, self._simulated)
        else:
            unrecorded = {sent: client for sent, client in pending.items() if client not in current.recorded}
            self._late |= {sent: (client, current.opened.round) for sent, client in unrecorded.items()}
        return current.replies_to_aggregate()

    def skip(self, current: LiveRound) -> None:
        """Advances the simulated world through a round with an empty cohort."""
        if self._simulated is not None:
            self._simulated.seconds(current.opened.round, [])

    def limit(self, opened: OpenRound, timeout: float | None) -> float:
        """Returns the seconds that the server waits; in a simulation the deadline applies to simulated time only."""
        limits = (timeout, None if self._simulated else opened.deadline)
        return min((limit for limit in limits if limit is not None), default=float("inf"))

    def _handle_reply(self, current: LiveRound, client: str, reply: Message, seconds: float) -> None:
        if reply.has_error():
            current.errors.append(reply)
            reason = reply.error.reason or "no reason given"
            self._report_failure(current, client, f"{reason} (code {reply.error.code})")
            return
        self._nodes.record(current.nodes[client], pop_client_info(reply.content))
        current.arrived[client] = (seconds, reply)
        if self._simulated is None and client not in current.recorded:
            self._scheduler.report(client, seconds, round=current.opened.round, loss=self._loss(reply))

    def _handle_late_reply(self, client: str, round: int, reply: Message, seconds: float) -> None:
        """Reports the exchange time of a reply that arrived too late to be aggregated."""
        if reply.has_error():
            why = (reply.error.reason or "no reason given").partition(" - ")[0]
            log.info("turnout: %s, late in the fleet's round %d, did not come back: %s", client, round, why)
            return
        self._scheduler.report(client, seconds, round=round)
        log.info("turnout: %s, late in the fleet's round %d, was back after %.1f s", client, round, seconds)

    def _loss(self, reply: Message) -> float | None:
        """Returns the training loss in a reply, for policies that use it; None if it is missing or not finite."""
        for record in reply.content.metric_records.values():
            loss = record.get(self._loss_key) if self._loss_key is not None else None
            if isinstance(loss, int | float) and math.isfinite(loss):
                return float(loss)
        return None

    def _report_failure(self, current: LiveRound, client: str, why: str) -> None:
        if client not in current.recorded:
            self._scheduler.report_failure(client, why, round=current.opened.round)

    def _apply_simulated_times(self, current: LiveRound, simulated: SimulatedFleet) -> None:
        """Replaces measured by simulated times, and drops replies that fail or miss the deadline in the world."""
        fleet_round, deadline = current.opened.round, current.opened.deadline
        times = simulated.seconds(fleet_round, current.nodes)
        for client in list(current.arrived):
            seconds, (_, reply) = times[client], current.arrived.pop(client)
            if seconds is None:
                self._report_failure(current, client, "failed in the simulated world")
            elif deadline is None or seconds <= deadline:
                current.arrived[client] = (seconds, reply)
                if client not in current.recorded:
                    self._scheduler.report(client, seconds, round=fleet_round, loss=self._loss(reply))
        current.waited = max(_finished(times), default=current.waited)

    def _drop_expired(self, grid: TimedGrid, closed: int) -> None:
        """Forgets late messages whose round is `late_window` or more rounds before the last closed round."""
        window = self._scheduler.settings.late_window
        expired = [message_id for message_id, (_, when) in self._late.items() if closed - when >= window]
        grid.forget(expired)
        for message_id in expired:
            del self._late[message_id]


def _finished(times: Mapping[str, float | None]) -> list[float]:
    return [seconds for seconds in times.values() if seconds is not None]
