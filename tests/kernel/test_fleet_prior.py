"""The prior of the fleet and the ridge, compared with regressions that are solved from scratch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.exchange_time import ExchangeTimeModel

CLIENTS, FEATURES = 7, 3
Batch = tuple[IntArray, FloatArray, FloatArray]


def make_model(clients: int = CLIENTS, ridge: float = 3.0, forgetting: float = 1.0) -> ExchangeTimeModel:
    return ExchangeTimeModel(
        clients, features=FEATURES, ridge=ridge, forgetting=forgetting, prior="fleet", relative_ridge=True
    )


def batches(count: int, *, growth: float = 1.0, clients: int = CLIENTS - 1, seed: int = 0) -> Iterator[Batch]:
    """Yields times of two clients each; the last client never trains. Contexts grow by `growth` per batch."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        rows = np.sort(rng.choice(clients, 2, replace=False))
        contexts = rng.uniform(0.5, 2, (2, FEATURES)) * [1.0, 200.0, 0.01] * growth**index
        yield rows, contexts, rng.uniform(1, 20, 2)


def solve(
    learned: list[Batch], prior: FloatArray, precision: FloatArray, forgetting: float
) -> tuple[FloatArray, FloatArray]:
    """Returns theta-hat and H⁻¹ of all clients, solved with this prior."""
    thetas, inverses = np.empty((CLIENTS, FEATURES)), np.empty((CLIENTS, FEATURES, FEATURES))
    for client in range(CLIENTS):
        own = [(c, t) for rows, cs, ts in learned for row, c, t in zip(rows, cs, ts, strict=True) if row == client]
        squares, sums = precision, precision @ prior
        for age, (context, time) in enumerate(reversed(own)):
            squares = squares + forgetting**age * np.outer(context, context)
            sums = sums + forgetting**age * time * context
        thetas[client], inverses[client] = np.linalg.solve(squares, sums), np.linalg.inv(squares)
    return thetas, inverses


def solved(model: ExchangeTimeModel, learned: list[Batch], forgetting: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Returns theta-hat and H⁻¹ of all clients, solved with the ridges and the prior that the model uses."""
    ridges, pool = model.state()["ridges"], model.state()["pool"]
    prior, spread = pool[FEATURES**2 + FEATURES : FEATURES**2 + 2 * FEATURES], pool[-3]
    return solve(learned, prior, np.linalg.inv(np.diag(1 / ridges) + spread * np.outer(prior, prior)), forgetting)


def assert_solved(model: ExchangeTimeModel, learned: list[Batch], forgetting: float = 1.0) -> None:
    thetas, inverses = solved(model, learned, forgetting)
    scale = np.abs(thetas).max(axis=0)
    np.testing.assert_allclose(model.coefficients.T / scale, thetas / scale, rtol=1e-8, atol=1e-9)
    probe = np.random.default_rng(1).uniform(0.5, 2, (model.clients, FEATURES)) * [1.0, 200.0, 0.01]
    expected = np.sqrt(np.einsum("na,nab,nb->n", probe, inverses, probe))
    np.testing.assert_allclose(model.uncertainty(probe), expected, rtol=1e-7)


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
@pytest.mark.parametrize("growth", [1.0, 1.15, 0.9])
def test_the_model_equals_regressions_from_scratch(kernel: str, forgetting: float, growth: float) -> None:
    model, learned = make_model(forgetting=forgetting), []
    with using_kernel(kernel):
        for batch in batches(25, growth=growth):
            model.learn(*batch)
            learned.append(batch)
            assert_solved(model, learned, forgetting)


@pytest.mark.parametrize("growth", [1.0, 1.15, 0.9])
def test_the_ridges_follow_the_mean_squares_within_a_factor_of_two(growth: float) -> None:
    model, contexts = make_model(ridge=0.5), np.zeros((0, FEATURES))
    changes, last = 0, model.state()["ridges"]
    for rows, features, times in batches(60, growth=growth):
        model.learn(rows, features, times)
        contexts = np.concatenate([contexts, features])
        ridges = model.state()["ridges"]
        ratio = ridges / (0.5 * (contexts**2).mean(axis=0))
        assert ((ratio >= 0.5 - 1e-9) & (ratio <= 2 + 1e-9)).all()
        changes += not np.array_equal(ridges, last)
        last = ridges
    assert changes >= (1 if growth == 1.0 else 3)


def test_estimates_do_not_depend_on_the_units_of_the_features() -> None:
    scale = np.array([1000.0, 1 / 3600, 1e-3])
    model, other = make_model(), make_model()
    probe = np.random.default_rng(5).uniform(0.5, 2, (CLIENTS, FEATURES)) * [1.0, 200.0, 0.01]
    for rows, contexts, times in batches(50, growth=1.05):
        model.learn(rows, contexts, times)
        other.learn(rows, contexts * scale, times)
        np.testing.assert_allclose(other.predict(probe * scale), model.predict(probe), rtol=1e-8)
        np.testing.assert_allclose(other.uncertainty(probe * scale), model.uncertainty(probe), rtol=1e-8)
    np.testing.assert_allclose(other.state()["ridges"], model.state()["ridges"] * scale**2, rtol=1e-9)


def test_a_feature_that_is_always_zero_does_not_matter() -> None:
    model, wide = ExchangeTimeModel(4, features=1, prior="fleet", relative_ridge=True), make_model(4)
    rng = np.random.default_rng(0)
    for _ in range(20):
        contexts, times = rng.random((2, 1)) + 1, rng.random(2) * 9
        model.learn([0, 2], contexts, times)
        wide.learn([0, 2], np.column_stack([contexts, np.zeros(2), np.full(2, 1e-150)]), times)
    assert wide.state()["ridges"][1:].tolist() == [3.0, 3.0]
    narrow = ExchangeTimeModel(4, features=1, ridge=3.0, prior="fleet", relative_ridge=True)
    assert narrow.state()["ridges"].tolist() == [3.0]
    assert np.isfinite(wide.predict(np.column_stack([np.full(4, 1.5), np.zeros((4, 2))]))).all()


def test_forget_removes_a_client_from_the_pool() -> None:
    """The model equals one that never met the forgotten clients, from the regressions to the ridges."""
    forgotten = [1, 4]
    model, other = make_model(), make_model()
    samples = 0
    for rows, contexts, times in batches(60):
        model.learn(rows, contexts, times)
        kept = ~np.isin(rows, forgotten)
        samples += int((~kept).sum())
        other.learn(rows[kept], contexts[kept], times[kept])
    model.forget(forgotten, samples=samples)
    pool, expected = model.state()["pool"], other.state()["pool"]
    squares = slice(0, FEATURES**2 + FEATURES)
    np.testing.assert_allclose(pool[squares], expected[squares], rtol=1e-9)
    assert pool[-2] == expected[-2]
    mean_squares = np.diagonal(expected[: FEATURES**2].reshape(FEATURES, FEATURES)) / expected[-2]
    np.testing.assert_allclose(model.state()["ridges"], 3.0 * mean_squares, rtol=1e-9)
    learned = [(rows, contexts, times) for rows, contexts, times in batches(60)]
    assert_solved(model, [(r[k], c[k], t[k]) for r, c, t in learned for k in [~np.isin(r, forgotten)]])
    for row in forgotten:
        assert model.bank[:, row].tolist() == model.bank[:, CLIENTS - 1].tolist()


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_every_estimate_is_shrunk_towards_the_fleet_regression(kernel: str, forgetting: float, count: int) -> None:
    """theta0 is recomputed whenever the number of learned times has grown by a tenth."""
    prior, used, learned, ridges = np.zeros(FEATURES), 0, list(batches(count)), 0.7 * np.eye(FEATURES)
    with using_kernel(kernel):
        model = ExchangeTimeModel(CLIENTS, ridge=0.7, forgetting=forgetting, prior="fleet")
        for index, batch in enumerate(learned, start=1):
            model.learn(*batch)
            if 2 * index * 10 >= used * 11:
                used = 2 * index
                contexts, times = (np.concatenate([each[part] for each in learned[:index]]) for part in (1, 2))
                prior = np.linalg.solve(contexts.T @ contexts + ridges, contexts.T @ times)
        thetas, _ = solve(learned, prior, ridges, forgetting)
        np.testing.assert_allclose(model.coefficients.T, thetas, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("relative", [False, True])
def test_a_restored_model_continues_like_the_uninterrupted_one(relative: bool) -> None:
    uninterrupted, restored = (ExchangeTimeModel(CLIENTS, prior="fleet", relative_ridge=relative) for _ in range(2))
    for index, (rows, contexts, times) in enumerate(batches(60)):
        if index == 25:
            restored.restore(uninterrupted.state())
        uninterrupted.learn(rows, contexts * 1.1**index, times)
        if index >= 25:
            restored.learn(rows, contexts * 1.1**index, times)
    for name, value in uninterrupted.state().items():
        assert np.array_equal(value, restored.state()[name]), name


@pytest.mark.parametrize("relative", [False, True])
def test_a_late_time_is_corrected_in_the_fleet_regression_too(relative: bool) -> None:
    corrected, expected = (ExchangeTimeModel(2, ridge=0.5, prior="fleet", relative_ridge=relative) for _ in range(2))
    context = np.array([[1.0, 50.0, 0.2]])
    corrected.learn([0], context, [10.0])
    corrected.correct([0], context, [10.0], [14.0])
    expected.learn([0], context, [14.0])
    for model in (corrected, expected):
        for _ in range(30):
            model.learn([1], context * 1.3, [3.0])
    np.testing.assert_allclose(corrected.state()["pool"], expected.state()["pool"], rtol=1e-12)
    np.testing.assert_allclose(corrected.bank, expected.bank, rtol=1e-9)


def test_unknown_priors_and_incomplete_states_are_refused() -> None:
    with pytest.raises(SettingError, match="prior must be 'zero' or 'fleet', not 'mean'"):
        ExchangeTimeModel(2, prior="mean")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="relative_ridge needs prior='fleet'"):
        ExchangeTimeModel(2, relative_ridge=True)
    with pytest.raises(StateError, match="pool"):
        ExchangeTimeModel(2, prior="fleet").restore(ExchangeTimeModel(2).state())
