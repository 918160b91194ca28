"""What can be guaranteed in a fleet without rounds, by the times that it has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from live.fleets import named, offered, state_of
from turnout import InfeasiblePromise, Scheduler
from turnout.live.turns import feasibility
from turnout.live.turns.slots.state import SlotFleet

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
        assert not [notice for notice in scheduler.status().notices if "promised" in notice]
        with pytest.raises(InfeasiblePromise, match=r"a guaranteed_rate of at most 0\.081.*concurrency of at most 1"):
            scheduler.amend(guaranteed_rate="1/11")
        assert scheduler.settings.settings["guaranteed_rate"] == "1/20"
        assert scheduler.amend(guaranteed_rate="2/25") == ["guaranteed_rate"]
        assert set(scheduler.amend(guaranteed_rate="1/11", allow_infeasible=True)) == {
            "guaranteed_rate",
            "allow_infeasible",
        }
        (notice,) = [notice for notice in scheduler.status().notices if "promised" in notice]
        assert "nobody is in two of the 2 slots" in notice
        assert "amend the fleet to a guaranteed_rate of at most 0.081" in notice
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
        (notice,) = [notice for notice in scheduler.status().notices if "promised" in notice]
    assert notice == (
        "no policy could give the clients of this fleet what they are promised, because all rates together exceed 1: "
        "amend the fleet to a guaranteed_rate of at most 0.2"
    )


def test_the_longest_deadline_of_a_large_fleet_follows_from_the_mean_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_fleet(tmp_path / "fleet.turnout", "1/20") as scheduler:
        learn_times(scheduler)
        fleet = state_of(scheduler).fleet
        assert isinstance(fleet, SlotFleet)
        exact = feasibility.longest_deadline(fleet)
        monkeypatch.setattr(feasibility, "LARGE_FLEET", 3)
        estimated = feasibility.longest_deadline(fleet)
    mean = sum(SECONDS.values()) / 4  # two slots give a turn in half the mean time, and a client has 1 of 20 turns
    assert estimated == pytest.approx(mean / 2 * 20)
    assert exact != estimated


def test_a_deadline_beyond_the_time_in_which_a_client_earns_a_turn_is_noticed(tmp_path: Path) -> None:
    with open_fleet(tmp_path / "fleet.turnout", "2/25", deadline=1000.0) as scheduler:
        assert not [notice for notice in scheduler.status().notices if "earns one turn" in notice]
        learn_times(scheduler)
        (notice,) = [notice for notice in scheduler.status().notices if "earns one turn" in notice]
        longest = float(notice.split("deadline of at most ")[1].split()[0])
        assert 5.0 < longest < 20.0
        scheduler.amend(deadline=longest)
        assert not [notice for notice in scheduler.status().notices if "earns one turn" in notice]
