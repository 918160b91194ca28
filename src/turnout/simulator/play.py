"""The loop that plays a policy in a world."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import RoundRecord
from turnout.policies.base import SelectionPolicy
from turnout.simulator.world import World


def play(policy: SelectionPolicy, world: World, rounds: int, *, first: int = 1) -> Iterator[RoundRecord]:
    """Plays the rounds `first` to `rounds` and yields the record of each round as soon as it is closed.

    The offer includes the expected times only for policies that require them.

    >>> from turnout import make_policy
    >>> from turnout.simulator import PaperWorld
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
        selection = policy.ask(offer if policy.requires_expected_times else offer.without_truth())
        report = world.play(offer, selection)
        policy.tell(report)
        yield RoundRecord(selection, report)
