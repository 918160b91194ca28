"""Keeps the slots of a fleet without rounds filled, and collects the updates for the next version of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from turnout.adapters.common.fleet import Fleet, keep_turns
from turnout.adapters.common.round_texts import join_first, summarize_promise
from turnout.adapters.flower.checks.replies import BYTES, NUMPY
from turnout.adapters.flower.core.intake import ReplyIntake
from turnout.adapters.flower.core.messages import lifetime
from turnout.adapters.flower.core.parts import Parts
from turnout.adapters.flower.core.progress import EndedRound
from turnout.adapters.flower.simulated import SimulatedSlots
from turnout.errors import SettingError
from turnout.live import RunningTurn
from turnout.log import get_log
from turnout.storage.training_log import OWN_PREFIX

log = get_log("flwr")
MIN_FAILURES = 10  # turns that fail in a row before a version ends without enough updates
FILL_INTERVAL = 1.0  # seconds between two looks for clients, while slots are free and no turn ends


@dataclass(frozen=True, slots=True)
class SentTurn:
    """A turn whose message was sent.

    Attributes:
        turn: The turn.
        node: The node of the client.
        message: The message.
        arrays: The model that was sent.
        version: The number of models that were made before it.
        limit: The moment, by the monotonic clock, after which nothing is expected any more.
    """

    turn: RunningTurn
    node: int
    message: Message
    arrays: ArrayRecord
    version: int
    limit: float


@dataclass(slots=True)
class Version:
    """A version of the model, from the previous one until its updates are aggregated.

    Attributes:
        staleness: The staleness of each update that is aggregated.
        failures: The clients whose turns failed, and why.
        waited: The seconds since the previous version; those of the simulated world in a simulation.
    """

    staleness: list[int] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    waited: float = 0.0

    def summary(self, scheduler: Fleet) -> tuple[str, dict[str, float]]:
        """Summarises its updates, their staleness, failed turns and the promise, as a sentence and as numbers."""
        count = len(self.staleness)
        metrics = {
            f"{OWN_PREFIX}version-seconds": self.waited,
            f"{OWN_PREFIX}arrived": float(count),
            f"{OWN_PREFIX}failed": float(len(self.failures)),
        }
        text = f"took {self.waited:.1f} s and has {count} updates"
        if count:
            mean = sum(self.staleness) / count
            metrics |= {f"{OWN_PREFIX}mean-staleness": mean, f"{OWN_PREFIX}max-staleness": float(max(self.staleness))}
            text += f" with a mean staleness of {mean:.2f}"
        if self.failures:
            text += f"; failed {join_first([f'{client}: {why}' for client, why in self.failures])}"
        promise, status = summarize_promise(scheduler)
        return "; ".join([text, *promise]), metrics | status


class SlotExchange(ReplyIntake):
    """Gives turns, sends the current model, and reports each result as soon as it is known.

    `step` does whatever can be done now; it is called until there are enough updates, and while clients evaluate.

    Args:
        parts: The strategy, the fleet, and how replies are read.
        simulated: The world that determines the exchange times; None: they are measured.
        updates: The number of updates that make a version.
        discount: The exponent of the discount of an update by its staleness.
    """

    def __init__(self, parts: Parts, simulated: SimulatedSlots | None, updates: int, discount: float) -> None:
        self._simulated = simulated
        super().__init__(parts)
        check_model(parts.progress.arrays)
        self._updates, self._discount = updates, discount
        self._versions, self._timeout = parts.progress.rounds, parts.timeout
        self._slots = parts.scheduler.settings.concurrency or 1
        self._number, self._made = 0, 0  # the version that is being made, and how many models were made
        self._arrays, self._config = ArrayRecord(), ConfigRecord()
        self._is_configured = False  # whether the strategy was configured with the current model
        self._pending: dict[str, SentTurn] = {}  # by message
        self._answered: dict[int, tuple[SentTurn, Message]] = {}  # in a simulation: replies whose time has not come
        self._judged: dict[str, SentTurn] = {}  # the turns of these replies
        self._buffer: list[tuple[SentTurn, Message]] = []
        self._version, self._began = Version(), self._now()
        self._failed_in_a_row = 0
        self._is_resumed = False
        self._filled_at, self._has_ended = -math.inf, True
        if self._simulated is not None:
            self._simulated.begin()

    def collect(self, number: int, config: ConfigRecord) -> list[Message]:
        """Trains until there are enough updates for a version."""
        self._begin(number, self._parts.progress.arrays, config)
        return self._run()

    def end(self, number: int, arrays: ArrayRecord | None, metrics: dict[str, Any]) -> EndedRound:
        """Ends the version: from now on, the next one is made."""
        ended, now = self._version, self._now()
        ended.waited, self._began, self._version, self._errors = max(now - self._began, 0.0), now, Version(), []
        self._is_configured = False
        self._begin(number + 1, self._arrays if arrays is None else arrays, self._config)
        text, own = ended.summary(self._scheduler)
        log.info("turnout: version %d %s", number, text)
        return EndedRound(number, number, {**metrics, **own})

    def _begin(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Sends this model, with these settings, from now on; version `number` is made from it."""
        if not self._number:
            self._began = self._now()
        if arrays is not self._arrays:
            self._made += 1
        self._number, self._arrays, self._config = number, arrays, config

    def _run(self) -> list[Message]:
        """Returns the replies to aggregate, as soon as there are enough; fewer after a timeout or many failures.

        Each update is moved to the current model, and discounted by its staleness.
        """
        start, needed = time.monotonic(), self._updates
        most = max(needed, self._slots, MIN_FAILURES)
        while len(self._buffer) < needed and self._failed_in_a_row < most:
            self._fill()
            if self._collect():
                continue  # its slot is filled at once
            if time.monotonic() - start >= self._timeout:
                break
            time.sleep(self._messenger.poll)
        self._failed_in_a_row = 0
        return self._take_updates()

    def step(self) -> None:
        """Does what can be done while the server waits for other replies, for which the simulated world has no time."""
        if self._number and self._simulated is None:
            self._collect()
            if self._messenger.nodes():
                self._fill()

    # Replies

    def _collect(self) -> bool:
        """Takes the replies that have arrived, and reports them; returns whether any turn has ended."""
        ended = False
        for message_id, reply, seconds in self._messenger.pull([*self._pending, *self._late]):
            if message_id not in self._pending:
                self._take_late(message_id, reply, seconds)
                continue
            sent = self._pending.pop(message_id)
            if self._simulated is None:
                ended = True
                self._take_turn(sent, reply, seconds)
            else:
                self._answered[sent.turn.id] = (sent, reply)
        now = time.monotonic()
        for message_id, sent in list(self._pending.items()):
            if now >= sent.limit:
                self._messenger.forget([message_id])
                del self._pending[message_id]
                self._fail_turn(sent.turn, f"no reply within {self._timeout:g} s")
                ended = True
        if self._simulated is not None:
            ended |= self._end_next(self._simulated)
        self._settle()
        return ended

    def _end_next(self, simulated: SimulatedSlots) -> bool:
        """Ends the turn that ends next in the simulated world, if its reply is there."""
        turn = simulated.next_turn()
        if turn is None or turn not in self._answered:
            return False
        sent, reply = self._answered.pop(turn)
        seconds = simulated.end(turn)
        if seconds is None:
            self._fail_turn(sent.turn, "failed in the simulated world")
        else:
            self._take_turn(sent, reply, seconds)
        return True

    def _take_turn(self, sent: SentTurn, reply: Message, seconds: float) -> None:
        key = str(sent.turn.id)
        self._judged[key] = sent
        self._take(key, sent.node, sent.message, reply, seconds)

    def _client(self, key: str) -> str:
        return self._judged[key].turn.client

    def _fail(self, key: str, why: str) -> None:
        self._fail_turn(self._judged.pop(key).turn, why)

    def _settle(self) -> None:
        """Reports the replies that are judged now: all of them if no other reply is awaited."""
        if not self._received:
            return
        accepted = self._accepted(is_final=not self._pending and not self._answered)
        if accepted:  # from now on, another form needs a majority
            self._judge.needed = max(min(self._updates, self._slots), 2)
        for key, (seconds, reply) in accepted.items():
            sent = self._judged.pop(key)
            loss, signals = self._reported(reply, self._scheduler.settings.signals)
            self._scheduler.report(sent.turn.id, seconds, loss=loss, signals=signals)
            self._buffer.append((sent, reply))
            self._has_ended, self._failed_in_a_row = True, 0

    def _fail_turn(self, turn: RunningTurn, why: str) -> None:
        self._scheduler.report_failure(turn.id, why)
        self._count_failure(turn, why)

    def _count_failure(self, turn: RunningTurn, why: str) -> None:
        self._version.failures.append((turn.client, why))
        self._failed_in_a_row += 1
        self._has_ended = True

    def _take_updates(self) -> list[Message]:
        """Takes the updates of a version from the buffer, and returns them with all error replies."""
        needed = self._updates
        taken, self._buffer = self._buffer[:needed], self._buffer[needed:]
        if taken and not self._is_configured:  # it compares updates with the model with which it was configured last
            self._configure([taken[0][0].node])
        for sent, reply in taken:
            staleness = self._made - sent.version
            self._version.staleness.append(staleness)
            if staleness:
                rebase(reply.content, sent.arrays, self._arrays, (1 + staleness) ** -self._discount)
        return [reply for _, reply in taken] + self._errors

    # Turns

    def _fill(self) -> None:
        """Gives turns for the free slots, and sends their messages; turns whose deadline has passed end."""
        if self._number > self._versions:
            return
        now = time.monotonic()
        running = len(self._pending) + len(self._answered) + len(self._received)
        is_due = self._has_ended or now - self._filled_at >= FILL_INTERVAL or not (self._simulated is None or running)
        if not is_due or (running and not self._messenger.nodes()):
            return
        self._has_ended, self._filled_at = False, now
        turns, nodes = self.selector.fill()
        alive = {turn.id: turn for turn in self._scheduler.running()}
        self._drop_late(alive)
        if not self._is_resumed:
            self._is_resumed, turns = True, keep_turns(list(alive.values()), nodes, self._fail_turn)
        if self._simulated is not None:
            self._simulated.give({turn.id: turn.client for turn in turns})
        self._send(turns, nodes)

    def _send(self, turns: Sequence[RunningTurn], nodes: Mapping[str, int]) -> None:
        if not turns:
            return
        by_node = {nodes[turn.client]: turn for turn in turns}
        messages = self._configure(list(by_node))
        limits = [self._limit(by_node[message.metadata.dst_node_id].deadline) for message in messages]
        for message, limit in zip(messages, limits, strict=True):
            message.metadata.ttl = lifetime(limit)
        clients = [by_node[message.metadata.dst_node_id].client for message in messages]
        log.info("turnout: version %d is trained by %s", self._number, join_first(clients))
        now = time.monotonic()
        for message, message_id in zip(messages, self._messenger.push(messages), strict=True):
            node = message.metadata.dst_node_id
            turn = by_node[node]
            if message_id is None:
                self._fail_turn(turn, "the message could not be sent")
            else:
                limit = now + self._timeout
                self._pending[message_id] = SentTurn(turn, node, message, self._arrays, self._made, limit)

    def _configure(self, nodes: Sequence[int]) -> list[Message]:
        """Returns the messages with which the strategy sends the current model to these nodes."""
        self._is_configured = True
        return self._messages(self._number, ConfigRecord(dict(self._config)), nodes)

    def _drop_late(self, alive: Mapping[int, RunningTurn]) -> None:
        """Sets turns that have ended without a reply aside, and forgets those whose times are not learned any more."""
        for message_id, sent in list(self._pending.items()):
            if sent.turn.id not in alive:
                del self._pending[message_id]
                self._late[message_id] = (sent.turn.client, sent.turn.id)
                self._count_failure(sent.turn, "late")
        self._drop_expired(self._scheduler.round)

    def _now(self) -> float:
        return time.monotonic() if self._simulated is None else self._simulated.now


def check_model(arrays: ArrayRecord) -> None:
    """Raises SettingError unless differences between models can be computed."""
    for name, array in arrays.items():
        if array.stype != NUMPY or (array.dtype in BYTES and len(array.shape) == 1):
            raise SettingError(
                f"the array {name!r} of the model holds serialized objects, and without rounds the difference between "
                "models must be computed: use a fleet with rounds"
            )


def rebase(content: RecordDict, sent: ArrayRecord, current: ArrayRecord, factor: float) -> None:
    """Replaces the model in a reply by the current one plus `factor` times what the client changed (FedBuff).

    A strategy that averages models, or compares them with the current one, then sees the update of the client and not
    the difference between the model that was sent and the current one. A record that does not have the arrays of the
    model is left as it is. Whole numbers are moved without the factor.

    Args:
        content: The content of the reply, which is changed.
        sent: The model that the client was sent.
        current: The current model.
        factor: The discount of the update.
    """
    for name, record in list(content.array_records.items()):
        if {key: array.shape for key, array in record.items()} == {key: array.shape for key, array in sent.items()}:
            content[name] = ArrayRecord(
                {key: Array(_moved(record[key], sent[key], current[key], factor)) for key in record}
            )


def _moved(trained: Array, sent: Array, current: Array, factor: float) -> npt.NDArray[Any]:
    new, old, now = trained.numpy(), sent.numpy(), current.numpy()
    if new.dtype.kind == "b":
        return new
    if new.dtype.kind in "iu":
        moved: npt.NDArray[Any] = now + (new - old)
    else:
        with np.errstate(invalid="ignore"):  # infinity, as in the mask of an attention layer, has no difference
            moved = now + factor * (new - old)
        moved = np.where(np.isfinite(moved), moved, new)
    return np.asarray(moved, dtype=new.dtype)
