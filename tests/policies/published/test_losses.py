from __future__ import annotations

import math

import numpy as np
import pytest

from policies.examples import played, turns_after
from turnout import RoundOffer, RoundReport
from turnout.kernel.randomness import round_rng
from turnout.policies import UCBCS, ActiveFL, PowerOfChoice
from turnout.policies.check_support import SmallFleet

# Active FL


SIZES = [float(row % 7 + 1) for row in range(40)]


def test_100_rounds_equal_a_literal_implementation() -> None:
    policy = ActiveFL(40, cohort_size=10, dropped=0.5, sharpness=0.8, uniform=0.38, sizes=SIZES, seed=2)
    fleet = SmallFleet(1, availability=0.6, losses=True)
    loss: dict[int, float] = {}
    for offer, selection, report in played(policy, fleet, 100):
        keys = round_rng(2, "active-fl", offer.round).standard_exponential(40).tolist()
        tie_break = round_rng(2, "active-fl evenly", offer.round).standard_exponential(40).tolist()
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
        assert report.losses is not None
        loss |= dict(zip(report.clients.tolist(), report.losses.tolist(), strict=True))


def test_large_values_do_not_overflow() -> None:
    policy = ActiveFL(3, cohort_size=2, dropped=0.0, sharpness=1.0, uniform=0.0)
    policy.tell(RoundReport(1, np.arange(3), np.ones((3, 3)), np.ones(3), losses=np.array([1e6, 2e6, 3e6])))
    assert policy.ask(RoundOffer(2, np.ones(3, dtype=bool), np.ones((3, 3)))).clients.tolist() == [1, 2]


# Power-of-Choice


def test_150_rounds_equal_a_literal_implementation() -> None:
    """A loss is infinite before the first turn, and the mean of the others if it was not reported."""
    policy = PowerOfChoice(40, cohort_size=5, candidates=12, sizes=SIZES, seed=4)
    fleet = SmallFleet(1, availability=0.6, deadline=20.0, failure_rate=0.1, losses=True)
    last: dict[int, float] = {}
    tried: set[int] = set()
    for offer, selection, report in played(policy, fleet, 150):
        keys = round_rng(4, "power-of-choice", offer.round).standard_exponential(40).tolist()
        tie_break = round_rng(4, "power-of-choice equals", offer.round).standard_exponential(40).tolist()
        mean = sum(last.values()) / len(last) if last else 1.0

        def loss(row: int, mean: float = mean) -> float:
            return last.get(row, mean if row in tried else math.inf)

        candidates = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: keys[row] / SIZES[row])[:12]
        best = sorted(candidates, key=lambda row: (-loss(row), tie_break[row]))[:5]
        assert selection.clients.tolist() == sorted(best)
        assert selection.reasons["loss"].tolist() == pytest.approx([loss(row) for row in sorted(best)])
        assert report.losses is not None
        for row, reported in zip(report.clients.tolist(), report.losses.tolist(), strict=True):
            tried.add(row)
            if not math.isnan(reported):
                last[row] = reported


# UCB-CS


@pytest.mark.parametrize("forgetting", [0.7, 0.95, 1.0])
def test_60_rounds_equal_a_literal_implementation(forgetting: float) -> None:
    policy = UCBCS(40, cohort_size=6, forgetting=forgetting, sizes=SIZES)
    fleet = SmallFleet(5, deadline=20.0, failure_rate=0.1, losses=True)
    history: dict[int, list[tuple[int, float]]] = {row: [] for row in range(40)}
    spread = 1.0
    for offer, selection, report in played(policy, fleet, 60):
        rounds = sum(forgetting ** (offer.round - r) for r in range(1, offer.round + 1))

        def index(row: int, now: int = offer.round, rounds: float = rounds, spread: float = spread) -> float:
            turns = sum(forgetting ** (now - r) for r, _ in history[row])
            if not turns:
                return math.inf
            losses = sum(forgetting ** (now - r) * loss for r, loss in history[row])
            bonus = math.sqrt(2 * spread**2 * math.log(rounds) / turns)
            return SIZES[row] / sum(SIZES) * (losses / turns + bonus)

        rows = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: (-index(row), row))
        assert selection.clients.tolist() == sorted(rows[:6])
        assert report.losses is not None
        reported = [loss for loss in report.losses.tolist() if not math.isnan(loss)]
        mean = sum(reported) / len(reported) if reported else 0.0
        for row, loss in zip(report.clients.tolist(), report.losses.tolist(), strict=True):
            history[row].append((offer.round, mean if math.isnan(loss) else loss))
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
