"""The loops that play a policy in a world: round by round, or without rounds, in K slots."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import as_count, as_number, saved_value
from turnout.kernel.rounds import RoundOffer, RoundRecord, RoundReport, Selection
from turnout.kernel.slots.turns import FINISHED, STARTED, RunningTurns, TurnStart
from turnout.lab.columns import RoundColumns
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy, prefixed, subset


def play(policy: SelectionPolicy, world: World, rounds: int, *, first: int = 1) -> Iterator[RoundRecord]:
    """Plays the rounds `first` to `rounds` and yields the record of each round as soon as it is closed.

    The offer includes the expected times only for policies that require them.

    >>> from turnout import make_policy
    >>> from turnout.lab import PaperWorld
    >>> [len(record.selection.clients) for record in play(make_policy("rbcsf", 40), PaperWorld(), 3)]
    [8, 8, 8]
    """
    rounds, first = as_count("rounds", rounds, SettingError, least=0), as_count("first", first, SettingError)
    _check_clients(policy, world)
    for round_ in range(first, rounds + 1):
        offer = world.offer(round_)
        selection = visible_selection(policy, offer)
        report = world.play(offer, selection)
        policy.tell(report)
        yield RoundRecord(selection, report)


def _check_clients(policy: SelectionPolicy, world: World) -> None:
    if policy.clients != world.clients:
        raise SettingError(
            f"the policy has {policy.clients} clients, but the world has {world.clients}: both need the same number"
        )


def visible_selection(policy: SelectionPolicy, offer: RoundOffer) -> Selection:
    """Returns what a policy selects; only a policy that requires expected times sees them."""
    return policy.ask(offer if policy.requires_expected_times else offer.without_truth())


class Run(Protocol):
    """A policy in a world, which can be played in parts, saved and restored."""

    policy: SelectionPolicy
    world: World

    def play(self, total: int, *, stop: int | None = None) -> Iterator[RoundRecord]:
        """Yields the next records of a run with `total` records, up to the record `stop`."""

    def state(self) -> dict[str, Any]:
        """Returns everything that the next record depends on, as plain arrays and numbers."""

    def restore(self, state: Mapping[str, Any], done: int) -> None:
        """Restores what `state` returned after `done` records, in a run that was built with the same settings."""


class RoundRun:
    """A run in rounds."""

    def __init__(self, policy: SelectionPolicy, world: World) -> None:
        if world.needs_slots:
            raise SettingError("this world has no rounds: set the concurrency of the plan")
        self.policy, self.world = policy, world
        self._done = 0

    def play(self, total: int, *, stop: int | None = None) -> Iterator[RoundRecord]:
        """Yields the records of the next rounds."""
        last = total if stop is None else min(stop, total)
        for record in play(self.policy, self.world, last, first=self._done + 1):
            self._done = record.round
            yield record

    def state(self) -> dict[str, Any]:
        """Returns the states of the policy and the world."""
        return {**prefixed("policy", self.policy.state()), **prefixed("world", self.world.state())}

    def restore(self, state: Mapping[str, Any], done: int) -> None:
        """Restores the states of the policy and the world."""
        self.policy.restore(subset(state, "policy"))
        self.world.restore(subset(state, "world"))
        self._done = done


#: The number of world rounds in which nobody is available and nobody trains, after which the run ends with an error.
MAX_EMPTY = 10_000
COUNTS = ("decisions", "next", "world_round")


class SimulatedTurn(NamedTuple):
    """A running turn; the first two fields determine the order in which turns end."""

    end: float
    decision: int
    record: RoundRecord


class SlotRun:
    """Plays a policy in a world with `concurrency` slots; whenever one is free, a client is given a turn.

    A decision is what a round is elsewhere: for each, the world makes a new offer, and the policy selects one of
    those that are available and not training. The record of a turn has the number of its decision as its round, one
    client, the clients that earn with the decision as available, and the metrics `started` and `finished`, in seconds.

    Args:
        policy: A policy with `fills_slots`.
        world: The world. If it has a clock, that follows the turns.
        concurrency: The number of slots.

    >>> from turnout import make_policy
    >>> from turnout.lab import PaperWorld
    >>> run = SlotRun(make_policy("fair-pace", 40, guaranteed_rate=0.01), PaperWorld(), concurrency=8)
    >>> [len(record.selection.clients) for record in run.play(3)]
    [1, 1, 1]
    """

    def __init__(self, policy: SelectionPolicy, world: World, concurrency: int) -> None:
        self.concurrency = as_count("concurrency", concurrency, SettingError)
        _check_clients(policy, world)
        if not policy.fills_slots:
            raise SettingError(
                f"{policy.name} cannot give turns one at a time: play it in rounds, or use another policy, such as "
                "fair-pace"
            )
        if world.combines_cohorts:
            raise SettingError(
                "this world averages the models of a cohort, so it needs rounds: for training, "
                "set updates_per_version, such as 8"
            )
        self.policy, self.world = policy, world
        self.running = RunningTurns(policy.clients)
        self.decisions = 0
        self.now = 0.0
        self._world_round = 0
        self._running_turns: list[SimulatedTurn] = []  # a heap
        self._waiting: dict[int, RoundRecord] = {}  # finished turns that wait for earlier ones
        self._next = 1  # the decision whose record is yielded next

    def play(self, total: int, *, stop: int | None = None) -> Iterator[RoundRecord]:
        """Yields the records of the turns in the order of their decisions, each as soon as it and all before it ended.

        Args:
            total: The number of turns to give in the whole run. Those running at the end are awaited.
            stop: The last turn to yield now, by default the last of the run. The run can be continued after it.
        """
        total = as_count("total", total, SettingError, least=0)
        last = total if stop is None else min(as_count("stop", stop, SettingError, least=0), total)
        while self._next <= last:
            if self._next in self._waiting:
                self._next += 1
                yield self._waiting.pop(self._next - 1)
            else:
                self._finish_one(self.next_end(total))

    def state(self) -> dict[str, Any]:
        """Returns everything that the next decision depends on, as plain arrays and numbers."""
        return {
            **prefixed("policy", self.policy.state()),
            **prefixed("world", self.world.state()),
            **prefixed("running", self.running.state()),
            "running_turns": self._packed(running_turn.record for running_turn in self._running_turns),
            "waiting": self._packed(self._waiting.values()),
            "decisions": self.decisions,
            "next": self._next,
            "now": self.now,
            "world_round": self._world_round,
        }

    def restore(self, state: Mapping[str, Any], done: int) -> None:
        """Restores what `state` returned after `done` records, in a run that was built with the same settings."""
        packed = (np.asarray(saved_value(state, key), dtype=np.uint8) for key in ("running_turns", "waiting"))
        running_turns, waiting = (list(RoundColumns.from_bytes(data.tobytes()).records()) for data in packed)
        counts = {key: as_count(key, int(saved_value(state, key)), StateError, least=0) for key in COUNTS}
        now = as_number("now", saved_value(state, "now"), StateError, least=0)
        if counts["next"] != done + 1:
            raise StateError(f"the saved state follows {counts['next'] - 1:,} records, but there are {done:,}")
        self.policy.restore(subset(state, "policy"))
        self.world.restore(subset(state, "world"))
        self.running.restore(subset(state, "running"))
        self._running_turns = [
            SimulatedTurn(record.report.metrics[FINISHED], record.round, record) for record in running_turns
        ]
        heapq.heapify(self._running_turns)
        self._waiting = {record.round: record for record in waiting}
        self.decisions, self._next, self._world_round = counts["decisions"], counts["next"], counts["world_round"]
        self.now = now

    def decide(self) -> RoundRecord:
        """Ends turns until a slot is free and a client is available, gives one turn, and returns its record.

        The result is not learned yet, and a world that trains has not trained yet.
        """
        return self._give(self.next_offer())

    def next_offer(self) -> RoundOffer:
        """Ends turns until a slot is free and a client is available, and returns the offer for this slot.

        The clients that are training are available in it.
        """
        while (offer := self._offer_for_slot()) is None:
            self._finish_one(heapq.heappop(self._running_turns))
        return offer

    def next_end(self, total: int) -> SimulatedTurn:
        """Gives turns until one must end first; returns that turn, which must be given to `end` with its report.

        With `end`, several runs can advance together, and what their clients train can be computed at once.

        Args:
            total: The number of turns to give in the whole run; fewer than that have ended.
        """
        while self.decisions < total and (offer := self._offer_for_slot()) is not None:
            self._give(offer)
        if not self._running_turns:
            raise StateError(f"all {total:,} turns of the run have ended")
        return heapq.heappop(self._running_turns)

    def end(self, running_turn: SimulatedTurn, report: RoundReport) -> list[RoundRecord]:
        """Ends a turn that `next_end` returned; returns the records that can be stored now, in order of decisions."""
        self._learn(running_turn, report)
        records = []
        while self._next in self._waiting:
            records.append(self._waiting.pop(self._next))
            self._next += 1
        return records

    def _offer_for_slot(self) -> RoundOffer | None:
        """Returns the next offer if a slot is free and a client is available; None if a turn must end first."""
        if len(self._running_turns) >= self.concurrency:
            return None
        for _ in range(MAX_EMPTY + 1):
            self._world_round += 1
            self.world.set_clock(self.now)
            offer = self.world.offer(self._world_round)
            if (offer.available & self.running.idle).any():
                return offer
            if self._running_turns:
                return None
            self.now += self.world.idle_seconds
        raise StateError(f"no client was available in {MAX_EMPTY:,} offers in a row: the run cannot go on")

    def visible(self, offer: RoundOffer) -> RoundOffer:
        """Returns what the policy sees of an offer: the clients that are idle, and one place."""
        visible = offer.restricted(offer.available & self.running.idle, 1)
        known = visible if self.policy.requires_expected_times else visible.without_truth()
        return replace(known, round=self.decisions + 1)

    def _give(self, offer: RoundOffer) -> RoundRecord:
        decision = self.decisions + 1
        selection = self.policy.ask(self.visible(offer))
        if len(selection.clients) != 1:
            raise SettingError(
                f"{self.policy.name} selected {len(selection.clients)} clients for one slot: it cannot fill slots"
            )
        visible = offer.restricted(offer.available & self.running.idle, 1)
        played = self.world.play(visible, replace(selection, round=offer.round))
        present = offer.available.copy()
        present[self.running.rows] = True
        capped = self.running.capped(decision, self.policy.debts)
        turn = TurnStart.trusted(decision, int(selection.clients[0]), present, capped)
        self.policy.tell_started(turn)
        self.running.start(turn)
        self.decisions = decision
        end = self.now + float(played.exchange_times[0])
        metrics = {**played.metrics, STARTED: self.now, FINISHED: end}
        report = replace(played, round=decision, available=turn.earning(), metrics=metrics)
        record = RoundRecord(selection, report)
        heapq.heappush(self._running_turns, SimulatedTurn(end, decision, record))
        return record

    def _finish_one(self, running_turn: SimulatedTurn) -> None:
        self._learn(running_turn, self.world.finish(running_turn.record.report))

    def _learn(self, running_turn: SimulatedTurn, report: RoundReport) -> None:
        self.now = running_turn.end
        self.running.finish(int(report.clients[0]))
        self.policy.tell_finished(report)
        self._waiting[running_turn.decision] = RoundRecord(running_turn.record.selection, report)

    def _packed(self, records: Iterable[RoundRecord]) -> npt.NDArray[np.uint8]:
        in_order = sorted(records, key=lambda record: record.round)
        return np.frombuffer(RoundColumns.from_records(in_order, clients=self.policy.clients).to_bytes(), np.uint8)
