from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.exchange_time import BLOCK, ExchangeTimeModel
from turnout.policies.rbcsf import TheoreticalExploration, exploration_from


def batch_regression(
    contexts: FloatArray, times: FloatArray, ridge: float, forgetting: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Returns H⁻¹ and theta-hat computed from all samples at once, as the paper defines them."""
    weight = forgetting ** np.arange(len(times))[::-1]
    h = ridge * np.eye(contexts.shape[1]) + (contexts * weight[:, None]).T @ contexts
    inverse: FloatArray = np.linalg.inv(h).astype(np.float64)
    return inverse, inverse @ (contexts * (weight * times)[:, None]).sum(axis=0)


@given(
    features=st.integers(1, 6),
    samples=st.integers(0, 25),
    ridge=st.sampled_from([0.1, 1.0, 5.0]),
    forgetting=st.sampled_from([1.0, 0.99, 0.7]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_incremental_updates_equal_the_regression_on_all_samples(
    features: int, samples: int, ridge: float, forgetting: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    model = ExchangeTimeModel(3, features=features, ridge=ridge, forgetting=forgetting)
    contexts, times = rng.random((samples, features)) * 3, rng.random(samples) * 20
    for context, time in zip(contexts, times, strict=True):
        model.learn([1], [context], [time])
    inverse, theta = batch_regression(contexts, times, ridge, forgetting)
    queries = rng.random((3, features))
    assert model.predict(queries)[1] == pytest.approx(queries[1] @ theta, abs=1e-8)
    assert model.uncertainty(queries)[1] == pytest.approx(np.sqrt(queries[1] @ inverse @ queries[1]), abs=1e-8)
    assert model.predict(queries)[[0, 2]].tolist() == [0.0, 0.0]
    assert model.uncertainty(queries)[0] == pytest.approx(np.linalg.norm(queries[0]) / np.sqrt(ridge))


@pytest.mark.parametrize("features", [1, 2, 3, 6])
def test_both_kernels_learn_the_same_bit_for_bit(features: int) -> None:
    rng = np.random.default_rng(features)
    compiled, numpy = (ExchangeTimeModel(300, features=features, ridge=0.7) for _ in range(2))
    for _ in range(40):
        rows = rng.permutation(300)[: rng.integers(0, 60)]
        contexts, times = rng.random((len(rows), features)) * 4, rng.random(len(rows)) * 30
        with using_kernel("compiled"):
            compiled.learn(rows, np.asfortranarray(contexts), times)
        with using_kernel("numpy"):
            numpy.learn(rows, contexts, times)
        assert compiled.bank.tobytes() == numpy.bank.tobytes()


def test_twenty_thousand_updates_stay_exact_to_twelve_digits() -> None:
    rng = np.random.default_rng(0)
    model = ExchangeTimeModel(1)
    contexts = np.column_stack([rng.uniform(0.5, 2, 20_000), rng.integers(0, 2, 20_000), rng.uniform(5, 10, 20_000)])
    times = contexts @ [1.0, 1.0, 0.3] * rng.uniform(0, 2, 20_000)
    for context, time in zip(contexts, times, strict=True):
        model.learn([0], [context], [time])
    inverse, theta = batch_regression(contexts, times, 1.0)
    query = np.array([1.0, 1.0, 7.0])
    assert model.predict([query])[0] == pytest.approx(query @ theta, rel=1e-11)
    assert model.uncertainty([query])[0] == pytest.approx(np.sqrt(query @ inverse @ query), rel=1e-11)


def test_forgetting_keeps_the_regression_bounded() -> None:
    model = ExchangeTimeModel(1, forgetting=0.9)
    for _ in range(1500):
        model.learn([0], [[1.0, 0.0, 1.0]], [3.0])  # the second feature is always 0
    assert model.uncertainty([[0.0, 1.0, 0.0]])[0] == pytest.approx(1.0)
    assert model.predict([[1.0, 0.0, 1.0]])[0] == pytest.approx(3.0, rel=0.06)


@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_the_largest_allowed_contexts_keep_the_regression_finite(forgetting: float) -> None:
    rng = np.random.default_rng(0)
    model = ExchangeTimeModel(200, forgetting=forgetting)
    for _ in range(300):
        contexts = rng.choice([-1e6, 1e6, 1e3, 1.0, 0.0], (200, 3)) * rng.random((200, 3))
        model.learn(np.arange(200), contexts, rng.random(200) * 1e9)
        assert np.isfinite(model.bank).all()
        assert (model.bank[[0, 3, 5]] >= -1e-12).all()


def test_optimistic_is_a_lower_bound_that_is_never_negative() -> None:
    rng = np.random.default_rng(1)
    model = ExchangeTimeModel(50)
    for _ in range(4):
        model.learn(np.arange(40), rng.random((40, 3)), rng.random(40) * 3)
    contexts = rng.random((50, 3))
    expected = np.maximum(model.predict(contexts) - 0.7 * model.uncertainty(contexts), 0)
    np.testing.assert_allclose(model.optimistic(contexts, 0.7), expected, atol=1e-12)
    assert (model.optimistic(contexts, 0.7)[40:] == 0).all()


def test_a_model_larger_than_a_block_predicts_the_same_for_single_rows() -> None:
    rng = np.random.default_rng(2)
    clients = 2 * BLOCK + 17
    model = ExchangeTimeModel(clients)
    model.learn(np.arange(clients), rng.random((clients, 3)), rng.random(clients))
    contexts = rng.random((clients, 3))
    rows = np.array([0, BLOCK - 1, BLOCK, clients - 1])
    times = model.optimistic(contexts, 0.1)
    assert times[rows].tobytes() == model.optimistic(contexts[rows], 0.1, rows).tobytes()


@given(
    forgetting=st.sampled_from([1.0, 0.8]),
    since=st.integers(0, 6),
    deadline=st.floats(1, 10),
    excess=st.floats(0, 30),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=50, deadline=None)
def test_correcting_a_late_time_equals_learning_the_true_time_at_once(
    forgetting: float, since: int, deadline: float, excess: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    corrected, expected = (ExchangeTimeModel(2, forgetting=forgetting) for _ in range(2))
    context = rng.random((1, 3)) * 4
    corrected.learn([1], context, [deadline])
    expected.learn([1], context, [deadline + excess])
    for _ in range(since):
        later, time = rng.random((1, 3)) * 4, rng.random(1) * 9
        corrected.learn([1], later, time)
        expected.learn([1], later, time)
    corrected.correct([1], context, [deadline], [deadline + excess], learned_since=[since])
    np.testing.assert_allclose(corrected.bank, expected.bank, atol=1e-7)


def test_corrections_of_several_late_arrivals_of_one_client_add_up() -> None:
    sequential, batched = ExchangeTimeModel(1, features=1), ExchangeTimeModel(1, features=1)
    for model in (sequential, batched):
        model.learn([0], [[1.0]], [5.0])
        model.learn([0], [[2.0]], [5.0])
    sequential.correct([0], [[1.0]], [5.0], [9.0])
    sequential.correct([0], [[2.0]], [5.0], [6.0])
    batched.correct([0, 0], [[1.0], [2.0]], [5.0, 5.0], [9.0, 6.0])
    assert batched.predict([[1.0]]) == pytest.approx(sequential.predict([[1.0]]))
    assert batched.predict([[1.0]])[0] == pytest.approx((9.0 + 2 * 6.0) / 6)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("learn", ([0, 0], np.ones((2, 3)), [1.0, 1.0]), r"rows\[1\] = 0 is a duplicate"),
        ("learn", ([9], np.ones((1, 3)), [1.0]), r"rows\[0\] = 9 is unknown: there are 4 clients"),
        ("learn", ([0], np.ones((1, 2)), [1.0]), "contexts have 2 features, this model has 3"),
        ("learn", ([0], np.ones((2, 3)), [1.0]), "contexts has 2 rows, but there are 1 rows"),
        ("learn", ([0], np.ones((1, 3)), [-1.0]), "must not be negative"),
        ("learn", ([0], np.ones((1, 3)), [np.nan]), "must be finite"),
        ("forget", ([4],), r"rows\[0\] = 4 is unknown: there are 4 clients"),
        ("forget", ([-1],), "rows count from 0"),
        ("forget", ([1, 1],), "is a duplicate"),
    ],
)
def test_invalid_times_and_clients_are_refused_and_change_nothing(method: str, arguments: Any, message: str) -> None:
    model = ExchangeTimeModel(4)
    model.learn([1], [[1.0, 1.0, 1.0]], [3.0])
    before = model.bank.copy()
    with pytest.raises(ReportError, match=message):
        getattr(model, method)(*arguments)
    np.testing.assert_array_equal(model.bank, before)


@pytest.mark.parametrize("setting", [{"ridge": 0.0}, {"forgetting": 0.0}, {"forgetting": 1.1}, {"features": 0}])
def test_invalid_settings_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        ExchangeTimeModel(4, **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exploration", "theory", "message"),
    [
        ("theory", None, "got nothing"),
        ("theory", {"R": 1.0}, "got R"),
        ("theory", {"R": 1.0, "S": 1.0, "L": 1.0, "delta": 0.0}, "delta must be above 0"),
        ("theory", "R=1", "theory must be a mapping with the keys R, S, L and delta, got 'R=1'"),
        ("0.1", None, "exploration must be a number or 'theory', got '0.1'"),
        (-0.1, None, "exploration must be at least 0"),
        (0.1, {"R": 1.0}, "used only with exploration=.theory."),
        (abs, None, "exploration must be a number, not"),
    ],
)
def test_an_invalid_exploration_is_refused(exploration: Any, theory: dict[str, float] | None, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        exploration_from(exploration, theory, ridge=1.0, features=3)


@given(seed=st.integers(0, 10**6), delta=st.sampled_from([0.05, 0.2]))
@settings(max_examples=12, deadline=None)
def test_the_confidence_band_covers_the_mean_with_the_probability_of_the_lemma(seed: int, delta: float) -> None:
    """0 ≤ mean − optimistic ≤ 2·exploration·‖c‖ in every round, for at least 1 − delta of the clients."""
    rng = np.random.default_rng(seed)
    clients, rounds, noise = 200, 60, 2.0
    theta = rng.random((clients, 3)) * 2
    schedule = TheoreticalExploration(R=noise, S=np.sqrt(12), L=np.sqrt(3) * 2, delta=delta)
    model = ExchangeTimeModel(clients)
    covered = np.ones(clients, dtype=bool)
    for round_ in range(1, rounds + 1):
        contexts = rng.random((clients, 3)) * 2
        means = (contexts * theta).sum(axis=1)
        width = schedule(round_)
        gap = means - model.optimistic(contexts, width)
        covered &= (gap >= -1e-12) & (gap <= 2 * width * model.uncertainty(contexts) + 1e-12)
        # Noise within ±R is R-sub-Gaussian; its amplitude is limited by the mean so that no time is negative.
        times = means + rng.uniform(-1, 1, clients) * np.minimum(noise, means)
        model.learn(np.arange(clients), contexts, times)
    assert covered.mean() >= 1 - delta


@pytest.mark.parametrize("features", [1, 3, 5])
def test_the_theoretical_schedule_is_the_formula_of_the_lemma_for_any_number_of_features(features: int) -> None:
    """R·sqrt(d·log((1 + t·L²/ridge)/delta)) + sqrt(ridge)·S, here with a logarithm of (1 + 3·16/4)/0.13 = 100."""
    theory = {"R": 2.0, "S": 3.0, "L": 4.0, "delta": 0.13}
    schedule = exploration_from("theory", theory, ridge=4.0, features=features)
    assert schedule(3) == pytest.approx(2.0 * math.sqrt(features * math.log(100.0)) + 2.0 * 3.0)


@given(rows=st.sets(st.integers(0, 7)), seed=st.integers(0, 10**6), forgetting=st.sampled_from([1.0, 0.8]))
@settings(max_examples=40, deadline=None)
def test_forgotten_clients_have_no_history_and_others_keep_it(rows: set[int], seed: int, forgetting: float) -> None:
    rng = np.random.default_rng(seed)
    model = ExchangeTimeModel(8, ridge=0.5, forgetting=forgetting)
    for _ in range(4):
        model.learn(np.arange(8), rng.random((8, 3)), rng.random(8) * 9)
    before, forgotten = model.bank.copy(), sorted(rows)
    model.forget(np.array(forgotten, dtype=np.int64))
    others = [row for row in range(8) if row not in rows]
    assert model.bank[:, others].tobytes() == before[:, others].tobytes()
    assert model.bank[:, forgotten].tobytes() == ExchangeTimeModel(8, ridge=0.5).bank[:, forgotten].tobytes()
    model.learn(np.arange(8), np.ones((8, 3)), np.ones(8))
    new = ExchangeTimeModel(8, ridge=0.5, forgetting=forgetting)
    new.learn(np.arange(8), np.ones((8, 3)), np.ones(8))
    assert model.bank[:, forgotten].tobytes() == new.bank[:, forgotten].tobytes()
