"""A prior from the whole fleet, against a literal reading of it."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.errors import SettingError, StateError
from turnout.kernel.backend import using_kernel
from turnout.kernel.exchange_time import ExchangeTimeModel

CLIENTS, FEATURES = 6, 3


def lessons(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    told = []
    for _ in range(count):
        rows = np.sort(rng.choice(CLIENTS - 1, 2, replace=False))  # the last client never trains
        told.append((rows, rng.uniform(0.5, 2, (2, FEATURES)), rng.uniform(1, 20, 2)))
    return told


def literal(told: list[tuple[np.ndarray, np.ndarray, np.ndarray]], ridge: float, forgetting: float) -> np.ndarray:
    """theta-hat of every client: its own sums, and theta0 as it was when a tenth more had been learned."""
    prior, used, learned = np.zeros(FEATURES), 0, 0
    for place in range(len(told)):
        learned += len(told[place][0])
        if learned * 10 >= used * 11:
            used = learned
            contexts = np.concatenate([one[1] for one in told[: place + 1]])
            times = np.concatenate([one[2] for one in told[: place + 1]])
            prior = np.linalg.solve(contexts.T @ contexts + ridge * np.eye(FEATURES), contexts.T @ times)
    thetas = np.empty((CLIENTS, FEATURES))
    for client in range(CLIENTS):
        own = [(c, t) for rows, cs, ts in told for row, c, t in zip(rows, cs, ts, strict=True) if row == client]
        squares, sums = ridge * np.eye(FEATURES), ridge * prior
        for age, (context, time) in enumerate(reversed(own)):
            squares = squares + forgetting**age * np.outer(context, context)
            sums = sums + forgetting**age * time * context
        thetas[client] = np.linalg.solve(squares, sums)
    return thetas


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_every_estimate_is_drawn_to_what_the_fleet_has_taught(kernel: str, forgetting: float, count: int) -> None:
    told = lessons(count)
    with using_kernel(kernel):
        model = ExchangeTimeModel(CLIENTS, ridge=0.7, forgetting=forgetting, prior="fleet")
        for rows, contexts, times in told:
            model.learn(rows, contexts, times)
        expected = literal(told, 0.7, forgetting)
        for axis in range(FEATURES):
            basis = np.tile(np.eye(FEATURES)[axis], (CLIENTS, 1))
            np.testing.assert_allclose(model.predict(basis), expected[:, axis], rtol=1e-9, atol=1e-9)


def test_a_new_client_is_taken_for_one_of_the_fleet() -> None:
    model = ExchangeTimeModel(2, features=1, ridge=1e-6, prior="fleet")
    for _ in range(5):
        model.learn([0], [[2.0]], [6.0])
    assert model.predict([[1.0], [1.0]]) == pytest.approx([3.0, 3.0], rel=1e-4)
    model.add(1)
    model.forget([0])
    assert model.predict(np.ones((3, 1))) == pytest.approx([3.0, 3.0, 3.0], rel=1e-4)


def test_what_was_saved_goes_on_as_if_nothing_had_happened() -> None:
    told = lessons(40)
    whole, begun = (ExchangeTimeModel(CLIENTS, prior="fleet") for _ in range(2))
    for rows, contexts, times in told:
        whole.learn(rows, contexts, times)
    for rows, contexts, times in told[:17]:
        begun.learn(rows, contexts, times)
    again = ExchangeTimeModel(CLIENTS, prior="fleet")
    again.restore(begun.state())
    for rows, contexts, times in told[17:]:
        again.learn(rows, contexts, times)
    for name, value in whole.state().items():
        assert np.array_equal(value, again.state()[name])


def test_a_late_time_is_corrected_in_the_pool_too() -> None:
    late, known = (ExchangeTimeModel(2, ridge=0.5, prior="fleet") for _ in range(2))
    context = np.array([[1.0, 0.5, 2.0]])
    late.learn([0], context, [10.0])
    late.correct([0], context, [10.0], [14.0])
    known.learn([0], context, [14.0])
    for model in (late, known):
        for _ in range(30):
            model.learn([1], context, [3.0])
    np.testing.assert_allclose(late.state()["pool"], known.state()["pool"], rtol=1e-12)
    np.testing.assert_allclose(late.bank, known.bank, rtol=1e-9)


def test_odd_priors_and_states_are_refused() -> None:
    with pytest.raises(SettingError, match="prior must be 'zero' or 'fleet', not 'mean'"):
        ExchangeTimeModel(2, prior="mean")  # type: ignore[arg-type]
    with pytest.raises(StateError, match="pool"):
        ExchangeTimeModel(2, prior="fleet").restore(ExchangeTimeModel(2).state())
