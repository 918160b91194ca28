"""The prior from a regression over the whole fleet, compared with a direct implementation of its definition."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.errors import SettingError, StateError
from turnout.kernel.backend import using_kernel
from turnout.kernel.exchange_time import ExchangeTimeModel

CLIENTS, FEATURES = 6, 3


def make_batches(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        rows = np.sort(rng.choice(CLIENTS - 1, 2, replace=False))  # the last client never trains
        batches.append((rows, rng.uniform(0.5, 2, (2, FEATURES)), rng.uniform(1, 20, 2)))
    return batches


def expected_thetas(
    batches: list[tuple[np.ndarray, np.ndarray, np.ndarray]], ridge: float, forgetting: float
) -> np.ndarray:
    """Returns theta-hat of every client from its own samples and from theta0, recomputed after every tenth more."""
    prior, used, learned = np.zeros(FEATURES), 0, 0
    for index in range(len(batches)):
        learned += len(batches[index][0])
        if learned * 10 >= used * 11:
            used = learned
            contexts = np.concatenate([batch[1] for batch in batches[: index + 1]])
            times = np.concatenate([batch[2] for batch in batches[: index + 1]])
            prior = np.linalg.solve(contexts.T @ contexts + ridge * np.eye(FEATURES), contexts.T @ times)
    thetas = np.empty((CLIENTS, FEATURES))
    for client in range(CLIENTS):
        samples = [(c, t) for rows, cs, ts in batches for row, c, t in zip(rows, cs, ts, strict=True) if row == client]
        squares, sums = ridge * np.eye(FEATURES), ridge * prior
        for age, (context, time) in enumerate(reversed(samples)):
            squares = squares + forgetting**age * np.outer(context, context)
            sums = sums + forgetting**age * time * context
        thetas[client] = np.linalg.solve(squares, sums)
    return thetas


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_every_estimate_is_shrunk_towards_the_fleet_regression(kernel: str, forgetting: float, count: int) -> None:
    batches = make_batches(count)
    with using_kernel(kernel):
        model = ExchangeTimeModel(CLIENTS, ridge=0.7, forgetting=forgetting, prior="fleet")
        for rows, contexts, times in batches:
            model.learn(rows, contexts, times)
        expected = expected_thetas(batches, 0.7, forgetting)
        for axis in range(FEATURES):
            basis = np.tile(np.eye(FEATURES)[axis], (CLIENTS, 1))
            np.testing.assert_allclose(model.predict(basis), expected[:, axis], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("relative", [False, True])
def test_a_restored_model_continues_like_the_uninterrupted_one(relative: bool) -> None:
    uninterrupted, restored = (ExchangeTimeModel(CLIENTS, prior="fleet", relative_ridge=relative) for _ in range(2))
    for index, (rows, contexts, times) in enumerate(make_batches(60)):
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
