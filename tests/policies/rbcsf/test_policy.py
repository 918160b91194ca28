from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.literal_rbcsf import LiteralRBCSF
from turnout import RBCSF, RoundOffer, RoundReport
from turnout.errors import InfeasiblePromise, OfferError, ReportError, SettingError, StateError
from turnout.kernel.backend import using_kernel
from turnout.kernel.rounds import LateArrivals
from turnout.policies.small_fleet import SmallFleet


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("speed_weight", [1.0, 20.0])
def test_five_hundred_rounds_equal_the_papers_algorithms_read_literally(kernel: str, speed_weight: float) -> None:
    fleet = SmallFleet(seed=3)
    policy = RBCSF(40, speed_weight=speed_weight, availability=0.8)
    literal = LiteralRBCSF(40, cohort_size=8, guaranteed_rate=Fraction(3, 20), speed_weight=speed_weight)
    with using_kernel(kernel):
        for round_ in range(1, 501):
            offer = fleet.offer(round_)
            selection = policy.ask(offer)
            contexts = offer.contexts.tolist()
            assert selection.clients.tolist() == literal.choose(offer.available.tolist(), contexts)
            report = fleet.play(offer, selection)
            policy.tell(report)
            literal.learn(report.clients.tolist(), contexts, report.exchange_times.tolist())
            owed = policy.queues.owed_exactly()
            assert owed.units_per_turn == 20
            assert [int(units) + owed.credit for units in owed.units] == literal.owed


def play(policy: RBCSF, rounds: int, **fleet_settings: Any) -> None:
    fleet = SmallFleet(clients=policy.clients, **fleet_settings)
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        policy.tell(fleet.play(offer, policy.ask(offer)))


settings_of_all_kinds = st.fixed_dictionaries(
    {
        "cohort_size": st.integers(1, 15),
        "guaranteed_rate": st.sampled_from(["0", "1/20", "3/20", "1/3", "1"]),
        "speed_weight": st.sampled_from([0.0, 1.0, 20.0, 1e4]),
        "exploration": st.sampled_from([0.0, 0.1, 3.0]),
        "accrual": st.sampled_from(["always", "available"]),
        "max_owed": st.sampled_from([None, 0, 2.5]),
        "forgetting": st.sampled_from([1.0, 0.8]),
        "paid": st.sampled_from(["chosen", "contributed"]),
    }
)


@given(settings_of_all_kinds, st.sampled_from([0.1, 0.8, 1.0]), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_certificate_holds_in_every_setting_and_debts_are_never_negative(
    kinds: dict[str, Any], availability: float, seed: int
) -> None:
    policy = RBCSF(12, **kinds, allow_infeasible=True)
    fleet = SmallFleet(seed, clients=12, availability=availability, deadline=12.0, failure_rate=0.2)
    for round_ in range(1, 41):
        offer = fleet.offer(round_)
        policy.tell(fleet.play(offer, policy.ask(offer)))
        assert policy.certificate().holds
        assert (policy.owed >= 0).all()
        assert kinds["max_owed"] is None or (policy.owed <= kinds["max_owed"]).all()


def test_reasons_explain_the_choice() -> None:
    policy = RBCSF(40)
    play(policy, 60)
    offer = SmallFleet().offer(61)
    selection = policy.ask(offer)
    rows = selection.clients
    np.testing.assert_array_equal(selection.reasons["owed"], policy.owed[rows])
    np.testing.assert_array_equal(selection.reasons["optimistic"], policy.model.optimistic(offer.contexts, 0.1)[rows])
    assert selection.reasons["threshold"] == selection.reasons["optimistic"].max()
    objective = 20.0 * selection.reasons["threshold"] - selection.reasons["owed"].sum()
    assert selection.reasons["objective"] == pytest.approx(objective)


def test_a_promise_that_cannot_be_kept_is_refused_before_the_first_round() -> None:
    with pytest.raises(InfeasiblePromise, match=r"largest feasible rate is 0\.08"):
        RBCSF(100)
    with pytest.raises(InfeasiblePromise) as caught:
        RBCSF(40, guaranteed_rate=0.19, availability=0.2)
    assert float(caught.value.largest_rate or 0) == pytest.approx(0.17504, abs=1e-4)
    RBCSF(40, guaranteed_rate=0.19)  # everyone always there: it could be kept
    assert RBCSF(100, allow_infeasible=True).cohort_size == 8


def test_a_share_of_the_rounds_one_volunteers_for_is_easier_to_keep() -> None:
    with pytest.raises(InfeasiblePromise):
        RBCSF(40, guaranteed_rate=0.19, availability=[0.1] + [0.9] * 39)
    RBCSF(40, guaranteed_rate=0.19, availability=[0.1] + [0.9] * 39, accrual="available")


def test_clients_may_be_promised_different_rates() -> None:
    rates = np.where(np.arange(40) < 4, 0.5, 0.1)
    policy = RBCSF(40, guaranteed_rate=rates, speed_weight=1.0)
    play(policy, 400)
    assert (policy.turns[:4] >= 0.5 * 400 - policy.owed[:4]).all()
    assert policy.turns[:4].min() > 185
    assert policy.certificate().promised[:5].tolist() == [200.0] * 4 + [40.0]


def test_a_turn_is_paid_when_chosen_or_only_when_it_contributed() -> None:
    report = RoundReport(1, np.array([0, 1, 2]), np.ones((3, 3)), np.ones(3), outcomes=["arrived", "late", "failed"])
    chosen, contributed = RBCSF(4, cohort_size=3), RBCSF(4, cohort_size=3, paid="contributed")
    for policy in (chosen, contributed):
        policy.tell(report)
    assert chosen.turns.tolist() == [1, 1, 1, 0]
    assert contributed.turns.tolist() == [1, 0, 0, 0]
    assert contributed.owed.tolist() == [0.0, 0.15, 0.15, 0.15]


def test_a_late_arrival_ends_where_the_truth_would_have_led() -> None:
    corrected, told = RBCSF(4, cohort_size=2), RBCSF(4, cohort_size=2)
    contexts = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 3.0]])
    first: Any = {"round": 1, "clients": np.array([0, 1]), "contexts": contexts}
    corrected.tell(RoundReport(**first, exchange_times=np.array([3.0, 9.0]), outcomes=["arrived", "late"]))
    told.tell(RoundReport(**first, exchange_times=np.array([3.0, 14.0])))
    arrivals = LateArrivals(np.array([1]), np.array([1]), contexts[1:], np.array([9.0]), np.array([14.0]))
    second: Any = {"round": 2, "clients": np.array([1, 2]), "contexts": contexts, "exchange_times": np.ones(2)}
    corrected.tell(RoundReport(**second, late_arrivals=arrivals))
    told.tell(RoundReport(**second))
    np.testing.assert_allclose(corrected.model.bank, told.model.bank, atol=1e-12)
    np.testing.assert_array_equal(corrected.owed, told.owed)


def test_a_client_that_never_returns_ends_near_its_guaranteed_share() -> None:
    """Learned as the deadline it is slow; were it never learned, it would look fastest for ever."""
    policy = RBCSF(20, cohort_size=4, guaranteed_rate=0.1, speed_weight=5.0)
    fleet = SmallFleet(clients=20, deadline=30.0)
    for round_ in range(1, 401):
        offer = fleet.offer(round_)
        report = fleet.play(offer, policy.ask(offer))
        dead = report.clients == 0
        times = np.where(dead, 30.0, report.exchange_times)
        outcomes = np.where(dead, "late", "arrived")
        policy.tell(RoundReport(round_, report.clients, report.contexts, times, outcomes=outcomes))
    assert policy.turns[0] / 400 < 0.12


def test_the_schedule_of_the_theory_can_be_asked_for() -> None:
    policy = RBCSF(40, exploration="theory", theory={"R": 5.0, "S": 5.0, "L": 11.0, "delta": 0.05})
    assert policy.exploration(1) > 5
    play(policy, 3)


def test_contexts_outside_a_declared_range_are_refused_and_change_nothing() -> None:
    policy = RBCSF(4, cohort_size=2, context_range=[(0.1, 10), (0, 1), (0, 100)])
    contexts = np.ones((4, 3))
    before = policy.state()
    wild = contexts.copy()
    wild[3, 2] = 1e5
    with pytest.raises(OfferError, match=r"contexts\[3, 2\] = 100000.0 is outside the declared range \[0, 100\]"):
        policy.ask(RoundOffer(1, np.ones(4, dtype=bool), wild))
    with pytest.raises(ReportError, match=r"contexts\[3, 2\]"):
        policy.tell(RoundReport(1, np.array([3]), wild[3:], np.array([1.0])))
    assert all(np.array_equal(before[key], policy.state()[key]) for key in before)
    untold = contexts.copy()
    untold[1] = 0.0  # below the range, but it is not there and has told nothing
    assert len(policy.ask(RoundOffer(1, np.array([True, False, True, True]), untold)).clients) == 2
    with pytest.raises(OfferError, match=r"contexts\[3, 2\]"):
        policy.ask(RoundOffer(1, np.array([True, False, True, True]), np.where(wild > 2, wild, untold)))
    with pytest.raises(SettingError, match="context_range must be 3 pairs"):
        RBCSF(4, context_range=[(0, 1)])


def test_any_number_of_features() -> None:
    policy = RBCSF(10, cohort_size=3, features=5)
    rng = np.random.default_rng(0)
    for round_ in range(1, 30):
        offer = RoundOffer(round_, rng.random(10) < 0.8, rng.random((10, 5)))
        chosen = policy.ask(offer).clients
        policy.tell(RoundReport(round_, chosen, offer.contexts[chosen], rng.random(len(chosen))))
    with pytest.raises(OfferError, match="contexts have 3 features, but rbcsf was built for 5"):
        policy.ask(RoundOffer(1, np.ones(10, dtype=bool), np.ones((10, 3))))
    with pytest.raises(ReportError, match="contexts have 3 features, but rbcsf was built for 5"):
        policy.tell(RoundReport(1, np.array([1]), np.ones((1, 3)), np.ones(1)))


def test_a_refused_report_changes_nothing() -> None:
    policy = RBCSF(4, cohort_size=2)
    play(policy, 5)
    before = policy.state()
    arrivals = LateArrivals(np.array([1]), np.array([9]), np.ones((1, 3)), np.array([9.0]), np.array([14.0]))
    with pytest.raises(ReportError, match=r"late_arrivals.clients\[0\] = 9 is unknown"):
        policy.tell(RoundReport(6, np.array([1]), np.ones((1, 3)), np.ones(1), late_arrivals=arrivals))
    assert all(np.array_equal(before[key], policy.state()[key]) for key in before)


def test_a_state_of_another_fleet_is_refused_and_changes_nothing() -> None:
    policy, other = RBCSF(40), RBCSF(41)
    play(policy, 5)
    before = policy.state()
    for state in (other.state(), {}, {**before, "turns": np.zeros(3)}, {**RBCSF(40, features=2).state()}):
        with pytest.raises(StateError):
            policy.restore(state)
        assert all(np.array_equal(before[key], policy.state()[key]) for key in before)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"cohort_size": 0}, "cohort_size must be at least 1"),
        ({"guaranteed_rate": 1.5}, r"guaranteed_rate must lie in \[0, 1\], not 1.5"),
        ({"speed_weight": -1}, "speed_weight must be at least 0"),
        ({"ridge": 0}, "ridge must be above 0"),
        ({"accrual": "never"}, "accrual must be"),
        ({"paid": "never"}, "paid must be"),
        ({"exploration": "much"}, "exploration must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        RBCSF(40, **setting)
