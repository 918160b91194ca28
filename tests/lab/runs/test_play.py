from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy
from turnout.errors import SettingError
from turnout.kernel.rounds import RoundRecord
from turnout.lab import PaperWorld, play


class Spy(SelectionPolicy):
    """Selects the first three available clients, and records every offer and report."""

    name = "spy"

    def __init__(self, clients: int, *, requires_expected_times: bool = False) -> None:
        super().__init__(clients)
        self.requires_expected_times = requires_expected_times
        self.offers: list[RoundOffer] = []
        self.reports: list[RoundReport] = []

    def ask(self, offer: RoundOffer) -> Selection:
        self.offers.append(offer)
        return Selection(offer.round, np.flatnonzero(offer.available)[:3])

    def tell(self, report: RoundReport) -> None:
        self.reports.append(report)


def test_only_policies_that_require_expected_times_receive_them() -> None:
    spy = Spy(40)
    list(play(spy, PaperWorld(), 5))
    assert [offer.expected_times for offer in spy.offers] == [None] * 5
    without_times, with_times = Spy(40), Spy(40, requires_expected_times=True)
    assert list(play(without_times, PaperWorld(3), 10)) == list(play(with_times, PaperWorld(3), 10))
    assert without_times.offers == [offer.without_truth() for offer in with_times.offers]
    spy, world = Spy(40, requires_expected_times=True), PaperWorld()
    list(play(spy, world, 5))
    for offer in spy.offers:
        assert offer.expected_times is not None
        np.testing.assert_allclose(offer.expected_times, (offer.contexts * world.theta).sum(axis=1))


def test_a_record_holds_the_selection_and_the_report() -> None:
    spy = Spy(40)
    records = list(play(spy, PaperWorld(), 20))
    assert all(isinstance(record, RoundRecord) for record in records)
    assert [record.round for record in records] == list(range(1, 21))
    assert [record.report for record in records] == spy.reports
    for record, offer in zip(records, spy.offers, strict=True):
        np.testing.assert_array_equal(record.selection.clients, np.flatnonzero(offer.available)[:3])
        np.testing.assert_array_equal(record.report.clients, record.selection.clients)


def test_rounds_are_played_lazily() -> None:
    spy = Spy(40)
    rounds: Iterator[RoundRecord] = play(spy, PaperWorld(), 1_000_000_000)
    assert not spy.offers
    next(rounds)
    next(rounds)
    assert len(spy.offers) == len(spy.reports) == 2


def test_other_fleets_and_invalid_round_numbers_are_rejected() -> None:
    with pytest.raises(SettingError, match="the policy has 39 clients, but the world has 40"):
        next(play(Spy(39), PaperWorld(), 5))
    with pytest.raises(SettingError, match="first must be at least 1, not 0"):
        next(play(Spy(40), PaperWorld(), 5, first=0))
    with pytest.raises(SettingError, match="rounds must be a whole number"):
        next(play(Spy(40), PaperWorld(), 2.5))  # type: ignore[arg-type]  # the invalid value under test


@pytest.mark.parametrize("rounds", [0, 4])
def test_no_round_is_played_after_the_last_one(rounds: int) -> None:
    assert list(play(Spy(40), PaperWorld(), rounds, first=5)) == []
