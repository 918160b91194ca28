"""The dashboard of a fleet whose older rounds are no longer kept, compared with one that keeps everything."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.readings import FOREVER, assert_same_certificate
from dashboard.test_amended import POLICIES, assert_same, play
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.views.overview import outcomes
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import StaleError

ROUNDS, KEPT = 40, 12


def played(path: Path, name: str, **options: Any) -> Scheduler:
    scheduler = Scheduler.open(path, **POLICIES[name], **options, deadline=500.0, allow_infeasible=True)
    play(scheduler, ROUNDS - 6)
    scheduler.retire("c3")
    play(scheduler, 6)
    scheduler.compact()
    return scheduler


@pytest.mark.parametrize("name", POLICIES)
def test_totals_and_debts_are_those_of_a_fleet_that_keeps_everything(name: str, tmp_path: Path) -> None:
    kept, whole = tmp_path / "kept.turnout", tmp_path / "whole.turnout"
    with ExitStack() as opened:
        scheduler = opened.enter_context(played(kept, name, keep_rounds=KEPT))
        played(whole, name).close()
        source, complete = (opened.enter_context(closing(FleetSource(FleetReader(path)))) for path in (kept, whole))
        source.catch_up(FOREVER)
        complete.catch_up(FOREVER)
        assert source.ledger.first_after == ROUNDS - KEPT
        assert source.ledger.round_column("rounds").tolist() == list(range(ROUNDS - KEPT + 1, ROUNDS + 1))
        for counter in ("turns", "offered", "last_round", "joined"):
            np.testing.assert_array_equal(
                source.ledger.counters[counter], complete.ledger.counters[counter], err_msg=counter
            )
        assert outcomes(source.ledger) == outcomes(complete.ledger)
        np.testing.assert_array_equal(source.ledger.retired, complete.ledger.retired)
        np.testing.assert_allclose(source.ledger.seconds, complete.ledger.seconds)
        np.testing.assert_array_equal(source.ledger.history.arrived, complete.ledger.history.arrived)
        np.testing.assert_array_equal(source.ledger.history.lost, complete.ledger.history.lost)
        np.testing.assert_allclose(source.ledger.shares(), complete.ledger.shares())
        result, expected = source.ledger.certificate(), scheduler.certificate()
        assert result is not None
        np.testing.assert_array_equal(result.broken_since, expected.broken_since)
        assert any("Rounds up to 28 are no longer kept" in notice for notice in source.notices())
        play(scheduler, 3)
        source.catch_up(FOREVER)
        assert source.ledger.last_round == ROUNDS + 3
        assert_same_certificate(source.ledger.certificate(), scheduler.certificate())


def test_a_page_that_fell_behind_what_is_kept_is_read_again_and_debts_begin_with_the_kept_rounds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(
        path, **POLICIES["fair-pace"], deadline=500.0, allow_infeasible=True, keep_rounds=KEPT
    ) as fleet:
        play(fleet, 5)
        with closing(FleetSource(FleetReader(path))) as source:
            debts = play(fleet, ROUNDS)
            fleet.compact()
            with pytest.raises(StaleError):
                source.catch_up(FOREVER)
        with closing(FleetSource(FleetReader(path))) as source:
            source.catch_up(FOREVER)
            assert_same(source, fleet, debts[-KEPT:])
