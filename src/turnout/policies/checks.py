"""check_policy: the conformance suite that every policy must pass.

A check is a function that plays a policy on a small fleet and raises PolicyCheckError with what it observed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace

import numpy as np

from turnout.errors import OfferError, PolicyCheckError, StateError
from turnout.kernel.rounds import RoundReport, Selection
from turnout.kernel.slots.turns import RunningTurns, TurnStart
from turnout.policies.base import SelectionPolicy
from turnout.policies.check_support import (
    ROUNDS,
    Build,
    SmallFleet,
    equals_joining_client,
    eventful_fleet,
    freeze,
    make_builder,
    numbers_of,
    other_report,
    other_unavailable,
    play_round,
    played,
    require,
    require_plain,
    require_refusal,
    require_same_state,
    require_size,
    reverse_report,
    run_checks,
    untouched_generators,
    with_client,
    with_flag,
)

SLOTS = 4


def check_policy(
    build: Callable[[int], SelectionPolicy] | Callable[[], SelectionPolicy], *, clients: int = 40
) -> list[str]:
    """Checks that a policy satisfies the contract on which the rest of turnout relies, and returns the checks' names.

    Args:
        build: Builds a new policy for a number of clients, or, if it takes no argument, for a number of its own.
        clients: The number of clients.

    Raises:
        PolicyCheckError: If a check fails.

    >>> from turnout import RBCSF
    >>> check_policy(RBCSF)[:2]
    ['it has a name', 'the cohort is a set of available clients']
    """
    return run_checks(CHECKS, make_builder(build, clients), "policy", PolicyCheckError)


def it_has_a_name(build: Build) -> None:
    """Stores, tables and the command line identify a policy by its name."""
    policy = build()
    require(isinstance(policy, SelectionPolicy), f"{policy!r} is not a SelectionPolicy")
    require(bool(policy.name), "a policy needs a class attribute `name`")


def asking_changes_nothing(build: Build) -> None:
    """`ask` leaves the state as it was, and assigns no attribute, not even temporarily."""
    policy = build()
    for offer, _ in played(policy):
        before = policy.state()
        policy.ask(offer)
        require_same_state(before, policy.state(), f"ask changed the state in round {offer.round}")
    before = policy.state()
    with freeze(policy) as frozen:
        for places in (None, 1, 3):
            offer = SmallFleet(clients=policy.clients).offer(ROUNDS + 1).restricted(places=places)
            try:
                frozen.ask(offer)
            except AttributeError as assigned:
                raise PolicyCheckError(f"ask with places={places} {assigned}") from None
    require_same_state(before, policy.state(), "ask with places changed the state")


def asking_twice_gives_the_same_answer(build: Build) -> None:
    """`ask` is a function of the offer and of the reports so far."""
    policy = build()
    for offer, _ in played(policy):
        first, second = policy.ask(offer), policy.ask(offer)
        if first != second:
            raise PolicyCheckError(f"asked twice in round {offer.round}: {first.clients}, then {second.clients}")


def the_offer_is_left_as_it_was(build: Build) -> None:
    """A policy does not write to an offer."""
    policy = build()
    for offer, _ in played(policy):
        copy = deepcopy(offer)
        policy.ask(offer)
        require(offer == copy, f"ask changed the offer of round {offer.round}")


def the_cohort_is_a_set_of_available_clients(build: Build) -> None:
    """Only available clients are selected, and none of them twice."""
    for offer, selection in played(build(), availability=0.3):
        chosen = selection.clients.tolist()
        absent = [row for row in chosen if not offer.available[row]]
        require(not absent, f"round {offer.round}: {absent} were chosen but are not available")
        require(len(set(chosen)) == len(chosen), f"round {offer.round}: {chosen} holds a client twice")


def the_cohort_has_the_requested_size(build: Build) -> None:
    """The cohort has `places` or else cohort_size clients, or all available ones if there are fewer."""
    for availability in (1.0, 0.8, 0.1):
        policy = build()
        for offer, selection in played(policy, availability=availability):
            if policy.cohort_size is None:
                continue
            require_size(policy, offer, selection, policy.cohort_size)
            for places in (1, policy.cohort_size + 2):
                require_size(policy, offer, policy.ask(offer.restricted(places=places)), places)


def an_empty_offer_gives_an_empty_cohort(build: Build) -> None:
    """A round without available clients is valid."""
    policy = build()
    for round_, availability in enumerate((0.8, 0.0, 0.8), start=1):
        fleet = SmallFleet(clients=policy.clients, availability=availability)
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        require(availability > 0 or len(selection.clients) == 0, f"{selection.clients} selected from an empty offer")
        policy.tell(fleet.play(offer, selection))


def the_selection_is_of_the_offered_round(build: Build) -> None:
    """A selection has the number of its round."""
    policy = build()
    for offer, selection in played(policy):
        require(selection.round == offer.round, f"offered round {offer.round}, selected for {selection.round}")


def order_does_not_matter(build: Build) -> None:
    """Memory order, the contexts of unavailable clients and the order of a report have no influence."""
    policy, other = build(), build()
    fleet = eventful_fleet(policy)
    for round_ in range(1, ROUNDS + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        for twin, what in (
            (replace(offer, contexts=np.asfortranarray(offer.contexts)), "the memory order of contexts"),
            (other_unavailable(offer), "the contexts of unavailable clients"),
        ):
            answer = other.ask(twin)
            if not np.array_equal(np.sort(answer.clients), np.sort(selection.clients)):
                raise PolicyCheckError(
                    f"{what} changed the selection of round {round_} from {selection.clients} to {answer.clients}"
                )
        report = fleet.play(offer, selection)
        policy.tell(report)
        other.tell(reverse_report(report))
        require_same_state(
            policy.state(), other.state(), f"the order of the report of round {round_} changed the state"
        )


def state_and_restore_round_trip(build: Build) -> None:
    """A restored policy equals the saved one; the state consists of plain arrays and numbers."""
    policy = build()
    for offer, _ in played(policy, deadline=15.0, failure_rate=0.1, losses=True):
        saved = policy.state()
        require_plain(saved)
        twin = build()
        twin.restore(saved)
        require_same_state(saved, twin.state(), f"restore lost something in round {offer.round}")
        require(
            twin.ask(offer) == policy.ask(offer), f"the restored policy selects other clients in round {offer.round}"
        )


def it_continues_after_an_amendment(build: Build) -> None:
    """A policy that takes over the state of another one selects what that one would have selected."""
    policy = build()
    for offer, _ in played(policy):
        saved = policy.state()
        expected = policy.ask(offer)
        policy.settle()
        require(policy.ask(offer) == expected, f"settle changed the selection of round {offer.round}")
        successor = build()
        successor.restore(successor.amended_state(policy.state(), keep_times=True))
        require(
            successor.ask(offer) == expected,
            f"a policy that took over the state selects other clients in round {offer.round}",
        )
        policy.restore(saved)


def a_saved_state_does_not_change(build: Build) -> None:
    """Later rounds do not change a saved state, and restoring it returns to it."""
    policy = build()
    fleet = SmallFleet(clients=policy.clients)
    play_round(policy, fleet, 1)
    saved = policy.state()
    copy = {key: np.array(value) for key, value in saved.items()}
    for round_ in range(2, 6):
        play_round(policy, fleet, round_)
    require_same_state(copy, saved, "the saved state changed with later rounds")
    policy.restore(saved)
    play_round(policy, fleet, 6)
    require_same_state(copy, saved, "the saved state changed after it was restored")


def replay_gives_the_same_next_selection(build: Build) -> None:
    """The state is a function of the reports."""
    policy, reports = build(), []
    fleet = eventful_fleet(policy)
    for round_ in range(1, ROUNDS + 1):
        reports.append(play_round(policy, fleet, round_))
    replayed = build()
    for report in reports:
        replayed.tell(report)
    offer = fleet.offer(ROUNDS + 1)
    require_same_state(policy.state(), replayed.state(), "replaying the reports gives another state")
    require(policy.ask(offer) == replayed.ask(offer), "replaying the reports gives another next selection")


def turns_can_be_given_one_at_a_time_or_are_refused(build: Build) -> None:
    """With `fills_slots`, a policy gives one turn for a slot while others last; otherwise it refuses to count it."""
    policy = build()
    fleet, running, reports = SmallFleet(clients=policy.clients), RunningTurns(policy.clients), dict[int, RoundReport]()
    if not policy.fills_slots:
        first = TurnStart(1, 0, np.ones(policy.clients, dtype=np.bool_), np.empty(0, dtype=np.int64))
        require_refusal(lambda: policy.tell_started(first), "a turn that was given for a slot, without fills_slots")
        return
    for decision in range(1, ROUNDS + 1):
        if len(running) == min(SLOTS, policy.clients):
            ended = int(running.rows[0])
            running.finish(ended)
            policy.tell_finished(reports.pop(ended))
        offer = fleet.offer(decision).restricted(running.idle, 1)
        before, selection = policy.state(), policy.ask(offer)
        require_same_state(before, policy.state(), f"ask for one slot changed the state in decision {decision}")
        restored = build()
        restored.restore(before)
        require(restored.ask(offer) == selection, f"decision {decision}: a restored policy selects another client")
        require_size(policy, offer, selection, 1)
        if not len(selection.clients):
            continue
        client, present = int(selection.clients[0]), offer.available | ~running.idle
        require(bool(offer.available[client]), f"decision {decision}: {client} was selected but is not available")
        turn = TurnStart(decision, client, present, running.capped(decision, policy.debts))
        reports[client] = fleet.play(offer, selection)
        policy.tell_started(turn)
        running.start(turn)


def a_forgotten_client_leaves_no_trace(build: Build) -> None:
    """After `forget` the state does not depend on what the client reported, except in sums over many clients.

    Two twins get the same reports, except that one client reports other times, losses and contexts. After it is
    forgotten, its entries must be the same in both, or those of a client that has just joined.
    """
    policy, twin = build(), build()
    fleet = eventful_fleet(policy)
    client, reported = 1, []
    for round_ in range(1, ROUNDS + 1):
        offer = fleet.offer(round_)
        selection = with_client(policy.ask(offer), client)
        report = fleet.play(replace(offer, available=with_flag(offer.available, client)), selection)
        other = other_report(report, client)
        policy.tell(report)
        twin.tell(other)
        reported += [*numbers_of(report, client), *numbers_of(other, client)]
    try:
        policy.forget([client])
        twin.forget([client])
    except StateError as refused:
        raise PolicyCheckError(str(refused)) from None
    states, clients = (policy.state(), twin.state()), policy.clients
    for key in states[0]:
        mine, others = (np.asarray(state[key]) for state in states)
        for array in (mine, others):
            if array.dtype.kind == "f":
                require(not np.isin(array, reported).any(), f"state[{key!r}] holds a number that the client reported")
        for axis in range(mine.ndim):
            if mine.shape[axis] == clients and not np.array_equal(mine.take(client, axis), others.take(client, axis)):
                require(
                    equals_joining_client(policy, key, client, axis),
                    f"state[{key!r}] still depends on what the forgotten client reported",
                )


def bad_offers_and_reports_are_refused(build: Build) -> None:
    """An offer or a report for another fleet raises TurnoutError and changes nothing."""
    policy = build()
    stranger = SmallFleet(clients=policy.clients + 1)
    fleet = SmallFleet(clients=policy.clients)
    play_round(policy, fleet, 1)
    before = policy.state()
    offer = stranger.offer(2)
    require_refusal(lambda: policy.ask(offer), "an offer with one more client")
    report = stranger.play(offer, Selection(2, np.array([policy.clients])))
    require_refusal(lambda: policy.tell(replace(report, available=None)), "a report of an unknown client")
    with suppress(OfferError):  # of a policy that needs the expected times
        policy.ask(replace(fleet.offer(2), expected_times=None))
    require_same_state(before, policy.state(), "a refused offer or report changed the state")


def global_random_state_is_untouched(build: Build) -> None:
    """Global random generators are neither used nor reseeded."""
    with untouched_generators():
        selections = [selection for _, selection in played(build())]
    require(selections == [selection for _, selection in played(build())], "two new policies select differently")


CHECKS: tuple[Callable[[Build], None], ...] = (
    it_has_a_name,
    the_cohort_is_a_set_of_available_clients,
    an_empty_offer_gives_an_empty_cohort,
    the_cohort_has_the_requested_size,
    the_selection_is_of_the_offered_round,
    asking_changes_nothing,
    asking_twice_gives_the_same_answer,
    the_offer_is_left_as_it_was,
    order_does_not_matter,
    state_and_restore_round_trip,
    it_continues_after_an_amendment,
    a_saved_state_does_not_change,
    replay_gives_the_same_next_selection,
    turns_can_be_given_one_at_a_time_or_are_refused,
    a_forgotten_client_leaves_no_trace,
    bad_offers_and_reports_are_refused,
    global_random_state_is_untouched,
)
