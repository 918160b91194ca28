"""Sending a round out, and hearing of everyone in it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from turnout.adapters.flower.grid import TimedGrid
from turnout.adapters.flower.nodes import Nodes
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.adapters.flower.wire import introduction_in
from turnout.scheduler import OpenRound, Scheduler

log = logging.getLogger("flwr")


@dataclass(slots=True)
class LiveRound:
    """A round between its choice and its end.

    `nodes`: of each client of the cohort that is connected. `known`: whose outcome an earlier server has written down.
    """

    opened: OpenRound
    nodes: dict[str, int]
    known: set[str] = field(default_factory=set)
    arrived: dict[str, tuple[float, Message]] = field(default_factory=dict)
    errors: list[Message] = field(default_factory=list)
    waited: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether as many are back as are wanted."""
        return len(self.arrived) >= self.opened.wanted

    def answers(self) -> list[Message]:
        """The first that came, as many as are wanted, of equals the lower row first; and what went wrong."""
        places = {client: place for place, client in enumerate(self.nodes)}
        first = sorted(self.arrived, key=lambda client: (self.arrived[client][0], places[client]))
        return [self.arrived[client][1] for client in first[: self.opened.wanted]] + self.errors


class Exchange:
    """Tells the scheduler of each client as soon as it is heard of; late ones in later rounds."""

    def __init__(
        self, scheduler: Scheduler, nodes: Nodes, simulated: SimulatedFleet | None, loss_key: str | None
    ) -> None:
        self._scheduler, self._nodes, self._simulated, self._loss_key = scheduler, nodes, simulated, loss_key
        self._late: dict[str, tuple[str, int]] = {}  # message -> client and round

    def clear(self) -> None:
        """Nothing is under way: a new run of Flower's has other messages."""
        self._late.clear()

    def run(
        self, grid: TimedGrid, current: LiveRound, messages: Sequence[Message], timeout: float | None
    ) -> list[Message]:
        """Until enough are back, everyone was heard of, or time is up; what the strategy shall aggregate."""
        self._drop_old(grid, current.opened.round - 1)
        began, limit = time.monotonic(), self.limit(current.opened, timeout)
        clients = {node: client for client, node in current.nodes.items()}
        waiting: dict[str, str] = {}
        for message, sent in zip(messages, grid.push(messages), strict=True):
            client = clients[message.metadata.dst_node_id]
            if sent is None:
                self._failed(current, client, "the message to it could not be sent")
            else:
                waiting[sent] = client
        while waiting:
            for sent, reply, seconds in grid.pull([*waiting, *self._late]):
                if sent in waiting:
                    self._hear(current, waiting.pop(sent), reply, seconds)
                else:
                    self._hear_late(*self._late.pop(sent), reply, seconds)
            if not waiting or (current.enough and not self._simulated) or time.monotonic() - began >= limit:
                break
            time.sleep(grid.poll)
        current.waited = time.monotonic() - began
        if self._simulated is not None:
            grid.forget(waiting)
            self._simulate(current, self._simulated)
        else:
            news = {sent: client for sent, client in waiting.items() if client not in current.known}
            self._late |= {sent: (client, current.opened.round) for sent, client in news.items()}
        return current.answers()

    def skip(self, current: LiveRound) -> None:
        """A round in which nobody is asked."""
        if self._simulated is not None:
            self._simulated.seconds(current.opened.round, [])

    def limit(self, opened: OpenRound, timeout: float | None) -> float:
        """Seconds that a round may take here; in a simulation, the fleet's deadline is the world's."""
        limits = (timeout, None if self._simulated else opened.deadline)
        return min((one for one in limits if one is not None), default=float("inf"))

    def _hear(self, current: LiveRound, client: str, reply: Message, seconds: float) -> None:
        if reply.has_error():
            current.errors.append(reply)
            self._failed(current, client, f"{reply.error.reason or 'no reason given'} (code {reply.error.code})")
            return
        self._nodes.hear(current.nodes[client], introduction_in(reply.content))
        current.arrived[client] = (seconds, reply)
        if self._simulated is None and client not in current.known:
            self._scheduler.report(client, seconds, round=current.opened.round, loss=self._loss(reply))

    def _hear_late(self, client: str, round: int, reply: Message, seconds: float) -> None:
        """Too late to be aggregated, but not to be learned from."""
        if reply.has_error():
            why = (reply.error.reason or "no reason given").partition(" - ")[0]
            log.info("turnout: %s, late in the fleet's round %d, did not come back: %s", client, round, why)
            return
        self._scheduler.report(client, seconds, round=round)
        log.info("turnout: %s, late in the fleet's round %d, was back after %.1f s", client, round, seconds)

    def _loss(self, reply: Message) -> float | None:
        """What the client says that its training loss was, for policies that choose by it."""
        for record in reply.content.metric_records.values():
            told = record.get(self._loss_key) if self._loss_key is not None else None
            if isinstance(told, int | float) and math.isfinite(told):
                return float(told)
        return None

    def _failed(self, current: LiveRound, client: str, why: str) -> None:
        if client not in current.known:
            self._scheduler.failed(client, why, round=current.opened.round)

    def _simulate(self, current: LiveRound, simulated: SimulatedFleet) -> None:
        """The world's times instead of ours: who is later than the deadline there was not back."""
        number, deadline = current.opened.round, current.opened.deadline
        took = simulated.seconds(number, current.nodes)
        for client in list(current.arrived):
            seconds, (_, reply) = took[client], current.arrived.pop(client)
            if seconds is None:
                self._failed(current, client, "failed in the simulated world")
            elif deadline is None or seconds <= deadline:
                current.arrived[client] = (seconds, reply)
                if client not in current.known:
                    self._scheduler.report(client, seconds, round=number, loss=self._loss(reply))
        current.waited = max(_times(took), default=current.waited)

    def _drop_old(self, grid: TimedGrid, closed: int) -> None:
        """Beyond the window, counted from the round closed last, a late time is not learned any more."""
        window = self._scheduler.settings.late_window
        old = [sent for sent, (_, when) in self._late.items() if closed - when >= window]
        grid.forget(old)
        for sent in old:
            del self._late[sent]


def _times(took: Mapping[str, float | None]) -> list[float]:
    return [seconds for seconds in took.values() if seconds is not None]
