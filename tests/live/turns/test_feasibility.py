"""When the exact test of feasibility is used, and when the sum of all rates."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from live.fleets import OpenFleet, named, offered, play_round, state_of
from turnout import Scheduler
from turnout.errors import InfeasiblePromise
from turnout.kernel import feasibility as exact_test
from turnout.live.turns import feasibility
from turnout.live.turns.feasibility import require_feasible, rounded_down


@pytest.mark.parametrize(
    ("clients", "rate", "exact_tests", "refusal"),
    [
        (3, "0.3", 1, nullcontext()),
        (4, "0.3", 0, pytest.raises(InfeasiblePromise)),  # 4 · 0.3 is above 1
        (4, "1/4", 0, nullcontext()),  # exactly as many turns as there are
        (4, "0.2501", 0, pytest.raises(InfeasiblePromise, match=r"at most 0\.25, or a cohort_size of at least 2")),
    ],
)
def test_only_large_fleets_are_judged_by_the_sum_of_their_rates(
    open_fleet: OpenFleet,
    monkeypatch: pytest.MonkeyPatch,
    clients: int,
    rate: str,
    exact_tests: int,
    refusal: AbstractContextManager[object],
) -> None:
    settings = {"cohort_size": 1, "guaranteed_rate": rate, "accrual": "always"}
    scheduler = open_fleet(settings=settings, allow_infeasible=True)
    for _ in range(3):
        play_round(scheduler, offered(*named(clients)))
    exact: list[Any] = []
    monkeypatch.setattr(exact_test, "require_feasible", lambda *given: exact.append(given))
    monkeypatch.setattr(feasibility, "LARGE_FLEET", 3)
    with refusal:
        require_feasible(state_of(scheduler).fleet)
    assert len(exact) == exact_tests


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(-1, 3), "0"),
        (Fraction(2, 3), "0.666"),
        (Fraction(1, 4), "0.25"),
        (Fraction(1), "1"),
    ],
)
def test_rates_are_rounded_down_to_three_digits(rate: Fraction, text: str) -> None:
    assert rounded_down(rate) == text


#: The seconds of the turns: with two slots, the slow client can have 1 in 11 turns.
SECONDS = {"c0": 1.0, "c1": 1.0, "c2": 1.0, "c3": 10.0}


def open_fleet(path: Path, rate: str, **options: Any) -> Scheduler:
    settings = {"guaranteed_rate": rate, "tolerance": 1.0}
    return Scheduler.open(path, **{"concurrency": 2, "settings": settings, "deadline": 20.0, **options})


def learn_times(scheduler: Scheduler) -> None:
    for _ in range(8):
        for turn in scheduler.fill(offered(*SECONDS)):
            scheduler.report(turn.id, SECONDS[turn.client])


def test_a_rate_that_the_learned_times_do_not_allow_is_noticed_and_cannot_be_amended_to(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", "1/20") as scheduler:
        learn_times(scheduler)
        assert not [notice for notice in scheduler.status().notices if "cannot be kept" in notice]
        with pytest.raises(InfeasiblePromise, match=r"a guaranteed_rate of at most 0\.081.*concurrency of at most 1"):
            scheduler.amend(guaranteed_rate="1/11")
        assert scheduler.settings.settings["guaranteed_rate"] == "1/20"
        assert scheduler.amend(guaranteed_rate="2/25") == ["guaranteed_rate"]
        assert set(scheduler.amend(guaranteed_rate="1/11", allow_infeasible=True)) == {
            "guaranteed_rate",
            "allow_infeasible",
        }
        (notice,) = [notice for notice in scheduler.status().notices if "cannot be kept" in notice]
        assert "nobody is in two slots, and the turns of one client last" in notice
        assert "use a guaranteed_rate of at most 0.081" in notice
        assert "concurrency of at most 1" in notice
    with open_fleet(tmp_path / "fleet.turnout", "1/11", allow_infeasible=True) as scheduler:
        assert notice in scheduler.status().notices  # the fleet opens: a server must be able to go on


def test_a_fleet_that_becomes_infeasible_while_it_runs_goes_on_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_fleet(tmp_path / "fleet.turnout", "1/11") as scheduler:
        learn_times(scheduler)
        learn_times(scheduler)
        assert scheduler.round > 10
        assert len([record for record in caplog.records if "nobody is in two" in record.message]) == 1


def test_one_slot_is_enough_for_equal_shares(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", "1/4", concurrency=1) as scheduler:
        learn_times(scheduler)
        assert not [notice for notice in scheduler.status().notices if "promised" in notice]


def test_too_many_clients_are_refused_in_words_of_turns(tmp_path: Path) -> None:
    with (
        open_fleet(tmp_path / "fleet.turnout", "1/4") as scheduler,
        pytest.raises(InfeasiblePromise, match=r"exceed 1: use a guaranteed_rate of at most 0\.2") as refused,
    ):
        scheduler.fill(named(5))
    assert "cohort_size" not in str(refused.value)
    assert refused.value.slots is None


def test_rates_that_exceed_1_together_after_clients_joined_are_noticed(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", "1/4", allow_infeasible=True) as scheduler:
        scheduler.fill(named(4))
        assert not [notice for notice in scheduler.status().notices if "promised" in notice]
        scheduler.register(["e"])
        (notice,) = [notice for notice in scheduler.status().notices if "cannot be kept" in notice]
    assert "all rates together exceed 1: use a guaranteed_rate of at most 0.2, or pass" in notice
