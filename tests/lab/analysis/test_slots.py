"""Figures of runs without rounds."""

from __future__ import annotations

import numpy as np
import pytest

from turnout import make_policy
from turnout.errors import ReportError, SettingError
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.kernel.slots.turns import FINISHED, STARTED
from turnout.lab import PaperWorld, RoundColumns, play
from turnout.lab.analysis.slots import slot_metrics, staleness, turn_clocks
from turnout.lab.runs.play import SlotRun


def columns_of(turns: list[tuple[float, float, str]]) -> RoundColumns:
    """Returns the columns of turns with these starts, ends and outcomes; turn n is one of client n."""
    records = []
    for number, (start, end, outcome) in enumerate(turns, start=1):
        client = np.array([number])
        report = RoundReport(
            number,
            client,
            np.ones((1, 1)),
            np.array([end - start]),
            outcomes=[outcome],
            metrics={STARTED: start, FINISHED: end},
        )
        records.append(RoundRecord(Selection(number, client), report))
    return RoundColumns.from_records(records, clients=len(turns) + 1)


TURNS = [
    (0.0, 4.0, "arrived"),
    (0.0, 1.0, "arrived"),
    (1.0, 2.0, "arrived"),
    (2.0, 3.0, "failed"),
    (3.0, 9.0, "arrived"),
    (4.0, 6.0, "arrived"),
    (6.0, 7.0, "arrived"),
]


def test_staleness_counts_the_versions_that_were_made_during_a_turn() -> None:
    # Updates arrive at 1, 2, 4, 6, 7 and 9 s, from turns that began at 0, 1, 0, 4, 6 and 3 s.
    assert staleness(columns_of(TURNS)).tolist() == [0, 0, 2, 0, 0, 3]
    # With a buffer of two, versions are made at 2, 6 and 9 s.
    assert staleness(columns_of(TURNS), 2).tolist() == [0, 0, 1, 0, 0, 1]


def test_updates_are_counted_until_the_last_turn_is_given() -> None:
    figures = slot_metrics(columns_of(TURNS))
    assert figures.seconds == 6.0
    assert figures.updates == 4  # at 1, 2, 4 and 6 s; the failed turn is none
    assert figures.updates_per_second == pytest.approx(4 / 6)
    assert figures.mean_turn == pytest.approx((4 + 1 + 1 + 1 + 6 + 2 + 1) / 7)
    assert figures.mean_staleness == pytest.approx(5 / 6)
    assert figures.largest_staleness == 3


def test_staleness_equals_a_literal_count_of_versions() -> None:
    run = SlotRun(make_policy("random", 40, cohort_size=1), PaperWorld(2), 6)
    columns = RoundColumns.from_records(run.play(300), clients=40)
    started, finished = turn_clocks(columns)
    for buffer in (1, 3, 8):
        ages = staleness(columns, buffer)
        ends = np.sort(finished)
        for index, turn in enumerate(np.argsort(finished, kind="stable").tolist()):
            at_end = int((ends < finished[turn]).sum()) // buffer
            at_start = int((ends <= started[turn]).sum()) // buffer
            assert ages[index] == at_end - at_start
        # Each turn overlaps with K − 1 others on average: as many updates, and a B-th of that in versions.
        assert ages.mean() == pytest.approx((6 - 1) / buffer, rel=0.1)


def test_runs_with_rounds_and_empty_buffers_are_refused() -> None:
    columns = RoundColumns.from_records(play(make_policy("random", 40), PaperWorld(), 3), clients=40)
    with pytest.raises(ReportError, match="the run has rounds: play it with concurrency"):
        slot_metrics(columns)
    with pytest.raises(SettingError, match="updates_per_version must be at least 1"):
        staleness(columns_of(TURNS), 0)
