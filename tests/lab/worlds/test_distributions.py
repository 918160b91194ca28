from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.lab.worlds.base import Availability, Draws, Quantity, make_availability


def availability_masks(availability: Availability, rounds: int) -> BoolArray:
    """Returns one row per round and one column per client."""
    return np.stack([availability.at(round_) for round_ in range(1, rounds + 1)])


def autocorrelation(available: BoolArray, lag: int) -> float:
    centred = available - available.mean(axis=0)
    return float((centred[lag:] * centred[:-lag]).mean() / centred.var())


def draw_rounds(quantity: Quantity, rounds: int) -> FloatArray:
    return np.concatenate([quantity.at(round_) for round_ in range(1, rounds + 1)])


# Draws.


@pytest.mark.parametrize("clients", [1, 40, 1500, 70_000])
def test_draws_depend_only_on_seed_purpose_and_round(clients: int) -> None:
    first, second = Draws(3, "noise", clients), Draws(3, "noise", clients)
    in_order = {round_: first.at(round_).copy() for round_ in range(1, 131 if clients < 2000 else 6)}
    for round_ in reversed(in_order):
        np.testing.assert_array_equal(second.at(round_), in_order[round_])
    assert (Draws(4, "noise", clients).at(1) != in_order[1]).all()
    assert (Draws(3, "weather", clients).at(1) != in_order[1]).all()


def test_draws_are_uniform_or_normal_and_differ_between_rounds() -> None:
    uniform = np.concatenate([Draws(1, "a", 1000).at(round_) for round_ in range(1, 21)])
    normal = np.concatenate([Draws(1, "a", 1000, "normal").at(round_) for round_ in range(1, 21)])
    np.testing.assert_allclose(np.quantile(uniform, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)
    np.testing.assert_allclose(np.quantile(normal, [0.1587, 0.5, 0.8413]), [-1, 0, 1], atol=0.05)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    draws = Draws(0, "noise", 3)
    assert len({tuple(draws.at(round_).tolist()) for round_ in range(1, 1001)}) == 1000


# Quantities.


def test_quantities_are_uniform_or_lognormal() -> None:
    pair = draw_rounds(Quantity("bandwidth", (2, 4), 0, 500), 40)
    mapping = draw_rounds(Quantity("bandwidth", {"kind": "uniform", "low": 2, "high": 4}, 0, 500), 40)
    np.testing.assert_array_equal(pair, mapping)
    np.testing.assert_allclose(np.quantile(pair, [0, 0.25, 0.5, 0.75, 1]), [2, 2.5, 3, 3.5, 4], atol=0.03)
    assert Quantity("bandwidth", [2, 4], 0, 5).lowest == 2
    quantity = Quantity("bandwidth", (2.5, 2.5), 0, 3)
    assert draw_rounds(quantity, 2).tolist() == [2.5] * 6
    assert quantity.lowest == 2.5
    quantity = Quantity("bandwidth", {"kind": "lognormal", "median": 3.0, "spread": 0.7}, 0, 500)
    logs = np.log(draw_rounds(quantity, 40))
    assert np.median(logs) == pytest.approx(math.log(3), abs=0.02)
    assert logs.std() == pytest.approx(0.7, abs=0.02)
    assert quantity.lowest == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (3.0, r"free_cpu must be \(low, high\) or a mapping with a kind, not 3.0"),
        ({"low": 1, "high": 2}, "free_cpu.kind must be one of uniform, lognormal, not None"),
        ({"kind": ["uniform"]}, "free_cpu.kind must be one of uniform"),
        ({"kind": "uniform", "low": 1}, "free_cpu needs exactly low, high, not low"),
        ((2, 1), "free_cpu.low must not be above free_cpu.high, but 2 is above 1"),
        ((0, 1), "free_cpu.low must be above 0, not 0"),
        ((1, "2"), "free_cpu.high must be a number, not '2'"),
        ({"kind": "lognormal", "median": -1, "spread": 1}, "free_cpu.median must be above 0"),
    ],
)
def test_an_invalid_quantity_is_rejected(spec: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Quantity("free_cpu", spec, 0, 4)


# Availability.


def test_all_specifications_of_bernoulli_availability_are_equivalent() -> None:
    every = [0.3, [0.3] * 40, np.full(40, 0.3)]
    masks = [availability_masks(make_availability(spec, 5, 40), 100) for spec in every]
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])
    assert masks[0].mean() == pytest.approx(0.3, abs=0.03)
    assert abs(autocorrelation(masks[0], 1)) < 0.05


@pytest.mark.parametrize(("share", "persistence"), [(0.8, 10), (0.3, 4.0), (0.5, 1)])
def test_markov_availability_has_its_share_and_autocorrelation(share: float, persistence: float) -> None:
    spec = {"kind": "markov", "share": share, "persistence": persistence}
    availability = make_availability(spec, 1, 400)
    available = availability_masks(availability, 1500)
    stay = 1 - 1 / persistence
    assert available.mean() == pytest.approx(share, abs=0.01)
    assert available[0].mean() == pytest.approx(share, abs=0.08)
    assert autocorrelation(available, 1) == pytest.approx(stay, abs=0.02)
    assert autocorrelation(available, 3) == pytest.approx(stay**3, abs=0.02)
    assert available[1:][available[:-1]].mean() == pytest.approx(stay + (1 - stay) * share, abs=0.01)
    assert available[1:][~available[:-1]].mean() == pytest.approx((1 - stay) * share, abs=0.01)
    np.testing.assert_array_equal(availability.shares, np.full(400, share))


def test_markov_clients_are_independent_and_may_have_their_own_shares() -> None:
    available = availability_masks(make_availability({"kind": "markov", "share": 0.5, "persistence": 3}, 1, 300), 1000)
    assert available.mean(axis=1).var() == pytest.approx(0.25 / 300, rel=0.4)
    shares = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    available = availability_masks(make_availability({"kind": "markov", "share": shares, "persistence": 3}, 2, 5), 4000)
    np.testing.assert_allclose(available.mean(axis=0), shares, atol=0.06)
    assert not available[:, 0].any()
    assert available[:, -1].all()
    availability = make_availability({"kind": "markov", "share": 0.5, "persistence": 2}, 3, 40)
    first = availability.at(1)
    copy = first.copy()
    availability.at(50)
    np.testing.assert_array_equal(first, copy)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (1.2, r"availability\[0\] = 1.2 must lie in \[0, 1\] \(and 3 more\)"),
        (math.nan, "must be finite"),
        ([0.5, 0.5], "availability has 2 shares, but there are 4 clients"),
        ([0.5, 0.5, 0.5, 2], r"availability\[3\] = 2.0 must lie in"),
        ("often", "availability must hold numbers"),
        ([[0.5] * 4], "availability must have 1 dimension"),
        ({}, "availability.kind must be one of markov, not None"),
        ({"kind": "markov", "persistence": 5}, "availability needs exactly share, persistence, not persistence"),
        ({"kind": "markov", "share": 0.5, "persistence": 0.5}, "availability.persistence must be at least 1"),
    ],
)
def test_an_invalid_availability_is_rejected(spec: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_availability(spec, 0, 4)
