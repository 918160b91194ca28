"""check_world: the conformance suite that every world must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from turnout.errors import CheckError
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines import RoundRobin, UniformRandom
from turnout.policies.check_support import (
    require,
    require_plain,
    require_same_state,
    run_checks,
    untouched_generators,
)

Build: TypeAlias = Callable[[int], World]

ROUNDS = 20
COHORT = 3


def check_world(build: Build) -> list[str]:
    """Checks that a world satisfies the contract on which the rest of turnout relies; returns the checks' names.

    Args:
        build: Builds a new world from a seed.

    Raises:
        CheckError: If a check fails.

    >>> from turnout.lab import PaperWorld
    >>> check_world(PaperWorld)[:2]
    ['it is a world', 'the same seed plays the same rounds']
    """
    return run_checks(CHECKS, build, "world", CheckError)


def it_is_a_world(build: Build) -> None:
    """It has clients, their availability, offers, reports and a state."""
    world = build(0)
    require(isinstance(world, World), f"{world!r} is not a turnout.lab.World")
    require(isinstance(world.clients, int) and world.clients >= 1, f"clients is {world.clients!r}")
    shares = np.asarray(world.availability)
    require(shares.shape == (world.clients,), f"availability has the shape {shares.shape}, not one entry per client")
    require(bool(((shares >= 0) & (shares <= 1)).all()), "availability has an entry outside 0 to 1")


def the_same_seed_plays_the_same_rounds(build: Build) -> None:
    """Everything is a function of the seed and of the selections."""
    first, second = _play(build(1), UniformRandom), _play(build(1), UniformRandom)
    _require_same(first, second, "two worlds with the same seed differ")


def every_policy_gets_the_same_world(build: Build) -> None:
    """Availability does not depend on who was selected, unless a world says otherwise by its state."""
    if build(1).state():
        return
    for one, other in zip(_play(build(1), UniformRandom), _play(build(1), RoundRobin), strict=True):
        require(
            np.array_equal(one[0].available, other[0].available),
            f"round {one[0].round}: another selection before it changed who is available",
        )


def offers_and_reports_are_complete(build: Build) -> None:
    """An offer has its round and all clients, a report exactly the selected clients."""
    world = build(0)
    for number, (offer, report) in enumerate(_play(world, UniformRandom), start=1):
        require(offer.round == number, f"offer({number}) has the round {offer.round}")
        require(offer.clients == world.clients, f"an offer has {offer.clients} clients, the world {world.clients}")
        require(report.round == number, f"the report of round {number} has the round {report.round}")
        expected = UniformRandom(world.clients, cohort_size=COHORT).ask(offer).clients
        require(
            np.array_equal(np.sort(report.clients), expected),
            f"round {number}: {expected.tolist()} were selected, {report.clients.tolist()} are in the report",
        )


def an_empty_cohort_is_valid(build: Build) -> None:
    """A round without selected clients has a report without clients."""
    world = build(0)
    offer = world.offer(1)
    report = world.play(offer, Selection(1, np.empty(0, dtype=np.int64)))
    require(len(report.clients) == 0, f"nobody was selected, but {report.clients.tolist()} are in the report")


def offering_changes_nothing(build: Build) -> None:
    """`offer` can be called again, with the same result."""
    world = build(0)
    before = world.state()
    first, second = world.offer(1), world.offer(1)
    require(first == second, "two offers of round 1 differ")
    require_same_state(before, world.state(), "offer changed the state")


def a_restored_world_goes_on_alike(build: Build) -> None:
    """`state` has everything that the next round depends on, as plain arrays and numbers."""
    world, half = build(2), ROUNDS // 2
    _play(world, UniformRandom, 1, half)
    saved = world.state()
    require_plain(saved)
    copied = {key: np.array(value) if isinstance(value, np.ndarray) else value for key, value in saved.items()}
    rest = _play(world, UniformRandom, half + 1, ROUNDS)
    require_same_state(copied, saved, "later rounds changed a saved state")
    restored = build(2)
    restored.restore(saved)
    _require_same(rest, _play(restored, UniformRandom, half + 1, ROUNDS), "the restored world differs")


def global_random_state_is_untouched(build: Build) -> None:
    """Global random generators are neither used nor reseeded."""
    with untouched_generators():
        _play(build(0), UniformRandom)


CHECKS: tuple[Callable[[Build], None], ...] = (
    it_is_a_world,
    the_same_seed_plays_the_same_rounds,
    every_policy_gets_the_same_world,
    offers_and_reports_are_complete,
    an_empty_cohort_is_valid,
    offering_changes_nothing,
    a_restored_world_goes_on_alike,
    global_random_state_is_untouched,
)


def _play(
    world: World, policy: Callable[..., SelectionPolicy], first: int = 1, last: int = ROUNDS
) -> list[tuple[RoundOffer, RoundReport]]:
    selecting, played = policy(world.clients, cohort_size=COHORT), []
    for number in range(first, last + 1):
        offer = world.offer(number)
        report = world.play(offer, selecting.ask(offer))
        selecting.tell(report)
        played.append((offer, report))
    return played


def _require_same(first: list[Any], second: list[Any], complaint: str) -> None:
    for (offer, report), (other_offer, other_report) in zip(first, second, strict=True):
        require(offer == other_offer, f"{complaint}: the offers of round {offer.round}")
        require(report == other_report, f"{complaint}: the reports of round {offer.round}")
