"""Sends a round's training messages and reports every outcome to the scheduler."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from flwr.app import Error, Message, MetricRecord

from turnout.adapters.flower.discovery.nodes import NodeDirectory
from turnout.adapters.flower.grid import TimedGrid
from turnout.adapters.flower.rounds.live_round import LiveRound
from turnout.adapters.flower.rounds.replies import Form, ReplyJudge
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.adapters.flower.wire import pop_client_info
from turnout.live import Scheduler
from turnout.live._internals import OpenRound
from turnout.log import get_log

log = get_log("flwr")
EXPIRED = (3, 4)  # Flower's error codes for a message, or a reply, that is no longer stored
SHORTEST = 1e-6  # seconds: a round takes some time, even if all replies arrive at once


class Exchange:
    """Runs the message exchange of each round and reports each reply to the scheduler as soon as it arrives.

    Late replies are reported during later rounds.

    Args:
        scheduler: records all outcomes.
        nodes: learns the statuses of the clients.
        simulated: determines the exchange times, in a simulation.
        loss_key: the metric with the training loss.
        weight_key: the metric by which the strategy weights replies.
        is_checked: whether replies that cannot be aggregated are failures of their clients.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        nodes: NodeDirectory,
        simulated: SimulatedFleet | None,
        loss_key: str | None,
        *,
        weight_key: str | None = None,
        is_checked: bool = True,
    ) -> None:
        self._scheduler, self._nodes, self._simulated, self._loss_key = scheduler, nodes, simulated, loss_key
        self._weight_key, self._is_checked = weight_key, is_checked
        self._late: dict[str, tuple[str, int]] = {}  # message id -> client and round
        self._usual_form: Form | None = None

    def clear(self) -> None:
        """Forgets all pending messages: those of an earlier Flower run cannot be answered any more."""
        self._late.clear()
        self._usual_form = None

    def run(
        self, grid: TimedGrid, current: LiveRound, messages: Sequence[Message], timeout: float | None
    ) -> list[Message]:
        """Waits until enough replies arrived, every outcome is known or time is up; returns what to aggregate."""
        self._drop_expired(grid, current.opened.round - 1)
        start, limit = time.monotonic(), self.limit(current.opened, timeout)
        clients = {node: client for client, node in current.nodes.items()}
        judge = ReplyJudge(current.opened.target_size, self._weight_key, self._usual_form)
        pending: dict[str, tuple[str, Message]] = {}
        for message, message_id in zip(messages, grid.push(messages), strict=True):
            client = clients[message.metadata.dst_node_id]
            if message_id is None:
                self._report_failure(current, client, "the message could not be sent")
            else:
                pending[message_id] = (client, message)
        while pending:
            for message_id, reply, seconds in grid.pull([*pending, *self._late]):
                if message_id in pending:
                    self._handle_reply(current, judge, *pending.pop(message_id), reply, seconds)
                else:
                    self._handle_late_reply(*self._late.pop(message_id), reply, seconds)
            self._settle(current, judge, is_final=False)
            if not pending or (current.enough and not self._simulated) or time.monotonic() - start >= limit:
                break
            time.sleep(grid.poll)
        self._settle(current, judge, is_final=True)
        self._usual_form = judge.usual
        current.waited = max(time.monotonic() - start, SHORTEST)
        if self._simulated is not None:
            grid.forget(pending)
            self._apply_simulated_times(current, self._simulated)
        else:
            unrecorded = {sent: client for sent, (client, _) in pending.items() if client not in current.recorded}
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

    def _handle_reply(
        self, current: LiveRound, judge: ReplyJudge, client: str, sent: Message, reply: Message, seconds: float
    ) -> None:
        """Handles a reply that arrived in time.

        Args:
            current: the round.
            judge: judges its replies.
            client: the client that was asked.
            sent: the message to the client.
            reply: its reply.
            seconds: the seconds until the reply arrived.
        """
        if reply.has_error():
            reply.error = plain_error(reply.error)
            current.errors.append(reply)
            self._report_failure(current, client, error_text(reply.error))
            return
        self._nodes.record(current.nodes[client], pop_client_info(reply.content))
        current.received[client] = (seconds, reply)
        problem = judge.add(client, sent.content, reply.content)
        if problem is not None and self._is_checked:
            self._refuse(current, client, problem)

    def _settle(self, current: LiveRound, judge: ReplyJudge, *, is_final: bool) -> None:
        """Reports the replies that are judged now."""
        accepted, refused = judge.settle(is_final=is_final)
        if not self._is_checked:
            accepted, refused = list(current.received), {}
        for client, problem in refused.items():
            self._refuse(current, client, problem)
        for client in accepted:
            current.arrived[client] = current.received.pop(client)
        if self._simulated is None:
            self._report({client: current.arrived[client] for client in accepted}, current)

    def _report(self, replies: Mapping[str, tuple[float, Message]], current: LiveRound) -> None:
        """Reports replies in one transaction, unless their clients have reported before a restart."""
        new = {client: reply for client, reply in replies.items() if client not in current.recorded}
        losses = {client: training_loss(reply, self._loss_key) for client, (_, reply) in new.items()}
        if new:
            self._scheduler.report_many(
                {client: seconds for client, (seconds, _) in new.items()},
                losses={client: loss for client, loss in losses.items() if loss is not None},
                round=current.opened.round,
            )

    def _refuse(self, current: LiveRound, client: str, problem: str) -> None:
        current.received.pop(client)
        log.warning("turnout: the reply of %s is not used: %s", client, problem)
        self._report_failure(current, client, f"its reply cannot be used: {problem}")

    def _handle_late_reply(self, client: str, round: int, reply: Message, seconds: float) -> None:
        """Reports the exchange time of a reply that arrived too late to be aggregated."""
        if reply.has_error():
            why = error_text(plain_error(reply.error))
            log.info("turnout: %s, late in the fleet's round %d, did not come back: %s", client, round, why)
            return
        self._scheduler.report(client, seconds, round=round)
        log.info("turnout: %s, late in the fleet's round %d, was back after %.1f s", client, round, seconds)

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
        self._report(current.arrived, current)
        current.waited = _simulated_wait(current, times) or current.waited

    def _drop_expired(self, grid: TimedGrid, closed: int) -> None:
        """Forgets late messages whose times can no longer be learned after the last closed round."""
        window = self._scheduler.settings.late_turns
        expired = [message_id for message_id, (_, when) in self._late.items() if closed - when >= window]
        grid.forget(expired)
        for message_id in expired:
            del self._late[message_id]


def _simulated_wait(current: LiveRound, times: Mapping[str, float | None]) -> float | None:
    """Returns how long a server would have waited in the simulated world; None if no client has a time there."""
    arrived = sorted(seconds for seconds, _ in current.arrived.values())
    if arrived and current.enough:
        return arrived[current.opened.target_size - 1]
    longest = max((seconds for seconds in times.values() if seconds is not None), default=None)
    deadline = current.opened.deadline
    return longest if longest is None or deadline is None else min(longest, deadline)


def training_loss(reply: Message, key: str | None) -> float | None:
    """Returns the training loss in a reply, for policies that use it; None if it is missing or not finite."""
    for record in reply.content.values():
        loss = record.get(key) if isinstance(record, MetricRecord) and key else None
        if isinstance(loss, int | float) and math.isfinite(loss):
            return float(loss)
    return None


def plain_error(error: Error) -> Error:
    """Returns the error with a shorter reason if a message expired: Flower's text explains how it stores messages."""
    return Error(error.code, "no reply before its message expired") if error.code in EXPIRED else error


def error_text(error: Error) -> str:
    """Returns the reason of an error reply with its code."""
    return f"{error.reason or 'no reason given'} (code {error.code})"
