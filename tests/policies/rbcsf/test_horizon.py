from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from narrowing import known
from turnout import RBCSF, RoundOffer, RoundReport
from turnout.lab import PaperWorld, play
from turnout.policies.rbcsf.horizon import Horizon


@pytest.mark.parametrize("seeds", [2, pytest.param(10, marks=pytest.mark.thorough)])
def test_the_guarantee_is_met_by_the_horizon_where_the_rule_of_the_paper_is_far_from_it(seeds: int) -> None:
    """In the paper's world; the paper's rule meets it only with a small weight and longer rounds."""
    smallest_shares: dict[str, float] = {}
    durations: dict[str, float] = {}
    for name, settings in (
        ("horizon", {"speed_weight": 20.0, "horizon": 200, "prior": "fleet"}),
        ("paper", {"speed_weight": 20.0}),
        ("small weight", {"speed_weight": 0.5}),
    ):
        shares, seconds = [], []
        for seed in range(seeds):
            policy = RBCSF(40, **settings)
            seconds += [record.report.duration for record in play(policy, PaperWorld(seed), 200)]
            shares.append(policy.turns.min() / 200)
        smallest_shares[name], durations[name] = float(np.mean(shares)), float(np.mean(seconds))
    assert smallest_shares["horizon"] > 0.14
    assert smallest_shares["paper"] < 0.05
    assert smallest_shares["small weight"] > 0.13
    assert durations["horizon"] < 0.93 * durations["small weight"]


def test_the_weight_grows_to_the_one_that_was_set_and_prices_in_seconds_do_not_change() -> None:
    horizon = Horizon(3, 100, 20.0)
    weights = [horizon.weight(round_) for round_ in range(1, 101)]
    assert weights[0] == pytest.approx(2.0)
    assert all(later >= earlier for earlier, later in pairwise(weights))
    assert set(weights[30:]) == {20.0}
    horizon.backlog = np.array([4.0, 1.0, 0.0])
    horizon.advance(5, np.array([0]), np.array([0.5, 0.5, 0.5]), 8.0)
    assert horizon.mean_round == 8.0
    before_growth = np.array([3.5, 1.5, 0.5])
    np.testing.assert_allclose(horizon.backlog / horizon.weight(6), before_growth / horizon.weight(5))


def test_a_client_that_is_far_behind_is_worth_more_and_most_near_the_end() -> None:
    horizon = Horizon(2, 100, 20.0)
    for duration in (4.0, 8.0):
        horizon.advance(40, np.array([0, 1]), np.zeros(2), duration)
    behind = np.array([1.2, -5.0])
    assert horizon.debts(40, behind).tolist() == [0.0, 0.0]  # 60 rounds are left
    early, late = horizon.debts(90, behind)[0], horizon.debts(100, behind)[0]
    assert early == pytest.approx(6 * 20 * (1.2 - 0.7))
    assert late == pytest.approx(6 * 20 * (1.2 - 0.5))
    assert horizon.debts(200, behind)[0] == late  # the guarantee stays in force after the horizon


def test_the_turns_promised_in_this_round_count_as_behind() -> None:
    """In the last of two rounds a client without a turn is one turn behind: half a turn from each round.

    The slack is then half a turn, so half a turn is pressing. It is worth half a mean round of 10 s, times V = 20, and
    comes on top of the backlog, which grew with V.
    """
    policy = RBCSF(2, cohort_size=1, guaranteed_rate=0.5, horizon=2, speed_weight=20.0)
    assert policy.horizon is not None
    policy.tell(RoundReport(1, np.array([0]), np.ones((1, 3)), np.array([10.0])))
    problem = policy.cohort_problem(RoundOffer(2, np.ones(2, dtype=bool), np.ones((2, 3))))
    values = (problem.values.units + problem.values.credit) / problem.values.units_per_turn
    backlog = 0.5 * 20.0 / policy.horizon.weight(1)
    assert values.tolist() == pytest.approx([0.0, backlog + 0.5 * 10.0 * 20.0])


def test_only_available_clients_add_to_their_backlog_if_accrual_depends_on_availability() -> None:
    policy = RBCSF(4, cohort_size=1, guaranteed_rate=0.2, horizon=50, accrual="available")
    available = np.array([True, True, False, True])
    offer = RoundOffer(1, available, np.ones((4, 3)))
    chosen = policy.ask(offer).clients
    policy.tell(RoundReport(1, chosen, np.ones((1, 3)), np.array([3.0]), available=available))
    assert (known(policy.horizon).backlog > 0).tolist() == [False, True, False, True]


def test_clients_can_join_a_run_with_a_horizon() -> None:
    policy = RBCSF(5, cohort_size=2, guaranteed_rate=0.1, horizon=50)
    policy.tell(RoundReport(1, np.array([0, 1]), np.ones((2, 3)), np.array([3.0, 4.0])))
    policy.add(3)
    assert (known(policy.horizon).backlog > 0).tolist() == [False, False, True, True, True, False, False, False]
    assert len(policy.ask(RoundOffer(2, np.ones(8, bool), np.ones((8, 3)))).clients) == 2
