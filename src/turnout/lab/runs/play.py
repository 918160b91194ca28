"""The loop that plays a policy in a world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import RoundOffer, RoundRecord, Selection
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
    if policy.clients != world.clients:
        raise SettingError(
            f"the policy has {policy.clients} clients, but the world has {world.clients}: both need the same number"
        )
    for round_ in range(first, rounds + 1):
        offer = world.offer(round_)
        selection = visible_selection(policy, offer)
        report = world.play(offer, selection)
        policy.tell(report)
        yield RoundRecord(selection, report)


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
