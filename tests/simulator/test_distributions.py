from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.simulator.distributions import Availability, Draws, Drift, Quantity, availability_from


def seen(availability: Availability, rounds: int) -> BoolArray:
    """One row a round, one column a client."""
    return np.stack([availability.of(round_) for round_ in range(1, rounds + 1)])


def autocorrelation(there: BoolArray, lag: int) -> float:
    centred = there - there.mean(axis=0)
    return float((centred[lag:] * centred[:-lag]).mean() / centred.var())


def drawn(quantity: Quantity, rounds: int) -> FloatArray:
    return np.concatenate([quantity.of(round_) for round_ in range(1, rounds + 1)])


# Draws.


@pytest.mark.parametrize("clients", [1, 40, 1500, 70_000])
def test_draws_depend_on_seed_purpose_and_round_alone(clients: int) -> None:
    one, other = Draws(3, "noise", clients), Draws(3, "noise", clients)
    in_order = {round_: one.of(round_).copy() for round_ in range(1, 131 if clients < 2000 else 6)}
    for round_ in reversed(in_order):
        np.testing.assert_array_equal(other.of(round_), in_order[round_])
    assert (Draws(4, "noise", clients).of(1) != in_order[1]).all()
    assert (Draws(3, "weather", clients).of(1) != in_order[1]).all()


def test_no_two_rounds_are_drawn_alike() -> None:
    draws = Draws(0, "noise", 3)
    assert len({tuple(draws.of(round_).tolist()) for round_ in range(1, 1001)}) == 1000


def test_draws_are_uniform_or_normal() -> None:
    uniform = np.concatenate([Draws(1, "a", 1000).of(round_) for round_ in range(1, 21)])
    normal = np.concatenate([Draws(1, "a", 1000, "normal").of(round_) for round_ in range(1, 21)])
    np.testing.assert_allclose(np.quantile(uniform, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)
    np.testing.assert_allclose(np.quantile(normal, [0.1587, 0.5, 0.8413]), [-1, 0, 1], atol=0.05)
    assert uniform.min() >= 0
    assert uniform.max() < 1


# Quantities.


def test_a_pair_is_a_uniform_quantity() -> None:
    pair = drawn(Quantity("bandwidth", (2, 4), 0, 500), 40)
    table = drawn(Quantity("bandwidth", {"kind": "uniform", "low": 2, "high": 4}, 0, 500), 40)
    np.testing.assert_array_equal(pair, table)
    np.testing.assert_allclose(np.quantile(pair, [0, 0.25, 0.5, 0.75, 1]), [2, 2.5, 3, 3.5, 4], atol=0.03)
    assert Quantity("bandwidth", [2, 4], 0, 5).lowest == 2


def test_a_constant_quantity_stays() -> None:
    quantity = Quantity("bandwidth", {"kind": "constant", "value": 2.5}, 0, 3)
    assert drawn(quantity, 2).tolist() == [2.5] * 6
    assert quantity.lowest == 2.5


def test_a_lognormal_quantity_has_its_median_and_spread() -> None:
    quantity = Quantity("bandwidth", {"kind": "lognormal", "median": 3.0, "spread": 0.7}, 0, 500)
    logs = np.log(drawn(quantity, 40))
    assert np.median(logs) == pytest.approx(math.log(3), abs=0.02)
    assert logs.std() == pytest.approx(0.7, abs=0.02)
    assert quantity.lowest == 0


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (3.0, r"free_cpu must be \(low, high\) or a table with a kind, not 3.0"),
        ((1, 2, 3), r"free_cpu must be \(low, high\) or a table"),
        ("ab", r"free_cpu must be \(low, high\) or a table"),
        ({"low": 1, "high": 2}, "free_cpu.kind must be one of uniform, constant, lognormal, not None"),
        ({"kind": "normal"}, "free_cpu.kind must be one of uniform, constant, lognormal, not 'normal'"),
        ({"kind": ["uniform"]}, "free_cpu.kind must be one of uniform"),
        ({"kind": "uniform", "low": 1}, "free_cpu needs low, high; given is low"),
        ({"kind": "constant"}, "free_cpu needs value; given is nothing"),
        ({"kind": "constant", "value": 1, "spread": 1}, "free_cpu needs value; given is spread, value"),
        ((2, 1), "free_cpu.low must not be above free_cpu.high"),
        ((0, 1), "free_cpu.low must be above 0, not 0"),
        ((1, math.inf), "free_cpu.high must be finite"),
        ((1, "2"), "free_cpu.high must be a number, not '2'"),
        ({"kind": "lognormal", "median": -1, "spread": 1}, "free_cpu.median must be above 0"),
    ],
)
def test_a_wrong_quantity_is_refused(spec: Any, told: str) -> None:
    with pytest.raises(SettingError, match=told):
        Quantity("free_cpu", spec, 0, 4)


# Availability.


def test_a_share_a_list_of_shares_and_a_bernoulli_table_say_the_same() -> None:
    every = [0.3, [0.3] * 40, np.full(40, 0.3), {"share": 0.3}, {"kind": "bernoulli", "share": [0.3] * 40}]
    masks = [seen(availability_from(spec, 5, 40), 100) for spec in every]
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])
    assert masks[0].mean() == pytest.approx(0.3, abs=0.03)
    assert abs(autocorrelation(masks[0], 1)) < 0.05


@pytest.mark.parametrize(("share", "persistence"), [(0.8, 10), (0.3, 4.0), (0.5, 1)])
def test_a_markov_client_keeps_its_share_and_its_mind(share: float, persistence: float) -> None:
    spec = {"kind": "markov", "share": share, "persistence": persistence}
    availability = availability_from(spec, 1, 400)
    there = seen(availability, 1500)
    stay = 1 - 1 / persistence
    assert there.mean() == pytest.approx(share, abs=0.01)
    assert there[0].mean() == pytest.approx(share, abs=0.08)
    assert autocorrelation(there, 1) == pytest.approx(stay, abs=0.02)
    assert autocorrelation(there, 3) == pytest.approx(stay**3, abs=0.02)
    assert there[1:][there[:-1]].mean() == pytest.approx(stay + (1 - stay) * share, abs=0.01)
    assert there[1:][~there[:-1]].mean() == pytest.approx((1 - stay) * share, abs=0.01)
    np.testing.assert_array_equal(availability.shares, np.full(400, share))


def test_markov_clients_do_not_follow_one_another() -> None:
    there = seen(availability_from({"kind": "markov", "share": 0.5, "persistence": 3}, 1, 300), 1000)
    assert there.mean(axis=1).var() == pytest.approx(0.25 / 300, rel=0.4)


def test_the_persistence_is_ten_rounds_unless_given() -> None:
    told = availability_from({"kind": "markov", "share": 0.5, "persistence": 10}, 1, 40)
    untold = availability_from({"kind": "markov", "share": 0.5}, 1, 40)
    np.testing.assert_array_equal(seen(told, 50), seen(untold, 50))


def test_markov_shares_may_differ_from_client_to_client() -> None:
    shares = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    there = seen(availability_from({"kind": "markov", "share": shares, "persistence": 3}, 2, 5), 4000)
    np.testing.assert_allclose(there.mean(axis=0), shares, atol=0.06)
    assert not there[:, 0].any()
    assert there[:, -1].all()


@pytest.mark.parametrize("kind", ["markov", "daily", "bernoulli"])
def test_who_is_there_in_a_round_does_not_depend_on_what_was_asked_before(kind: str) -> None:
    spec = {"kind": kind, "share": 0.6}
    in_order = seen(availability_from(spec, 3, 40), 300)
    hopping = availability_from(spec, 3, 40)
    for round_ in [300, 1, 299, 150, 150, 151, 2, 1, 64, 65, *np.random.default_rng(1).integers(1, 301, 50).tolist()]:
        np.testing.assert_array_equal(hopping.of(round_), in_order[round_ - 1])


def test_what_was_handed_out_stays_when_the_chain_is_walked_on() -> None:
    availability = availability_from({"kind": "markov", "share": 0.5, "persistence": 2}, 3, 40)
    first = availability.of(1)
    copy = first.copy()
    availability.of(50)
    np.testing.assert_array_equal(first, copy)


def test_a_day_brings_everyone_s_share_on_average_and_its_rhythm() -> None:
    spec = {"kind": "daily", "share": 0.5, "amplitude": 0.8, "period": 20, "scatter": 0.0}
    availability = availability_from(spec, 1, 500)
    np.testing.assert_allclose(availability.shares, 0.5)
    there = seen(availability, 400)
    assert there.mean() == pytest.approx(0.5, abs=0.01)
    hours = there.reshape(20, 20, 500).mean(axis=(0, 2))  # place 0 is of rounds 1, 21, 41, …
    wanted = [0.5 * (1 + 0.8 * math.sin(2 * math.pi * round_ / 20)) for round_ in range(1, 21)]
    np.testing.assert_allclose(hours, wanted, atol=0.03)


def test_a_chance_above_one_is_cut_off_and_the_share_says_so() -> None:
    spec = {"kind": "daily", "share": [0.8, 0.2], "amplitude": 1.0, "period": 24, "scatter": 0.0}
    availability = availability_from(spec, 1, 2)
    swings = [math.sin(2 * math.pi * hour / 24) for hour in range(24)]
    cut = [np.mean([min(share * (1 + swing), 1) for swing in swings]) for share in (0.8, 0.2)]
    np.testing.assert_allclose(availability.shares, cut)
    assert cut[0] < 0.75
    np.testing.assert_allclose(seen(availability, 24 * 200).mean(axis=0), cut, atol=0.03)


@pytest.mark.parametrize("scatter", [0.1, 1.0])
def test_phases_are_scattered_over_their_part_of_the_day(scatter: float) -> None:
    period = 40
    spec = {"kind": "daily", "share": 0.5, "amplitude": 1.0, "period": period, "scatter": scatter}
    there = seen(availability_from(spec, 1, 60), period * 100)
    # The phase of the fundamental wave, as a share of a day.
    wave = np.exp(-2j * np.pi * np.arange(1, len(there) + 1) / period)
    phases = (np.angle(wave @ there) / (2 * np.pi) + 0.25) % 1
    phases[phases > 0.98] -= 1
    assert phases.min() > -0.02
    assert phases.max() < scatter + 0.02
    assert phases.max() - phases.min() > 0.8 * scatter


def test_without_amplitude_a_day_is_like_every_hour() -> None:
    flat = availability_from({"kind": "daily", "share": 0.4, "amplitude": 0}, 7, 40)
    np.testing.assert_array_equal(seen(flat, 100), seen(availability_from(0.4, 7, 40), 100))


def test_a_day_has_96_rounds_unless_given() -> None:
    told = {"kind": "daily", "share": 0.5, "amplitude": 0.8, "period": 96, "scatter": 0.25}
    untold = {"kind": "daily", "share": 0.5}
    np.testing.assert_array_equal(
        seen(availability_from(told, 1, 40), 100), seen(availability_from(untold, 1, 40), 100)
    )


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (1.2, r"availability\[0\] = 1.2 must lie in \[0, 1\] \(and 3 more\)"),
        (-0.1, r"must lie in \[0, 1\]"),
        (math.nan, "must be finite"),
        ([0.5, 0.5], "availability has 2 shares, but there are 4 clients"),
        ([0.5, 0.5, 0.5, 2], r"availability\[3\] = 2.0 must lie in"),
        ("often", "availability must hold numbers"),
        (None, "availability must hold numbers"),
        ([[0.5] * 4], "availability must have 1 dimension"),
        ({}, "availability needs a share"),
        ({"kind": "markov", "persistence": 5}, "availability needs a share, such as"),
        ({"kind": "weekly", "share": 0.5}, "availability.kind must be one of bernoulli, markov, daily, not 'weekly'"),
        ({"kind": ["daily"], "share": 0.5}, "availability.kind must be one of"),
        ({"share": 1.5}, "must lie in"),
        ({"share": 0.5, "persistence": 5}, "availability of kind bernoulli has no 'persistence'; it has none"),
        ({"kind": "markov", "share": 0.5, "period": 5}, "kind markov has no 'period'; it has persistence"),
        ({"kind": "markov", "share": 0.5, "persistence": 0.5}, "availability.persistence must be at least 1"),
        ({"kind": "markov", "share": 0.5, "persistence": math.inf}, "availability.persistence must be finite"),
        ({"kind": "daily", "share": 0.5, "persistence": 5}, "it has amplitude, period, scatter"),
        ({"kind": "daily", "share": 0.5, "amplitude": 1.1}, "availability.amplitude must be at most 1"),
        ({"kind": "daily", "share": 0.5, "period": 0}, "availability.period must be at least 1"),
        ({"kind": "daily", "share": 0.5, "period": 9.5}, "availability.period must be a whole number"),
        ({"kind": "daily", "share": 0.5, "scatter": -1}, "availability.scatter must be at least 0"),
    ],
)
def test_a_wrong_availability_is_refused(spec: Any, told: str) -> None:
    with pytest.raises(SettingError, match=told):
        availability_from(spec, 0, 4)


# Drift.


def test_without_drift_nobody_ever_changes() -> None:
    drift = Drift(None, 0, 4)
    assert not drift.moves
    assert drift.of(1).tolist() == drift.of(10_000).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("step", "drift must be a table with a kind, step or wave, not 'step'"),
        ((1, 2), "drift must be a table with a kind"),
        ({"kind": "jump"}, "drift.kind must be step or wave, not 'jump'"),
        ({"kind": ["step"]}, "drift.kind must be step or wave"),
        ({"kind": "step"}, "drift needs round, factor, share; given is nothing"),
        ({"kind": "wave", "size": 1}, "drift needs size, period; given is size"),
        (
            {"kind": "wave", "size": 1, "period": 5, "share": 1},
            "drift needs size, period; given is period, share, size",
        ),
        ({"kind": "wave", "size": 1, "period": 0}, "drift.period must be above 0"),
        ({"kind": "wave", "size": -1, "period": 5}, "drift.size must be at least 0"),
        ({"kind": "step", "round": 5, "factor": -2, "share": 0.5}, "drift.factor must be at least 0"),
        ({"kind": "step", "round": 5, "factor": 2, "share": 1.5}, "drift.share must be at most 1"),
        ({"kind": "step", "round": "late", "factor": 2, "share": 0.5}, "drift.round must be a number"),
    ],
)
def test_a_wrong_drift_is_refused(spec: Any, told: str) -> None:
    with pytest.raises(SettingError, match=told):
        Drift(spec, 0, 4)
