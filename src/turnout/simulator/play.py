"""The loop that joins a policy and a world."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import RoundRecord
from turnout.policies.base import SelectionPolicy
from turnout.simulator.world import World


def play(policy: SelectionPolicy, world: World, rounds: int, *, first: int = 1) -> Iterator[RoundRecord]:
    """Play the rounds from `first` to `rounds`, and yield each when it is over.

    Only a policy that asks for the truth is told the expected times.

    >>> from turnout import make_policy
    >>> from turnout.simulator import PaperWorld
    >>> [len(record.selection.clients) for record in play(make_policy("rbcsf", 40), PaperWorld(), 3)]
    [8, 8, 8]
    """
    rounds, first = as_count("rounds", rounds, SettingError, least=0), as_count("first", first, SettingError)
    if policy.clients != world.clients:
        raise SettingError(f"the policy is for {policy.clients} clients, the world has {world.clients}")
    for round_ in range(first, rounds + 1):
        offer = world.offer(round_)
        selection = policy.ask(offer if policy.requires_expected_times else offer.without_truth())
        report = world.play(offer, selection)
        policy.tell(report)
        yield RoundRecord(selection, report)
