"""check_policy: what every policy keeps. Our tests run it over ours; run it over yours.

A check is a function that plays a policy on a small fleet and raises PolicyCheckError, with what it saw, where
a promise is broken.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from turnout.errors import OfferError, PolicyCheckError, TurnoutError
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.small_fleet import SmallFleet

Build: TypeAlias = Callable[[], SelectionPolicy]

ROUNDS = 30


def check_policy(
    build: Callable[[int], SelectionPolicy] | Callable[[], SelectionPolicy], *, clients: int = 40
) -> list[str]:
    """Hold a policy to the promises that the rest of turnout relies on; the names of those it keeps.

    `build` makes a fresh policy for a number of clients, or, without an argument, for its own number.

    >>> from turnout import RBCSF
    >>> check_policy(RBCSF)[:2]
    ['it has a name', 'the cohort is a set of available clients']
    """
    fresh = _builder(build, clients)
    kept = []
    for check in CHECKS:
        promise = check.__name__.replace("_", " ")
        try:
            check(fresh)
        except PolicyCheckError as broken:
            raise PolicyCheckError(f"{promise}: {broken}") from None
        kept.append(promise)
    return kept


def it_has_a_name(build: Build) -> None:
    """A name is how stores, tables and the command line know a policy."""
    policy = build()
    _require(isinstance(policy, SelectionPolicy), f"{policy!r} is not a SelectionPolicy")
    _require(bool(getattr(policy, "name", "")), "a policy needs a class attribute `name`")


def asking_changes_nothing(build: Build) -> None:
    """The state after `ask` is the state before it."""
    policy = build()
    for offer, _ in _played(policy):
        before = policy.state()
        policy.ask(offer)
        _require_same_state(before, policy.state(), f"ask changed the state in round {offer.round}")


def asking_twice_gives_the_same_answer(build: Build) -> None:
    """`ask` is a function of the offer and the reports told so far."""
    policy = build()
    for offer, _ in _played(policy):
        first, second = policy.ask(offer), policy.ask(offer)
        _require(first == second, f"asked twice in round {offer.round}: {first.clients}, then {second.clients}")


def the_offer_is_left_as_it_was(build: Build) -> None:
    """Nobody writes to an offer."""
    policy = build()
    for offer, _ in _played(policy):
        copy = _copied(offer)
        policy.ask(offer)
        _require(offer == copy, f"ask changed the offer of round {offer.round}")


def the_cohort_is_a_set_of_available_clients(build: Build) -> None:
    """Nobody is chosen who does not volunteer, and nobody twice."""
    policy = build()
    for offer, selection in _played(policy, availability=0.3):
        chosen = selection.clients.tolist()
        absent = [row for row in chosen if not offer.available[row]]
        _require(not absent, f"round {offer.round}: {absent} were chosen but are not available")
        _require(len(set(chosen)) == len(chosen), f"round {offer.round}: {chosen} holds a client twice")


def the_cohort_has_the_wanted_size(build: Build) -> None:
    """cohort_size clients, or all that are available if fewer are."""
    for availability in (1.0, 0.8, 0.1):
        policy = build()
        for offer, selection in _played(policy, availability=availability):
            if policy.cohort_size is None or not policy.fills_cohort:
                continue
            wanted = min(policy.cohort_size, int(offer.available.sum()))
            _require(
                len(selection.clients) == wanted,
                f"round {offer.round}: {len(selection.clients)} chosen, {wanted} wanted",
            )


def an_empty_offer_gives_an_empty_cohort(build: Build) -> None:
    """Nobody available is an ordinary round."""
    policy = build()
    for round_, availability in enumerate((0.8, 0.0, 0.8), start=1):
        fleet = SmallFleet(clients=policy.clients, availability=availability)
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        _require(availability > 0 or len(selection.clients) == 0, f"{selection.clients} chosen of nobody")
        policy.tell(fleet.play(offer, selection))


def the_selection_is_of_the_offered_round(build: Build) -> None:
    """A selection carries its round."""
    policy = build()
    for offer, selection in _played(policy):
        _require(selection.round == offer.round, f"offered round {offer.round}, selected for {selection.round}")


def order_does_not_matter(build: Build) -> None:
    """Neither the memory order of an offer, nor what is said of absent clients, nor the order in a report."""
    policy, other = build(), build()
    fleet = SmallFleet(clients=policy.clients, deadline=15.0, failure_rate=0.1, losses=True)
    for round_ in range(1, ROUNDS + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        for twin, what in (
            (replace(offer, contexts=np.asfortranarray(offer.contexts)), "the memory order of contexts"),
            (_other_absentees(offer), "the contexts of absent clients"),
        ):
            answer = other.ask(twin)
            _require(
                np.array_equal(np.sort(answer.clients), np.sort(selection.clients)),
                f"{what} changed the choice of round {round_} from {selection.clients} to {answer.clients}",
            )
        report = fleet.play(offer, selection)
        policy.tell(report)
        other.tell(_reversed(report))
        _require_same_state(policy.state(), other.state(), f"the order of the report of round {round_} left a trace")


def state_and_restore_round_trip(build: Build) -> None:
    """A restored policy is the policy that was saved; its state is plain arrays and numbers."""
    policy = build()
    for offer, _ in _played(policy, deadline=15.0, failure_rate=0.1, losses=True):
        saved = policy.state()
        for key, value in saved.items():
            _require(_is_plain(value), f"state[{key!r}] is a {type(value).__name__}, not a plain array or number")
        twin = build()
        twin.restore(saved)
        _require_same_state(saved, twin.state(), f"restore lost something in round {offer.round}")
        _require(
            twin.ask(offer) == policy.ask(offer),
            f"the restored policy chooses otherwise in round {offer.round}",
        )


def a_saved_state_does_not_change(build: Build) -> None:
    """What `state` gave out is not touched by later rounds, and restoring it goes back."""
    policy = build()
    fleet = SmallFleet(clients=policy.clients)
    _play_round(policy, fleet, 1)
    saved = policy.state()
    copy = {key: np.array(value) for key, value in saved.items()}
    for round_ in range(2, 6):
        _play_round(policy, fleet, round_)
    _require_same_state(copy, saved, "the saved state changed with later rounds")
    policy.restore(saved)
    _play_round(policy, fleet, 6)
    _require_same_state(copy, saved, "the saved state changed after it was restored")


def replay_gives_the_same_next_choice(build: Build) -> None:
    """The state is the fold of the reports."""
    policy, reports = build(), []
    fleet = SmallFleet(clients=policy.clients, deadline=15.0, failure_rate=0.1, losses=True)
    for round_ in range(1, ROUNDS + 1):
        reports.append(_play_round(policy, fleet, round_))
    replayed = build()
    for report in reports:
        replayed.tell(report)
    offer = fleet.offer(ROUNDS + 1)
    _require_same_state(policy.state(), replayed.state(), "replaying the reports gives another state")
    _require(policy.ask(offer) == replayed.ask(offer), "replaying the reports gives another next choice")


def bad_offers_and_reports_are_refused(build: Build) -> None:
    """An offer or a report for another fleet is a TurnoutError and changes nothing."""
    policy = build()
    stranger = SmallFleet(clients=policy.clients + 1)
    fleet = SmallFleet(clients=policy.clients)
    _play_round(policy, fleet, 1)
    before = policy.state()
    offer = stranger.offer(2)
    _require_refusal(lambda: policy.ask(offer), "an offer for one client more")
    report = stranger.play(offer, Selection(2, np.array([policy.clients])))
    _require_refusal(lambda: policy.tell(replace(report, available=None)), "a report of an unknown client")
    _require_same_state(before, policy.state(), "a refused offer or report changed the state")
    try:
        policy.ask(replace(fleet.offer(2), expected_times=None))
    except OfferError:
        return  # it says that it must be told the truth
    _require_same_state(before, policy.state(), "ask changed the state")


def global_random_state_is_untouched(build: Build) -> None:
    """Chance comes from round_rng: no global generator is read or reseeded."""
    import random

    before_numpy, before_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    policy = build()
    choices = [selection for _, selection in _played(policy)]
    after_numpy = np.random.get_state()  # noqa: NPY002
    _require(
        all(np.array_equal(a, b) for a, b in zip(before_numpy, after_numpy, strict=True))
        and before_python == random.getstate(),
        "the policy drew from, or reseeded, a global random generator",
    )
    _require(choices == [selection for _, selection in _played(build())], "two fresh policies choose differently")


CHECKS: tuple[Callable[[Build], None], ...] = (
    it_has_a_name,
    the_cohort_is_a_set_of_available_clients,
    an_empty_offer_gives_an_empty_cohort,
    the_cohort_has_the_wanted_size,
    the_selection_is_of_the_offered_round,
    asking_changes_nothing,
    asking_twice_gives_the_same_answer,
    the_offer_is_left_as_it_was,
    order_does_not_matter,
    state_and_restore_round_trip,
    a_saved_state_does_not_change,
    replay_gives_the_same_next_choice,
    bad_offers_and_reports_are_refused,
    global_random_state_is_untouched,
)


def _builder(build: Callable[..., SelectionPolicy], clients: int) -> Build:
    try:
        inspect.signature(build).bind()
    except TypeError:
        return lambda: build(clients)
    return build


def _played(policy: SelectionPolicy, **fleet_settings: Any) -> Iterator[tuple[RoundOffer, Selection]]:
    """Rounds on a small fleet; each is handed out before it is told."""
    fleet = SmallFleet(clients=policy.clients, **fleet_settings)
    for round_ in range(1, ROUNDS + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        yield offer, selection
        policy.tell(fleet.play(offer, selection))


def _play_round(policy: SelectionPolicy, fleet: SmallFleet, round_: int) -> RoundReport:
    offer = fleet.offer(round_)
    report = fleet.play(offer, policy.ask(offer))
    policy.tell(report)
    return report


def _copied(offer: RoundOffer) -> RoundOffer:
    times = offer.expected_times
    return RoundOffer(
        offer.round, offer.available.copy(), offer.contexts.copy(), None if times is None else times.copy()
    )


def _other_absentees(offer: RoundOffer) -> RoundOffer:
    absent = ~offer.available
    contexts, times = offer.contexts.copy(), offer.expected_times
    contexts[absent] = contexts[absent][::-1]
    if times is not None:
        times = np.where(absent, times[::-1], times)
    return RoundOffer(offer.round, offer.available, contexts, times)


def _reversed(report: RoundReport) -> RoundReport:
    return replace(
        report,
        clients=report.clients[::-1],
        contexts=report.contexts[::-1],
        exchange_times=report.exchange_times[::-1],
        outcomes=None if report.outcomes is None else report.outcomes[::-1],
        losses=None if report.losses is None else report.losses[::-1],
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufU"
    return isinstance(value, bool | int | float | str)


def _require(kept: bool, complaint: str) -> None:
    if not kept:
        raise PolicyCheckError(complaint)


def _require_same_state(one: dict[str, Any], other: dict[str, Any], complaint: str) -> None:
    _require(one.keys() == other.keys(), f"{complaint}: {sorted(one)} became {sorted(other)}")
    for key in one:
        _require(np.array_equal(np.asarray(one[key]), np.asarray(other[key])), f"{complaint}: {key!r} differs")


def _require_refusal(act: Callable[[], object], what: str) -> None:
    try:
        act()
    except TurnoutError:
        return
    except Exception as other:
        raise PolicyCheckError(f"{what} raised {other!r}, not a TurnoutError") from other
    raise PolicyCheckError(f"{what} was accepted")
