from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.analysis.records import steady_world
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import RoundOffer
from turnout.lab.analysis.lemma import AllEstimates, estimate_all, required_exploration
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.play import play
from turnout.lab.worlds.paper import PaperWorld
from turnout.policies.rbcsf import RBCSF, ConstantExploration, TheoreticalExploration


def run(seed: int = 0, rounds: int = 30) -> RoundColumns:
    records = list(play(RBCSF(40), PaperWorld(seed), rounds))
    return RoundColumns.from_records(records, clients=40)


def made_up(predicted: list[list[float]], uncertainty: float, expected: list[list[float]]) -> AllEstimates:
    """Returns estimates of rounds (rows) and clients (columns)."""
    shape = np.array(predicted)
    return AllEstimates(
        np.arange(1.0, len(shape) + 1), shape, np.full(shape.shape, uncertainty), np.array(expected, dtype=np.float64)
    )


def test_the_estimates_of_selected_clients_are_those_of_a_replay() -> None:
    columns, world = run(), PaperWorld(0)
    estimates, model = estimate_all(columns, world), ExchangeTimeModel(40)
    for index, record in enumerate(columns.records()):
        rows, contexts = record.report.clients, record.report.contexts
        np.testing.assert_allclose(estimates.predicted[index, rows], model.predict(contexts, rows))
        np.testing.assert_allclose(estimates.uncertainty[index, rows], model.uncertainty(contexts, rows))
        np.testing.assert_allclose(estimates.expected[index, rows], (contexts * world.theta[rows]).sum(axis=1))
        model.learn_from(record.report)
    assert estimates.predicted.shape == (30, 40)


def test_clients_that_were_never_selected_are_estimated_too() -> None:
    columns = run(rounds=2)
    never = np.setdiff1d(np.arange(40), columns.chosen)
    estimates = estimate_all(columns, PaperWorld(0))
    assert len(never)
    assert not estimates.predicted[:, never].any()
    assert (estimates.expected[:, never] > 0).all()
    # With exploration 0, the band of a client about which nothing is known has no width: all of them are outside.
    assert estimates.covered(ConstantExploration(0.0)) == 0.0
    assert estimates.covered(ConstantExploration(10.0)) == 1.0


def test_coverage_matches_a_manual_computation() -> None:
    # Bands of 2: optimistic times 3, 0 | 3, 0, and expected times must lie in [3, 7] and [0, 4].
    estimates = made_up([[5.0, 1.0], [5.0, 1.0]], 1.0, [[3.0, 4.0], [7.0, 0.0]])
    two = ConstantExploration(2.0)
    assert estimates.optimistic(two).tolist() == [[3.0, 0.0], [3.0, 0.0]]
    assert estimates.covered(two) == 1.0
    assert estimates._replace(expected=np.array([[2.9, 4.0], [7.0, 0.0]])).covered(two) == 0.5
    assert estimates._replace(expected=np.array([[3.0, 4.0], [7.1, 0.0]])).covered(two) == 0.5
    assert estimates._replace(expected=np.array([[3.0, 4.1], [7.1, 0.0]])).covered(two) == 0.0


def test_the_exploration_is_that_of_the_round() -> None:
    estimates = made_up([[5.0], [5.0]], 1.0, [[7.0], [9.0]])
    assert estimates.covered(lambda round_: 2.0 * round_) == 1.0
    assert estimates.covered(lambda round_: 4.0 / round_) == 0.0


@pytest.mark.parametrize(
    ("predicted", "expected", "needed"),
    [(5.0, 3.0, 2.0), (5.0, 8.0, 3.0), (5.0, 10.0, 5.0), (1.0, 8.0, 4.0), (-1.0, 6.0, 3.0)],
)
def test_the_exploration_that_a_client_needs(predicted: float, expected: float, needed: float) -> None:
    estimates = made_up([[predicted]], 0.5, [[expected]])
    assert required_exploration(estimates) == needed / 0.5
    assert estimates.covered(ConstantExploration(needed / 0.5)) == 1.0
    assert estimates.covered(ConstantExploration(0.999 * needed / 0.5)) == 0.0


def test_a_share_of_delta_of_the_clients_may_need_more() -> None:
    estimates = made_up([[10.0] * 10], 1.0, [[10.0 + step for step in range(10)]])
    assert [required_exploration(estimates, delta) for delta in (0.0, 0.1, 0.5, 0.55, 1.0)] == [9.0, 8.0, 4.0, 4.0, 0.0]


positive: st.SearchStrategy[FloatArray] = st.lists(
    st.lists(st.floats(0.0, 20.0), min_size=4, max_size=4), min_size=3, max_size=3
).map(np.array)


@given(positive, positive, st.sampled_from([0.0, 0.25, 0.5]))
@settings(deadline=None)
def test_the_required_exploration_is_the_smallest_that_covers(
    predicted: FloatArray, expected: FloatArray, delta: float
) -> None:
    estimates = AllEstimates(np.arange(1.0, 4.0), predicted, np.full((3, 4), 0.7), expected)
    needed = required_exploration(estimates, delta)
    assert estimates.covered(ConstantExploration(needed * (1 + 1e-9) + 1e-9)) >= 1 - delta
    if needed > 1e-6:
        assert estimates.covered(ConstantExploration(needed * (1 - 1e-6))) < 1 - delta


def schedule_for(world: PaperWorld) -> TheoreticalExploration:
    bounds = world.bounds()
    return TheoreticalExploration(R=bounds["R"], S=bounds["S"], L=bounds["L"], delta=0.1)


def test_the_lemmas_schedule_covers_all_clients_with_an_informative_band_and_a_tenth_of_it_does_not() -> None:
    schedule = schedule_for(steady_world(4))
    records = play(RBCSF(4, cohort_size=3), steady_world(4), 800)
    estimates = estimate_all(RoundColumns.from_records(records, clients=4), steady_world(4))
    assert estimates.covered(schedule) == 1.0
    assert (estimates.optimistic(schedule)[-1] > 0).all()
    assert estimates.covered(lambda round_: schedule(round_) / 10) < 0.9
    # In the paper's world, with its noise, nothing is known after 60 rounds: there the coverage is vacuous.
    schedule = schedule_for(PaperWorld(0))
    assert (estimate_all(run(rounds=60), PaperWorld(0)).optimistic(schedule) > 0).mean() < 0.001


def test_runs_of_other_worlds_are_rejected() -> None:
    with pytest.raises(SettingError, match="round 1 was not played in this world: its exchange times differ"):
        estimate_all(run(0), PaperWorld(1, availability=1.0))

    class Silent(PaperWorld):
        def offer(self, round: int) -> RoundOffer:
            return super().offer(round).without_truth()

    with pytest.raises(SettingError, match="does not state expected times"):
        estimate_all(run(0), Silent(0))
    assert math.isfinite(required_exploration(estimate_all(run(0), PaperWorld(0))))
