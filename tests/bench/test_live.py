from __future__ import annotations

from turnout.bench.live import MOST, LiveFigures, measure_live


def test_a_live_round_is_measured_with_a_round_in_memory() -> None:
    figures = measure_live(clients=2000, cohort=10, repeats=1)
    assert (figures.clients, figures.cohort, figures.rounds_stored) == (2000, 10, 2)
    assert min(figures.live_seconds, figures.kernel_seconds, figures.fsync_seconds, figures.open_seconds) > 0
    assert figures.reports_a_second > 0


def test_the_ratio_excludes_fsyncs() -> None:
    figures = LiveFigures(10, 1, 0.50, 0.10, 0.05, 1.0, 3, 1000.0)
    assert round(figures.ratio, 9) == 3.5
    assert not figures.met
    assert LiveFigures(10, 1, 0.45, 0.10, 0.05, 1.0, 3, 1000.0).ratio <= MOST + 1e-9
