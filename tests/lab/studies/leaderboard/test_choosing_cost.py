"""The cost of choosing, with a clock that the test controls."""

from __future__ import annotations

import time

import pytest

from turnout import RoundOffer, RoundReport, Selection
from turnout.lab import PaperWorld
from turnout.lab.studies.leaderboard import choosing_cost
from turnout.policies import UniformRandom


def test_the_cost_is_the_median_time_of_asking_and_telling_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In round t, asking takes t µs, playing 100 s, and telling 2t µs: 3t µs count, and the median of t is 4."""
    clock = 0.0
    rounds: list[int] = []

    class Slow(UniformRandom):
        def ask(self, offer: RoundOffer) -> Selection:
            nonlocal clock
            clock += offer.round * 1e-6
            return super().ask(offer)

        def tell(self, report: RoundReport) -> None:
            nonlocal clock
            clock += 2 * report.round * 1e-6
            rounds.append(report.round)
            super().tell(report)

    class SlowWorld(PaperWorld):
        def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
            nonlocal clock
            clock += 100.0
            return super().play(offer, selection)

    monkeypatch.setattr(time, "thread_time", lambda: clock)
    cost = choosing_cost._median_cost(Slow(8, cohort_size=2), SlowWorld(clients=8), 7)
    assert rounds == [1, 2, 3, 4, 5, 6, 7]
    assert cost == pytest.approx(12.0, rel=1e-3)
