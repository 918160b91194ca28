from __future__ import annotations

import math

import numpy as np

from turnout import RoundOffer, RoundReport
from turnout.kernel.randomness import round_rng
from turnout.policies import ActiveFL
from turnout.policies.small_fleet import SmallFleet

SIZES = [float(row % 7 + 1) for row in range(40)]


def test_100_rounds_equal_a_literal_implementation() -> None:
    policy = ActiveFL(40, cohort_size=10, dropped=0.5, sharpness=0.8, uniform=0.38, sizes=SIZES, seed=2)
    fleet = SmallFleet(1, availability=0.6, losses=True)
    loss: dict[int, float] = {}
    for round_ in range(1, 101):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        keys = round_rng(2, "active-fl", round_).standard_exponential(40).tolist()
        tie_break = round_rng(2, "active-fl evenly", round_).standard_exponential(40).tolist()
        value = {row: math.sqrt(SIZES[row]) * last for row, last in loss.items()}
        highest = max(value.values(), default=0.0)
        rows = np.flatnonzero(offer.available).tolist()
        by_value = sorted(rows, key=lambda row: (value.get(row, highest), tie_break[row]))
        dropped = by_value[: math.floor(0.5 * len(rows))]
        size = min(10, len(rows))
        uniform = round(0.38 * size)
        weight = {row: math.exp(0.8 * value.get(row, highest)) for row in rows if row not in dropped}
        chosen = sorted(weight, key=lambda row: keys[row] / weight[row])[: size - uniform]
        chosen += sorted(dropped, key=lambda row: keys[row])[: size - uniform - len(chosen)]
        others = sorted((row for row in rows if row not in chosen), key=lambda row: tie_break[row])
        assert selection.clients.tolist() == sorted(chosen + others[:uniform])
        report = fleet.play(offer, selection)
        policy.tell(report)
        assert report.losses is not None
        loss |= dict(zip(report.clients.tolist(), report.losses.tolist(), strict=True))


def report_losses(policy: ActiveFL, losses: list[float]) -> None:
    rows = np.arange(len(losses))
    policy.tell(RoundReport(1, rows, np.ones((len(rows), 3)), np.ones(len(rows)), losses=np.array(losses)))


def offer_to(clients: int, round_: int) -> RoundOffer:
    return RoundOffer(round_, np.ones(clients, dtype=bool), np.ones((clients, 3)))


def test_the_least_valuable_clients_are_selected_only_uniformly() -> None:
    policy = ActiveFL(8, cohort_size=2, dropped=0.75, sharpness=1.0, uniform=0.0)
    report_losses(policy, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert {tuple(policy.ask(offer_to(8, round_)).clients.tolist()) for round_ in range(2, 50)} == {(6, 7)}
    with_uniform = ActiveFL(8, cohort_size=2, dropped=0.75, sharpness=1.0, uniform=0.5)
    report_losses(with_uniform, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    selected = np.concatenate([with_uniform.ask(offer_to(8, round_)).clients for round_ in range(2, 300)])
    assert set(selected.tolist()) == set(range(8))


def test_probabilities_are_a_softmax_of_the_values() -> None:
    policy = ActiveFL(3, cohort_size=1, dropped=0.0, sharpness=0.5, uniform=0.0, sizes=[1, 4, 9])
    report_losses(policy, [1.0, 1.0, 1.0])
    counts = np.bincount([int(policy.ask(offer_to(3, round_)).clients[0]) for round_ in range(2, 1002)])
    weights = np.exp(0.5 * np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(counts / 1000, weights / weights.sum(), atol=0.03)


def test_large_values_do_not_overflow() -> None:
    policy = ActiveFL(3, cohort_size=2, dropped=0.0, sharpness=1.0, uniform=0.0)
    report_losses(policy, [1e6, 2e6, 3e6])
    assert policy.ask(offer_to(3, 2)).clients.tolist() == [1, 2]
