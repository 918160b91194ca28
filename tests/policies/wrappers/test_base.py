"""Properties of every wrapper, and the helpers that several wrappers use."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

from narrowing import known
from policies.examples import (
    INNER,
    PAIRS,
    SOME_PAIRS,
    WRAP,
    Contract,
    around,
    nested,
    offer_of,
    play_rounds,
    report_of,
    same_state,
)
from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy
from turnout.errors import ReportError, SettingError
from turnout.kernel.rounds import LateArrivals
from turnout.kernel.slots.turns import TurnStart
from turnout.policies import CoolDown, FedCS, Overcommit, RoundRobin, UniformRandom
from turnout.policies.check_support import SmallFleet
from turnout.policies.registry import WRAPPERS
from turnout.policies.wrappers.base import Wrapper, ask_for_some, merge_selections, resize, restrict_report

#: Every possible pair of a wrapper and a policy inside; fewer of them for tests that take long.
#: Each wrapper once, around policies of every kind.
CONTRACT_PAIRS = [
    *(("overcommit", "rbcsf"), ("eligible", "fastest"), ("exclude-busy", "rbcsf"), ("cool-down", "oort")),
    *(("cool-down-strict", "tifl"), ("quota", "rbcsf"), ("warm-up", "random"), ("with-guarantee", "rbcsf")),
]


# Capabilities


class Plain(Wrapper):
    """A wrapper that changes nothing."""

    name = "plain"


#: Members of SelectionPolicy that a wrapper does not delegate: its own name, and helpers that only read declarations.
NOT_DELEGATED = {"name", "places", "expected_times"}
#: What the memory of a wrapper does for all its parts, one of which is the policy inside.
OF_THE_MEMORY = {"add", "forget", "state", "restore"}


def declared_members() -> set[str]:
    declared = {*vars(SelectionPolicy), *SelectionPolicy.__annotations__, *OF_THE_MEMORY} - NOT_DELEGATED
    return {member for member in declared if not member.startswith("_")}


def test_a_wrapper_delegates_every_member_that_a_policy_declares() -> None:
    """Fails if a capability is added to SelectionPolicy and Wrapper neither sets nor overrides it."""
    delegated = set(vars(Plain(UniformRandom(4)))) | set(vars(Wrapper)) | OF_THE_MEMORY
    assert declared_members() - delegated == set()
    assert {"guarantee", "debts", "time_model", "certificate", "cohort_problem"} <= delegated


@pytest.mark.parametrize("member", sorted(declared_members()))
def test_a_delegated_member_is_that_of_the_policy_inside(member: str) -> None:
    """Every attribute, property and method of the policy inside is replaced with one that can be recognised."""
    marker, calls = object(), []

    def method(_: SelectionPolicy, *arguments: Any, **__: Any) -> object:
        calls.append(arguments)
        return marker

    original = inspect.getattr_static(SelectionPolicy, member)
    if isinstance(original, property):
        replacement: Any = property(method)
    elif callable(original):
        replacement = method
    else:
        replacement = marker
    inner = type("Inner", (RoundRobin,), {member: replacement})(4, cohort_size=2)
    if not callable(original) and not isinstance(original, property):
        setattr(inner, member, marker)
    wrapper = Plain(inner)
    result = getattr(wrapper, member)
    if not callable(original):
        assert result is marker
        return
    offer, report = offer_of(1, [True] * 4), report_of(1, [0])
    arguments: dict[str, tuple[Any, ...]] = {
        "ask": (offer,),
        "cohort_problem": (offer,),
        "client_prices": (offer,),
        "check_offer": (offer,),
        "tell": (report,),
        "check_report": (report,),
        "add": (1,),
        "forget": ([0],),
        "restore": ({"policy.turns": np.zeros(4)},),
        "exploration_at": (3,),
        "tell_started": (TurnStart(1, 0, np.ones(4, dtype=np.bool_), np.empty(0, dtype=np.int64)),),
        "tell_finished": (report,),
    }
    if member == "amended_state":
        inner.amended_state = lambda state, **_: {"marker": state["turns"]}
        assert wrapper.amended_state({"policy.turns": marker}, keep_times=True) == {"policy.marker": marker}
        return
    if member == "state":
        inner.state = lambda: {"marker": marker}
        assert wrapper.state() == {"policy.marker": marker}
        return
    answer = result(*arguments.get(member, ()))
    assert len(calls) == 1
    if member == "restore":
        assert list(calls[0][0]) == ["turns"]
    elif member not in ("ask", "cohort_problem", "client_prices"):  # these get an offer with places
        assert calls[0] == arguments.get(member, ())
    without_answer = ("add", "forget", "restore", "settle", "check_offer", "check_report")
    assert answer is marker or member in without_answer or member.startswith("tell")


def test_a_wrapper_has_no_other_attribute_of_the_policy_inside_and_can_be_copied() -> None:
    policy = CoolDown(Overcommit(INNER["rbcsf"](40), 1.5), 1)
    play_rounds(policy, SmallFleet(), 1, 5)
    with pytest.raises(AttributeError):
        policy.speed_weight  # type: ignore[attr-defined]  # noqa: B018
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin.ask(SmallFleet().offer(6)) == policy.ask(SmallFleet().offer(6))


@pytest.mark.parametrize(("wrap", "inner"), PAIRS)
def test_the_cohort_problem_of_a_wrapper_if_there_is_one_has_the_selection_as_solution(wrap: str, inner: str) -> None:
    policy, fleet, solved = around(wrap, inner), SmallFleet(5, availability=0.4), 0
    for round_ in range(1, 13):
        offer = fleet.offer(round_)
        selection, problem = policy.ask(offer), policy.cohort_problem(offer)
        if problem is not None:
            assert problem.solve().rows.tolist() == selection.clients.tolist()
            solved += 1
        policy.tell(fleet.play(offer, selection))
    assert (solved > 0) == (inner == "rbcsf")


# The contract of policies


@pytest.mark.parametrize(
    ("wrap", "inner"),
    [
        *CONTRACT_PAIRS,
        *(pytest.param(*pair, marks=pytest.mark.thorough) for pair in SOME_PAIRS if pair not in CONTRACT_PAIRS),
    ],
)
def test_a_wrapped_policy_satisfies_the_contract(wrap: str, inner: str, contract: Contract) -> None:
    contract(lambda: around(wrap, inner))


def test_three_nested_wrappers_satisfy_the_contract(contract: Contract) -> None:
    contract(lambda: nested())


@pytest.mark.parametrize(("wrap", "inner"), [(wrap, "rbcsf") for wrap in WRAP])
def test_refused_reports_change_nothing(wrap: str, inner: str) -> None:
    policy = around(wrap, inner)
    play_rounds(policy, SmallFleet(deadline=12.0), 1, 6)
    before = policy.state()
    late = LateArrivals(np.array([1]), np.array([77]), np.ones((1, 3)), np.array([9.0]), np.array([14.0]))
    all_clients = np.ones(40, dtype=bool)
    for report in (
        report_of(7, [99]),
        report_of(7, [1], available=np.ones(41, dtype=bool)),
        report_of(7, [1], available=all_clients, late_arrivals=late),
        report_of(7, [1]),  # its queues need the mask of available clients
        RoundReport(7, np.array([1]), np.ones((1, 2)), np.ones(1), available=all_clients),
    ):
        with pytest.raises(ReportError):
            policy.tell(report)
        assert same_state(before, policy.state())


def test_every_wrapper_is_tested() -> None:
    assert {WRAP[wrap](UniformRandom(40, cohort_size=6)).name for wrap in WRAP} == set(WRAPPERS)


def test_a_wrapper_needs_a_policy() -> None:
    not_a_policy: Any = "rbcsf"
    with pytest.raises(SettingError, match=r"plain needs a policy, such as make_policy\('rbcsf', 40\), got 'rbcsf'"):
        Plain(not_a_policy)


# Helpers


def test_merged_selections_keep_the_reasons_of_each_client() -> None:
    first = Selection(1, np.array([4, 7]), {"owed": np.array([1.0, 2.0]), "objective": np.array(3.0)})
    merged = merge_selections([first, Selection(1, np.array([5]), {"expected": np.array([9.0])})])
    assert merged.clients.tolist() == [4, 5, 7]
    np.testing.assert_array_equal(merged.reasons["owed"], [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(merged.reasons["expected"], [np.nan, 9.0, np.nan])
    assert set(merged.reasons) == {"owed", "expected"}


def test_a_policy_is_not_asked_without_places_or_clients() -> None:
    class NeverAsked(UniformRandom):
        def ask(self, offer: RoundOffer) -> Selection:
            raise AssertionError(f"it was asked for round {offer.round}")

    for offer in (offer_of(3, [True] * 4).restricted(places=0), offer_of(3, [False] * 4)):
        selection = ask_for_some(NeverAsked(4), offer)
        assert (selection.round, selection.clients.tolist()) == (3, [])
    asked = ask_for_some(FedCS(4, deadline=3.0), offer_of(3, [True] * 4, [1.0, 9.0, 1.0, 9.0]))
    assert asked.clients.tolist() == [0, 2]


def test_a_restricted_report_marks_selected_clients_as_available() -> None:
    report = report_of(1, [2], available=[True, True, True, False])
    restricted = restrict_report(report, np.array([True, False, False, True]))
    assert known(restricted.available).tolist() == [True, False, True, False]
    assert known(report.available).tolist() == [True, True, True, False]
    without = report_of(1, [2])
    assert restrict_report(without, np.ones(4, dtype=bool)) is without


def test_an_array_is_cut_or_extended_to_the_number_of_clients() -> None:
    assert resize(np.array([1, 2, 3]), 2, 9).tolist() == [1, 2]
    assert resize(np.array([1, 2]), 4, 9).tolist() == [1, 2, 9, 9]
