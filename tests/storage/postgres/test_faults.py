"""Two machines and a database: what was acknowledged is neither lost nor doubled, whatever fails, and when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("psycopg")

from killing import TORTURE
from postgres import CRASHING, running_cluster, running_replica
from service.forked import Forker
from storage.postgres.faulty import (
    ASYNCHRONOUS,
    CALLS,
    CLOCKS,
    CUT,
    DATABASE,
    KILL,
    PRIMARY,
    SILENCE,
    STANDBY,
    STOP,
    USURP,
    Harness,
)

pytestmark = pytest.mark.thorough
#: How many faults of each kind.
FAULTS = {CUT: 12 * TORTURE, KILL: 12 * TORTURE, DATABASE: 9 * TORTURE} | dict.fromkeys(
    (STANDBY, STOP, SILENCE, USURP, CLOCKS), 4 * TORTURE
)
FAIL_OVERS = 2 * TORTURE


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    with closing(Forker("turnout.live.scheduler", "turnout.storage.postgres.store", "storage.postgres.steered")) as own:
        yield own


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Returns a folder whose name is short enough for sockets."""
    with TemporaryDirectory() as name:
        yield Path(name)


def test_nothing_acknowledged_is_lost_or_doubled_whatever_fails_at_any_statement(
    forker: Forker, short_folder: Path
) -> None:
    with running_cluster(CRASHING) as cluster, closing(Harness(forker, short_folder, cluster)) as harness:
        inject(harness, FAULTS, everywhere=(CUT, DATABASE, KILL) if TORTURE > 1 else ())


def test_nothing_is_lost_when_a_synchronous_replica_takes_the_place_of_the_database(
    forker: Forker, short_folder: Path
) -> None:
    with running_replica(synchronous=True) as clusters, closing(Harness(forker, short_folder, *clusters)) as harness:
        inject(harness, {PRIMARY: FAIL_OVERS, KILL: FAIL_OVERS // 2, CUT: FAIL_OVERS // 2})


def test_commits_that_an_asynchronous_replica_does_not_have_are_missed_aloud_and_no_others(
    forker: Forker, short_folder: Path
) -> None:
    with running_replica(synchronous=False) as clusters, closing(Harness(forker, short_folder, *clusters)) as harness:
        for _ in range(FAIL_OVERS):
            harness.lose_commits()
            harness.check()
        assert harness.faults == {ASYNCHRONOUS: FAIL_OVERS}


def inject(harness: Harness, faults: dict[str, int], everywhere: Sequence[str] = ()) -> None:
    """Injects faults in a random order, which is the same in every run, and checks the fleet from time to time.

    Afterwards those of some kinds are injected until there was one at every statement of every call.
    """
    kinds, rng = list(Counter(faults).elements()), random.Random(0)
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        while not harness.step(kind):
            pass
        harness.step()
        if number % 20 == 0:
            harness.check()
    for kind in everywhere:
        while not all(harness.passes[kind, call] for call in CALLS):
            harness.step(kind)
    for _ in CALLS:
        harness.step()
    harness.check()
    assert harness.faults >= Counter(faults)
    print(harness.summary())  # shown by pytest -s
