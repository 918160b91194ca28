import math
import random

import numpy as np
import pytest

from turnout.kernel.randomness import dirichlet_logs, round_rng, softmax


def test_draws_are_a_function_of_seed_purpose_and_round() -> None:
    draws = {
        key: round_rng(*key).random(4).tobytes()
        for key in [(0, "noise", 1), (1, "noise", 1), (0, "contexts", 1), (0, "noise", 2), (0, "", 1)]
    }
    assert len(set(draws.values())) == len(draws)
    assert all(round_rng(*key).random(4).tobytes() == draw for key, draw in draws.items())


def test_draws_are_the_same_on_every_machine() -> None:
    """A change of these numbers would change every recorded run, so it must not go unnoticed."""
    assert round_rng(7, "noise", 3).integers(0, 1000, 6).tolist() == [256, 353, 392, 775, 774, 579]


def test_no_global_state_is_read_or_changed() -> None:
    before, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    draw = round_rng(0, "noise", 1).random()
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert random.getstate() == python
    np.random.random()  # noqa: NPY002
    assert round_rng(0, "noise", 1).random() == draw


def test_different_rounds_are_independent() -> None:
    draws = np.array([round_rng(0, "noise", round_).random() for round_ in range(1, 4001)])
    assert abs(draws.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.05


@pytest.mark.parametrize(
    "concentration",
    [0.05, pytest.param(0.5, marks=pytest.mark.thorough), 1.0, pytest.param(20.0, marks=pytest.mark.thorough)],
)
def test_dirichlet_weights_have_the_mean_and_the_variance_of_their_distribution(concentration: float) -> None:
    """Shares of n clients have mean 1/n and variance (1/n)(1 − 1/n)/(n·concentration + 1)."""
    rng, clients = np.random.default_rng(3), 4
    shares = np.array([softmax(dirichlet_logs(rng, clients, concentration)) for _ in range(10_000)])
    assert shares.mean(axis=0) == pytest.approx(1 / clients, abs=0.01)
    variance = (1 / clients) * (1 - 1 / clients) / (clients * concentration + 1)
    assert shares.var(axis=0) == pytest.approx(variance, rel=0.05)


def test_dirichlet_weights_neither_underflow_nor_differ_at_the_ends() -> None:
    assert dirichlet_logs(np.random.default_rng(0), 3, math.inf).tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(dirichlet_logs(np.random.default_rng(0), 1000, 1e-6)).all()
