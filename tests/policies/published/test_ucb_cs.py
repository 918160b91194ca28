from __future__ import annotations

import math

import numpy as np
import pytest

from policies.examples import turns_after
from turnout import RoundOffer, RoundReport
from turnout.policies import UCBCS
from turnout.policies.small_fleet import SmallFleet

SIZES = [float(row % 4 + 1) for row in range(40)]


@pytest.mark.parametrize("forgetting", [0.7, 0.95, 1.0])
def test_60_rounds_equal_a_literal_implementation(forgetting: float) -> None:
    policy = UCBCS(40, cohort_size=6, forgetting=forgetting, sizes=SIZES)
    fleet = SmallFleet(5, deadline=20.0, failure_rate=0.1, losses=True)
    history: dict[int, list[tuple[int, float]]] = {row: [] for row in range(40)}
    spread = 1.0
    for round_ in range(1, 61):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        rounds = sum(forgetting ** (round_ - r) for r in range(1, round_ + 1))

        def index(row: int, now: int = round_, rounds: float = rounds, spread: float = spread) -> float:
            turns = sum(forgetting ** (now - r) for r, _ in history[row])
            if not turns:
                return math.inf
            losses = sum(forgetting ** (now - r) * loss for r, loss in history[row])
            bonus = math.sqrt(2 * spread**2 * math.log(rounds) / turns)
            return SIZES[row] / sum(SIZES) * (losses / turns + bonus)

        rows = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: (-index(row), row))
        assert selection.clients.tolist() == sorted(rows[:6])
        report = fleet.play(offer, selection)
        policy.tell(report)
        assert report.losses is not None
        reported = [loss for loss in report.losses.tolist() if not math.isnan(loss)]
        mean = sum(reported) / len(reported) if reported else 0.0
        for row, loss in zip(report.clients.tolist(), report.losses.tolist(), strict=True):
            history[row].append((round_, mean if math.isnan(loss) else loss))
        if len(reported) > 1:
            spread = math.sqrt(sum((loss - mean) ** 2 for loss in reported) / len(reported))


def test_without_losses_all_clients_are_selected_about_equally_often() -> None:
    turns = turns_after(UCBCS(40), 200)
    assert turns.min() > 0.8 * turns.mean()


def test_without_spread_only_the_largest_loss_is_selected() -> None:
    greedy = UCBCS(3, cohort_size=1, spread=0.0)
    greedy.tell(RoundReport(1, np.arange(3), np.ones((3, 3)), np.ones(3), losses=np.array([1.0, 3.0, 2.0])))
    offer = np.ones(3, dtype=bool), np.ones((3, 3))
    assert {int(greedy.ask(RoundOffer(round_, *offer)).clients[0]) for round_ in range(2, 100)} == {1}


def test_a_very_old_turn_gives_a_large_but_finite_index() -> None:
    policy = UCBCS(3, cohort_size=1, sizes=[0.0, 1.0, 1.0])
    for round_, row in ((1, 0), (2, 1), (90_000, 2)):
        policy.tell(RoundReport(round_, np.array([row]), np.ones((1, 3)), np.ones(1), losses=np.array([5.0])))
    assert np.isfinite(policy.index(90_001)).all()
    assert policy.ask(RoundOffer(90_001, np.ones(3, dtype=bool), np.ones((3, 3)))).clients.tolist() == [1]
