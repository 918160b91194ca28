"""After `forget` no number of FairPace's state depends on what the client reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.examples import make_report, same_state
from turnout import FairPace, RoundOffer, RoundReport
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.rounds import LateArrivals

CLIENTS, FORGOTTEN = 9, [2, 5]


def played(scale: float, rounds: int = 80, **settings: Any) -> FairPace:
    """Returns a policy after given cohorts; the times and contexts of the clients to forget are scaled."""
    policy = FairPace(CLIENTS, cohort_size=3, guaranteed_rate=0.2, allow_infeasible=True, **settings)
    rng = np.random.default_rng(11)
    late: LateArrivals | None = None
    for round_ in range(1, rounds + 1):
        available = rng.random(CLIENTS) < 0.9
        available[:3] = True
        rows = rng.choice(np.flatnonzero(available), 3, replace=False)
        contexts = rng.uniform(0.5, 2, (3, 3)) * [1.0, 1e3, 1e-2]
        times = rng.uniform(1, 30, 3)
        outcomes = np.array(["arrived", "arrived", "arrived", "late", "failed"])[rng.integers(0, 5, 3)]
        own = np.where(np.isin(rows, FORGOTTEN), scale, 1.0)
        report = make_report(
            round_,
            rows,
            contexts * own[:, None],
            times * own,
            available=available,
            outcomes=outcomes,
            losses=np.where(outcomes == "arrived", times * own, np.nan),
            late_arrivals=late,
        )
        policy.tell(report)
        late = late_arrivals(report, rows, own)
    return policy


def late_arrivals(report: RoundReport, rows: IntArray, scale: FloatArray) -> LateArrivals | None:
    late = report.with_outcome("late")
    if not late.any():
        return None
    deadlines = report.exchange_times[late]
    return LateArrivals(
        np.full(int(late.sum()), report.round),
        rows[late],
        report.contexts[late],
        deadlines,
        deadlines + 7 * scale[late],
    )


def assert_close(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert state.keys() == other.keys()
    for key in state:
        values = np.asarray(other[key], dtype=np.float64)
        scale = max(float(np.abs(values[np.isfinite(values)]).max(initial=0.0)), 1e-300)
        np.testing.assert_allclose(state[key], other[key], rtol=1e-8, atol=1e-10 * scale, err_msg=key)


@pytest.mark.parametrize(
    "settings",
    [{}, {"accrual": "always"}, {"times": "expected"}, {"counts": "completed"}, {"value": "loss"}],
)
@pytest.mark.parametrize("rounds", [3, 30, pytest.param(80, marks=pytest.mark.thorough)])
def test_the_state_does_not_depend_on_what_forgotten_clients_reported(settings: dict[str, Any], rounds: int) -> None:
    plain, scaled = played(1.0, rounds, **settings), played(1 + 1e-5, rounds, **settings)
    assert not same_state(plain.state(), scaled.state())
    for policy in (plain, scaled):
        policy.forget(FORGOTTEN)
    assert_close(plain.state(), scaled.state())
    offer = RoundOffer(999, np.ones(CLIENTS, dtype=np.bool_), np.ones((CLIENTS, 3)), expected_times=np.ones(CLIENTS))
    assert plain.ask(offer).clients.tolist() == scaled.ask(offer).clients.tolist()


def test_even_times_and_contexts_that_are_a_hundred_times_larger_leave_no_trace() -> None:
    """The ridges follow the fleet's mean squares, so large contexts change them for everybody until `forget`."""
    plain, scaled = played(1.0), played(100.0)
    for policy in (plain, scaled):
        policy.forget(FORGOTTEN)
    for key, value in plain.state().items():
        np.testing.assert_allclose(value, scaled.state()[key], rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("settings", [{}, {"accrual": "always"}, {"times": "expected"}, {"value": "loss"}])
def test_a_fleet_of_forgotten_clients_has_learned_nothing(settings: dict[str, Any]) -> None:
    policy = played(1.0, **settings)
    policy.forget(range(CLIENTS))
    new = FairPace(CLIENTS, cohort_size=3, guaranteed_rate=0.2, allow_infeasible=True, **settings).state()
    for key, value in policy.state().items():
        if key.split(".")[0] not in ("turns", "queues") and key != "presence.discounted":
            np.testing.assert_allclose(value, new[key], err_msg=key)


def test_a_forgotten_client_that_always_accrues_is_not_taken_for_one_that_is_never_there() -> None:
    policy = played(1.0, accrual="always")
    before = policy.pace().allowed
    policy.forget(FORGOTTEN)
    allowed = np.asarray(policy.pace().allowed) / policy.debts.units_per_turn
    # The allowance of a client that is there for its first round: p = 2/3.
    assert allowed[FORGOTTEN].tolist() == pytest.approx([2 - 0.2 * (1 + np.log(0.001) / np.log(1 / 3))] * 2)
    others = np.setdiff1d(np.arange(CLIENTS), FORGOTTEN)
    assert allowed[others].tolist() == (np.asarray(before)[others] / policy.debts.units_per_turn).tolist()
    assert policy.turns[FORGOTTEN].min() > 0  # the certificate needs the turns


def test_learning_goes_on_after_forget() -> None:
    """The prior is recomputed from the times that are left, and then whenever their number has grown by a tenth."""
    policy = played(1.0)
    policy.forget(list(range(1, CLIENTS)))
    model = policy.time_model
    assert model is not None
    prior = model.state()["pool"][12:15].copy()
    report = make_report(100, [3], np.ones((1, 3)), [500.0], available=np.ones(CLIENTS, dtype=np.bool_))
    for _ in range(4):
        policy.tell(report)
    assert not np.allclose(model.state()["pool"][12:15], prior)
