"""A server without rounds that is killed at any write loses no turn and doubles none."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from killing import TORTURE, environment
from live.fleets import packed, packed_from_disk, packed_without_times, problems
from live.turns.slots.killed_filler import RULES, SLOTS, play, seconds_of
from turnout.live import FleetReader, Scheduler, certify

#: More seeds, and thereby more kills, in `make torture`.
SEEDS = 2 * TORTURE
SCRIPT = Path(__file__).with_name("killed_filler.py")

pytestmark = pytest.mark.files


def killed(path: Path, turns: int, seed: int, *mode: str) -> list[tuple[int, str]]:
    """Fills slots in processes that are killed; returns the turns that were returned to them."""
    # A child makes some twenty writes when it opens the file, and about ten per call of fill or report.
    arguments = [sys.executable, str(SCRIPT), str(path), str(turns), str(seed), "20", "90", *mode]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["exit"] == 0, done.stderr
    assert result["killed"] >= turns // 6
    return [(int(number), client) for number, client in map(str.split, result["given"])]


def shortest_interval(path: Path) -> timedelta:
    """Returns the shortest time between two turns of one client, from the recorded events."""
    last: dict[str, datetime] = {}
    shortest = timedelta.max
    with FleetReader(path) as reader:
        for turn in sorted(reader.ended_turns(), key=lambda turn: turn.id):
            assert turn.given is not None
            if turn.client in last:
                shortest = min(shortest, turn.given - last[turn.client])
            last[turn.client] = turn.given
    return shortest


@pytest.mark.parametrize(
    ("seed", "turns"), [(0, 18), *(pytest.param(seed, 120, marks=pytest.mark.thorough) for seed in range(SEEDS))]
)
def test_a_server_killed_at_any_write_loses_and_doubles_no_turn(folder: Path, seed: int, turns: int) -> None:
    path = folder / "fleet.turnout"
    given = killed(path, turns, seed)
    # No turn was returned to two calls; one that was committed just before a kill was returned to none.
    assert len(given) == len({number for number, _ in given})
    with play(str(folder / "twin.turnout"), turns) as twin, Scheduler.open(path) as survivor:
        assert survivor.round == twin.round >= turns
        assert packed(survivor) == packed_from_disk(path)
        assert packed_without_times(survivor) == packed_without_times(twin)
        for number in range(1, twin.round + 1):
            (own,), (other,) = survivor.history(round=number), twin.history(round=number)
            assert (own.id, own.kind, own.seconds, own.why, own.loss) == (
                other.id,
                other.kind,
                other.seconds,
                other.why,
                other.loss,
            )
        assert set(given) <= {(number, survivor.history(round=number)[0].id) for number in range(1, survivor.round + 1)}
        assert survivor.certificate().turns.tolist() == twin.certificate().turns.tolist()
    assert problems(path) == []
    certify(path, folder / "proof.json", folder / "proof.jsonl")


@pytest.mark.parametrize("mode", ["check-in", "rules"])
@pytest.mark.parametrize(
    ("seed", "target_size"),
    [(0, 12), *(pytest.param(seed, 60, marks=pytest.mark.thorough) for seed in range(SEEDS - 1))],
)
def test_devices_that_check_in_while_the_server_is_killed_lose_and_double_no_turn(
    folder: Path, seed: int, target_size: int, mode: str
) -> None:
    path = folder / "fleet.turnout"
    given = killed(path, target_size, seed, mode)
    assert len(set(given)) == len({number for number, _ in given})  # one turn, one client, also if it asked again
    with Scheduler.open(path) as survivor:
        assert (
            target_size <= survivor.round < target_size + SLOTS
        )  # devices that were gathered get their turns together
        turns = [survivor.history(round=number)[0] for number in range(1, survivor.round + 1)]
        assert set(given) <= {(turn.round, turn.id) for turn in turns}
        for turn in turns:
            expected = ("failed", None) if turn.round % 11 == 0 else ("arrived", seconds_of(turn.round, turn.id))
            assert (turn.kind, turn.seconds) == expected
        counted = [sum(turn.id == client for turn in turns) for client in survivor.clients]
        assert survivor.certificate().turns.tolist() == counted
        assert packed(survivor) == packed_from_disk(path)
    assert problems(path) == []
    certify(path, folder / "proof.json", folder / "proof.jsonl")
    if mode == "rules":
        assert shortest_interval(path) >= timedelta(seconds=RULES["min_turn_interval"])
