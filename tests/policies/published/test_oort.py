from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import report_of
from policies.literal_oort import LiteralOort, outcomes_of
from turnout.errors import SettingError
from turnout.kernel.rounds import LateArrivals
from turnout.policies import Oort
from turnout.policies.check_support import SmallFleet

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
        new = [literal.clients[row]["last_round"] is None for row in selection.clients.tolist()]
        assert selection.reasons["explored"].tolist() == new
        report = fleet.play(offer, selection)
        late = LateArrivals(
            np.array([selected_in for selected_in, _ in pending], dtype=np.int64),
            np.array([row for _, row in pending], dtype=np.int64),
            np.ones((len(pending), 3)),
            np.full(len(pending), 12.0),
            np.full(len(pending), 12.0 + round_ / 7),
        )
        report = replace(report, late_arrivals=late)
        policy.tell(report)
        literal.learn(round_, outcomes_of(report), dict.fromkeys(pending, 12.0 + round_ / 7))
        outcomes = [] if report.outcomes is None else report.outcomes
        pending = [
            (round_, row) for row, outcome in zip(report.clients.tolist(), outcomes, strict=True) if outcome == "late"
        ]
        assert policy.preferred_duration == pytest.approx(literal.preferred_duration())
        assert np.flatnonzero(policy.blacklisted).tolist() == sorted(literal.blacklist())


def test_the_windows_of_the_pacer_start_again_after_a_client_with_turns_is_forgotten() -> None:
    policy = Oort(4, pacer_window=2)
    for round_ in (1, 2, 3):
        policy.tell(report_of(round_, [0, 1], losses=[5.0, 1.0]))
    gathered = policy.state()["gathered"]
    policy.forget([3])  # had no turns, so no sum includes its utility
    assert policy.state()["gathered"].tolist() == gathered.tolist() != [0.0] * 4
    policy.forget([0])
    assert policy.state()["gathered"].tolist() == [0.0] * 4


def test_the_true_time_of_a_late_client_replaces_the_deadline_unless_it_trained_since() -> None:
    policy = Oort(2)
    policy.tell(report_of(1, [0, 1], times=[9.0, 9.0], outcomes=["late", "late"]))
    policy.tell(report_of(2, [1], times=[3.0]))
    arrivals = LateArrivals(
        np.array([1, 1]), np.array([0, 1]), np.ones((2, 3)), np.full(2, 9.0), np.array([14.0, 15.0])
    )
    policy.tell(report_of(3, [], late_arrivals=arrivals))
    assert policy.durations.tolist() == [14.0, 3.0]


def test_no_client_can_join_if_sizes_or_speeds_are_given() -> None:
    for policy, setting in ((Oort(3, sizes=[1.0] * 3), "data sizes"), (Oort(3, speeds=[1.0] * 3), "speeds")):
        with pytest.raises(SettingError, match=f"oort has the {setting} of 3 clients, so 2 more cannot join"):
            policy.add(2)
        policy.add(0)
        assert policy.clients == 3
