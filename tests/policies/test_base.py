"""Properties of every policy and wrapper: places, forgetting, and the defaults of the base class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import known
from policies.examples import NEEDS_SIZE, WRAP, offer_of, same_state
from turnout import POLICIES, Selection, SelectionPolicy, make_policy
from turnout.errors import StateError
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.policies import CoolDown, FedCS, RoundRobin, UniformRandom, WithGuarantee
from turnout.policies.check_support import SmallFleet
from turnout.policies.registry import setting_names

#: Differs from every other length in a state, so that an axis of this length is one of clients.
CLIENTS = 23
FORGOTTEN, ABSENT = 21, 2  # the first is slow enough to be late
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in POLICIES if name != "fedcs"},
    "power-of-choice with candidates": ("power-of-choice", {"candidates": 12}),
    "data-size with replacement": ("data-size", {"replacement": True}),
    "oort with a blacklist": ("oort", {"max_turns": 2, "pacer_window": 2}),
    "tifl with credits": ("tifl", {"credits": 2, "tiers": 3, "profiling_rounds": 3, "retier_every": 4, "interval": 2}),
    "refl with a window": ("refl", {"window": 3}),
    "rbcsf with a horizon": ("rbcsf", {"horizon": 20}),
    "rbcsf with forgetting": ("rbcsf", {"forgetting": 0.9}),
    "rbcsf with a prior": ("rbcsf", {"prior": "fleet"}),
    "rbcsf with a cap": ("rbcsf", {"accrual": "available", "counts": "completed", "max_owed": 2}),
}
Build = Callable[[int], SelectionPolicy]


def _build(name: str, more: dict[str, Any]) -> Build:
    infeasible = {"allow_infeasible": True} if "allow_infeasible" in setting_names(name) else {}
    return lambda size: make_policy(name, CLIENTS, cohort_size=size, **infeasible, **more)


def _wrapped(wrapper: str, inner: Build) -> Build:
    return lambda size: WRAP[wrapper](inner(size))


SIZED: dict[str, Build] = {label: _build(name, more) for label, (name, more) in SETTINGS.items()}
SIZED |= {
    f"{wrapper}({inner})": _wrapped(wrapper, SIZED[inner])
    for wrapper in WRAP
    for inner in ("random", "rbcsf", "oort", "cs-ucb")
}
SIZED["nested"] = lambda size: CoolDown(WithGuarantee(SIZED["overcommit(rbcsf)"](size), 0.1, allow_infeasible=True), 1)
#: Each wrapper is also tested around rbcsf and one of the other policies.
REPEATED = {
    f"{wrapper}({inner})"
    for position, wrapper in enumerate(WRAP)
    for turn, inner in enumerate(("random", "oort", "cs-ucb"))
    if turn != position % 3
}
UNSIZED: dict[str, Build] = {
    "fedcs": lambda _: FedCS(CLIENTS, estimates="learned", deadline=9.0),
    **{
        f"{wrapper}(fedcs)": _wrapped(wrapper, lambda _: FedCS(CLIENTS, estimates="learned", deadline=9.0))
        for wrapper in WRAP
        if wrapper not in NEEDS_SIZE
    },
}


def labels(*builds: dict[str, Build]) -> pytest.MarkDecorator:
    """Parametrises a test with the labels of policies; `make test` leaves out some of the wrapped ones."""
    every = [label for each in builds for label in each]
    return pytest.mark.parametrize(
        "label", [pytest.param(label, marks=pytest.mark.thorough if label in REPEATED else ()) for label in every]
    )


def fleet_of(seed: int) -> SmallFleet:
    return SmallFleet(seed, clients=CLIENTS, availability=0.7, deadline=12.0, failure_rate=0.1, losses=True)


def play(policy: SelectionPolicy, fleet: SmallFleet, rounds: int, *, absent: int | None = None) -> None:
    """Plays rounds in which FORGOTTEN always takes part and `absent` is never available."""
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        available = offer.available.copy()
        available[FORGOTTEN] = True
        if absent is not None:
            available[absent] = False
        offer = replace(offer, available=available)
        policy.tell(fleet.play(offer, Selection(round_, np.union1d(policy.ask(offer).clients, [FORGOTTEN]))))


def per_client(state: dict[str, Any], client: int) -> dict[tuple[str, int], Any]:
    """Returns the entries of one client, by key and axis."""
    return {
        (key, axis): array.take(client, axis)
        for key, array in {key: np.asarray(value) for key, value in state.items()}.items()
        for axis in range(array.ndim)
        if array.shape[axis] == CLIENTS
    }


def equal(label: str, array: Any, other: Any) -> bool:
    """Compares arrays; with a fleet-wide prior up to rounding errors, which each change of it adds."""
    has_prior = "prior" in label or "fair-pace" in label
    return bool(np.allclose(array, other, rtol=1e-9) if has_prior else np.array_equal(array, other))


def is_of_the_certificate(key: str, state: dict[str, Any]) -> bool:
    """Whether a key holds turns taken or owed under a guarantee, which a policy does not forget."""
    path, _, name = key.rpartition(".")
    of_queues = path.endswith("queues") or key.endswith("horizon.backlog")
    counts_turns = name == "turns" and (f"{path}.queues.balance" if path else "queues.balance") in state
    return of_queues or counts_turns


@labels(SIZED)
@given(st.integers(0, 10**6), st.integers(5, 14), st.integers(3, 12), st.integers(3, 12))
@settings(max_examples=2, deadline=None)
def test_an_offer_with_places_is_answered_as_by_a_policy_with_that_cohort_size(
    label: str, seed: int, rounds: int, size: int, other_size: int
) -> None:
    policy, resized, fleet = SIZED[label](size), SIZED[label](other_size), fleet_of(seed)
    play(policy, fleet, rounds)
    resized.restore(policy.state())
    offer = fleet.offer(rounds + 1)
    assert policy.ask(offer.restricted(places=resized.cohort_size)) == resized.ask(offer)
    assert policy.ask(offer.restricted(places=policy.cohort_size)) == policy.ask(offer)


@pytest.mark.parametrize("label", UNSIZED)
def test_a_policy_whose_cohort_has_no_fixed_size_ignores_places(label: str) -> None:
    policy, fleet = UNSIZED[label](5), fleet_of(1)
    assert policy.cohort_size is policy.target_size is None
    play(policy, fleet, 12)
    offer = fleet.offer(13)
    selection = policy.ask(offer)
    assert len(selection.clients) > 1
    assert policy.ask(offer.restricted(places=1)) == selection
    assert policy.places(offer.restricted(places=1)) == CLIENTS


@labels(SIZED, UNSIZED)
@given(st.integers(0, 10**6), st.integers(5, 14))
@settings(max_examples=2, deadline=None)
def test_a_forgotten_client_has_the_state_of_a_client_that_never_took_part(label: str, seed: int, rounds: int) -> None:
    policy = (SIZED | UNSIZED)[label](5)
    play(policy, fleet_of(seed), rounds, absent=ABSENT)
    before = policy.state()
    policy.forget([FORGOTTEN])
    after = policy.state()
    forgotten, absent = per_client(after, FORGOTTEN), per_client(after, ABSENT)
    for key, axis in forgotten:
        if is_of_the_certificate(key, after):
            kept = per_client(before, FORGOTTEN)[key, axis]
            assert np.array_equal(forgotten[key, axis], kept), f"forget changed {key}, which the certificate needs"
        else:
            assert equal(label, forgotten[key, axis], absent[key, axis]), f"{key} still holds the client's history"
    for key, axis in forgotten:
        if "fair-pace" in label and key.endswith("model.bank"):
            continue  # the fleet-wide regression, towards which it shrinks estimates, forgets the client too
        then, now = (np.delete(np.asarray(state[key]), FORGOTTEN, axis) for state in (before, after))
        assert np.array_equal(now, then), f"forget changed {key} of another client"


@labels(SIZED, UNSIZED)
def test_forgetting_a_client_that_never_took_part_changes_nothing(label: str) -> None:
    policy = (SIZED | UNSIZED)[label](5)
    play(policy, fleet_of(4), 8, absent=ABSENT)
    before = policy.state()
    policy.forget([ABSENT])
    policy.forget([])
    after = policy.state()
    assert before.keys() == after.keys()
    assert all(equal(label, before[key], after[key]) for key in before)


@labels(SIZED, UNSIZED)
def test_rows_that_are_not_clients_cannot_be_forgotten(label: str) -> None:
    policy = (SIZED | UNSIZED)[label](5)
    play(policy, fleet_of(4), 2)
    before = policy.state()
    for wrong in ([CLIENTS], [0, -1], [1, 1], [0.5]):
        with pytest.raises(StateError, match="rows"):
            policy.forget(wrong)
        assert same_state(before, policy.state())


#: Parts of a state that are saved only if there is something to save.
OPTIONAL = ("forfeited", "retired", "base", "discounted")


@labels(SIZED, UNSIZED)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(label: str) -> None:
    policy = (SIZED | UNSIZED)[label](5)
    play(policy, fleet_of(4), 8)
    before = policy.state()
    for key, value in before.items():
        if key.endswith(OPTIONAL):
            continue
        wrong = [{name: saved for name, saved in before.items() if name != key}]
        if "queues." not in key:  # rates and rounds are one number for all clients, or one for each
            wrong.append({**before, key: np.zeros((3, 3)) if np.ndim(value) else "many"})
        for state in wrong:
            with pytest.raises(StateError):
                policy.restore(state)
            assert same_state(before, policy.state())


def test_the_state_of_a_played_policy_has_entries_per_client() -> None:
    """Otherwise the properties above would be empty."""
    learns_nothing = {"random", "skewed", "fastest", "data-size", "data-size with replacement"}
    without = {label for label in SIZED if not per_client(SIZED[label](5).state(), 0)}
    random_inside = {f"{wrapper}(random)" for wrapper in ("overcommit", "eligible", "quota", "warm-up")}
    assert without == learns_nothing | random_inside


def test_the_defaults_of_the_base_class_declare_no_capability() -> None:
    policy = UniformRandom(6, cohort_size=2)
    for capability in (policy.guarantee, policy.debts, policy.time_model, policy.features):
        assert capability is None
    assert policy.certificate() is None
    assert policy.exploration_at(1) is None
    assert policy.cohort_problem(offer_of(1, [True] * 6)) is None
    assert (policy.fills_cohort, policy.requires_expected_times, policy.target_size) == (True, False, 2)
    assert policy.places(offer_of(1, [True] * 6)) == 2
    assert policy.places(offer_of(1, [True] * 6).restricted(places=4)) == 4


def test_a_policy_with_state_must_implement_forget() -> None:
    class Unforgetting(UniformRandom):
        name = "unforgetting"

        def state(self) -> dict[str, Any]:
            return {"turns": 3}

    with pytest.raises(StateError, match=r"unforgetting has state but no method forget\(rows\)"):
        Unforgetting(4).forget([1])
    UniformRandom(4).forget([1])


@pytest.mark.parametrize("label", [label for label in SIZED if SIZED[label](5).debts is not None])
def test_the_objects_of_the_capabilities_stay_the_same(label: str) -> None:
    policy = SIZED[label](5)
    capabilities = [policy.debts, policy.time_model]
    play(policy, fleet_of(2), 5)
    saved = policy.state()
    policy.forget([FORGOTTEN])
    policy.restore(saved)
    assert all(now is then for now, then in zip([policy.debts, policy.time_model], capabilities, strict=True))
    assert known(policy.certificate()).owed.tolist() == known(policy.debts).owed.tolist()


def test_features_of_a_policy_that_does_not_say_how_cannot_be_amended() -> None:
    policy = RoundRobin(4, cohort_size=2)
    state = {"turns": np.arange(4)}
    assert policy.amended_state(state, keep_times=False) == state
    policy.time_model = ExchangeTimeModel(4)
    assert policy.amended_state(state, keep_times=True) == state
    with pytest.raises(StateError, match="round-robin learns times but has no amended_state"):
        policy.amended_state(state, keep_times=False)
