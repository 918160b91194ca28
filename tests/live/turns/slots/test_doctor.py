"""The doctor speaks of decisions, not of rounds, about fleets without rounds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from live.fleets import summary_round
from live.forging import alter, fetch_row, forge_event, forge_summary_state, forge_turn
from live.turns.slots.played import open_slots, play_turns
from postgres import copy_store
from turnout.errors import StoreError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import examine
from turnout.live.turns.records import digest_of
from turnout.live.turns.slots.records import unpack_fill
from turnout.storage.store import Connection


def swap_running_turns(db: Connection) -> None:
    """Stores the newest running turn as the oldest one, with the digest that belongs there."""
    first, last = fetch_row(db, "SELECT MIN(round), MAX(round) FROM open_round")
    (data,) = fetch_row(db, "SELECT data FROM open_round WHERE round = ?", last)
    values = (data, digest_of(b"", str(first), data), first)
    assert first < last
    db.execute("UPDATE open_round SET data = ?, digest = ? WHERE round = ?", values)


def end_the_turn_of_another_client(db: Connection) -> None:
    """Changes the newest event that ended a turn: the turn was that of the client in the next row."""
    events = db.execute("SELECT seq, data FROM events WHERE kind = 'fill' ORDER BY seq DESC")
    number = next(seq for seq, data in events if len(unpack_fill(data, None).ended))
    forge_event(db, number, lambda _, arrays: arrays["ended_rows"].__setitem__(0, (arrays["ended_rows"][0] + 1) % 10))


#: What is done to the file, and the part and the message of a finding.
DAMAGES: list[tuple[str | Callable[[Connection], None], str, str]] = [
    (
        "UPDATE turns SET seconds = 99 WHERE round = 100",
        "turns",
        r"the turn of '\w+' in decision 100 does not match its checksum",
    ),
    (
        "UPDATE offers SET digest = x'00' WHERE round = (SELECT MAX(round) FROM offers)",
        "offers",
        r"the offer of decision \d+ does not match its digest",
    ),
    ("UPDATE turns SET round = 999 WHERE round = 100", "turns", r"the turn of row \d in decision 100 is missing"),
    ("UPDATE meta SET value = '100' WHERE key = 'round'", "state", r"there are turns after decision \d+, the last one"),
    ("UPDATE summary SET digest = x'00'", "summary", r"the summary of earlier turns does not match its digest"),
    ("DELETE FROM masks WHERE seq = (SELECT MAX(seq) FROM masks)", "turns", r"at event \d+ is missing"),
    (
        "UPDATE masks SET data = x'00' WHERE seq = (SELECT MAX(seq) FROM masks)",
        "turns",
        r"the presence of clients at decision \d+ does not match its digest",
    ),
    (
        "DELETE FROM events WHERE seq = (SELECT MAX(seq) - 1 FROM events)",
        "turns",
        r"^decision (\d+) follows decision (?!\1)\d+",
    ),
    (
        "UPDATE open_round SET digest = x'00' WHERE round = (SELECT MAX(round) FROM open_round)",
        "state",
        r"the turn \d+ that is running does not match its digest",
    ),
    # Their digests are right, as a bug in turnout might write them.
    (end_the_turn_of_another_client, "turns", r"^the turn of row \d in decision \d+ ended, but was not running"),
    (
        lambda db: forge_turn(db, "round = 100", "id = 'stranger'"),
        "turns",
        r"^the turn of 'stranger' in decision 100 is in row \d, which has the id 'c\d'$",
    ),
    (
        lambda db: forge_turn(db, "round >= 100 AND kind = 'arrived'", "loss = 9.5"),
        "turns",
        r"^the turn of 'c\d' in decision \d+ ended with loss 0\.0\d+, but is recorded with loss 9\.5$",
    ),
    (
        lambda db: forge_turn(db, "round >= 100 AND kind = 'arrived'", "loss = NULL"),
        "turns",
        r"^the turn of 'c\d' in decision \d+ ended with loss 0\.0\d+, but is recorded with loss None$",
    ),
    (swap_running_turns, "state", "the running turns are not those of the decisions"),
    (
        lambda db: forge_summary_state(db, lambda state: state.update(round=state["round"] - 1)),
        "summary",
        "^the state in the summary is not that of its last decision$",
    ),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet whose first turns are no longer kept; the tests do not change it."""
    path = tmp_path_factory.mktemp("written") / "fleet.turnout"
    with open_slots(path, keep_rounds=40) as scheduler:
        play_turns(scheduler, 80)
        scheduler.compact()
        assert 0 < summary_round(scheduler) < 100 < scheduler.round
    return path


@pytest.fixture
def path(written: Path, folder: Path) -> Path:
    """A copy of the fleet."""
    return copy_store(written, folder / "fleet.turnout")


def texts_of(path: Path) -> list[str]:
    """Returns what the doctor says; the name of a column in a command is not a word about the fleet."""
    return [f"{finding.message} {finding.remedy}".replace("WHERE round = N", "") for finding in examine(path)]


def test_findings_about_an_intact_fleet_without_rounds_do_not_speak_of_rounds(path: Path, folder: Path) -> None:
    texts = texts_of(path)
    assert not [text for text in texts if "round" in text]
    assert any(re.match(r"decisions up to \d+ are no longer kept; their summary matches", text) for text in texts)
    assert any(re.match(r"offers are recorded for \d+ decisions and agree", text) for text in texts)
    new = folder / "new.turnout"
    with open_slots(new) as scheduler:
        scheduler.fill(["a"])
    assert not [text for text in texts_of(new) if "round" in text]
    assert any(text.startswith("all decisions are kept") for text in texts_of(new))


@pytest.mark.parametrize(("damage", "part", "message"), DAMAGES)
def test_findings_about_a_damaged_fleet_without_rounds_do_not_speak_of_rounds(
    path: Path, damage: str | Callable[[Connection], None], part: str, message: str
) -> None:
    alter(path, damage)
    (findings,) = [finding for finding in examine(path) if finding.part == part]
    assert findings.ok is False
    assert re.search(message, findings.message), findings.message
    assert not [text for text in texts_of(path) if "round" in text]


def test_a_damaged_offer_costs_the_explanation_of_its_decision(path: Path) -> None:
    alter(path, "UPDATE offers SET digest = x'00' WHERE round = (SELECT MAX(round) FROM offers)")
    (findings,) = [finding for finding in examine(path) if finding.part == "offers"]
    assert "for each damaged decision N: only the explanation of that decision is lost" in findings.remedy


def test_a_decision_that_is_no_longer_kept_is_refused_as_such(path: Path) -> None:
    with FleetReader(path) as scheduler:
        explanation = scheduler.explain("c1", 1)
        assert f"decisions up to {scheduler.summary().round} are no longer kept" in explanation.sentence


def test_a_scheduler_that_finds_a_damaged_turn_names_its_decision(path: Path) -> None:
    alter(path, "UPDATE turns SET seconds = 99 WHERE round = 100")
    match = "in decision 100 does not match its checksum"
    with pytest.raises(StoreError, match=match), Scheduler.open(path) as scheduler:
        scheduler.history(round=100)
