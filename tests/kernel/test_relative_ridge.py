"""The relative ridge, compared with regressions that are solved from scratch with the ridges in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

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


def solved(model: ExchangeTimeModel, learned: list[Batch], forgetting: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Returns theta-hat and H⁻¹ of all clients, solved with the ridges and the prior that the model uses."""
    ridges, prior = model.state()["ridges"], model.state()["pool"][FEATURES**2 + FEATURES : FEATURES**2 + 2 * FEATURES]
    thetas, inverses = np.empty((model.clients, FEATURES)), np.empty((model.clients, FEATURES, FEATURES))
    for client in range(model.clients):
        own = [(c, t) for rows, cs, ts in learned for row, c, t in zip(rows, cs, ts, strict=True) if row == client]
        squares, sums = np.diag(ridges), ridges * prior
        for age, (context, time) in enumerate(reversed(own)):
            squares = squares + forgetting**age * np.outer(context, context)
            sums = sums + forgetting**age * time * context
        thetas[client], inverses[client] = np.linalg.solve(squares, sums), np.linalg.inv(squares)
    return thetas, inverses


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
