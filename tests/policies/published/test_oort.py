from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import turns_after
from policies.literal_oort import LiteralOort, outcomes_of
from turnout import RoundOffer, RoundReport
from turnout.errors import SettingError
from turnout.kernel.rounds import LateArrivals
from turnout.policies import Oort
from turnout.policies.check_support import SmallFleet


def offer_to(clients: int, round_: int, available: list[bool] | None = None) -> RoundOffer:
    mask = np.ones(clients, dtype=bool) if available is None else np.array(available)
    return RoundOffer(round_, mask, np.ones((clients, 3)))


def report_of(
    round_: int,
    rows: list[int],
    *,
    times: list[float] | None = None,
    losses: list[float] | None = None,
    outcomes: list[str] | None = None,
    late: LateArrivals | None = None,
) -> RoundReport:
    return RoundReport(
        round_,
        np.array(rows, dtype=np.int64),
        np.ones((len(rows), 3)),
        np.ones(len(rows)) if times is None else np.array(times),
        losses=None if losses is None else np.array(losses),
        outcomes=outcomes,
        late_arrivals=late,
    )


all_settings = st.fixed_dictionaries(
    {
        "cohort_size": st.sampled_from([1, 3, 8, 15]),
        "sizes": st.sampled_from([None, [float(row % 5 + 1) for row in range(20)]]),
        "speeds": st.sampled_from([None, [float(row % 3) for row in range(20)]]),
        "exploration": st.sampled_from([0.9, 0.3]),
        "exploration_decay": st.sampled_from([0.98, 0.7]),
        "least_exploration": st.sampled_from([0.2, 0.0]),
        "clip": st.sampled_from([0.95, 0.5]),
        "cutoff": st.sampled_from([0.95, 0.2, 0.0]),
        "penalty": st.sampled_from([2.0, 0.0]),
        "pacer_unit": st.sampled_from(["share", "seconds"]),
        "pacer_start": st.sampled_from([0.3, 5.0]),
        "pacer_step": st.sampled_from([0.05, 2.0]),
        "pacer_window": st.sampled_from([2, 5]),
        "max_turns": st.sampled_from([None, 3]),
        "blacklist_share": st.sampled_from([0.3, 1.0]),
        "seed": st.integers(0, 100),
    }
)


@given(all_settings, st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 1.0]), st.booleans())
@settings(max_examples=15, deadline=None)
def test_it_selects_the_same_clients_as_a_literal_implementation(
    chosen_settings: dict[str, Any], seed: int, availability: float, losses: bool
) -> None:
    policy, literal = Oort(20, **chosen_settings), LiteralOort(20, **chosen_settings)
    fleet = SmallFleet(seed, clients=20, availability=availability, deadline=12.0, failure_rate=0.2, losses=losses)
    pending: list[tuple[int, int]] = []
    for round_ in range(1, 41):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        assert selection.clients.tolist() == literal.choose(np.flatnonzero(offer.available).tolist(), round_)
        report = fleet.play(offer, selection)
        late = LateArrivals(
            np.array([selected_in for selected_in, _ in pending], dtype=np.int64),
            np.array([row for _, row in pending], dtype=np.int64),
            np.ones((len(pending), 3)),
            np.full(len(pending), 12.0),
            np.full(len(pending), 12.0 + round_ / 7),
        )
        report = RoundReport(
            round_,
            report.clients,
            report.contexts,
            report.exchange_times,
            report.available,
            report.outcomes,
            report.losses,
            late_arrivals=late,
        )
        policy.tell(report)
        literal.learn(round_, outcomes_of(report), dict.fromkeys(pending, 12.0 + round_ / 7))
        outcomes = [] if report.outcomes is None else report.outcomes
        pending = [
            (round_, row) for row, outcome in zip(report.clients.tolist(), outcomes, strict=True) if outcome == "late"
        ]
        assert policy.preferred_duration == pytest.approx(literal.preferred_duration())
        assert np.flatnonzero(policy.blacklisted).tolist() == sorted(literal.blacklist())


def test_the_utility_is_that_of_the_paper() -> None:
    policy = Oort(4, sizes=[10.0, 20.0, 30.0, 40.0], clip=1.0, pacer_unit="seconds", pacer_start=5.0)
    policy.tell(report_of(2, [0, 1], times=[4.0, 10.0], losses=[3.0, 2.0]))
    policy.tell(report_of(4, [2, 3], times=[4.0, 4.0], losses=[1.0, 2.5]))
    rows = np.arange(4)
    gains = [30.0, 40.0, 30.0, 100.0]
    expected = [
        (gain - 30) / 70 + math.sqrt(0.1 * math.log(9) / last) for gain, last in zip(gains, [2, 2, 4, 4], strict=True)
    ]
    expected[1] *= (5.0 / 10.0) ** 2
    np.testing.assert_allclose(policy.utilities(rows, 9), expected)


def test_an_outlier_of_the_utility_is_clipped() -> None:
    policy = Oort(20, staleness=0.0)
    policy.tell(report_of(1, list(range(20)), losses=[*np.linspace(1, 2, 18).tolist(), 3.0, 1e6]))
    utilities = policy.utilities(np.arange(20), 2)
    assert utilities[19] == 1.0 == utilities.max()
    assert utilities[17] > 1e-6  # the outlier does not scale it down to nothing
    clipped = Oort(20, staleness=0.0, clip=0.5)
    clipped.tell(report_of(1, list(range(20)), losses=list(range(20))))
    assert clipped.utilities(np.arange(20), 2).tolist() == [*(row / 10 for row in range(10)), *[1.0] * 10]


def test_exploration_decays_to_a_minimum() -> None:
    policy = Oort(200, cohort_size=20)
    policy.tell(report_of(1, list(range(100)), losses=[1.0] * 100))
    explored = [int(policy.ask(offer_to(200, round_)).reasons["explored"].sum()) for round_ in (1, 2, 40, 1000)]
    assert explored == [18, 18, 9, 4]  # 0.9, 0.882, 0.41 and 0.2 of 20; the share of known clients is rounded down


def test_new_clients_are_sampled_in_proportion_to_their_speeds() -> None:
    policy = Oort(2, cohort_size=1, speeds=[1.0, 3.0])
    selected = [int(policy.ask(offer_to(2, round_)).clients[0]) for round_ in range(1, 801)]
    assert np.mean(selected) == pytest.approx(0.75, abs=0.035)
    without_speeds = Oort(2, cohort_size=1)
    selected = [int(without_speeds.ask(offer_to(2, round_)).clients[0]) for round_ in range(1, 801)]
    assert np.mean(selected) == pytest.approx(0.5, abs=0.04)


def test_known_clients_above_the_cutoff_are_sampled_in_proportion_to_utility() -> None:
    policy = Oort(5, cohort_size=1, exploration=0.0, least_exploration=0.0, staleness=0.0, cutoff=0.2)
    policy.tell(report_of(1, [0, 1, 2, 3, 4], losses=[0.0, 0.1, 0.3, 0.6, 1.0]))  # utilities are the losses
    selected = np.bincount([int(policy.ask(offer_to(5, round_)).clients[0]) for round_ in range(2, 1502)], minlength=5)
    assert selected[:2].sum() == 0  # below 0.2 of the best
    np.testing.assert_allclose(selected[2:] / 1500, np.array([0.3, 0.6, 1.0]) / 1.9, atol=0.03)


def test_the_pacer_relaxes_if_the_utility_of_a_window_is_below_that_of_the_one_before() -> None:
    policy = Oort(4, pacer_window=3, pacer_unit="seconds", pacer_start=2.0, pacer_step=0.5)
    paces = []
    for round_, loss in enumerate([5, 5, 5, 4, 4, 4, 4, 4, 4, 6, 6, 6, 1, 1, 1], start=1):
        policy.tell(report_of(round_, [0], losses=[float(loss)]))
        paces.append(policy.preferred_duration)
    assert paces == [2.0] * 5 + [2.5] * 9 + [3.0]


def test_the_windows_of_the_pacer_start_again_after_a_client_with_turns_is_forgotten() -> None:
    policy = Oort(4, pacer_window=2)
    for round_ in (1, 2, 3):
        policy.tell(report_of(round_, [0, 1], losses=[5.0, 1.0]))
    gathered = policy.state()["gathered"]
    policy.forget([3])  # had no turns, so no sum includes its utility
    assert policy.state()["gathered"].tolist() == gathered.tolist() != [0.0] * 4
    policy.forget([0])
    assert policy.state()["gathered"].tolist() == [0.0] * 4


def test_the_preferred_duration_is_a_quantile_of_the_known_durations() -> None:
    policy = Oort(20)
    assert policy.preferred_duration == math.inf
    policy.tell(report_of(1, list(range(10)), times=[float(row + 1) for row in range(10)]))
    assert policy.preferred_duration == 4.0
    policy.relaxed = 100
    assert policy.preferred_duration == 10.0


def test_clients_with_most_turns_are_blacklisted_and_only_fill_up_cohorts() -> None:
    policy = Oort(10, cohort_size=4, max_turns=2, blacklist_share=0.35)
    for round_, rows in enumerate([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 5]], start=1):
        policy.tell(report_of(round_, rows, losses=[9.0] * len(rows)))
    assert np.flatnonzero(policy.blacklisted).tolist() == [
        0,
        1,
        2,
    ]  # 3.5 clients are 3; client 3 has as many turns as client 2
    for round_ in range(5, 60):
        assert not set(policy.ask(offer_to(10, round_)).clients.tolist()) & {0, 1, 2}
    few = [row in (0, 1, 2, 7, 8) for row in range(10)]
    assert policy.ask(offer_to(10, 5, few)).clients.tolist()[-2:] == [7, 8]
    assert policy.ask(offer_to(10, 5, few)).clients.tolist()[:2] == [0, 2]  # client 2 had fewer turns than client 1


def test_cohorts_are_full_if_all_utilities_are_0() -> None:
    policy = Oort(40)
    policy.tell(report_of(1, list(range(40)), losses=[0.0] * 40))
    selected = set()
    for round_ in range(2, 60):
        chosen = policy.ask(offer_to(40, round_)).clients.tolist()
        assert len(chosen) == 8
        selected |= set(chosen)
    assert len(selected) == 40


def test_a_client_that_failed_has_no_utility_until_its_next_turn() -> None:
    policy = Oort(3, staleness=0.0, clip=1.0)
    policy.tell(report_of(1, [0, 1, 2], losses=[4.0, 2.0, 1.0]))
    policy.tell(report_of(2, [0], losses=[math.nan], outcomes=["failed"], times=[99.0]))
    assert policy.utilities(np.arange(3), 3).tolist() == [0.0, 1.0, 0.5]
    assert policy.durations[0] == 1.0  # a failure contains no information about speed
    policy.tell(report_of(3, [0], losses=[math.nan], outcomes=["late"], times=[30.0]))
    assert policy.utilities(np.arange(3), 4)[1] == pytest.approx(1 / 3)  # its loss of 4 counts again
    assert policy.durations[0] == 30.0


def test_the_true_time_of_a_late_client_replaces_the_deadline_unless_it_trained_since() -> None:
    policy = Oort(2)
    policy.tell(report_of(1, [0, 1], times=[9.0, 9.0], outcomes=["late", "late"]))
    policy.tell(report_of(2, [1], times=[3.0]))
    arrivals = LateArrivals(
        np.array([1, 1]), np.array([0, 1]), np.ones((2, 3)), np.full(2, 9.0), np.array([14.0, 15.0])
    )
    policy.tell(report_of(3, [], late=arrivals))
    assert policy.durations.tolist() == [14.0, 3.0]


def test_without_losses_utility_is_data_size() -> None:
    policy = Oort(3, sizes=[1.0, 2.0, 3.0], staleness=0.0, clip=1.0, penalty=0.0)
    policy.tell(report_of(1, [0, 1, 2]))
    assert policy.utilities(np.arange(3), 2).tolist() == [0.0, 0.5, 1.0]


def test_slow_clients_are_selected_rarely() -> None:
    turns = turns_after(Oort(40, pacer_step=0.0), 150, seed=2, losses=True)
    assert turns[30:].sum() < turns[:30].sum() / 3  # the slowest class takes three times as long as the others


def test_no_client_can_join_if_sizes_or_speeds_are_given() -> None:
    for policy, setting in ((Oort(3, sizes=[1.0] * 3), "data sizes"), (Oort(3, speeds=[1.0] * 3), "speeds")):
        with pytest.raises(SettingError, match=f"oort has the {setting} of 3 clients, so 2 more cannot join"):
            policy.add(2)
        policy.add(0)
        assert policy.clients == 3
