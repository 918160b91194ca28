"""Sends a round's training messages and reports every outcome to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from flwr.app import Message

from turnout.adapters.flower.grid import SHORTEST, TimedGrid
from turnout.adapters.flower.rounds.intake import Arrival, ReplyIntake, report_late
from turnout.adapters.flower.rounds.live_round import FlowerRound
from turnout.adapters.flower.rounds.replies import Form, ReplyJudge
from turnout.adapters.flower.setup import TrainingSetup
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.live._internals import OpenRound


class Exchange(ReplyIntake):
    """Runs the message exchange of each round and reports each reply to the scheduler as soon as it arrives.

    Late replies are reported during later rounds.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        super().__init__(setup)
        self._simulated = setup.simulated
        self._current: FlowerRound
        self._late: dict[str, tuple[str, int]] = {}  # message id -> client and round
        self._usual_form: Form | None = None

    def run(
        self, grid: TimedGrid, current: FlowerRound, messages: Sequence[Message], timeout: float | None
    ) -> list[Message]:
        """Waits until enough replies arrived, every outcome is known or time is up; returns what to aggregate."""
        self._drop_expired(grid, current.opened.round - 1)
        start, limit = time.monotonic(), self.limit(current.opened, timeout)
        clients = {node: client for client, node in current.nodes.items()}
        self._current = current
        self._judge = ReplyJudge(current.opened.target_size, self._setup.weight_key, self._usual_form)
        pending: dict[str, tuple[str, Message]] = {}
        for message, message_id in zip(messages, grid.push(messages), strict=True):
            client = clients[message.metadata.dst_node_id]
            if message_id is None:
                self._fail(client, "the message could not be sent")
            else:
                pending[message_id] = (client, message)
        while pending:
            for message_id, reply, seconds in grid.pull([*pending, *self._late]):
                if message_id in pending:
                    client, message = pending.pop(message_id)
                    self._take(client, current.nodes[client], message, reply, seconds)
                else:
                    self._report_late(*self._late.pop(message_id), reply, seconds)
            self._settle(is_final=False)
            if not pending or (current.enough and not self._simulated) or time.monotonic() - start >= limit:
                break
            time.sleep(grid.poll)
        self._settle(is_final=True)
        self._usual_form = self._judge.usual
        current.waited = max(time.monotonic() - start, SHORTEST)
        if self._simulated is not None:
            grid.forget(pending)
            self._apply_simulated_times(current, self._simulated)
        else:
            unrecorded = {sent: client for sent, (client, _) in pending.items() if client not in current.recorded}
            self._late |= {sent: (client, current.opened.round) for sent, client in unrecorded.items()}
        return current.replies_to_aggregate()

    def skip(self, current: FlowerRound) -> None:
        """Advances the simulated world through a round with an empty cohort."""
        if self._simulated is not None:
            self._simulated.seconds(current.opened.round, [])

    def limit(self, opened: OpenRound, timeout: float | None) -> float:
        """Returns the seconds that the server waits; in a simulation the deadline applies to simulated time only."""
        limits = (timeout, None if self._simulated else opened.deadline)
        return min((limit for limit in limits if limit is not None), default=float("inf"))

    def _client(self, key: str) -> str:
        return key

    @property
    def _errors(self) -> list[Message]:
        return self._current.errors

    def _fail(self, key: str, why: str) -> None:
        if key not in self._current.recorded:
            self._scheduler.report_failure(key, why, round=self._current.opened.round)

    def _settle(self, *, is_final: bool) -> None:
        """Reports the replies that are judged now."""
        accepted = self._accepted(is_final=is_final)
        self._current.arrived |= accepted
        if self._simulated is None:
            self._report(accepted, self._current)

    def _report(self, replies: Mapping[str, Arrival], current: FlowerRound) -> None:
        """Reports replies in one transaction, unless their clients have reported before a restart."""
        new = {client: reply for client, reply in replies.items() if client not in current.recorded}
        losses = {client: self._loss(reply) for client, (_, reply) in new.items()}
        if new:
            self._scheduler.report_many(
                {client: seconds for client, (seconds, _) in new.items()},
                losses={client: loss for client, loss in losses.items() if loss is not None},
                round=current.opened.round,
            )

    def _report_late(self, client: str, round: int, reply: Message, seconds: float) -> None:
        who = f"{client}, late in the fleet's round {round}"
        report_late(who, reply, seconds, lambda time: self._scheduler.report(client, time, round=round))

    def _apply_simulated_times(self, current: FlowerRound, simulated: SimulatedFleet) -> None:
        """Replaces measured by simulated times, and drops replies that fail or miss the deadline in the world."""
        fleet_round, deadline = current.opened.round, current.opened.deadline
        times = simulated.seconds(fleet_round, current.nodes)
        for client in list(current.arrived):
            seconds, (_, reply) = times[client], current.arrived.pop(client)
            if seconds is None:
                self._fail(client, "failed in the simulated world")
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


def _simulated_wait(current: FlowerRound, times: Mapping[str, float | None]) -> float | None:
    """Returns how long a server would have waited in the simulated world; None if no client has a time there."""
    arrived = sorted(seconds for seconds, _ in current.arrived.values())
    if arrived and current.enough:
        return arrived[current.opened.target_size - 1]
    longest = max((seconds for seconds in times.values() if seconds is not None), default=None)
    deadline = current.opened.deadline
    return longest if longest is None or deadline is None else min(longest, deadline)
