"""The paper's world, and the random numbers, availability and quantities of all worlds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from narrowing import known
from turnout import POLICIES, RoundReport, Selection, make_policy
from turnout.errors import SelectionError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.rounds import RoundOffer
from turnout.lab import PaperWorld, play
from turnout.lab.worlds.distributions import Availability, Draws, Quantity, make_availability
from turnout.policies.check_support import SmallFleet
from turnout.policies.rbcsf import TheoreticalExploration


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


ROUNDS = 500


def selection_for(offer: RoundOffer, *rows: int) -> Selection:
    return Selection(offer.round, np.array(rows, dtype=np.int64))


def train_all_available(world: PaperWorld, rounds: int) -> tuple[list[RoundOffer], list[RoundReport]]:
    """Lets all available clients train in every round."""
    offers, reports = [], []
    for round_ in range(1, rounds + 1):
        offer = world.offer(round_)
        offers.append(offer)
        reports.append(world.play(offer, Selection(round_, np.flatnonzero(offer.available))))
    return offers, reports


def relative_noise(world: PaperWorld, rounds: int) -> FloatArray:
    """Returns the ratios of exchange time to expected time of all turns."""
    offers, reports = train_all_available(world, rounds)
    ratios = [
        report.exchange_times / offer.expected_times[report.clients]
        for offer, report in zip(offers, reports, strict=True)
        if offer.expected_times is not None
    ]
    return np.concatenate(ratios)


# Classes.


def test_clients_form_equal_classes_which_are_a_setting() -> None:
    theta = PaperWorld().theta
    for class_index, (training, snr) in enumerate([(1.0, 1000.0), (2.0, 100.0), (3.0, 10.0), (4.0, 1.0)]):
        rows = theta[10 * class_index : 10 * class_index + 10]
        np.testing.assert_allclose(rows, np.tile([training, 1.0, 1 / math.log2(1 + snr)], (10, 1)))
    np.testing.assert_array_equal(PaperWorld().theta, SmallFleet().theta)
    world = PaperWorld(clients=4, classes=[(5.0, 0.0, 3.0), (0.5, 2.5, 15.0)])
    np.testing.assert_allclose(world.theta, [[5, 0, 0.5], [5, 0, 0.5], [0.5, 2.5, 0.25], [0.5, 2.5, 0.25]])
    assert PaperWorld(clients=3, classes=[(5.0, 0.0, 3.0)]).theta.tolist() == [[5, 0, 0.5]] * 3
    theta = PaperWorld(snr_log="e").theta
    np.testing.assert_allclose(theta[[0, 10, 20, 30], 2], [1 / math.log(1 + snr) for snr in (1000, 100, 10, 1)])
    np.testing.assert_array_equal(theta[:, :2], PaperWorld().theta[:, :2])


@pytest.mark.parametrize(
    ("clients", "sizes"), [(1, [1, 0, 0, 0]), (3, [1, 1, 1, 0]), (41, [11, 10, 10, 10]), (100_000, [25_000] * 4)]
)
def test_class_sizes_differ_by_at_most_one(clients: int, sizes: list[int]) -> None:
    world = PaperWorld(clients=clients)
    training = world.theta[:, 0]
    assert [int((training == class_index).sum()) for class_index in (1, 2, 3, 4)] == sizes
    assert (np.diff(training) >= 0).all()
    offer = world.offer(1)
    assert world.clients == offer.clients == len(world.availability) == clients
    report = world.play(offer, Selection(1, np.flatnonzero(offer.available)))
    assert len(report.exchange_times) == offer.available.sum()


# Contexts, availability and times.


def test_contexts_have_the_paper_s_ranges_and_means() -> None:
    world = PaperWorld(3)
    contexts = np.stack([world.offer(round_).contexts for round_ in range(1, ROUNDS + 1)])
    inverse_cpu, size_over_bandwidth = contexts[..., 0], contexts[..., 2]
    assert inverse_cpu.min() >= 1 / 2.0
    assert inverse_cpu.max() <= 1 / 0.5
    assert size_over_bandwidth.min() >= 20 / 4
    assert size_over_bandwidth.max() <= 20 / 2
    # The mean of 1/U[a, b] is ln(b/a)/(b − a).
    assert inverse_cpu.mean() == pytest.approx(math.log(4) / 1.5, abs=0.015)
    assert size_over_bandwidth.mean() == pytest.approx(20 * math.log(2) / 2, abs=0.06)
    free_cpu, bandwidth = 1 / inverse_cpu, 20 / size_over_bandwidth
    np.testing.assert_allclose(np.quantile(free_cpu, [0.25, 0.5, 0.75]), [0.875, 1.25, 1.625], atol=0.03)
    np.testing.assert_allclose(np.quantile(bandwidth, [0.25, 0.5, 0.75]), [2.5, 3.0, 3.5], atol=0.04)
    assert abs(np.corrcoef(free_cpu.ravel(), bandwidth.ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(free_cpu[1:].ravel(), free_cpu[:-1].ravel())[0, 1]) < 0.03


def test_availability_can_differ_between_clients_and_is_read_only() -> None:
    shares = np.linspace(0, 1, 11)
    world = PaperWorld(clients=11, availability=shares)
    available = np.stack([world.offer(round_).available for round_ in range(1, ROUNDS + 1)])
    np.testing.assert_allclose(available.mean(axis=0), shares, atol=0.08)
    assert not available[:, 0].any()
    assert available[:, -1].all()
    np.testing.assert_array_equal(world.availability, shares)
    shares = np.full(40, 0.5)
    world = PaperWorld(availability=shares)
    shares[:] = 0.0
    assert world.offer(1).available.any()
    with pytest.raises(ValueError, match="read-only"):
        world.availability[0] = 1.0


def test_expected_times_are_contexts_times_theta() -> None:
    world = PaperWorld(2, clients=41)
    offers, _ = train_all_available(world, 5)
    for offer in offers:
        expected = np.array([sum(offer.contexts[row] * world.theta[row]) for row in range(41)])
        np.testing.assert_allclose(known(offer.expected_times), expected, rtol=1e-12)


def test_a_report_repeats_the_contexts_and_availability_of_its_offer() -> None:
    world = PaperWorld(availability=1.0)
    offer = world.offer(1)
    report = world.play(offer, selection_for(offer, 7, 3))
    assert report.clients.tolist() == [7, 3]
    np.testing.assert_array_equal(report.contexts, offer.contexts[[7, 3]])
    np.testing.assert_array_equal(report.available, offer.available)
    assert report.outcomes is None


def test_noise_is_uniform_within_the_expected_time_or_absent() -> None:
    ratios = relative_noise(PaperWorld(7), ROUNDS)
    assert ratios.min() >= 0
    assert ratios.max() <= 2
    assert ratios.mean() == pytest.approx(1, abs=0.02)
    assert ratios.std() == pytest.approx(1 / math.sqrt(3), abs=0.01)
    np.testing.assert_allclose(np.quantile(ratios, [0.1, 0.5, 0.9]), [0.2, 1.0, 1.8], atol=0.04)
    np.testing.assert_allclose(relative_noise(PaperWorld(noise="none"), 20), 1.0, rtol=1e-15)
    np.testing.assert_allclose(relative_noise(PaperWorld(noise="lognormal", noise_spread=0), 5), 1.0)


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_lognormal_noise_has_mean_one_and_its_spread(spread: float) -> None:
    ratios = relative_noise(PaperWorld(noise="lognormal", noise_spread=spread), ROUNDS)
    assert ratios.min() > 0
    assert ratios.mean() == pytest.approx(1, abs=0.06 * spread)
    assert np.log(ratios).std() == pytest.approx(spread, rel=0.03)


def test_free_cpu_bandwidth_and_model_size_are_settings() -> None:
    world = PaperWorld(free_cpu=(4, 4), bandwidth={"kind": "lognormal", "median": 3.0, "spread": 0.5}, model_size=6.0)
    contexts = np.concatenate([world.offer(round_).contexts for round_ in range(1, ROUNDS + 1)])
    assert (contexts[:, 0] == 0.25).all()
    logs = np.log(6.0 / contexts[:, 2])
    assert np.median(logs) == pytest.approx(math.log(3.0), abs=0.03)
    assert logs.std() == pytest.approx(0.5, abs=0.02)


# Cold start.


def test_clients_that_trained_in_the_previous_round_need_no_cold_start() -> None:
    world = PaperWorld(availability=1.0)
    warm: list[list[int]] = []
    for cohort in ([3, 5], [5, 9], [], [1]):
        offer = world.offer(len(warm) + 1)
        warm.append(np.flatnonzero(offer.contexts[:, 1] == 0).tolist())
        world.play(offer, selection_for(offer, *cohort))
    assert warm == [[], [3, 5], [5, 9], []]
    assert (PaperWorld().offer(1).contexts[:, 1] == 1).all()


def test_with_the_literal_rule_only_participants_need_a_cold_start() -> None:
    world = PaperWorld(availability=1.0, cold_start="participants")
    offer = world.offer(1)
    assert (offer.contexts[:, 1] == 0).all()
    world.play(offer, selection_for(offer, 3, 5))
    assert np.flatnonzero(world.offer(2).contexts[:, 1]).tolist() == [3, 5]


def test_a_cold_start_costs_its_seconds() -> None:
    world = PaperWorld(availability=1.0, classes=[(1.0, 2.5, 10.0)])
    literal = PaperWorld(availability=1.0, classes=[(1.0, 2.5, 10.0)], cold_start="participants")
    cold, warm = world.offer(1).expected_times, literal.offer(1).expected_times
    assert cold is not None
    assert warm is not None
    np.testing.assert_allclose(cold - warm, 2.5)


# Values reported in the paper.


@pytest.mark.parametrize(("snr_log", "cohort"), [("2", 8.8), ("e", 7.0)])
def test_fedcs_with_a_deadline_of_three_seconds_selects_the_expected_number(snr_log: Any, cohort: float) -> None:
    records = play(make_policy("fedcs", 40, deadline=3.0), PaperWorld(1, snr_log=snr_log), ROUNDS)
    assert np.mean([len(record.selection.clients) for record in records]) == pytest.approx(cohort, abs=0.3)


# Randomness is a pure function of seed, purpose and round.


def test_every_policy_gets_the_same_availability_contexts_and_noise() -> None:
    noise: dict[tuple[int, int], float] = {}
    offered: dict[int, tuple[BoolArray, FloatArray]] = {}
    for name in POLICIES:
        policy, world = make_policy(name, 40), PaperWorld(11)
        for round_ in range(1, 16):
            offer = world.offer(round_)
            assert offer.expected_times is not None
            available, contexts = offered.setdefault(round_, (offer.available, offer.contexts[:, [0, 2]]))
            np.testing.assert_array_equal(offer.available, available)
            np.testing.assert_array_equal(offer.contexts[:, [0, 2]], contexts)
            report = world.play(offer, policy.ask(offer))
            policy.tell(report)
            ratios = report.exchange_times / offer.expected_times[report.clients]
            for row, ratio in zip(report.clients.tolist(), ratios.tolist(), strict=True):
                assert noise.setdefault((round_, row), ratio) == pytest.approx(ratio, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clients": 5000},
        {"availability": {"kind": "markov", "share": 0.6, "persistence": 20}},
        {"noise": "lognormal", "free_cpu": {"kind": "lognormal", "median": 1.0, "spread": 0.3}},
    ],
)
def test_rounds_can_be_requested_in_any_order(settings: dict[str, Any]) -> None:
    rounds = range(1, 61)
    in_order, shuffled = PaperWorld(4, **settings), PaperWorld(4, **settings)
    offers = {round_: in_order.offer(round_) for round_ in rounds}
    for round_ in np.random.default_rng(0).permutation(rounds).tolist():
        assert shuffled.offer(round_) == offers[round_]
    chosen = Selection(50, np.flatnonzero(offers[50].available))
    assert shuffled.play(offers[50], chosen) == in_order.play(offers[50], chosen)
    assert PaperWorld(4, **settings).play(offers[50], chosen) == in_order.play(offers[50], chosen)


def test_free_cpu_bandwidth_and_noise_do_not_share_their_draws() -> None:
    world = PaperWorld(0, clients=5000, availability=1.0)
    offer = world.offer(1)
    report = world.play(offer, Selection(1, np.arange(5000)))
    draws = [1 / offer.contexts[:, 0], 20 / offer.contexts[:, 2], report.exchange_times / known(offer.expected_times)]
    correlations = np.corrcoef(draws) - np.eye(3)
    assert abs(correlations).max() < 0.06


# Bounds of the lemma.


def test_the_bounds_are_those_of_the_slowest_class() -> None:
    bounds = PaperWorld().bounds()
    assert bounds["R"] == pytest.approx(4 * 2 + 1 * 1 + 1 * 10)
    assert bounds["S"] == pytest.approx(math.sqrt(4**2 + 1 + 1))
    assert bounds["L"] == pytest.approx(math.sqrt(2**2 + 1 + 10**2))
    assert PaperWorld(noise="none").bounds()["R"] == 0


@pytest.mark.parametrize(
    "settings",
    [{}, {"snr_log": "e"}, {"classes": [(1.0, 9.0, 2.0), (5.0, 0.0, 700.0)], "bandwidth": (0.5, 1.0), "model_size": 3}],
)
def test_the_bounds_hold_and_the_longest_time_is_reached(settings: dict[str, Any]) -> None:
    world = PaperWorld(6, clients=400, **settings)
    bounds = world.bounds()
    offers, reports = train_all_available(world, 200)
    longest = max(float(np.linalg.norm(offer.contexts, axis=1).max()) for offer in offers)
    slowest = max(float(offer.expected_times.max()) for offer in offers if offer.expected_times is not None)
    noise = max(
        float(abs(report.exchange_times - offer.expected_times[report.clients]).max())
        for offer, report in zip(offers, reports, strict=True)
        if offer.expected_times is not None
    )
    assert 0.97 * bounds["L"] < longest <= bounds["L"]
    assert 0.9 * bounds["R"] < slowest <= bounds["R"]
    assert noise <= bounds["R"]
    assert bounds["S"] == pytest.approx(max(math.hypot(*row) for row in world.theta.tolist()))


def test_uniform_noise_needs_only_its_standard_deviation_in_the_lemma() -> None:
    """E exp(x · noise) = sinh(a x)/(a x) ≤ exp(x² R²/2) with R = a/√3; docs/paper.md states the schedule of this R."""
    x = np.linspace(0.01, 30, 500)
    assert (np.log(np.sinh(x) / x) <= x**2 / 6).all()
    assert np.log(np.sinh(0.01) / 0.01) > 0.99 * 0.01**2 / 6  # no smaller R suffices
    bounds = PaperWorld().bounds()
    schedule = TheoreticalExploration(bounds["R"] / math.sqrt(3), bounds["S"], bounds["L"], delta=0.1)
    assert [round(schedule(number)) for number in (1, 500)] == [54, 73]


@pytest.mark.parametrize(
    "settings",
    [
        {"noise": "lognormal"},
        {"free_cpu": {"kind": "lognormal", "median": 1.0, "spread": 0.1}},
        {"bandwidth": {"kind": "lognormal", "median": 1.0, "spread": 0.1}},
    ],
)
def test_worlds_outside_the_lemma_have_no_bounds(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="the lemma needs"):
        PaperWorld(**settings).bounds()


# Rejected settings and selections.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed must be at least 0"),
        ({"clients": 0}, "clients must be at least 1"),
        ({"snr_log": "10"}, "snr_log must be '2' or 'e', not '10'"),
        ({"cold_start": "never"}, "cold_start must be one of absent, participants, not 'never'"),
        ({"noise": "loud"}, "noise must be one of paper, none, lognormal, not 'loud'"),
        ({"noise_spread": -0.1}, "noise_spread must be at least 0"),
        ({"model_size": 0}, "model_size must be above 0"),
        ({"classes": [(1.0, 2.0)]}, "classes must be rows of"),
        ({"classes": [(1.0, 2.0, 3.0), (1.0, 2.0)]}, "classes must be rows of"),
        ({"classes": [(1.0, -1.0, 10.0)]}, "classes must be rows of"),
        ({"classes": [(1.0, 1.0, 1e-20)]}, "signal-to-noise ratio above 0"),
        ({"classes": [(1.0, math.nan, 1.0)]}, "classes must be rows of"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        PaperWorld(**settings)


def test_rounds_are_counted_from_one_and_may_have_no_clients() -> None:
    with pytest.raises(SettingError, match="round must be at least 1, not 0"):
        PaperWorld().offer(0)
    world = PaperWorld(availability=0.0)
    offer = world.offer(1)
    assert not offer.available.any()
    assert world.play(offer, selection_for(offer)).duration == 0


@pytest.mark.parametrize(
    "corrupt", [lambda state: state.clear(), lambda state: state.update(trained=np.zeros(39, bool))]
)
def test_the_state_of_another_world_is_rejected(corrupt: Callable[[dict[str, Any]], None]) -> None:
    state = PaperWorld().state()
    corrupt(state)
    with pytest.raises(ValueError, match="trained"):
        PaperWorld().restore(state)


@pytest.mark.parametrize("rows", [(40,), (50, 3), (3, 50), None])
def test_unknown_and_unavailable_clients_cannot_be_selected(rows: tuple[int, ...] | None) -> None:
    world = PaperWorld()
    offer = world.offer(1)
    rows = rows or (int(np.flatnonzero(~offer.available)[0]),)
    with pytest.raises(SelectionError, match="unknown or not available"):
        world.play(offer, selection_for(offer, *rows))
