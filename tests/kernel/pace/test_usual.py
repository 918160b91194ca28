from __future__ import annotations

import numpy as np
import pytest

from policies.examples import make_report
from turnout.errors import StateError
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.pace.usual import UsualContexts, UsualTimes
from turnout.kernel.rounds import LateArrivals

EVERYONE = np.ones(3, dtype=np.bool_)


def test_the_usual_context_is_the_mean_of_the_own_contexts_and_one_of_the_fleet() -> None:
    usual, model = UsualContexts(3, 2), ExchangeTimeModel(3, features=2)
    model.coefficients[:] = [[1.0, 2.0, -9.0], [10.0, 20.0, 1.0]]
    usual.learn_from(make_report(1, [0, 1], [[1.0, 0.0], [3.0, 2.0]], [5.0, 5.0]))
    usual.learn_from(make_report(2, [0], [[2.0, 4.0]], [5.0]))
    mean = usual.fleet_mean()
    assert mean.tolist() == [2.0, 2.0]
    weighted, weights = usual.terms(model, mean, np.arange(3))
    assert weights.tolist() == [3.0, 2.0, 1.0]
    # Client 0: mean of (1, 0), (2, 4) and the fleet's (2, 2); client 2 has no turns and a negative prediction.
    assert (weighted / weights).tolist() == pytest.approx([5 / 3 + 10 * 2, 2 * 2.5 + 20 * 2.0, 0.0])


def test_before_the_first_turn_the_mean_context_is_zero() -> None:
    assert UsualContexts(3, 2).fleet_mean().tolist() == [0.0, 0.0]


def test_before_the_first_turn_the_mean_time_is_that_of_the_available_clients() -> None:
    usual, times = UsualTimes(3), np.array([1.0, 5.0, 9.0])
    assert usual.fleet_mean(times, np.array([True, True, False])) == 3.0
    assert usual.fleet_mean(times, EVERYONE) == 5.0
    assert usual.fleet_mean(times, np.zeros(3, dtype=np.bool_)) == 0.0


def test_failures_do_not_count() -> None:
    for usual in (UsualContexts(3, 1), UsualTimes(3)):
        usual.learn_from(
            make_report(1, [0, 1, 2], np.ones((3, 1)), [4.0, 6.0, 8.0], outcomes=["arrived", "failed", "late"])
        )
        assert usual.weights(np.arange(3)).tolist() == [2.0, 1.0, 2.0]


def test_the_usual_time_is_the_mean_of_the_own_times_and_one_of_the_fleet() -> None:
    usual = UsualTimes(3)
    usual.learn_from(make_report(1, [0, 1], np.ones((2, 3)), [4.0, 8.0]))
    usual.learn_from(make_report(2, [1], np.ones((1, 3)), [12.0], outcomes=["late"]))
    arrival = LateArrivals(np.array([2]), np.array([1]), np.ones((1, 3)), np.array([12.0]), np.array([18.0]))
    usual.learn_from(make_report(3, [], np.ones((0, 3)), [], late_arrivals=arrival))
    mean = usual.fleet_mean(np.zeros(3), EVERYONE)
    assert mean == 10.0
    weighted, weights = usual.terms(mean, np.arange(3))
    assert (weighted / weights).tolist() == [7.0, 12.0, 10.0]


def test_forget_removes_a_client_from_the_fleets_mean() -> None:
    usual = UsualContexts(3, 1)
    usual.learn_from(make_report(1, [0, 1], [[2.0], [6.0]], [1.0, 1.0]))
    usual.forget(np.array([1]))
    assert usual.fleet_mean().tolist() == [2.0]
    usual.forget(np.array([0]))
    assert usual.fleet_mean().tolist() == [0.0]
    assert not usual.state()["fleet"].any()


def test_the_order_of_the_rows_of_a_report_does_not_affect_rounding() -> None:
    rng = np.random.default_rng(0)
    contexts, order = rng.random((6, 2)) * 1e3, rng.permutation(6)
    sorted_, shuffled = UsualContexts(6, 2), UsualContexts(6, 2)
    sorted_.learn_from(make_report(1, np.arange(6), contexts, np.ones(6)))
    shuffled.learn_from(make_report(1, order, contexts[order], np.ones(6)))
    for key, value in sorted_.state().items():
        assert value.tobytes() == shuffled.state()[key].tobytes()


def test_a_state_of_another_shape_is_refused() -> None:
    usual = UsualContexts(3, 2)
    usual.add(2)
    assert usual.sums.shape == (3, 5)
    state = usual.state()
    usual.restore(state)
    with pytest.raises(StateError, match="sums"):
        UsualContexts(3, 2).restore(state)
    with pytest.raises(StateError, match="fleet"):
        usual.restore({"sums": state["sums"]})
