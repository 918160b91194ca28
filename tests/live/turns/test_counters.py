"""The counters of the clients, and the keys under which snapshots store them."""

from __future__ import annotations

import numpy as np

from turnout.live.turns.counters import NEVER, ClientCounters

#: Files contain these keys, so they change only with the format.
STORED_KEYS = {
    "joined",
    "offered",
    "last_trained",
    "learned",
    "misses",
    "backoff_until",
    "backed_off",
    "retired",
    "broken_since",
}


def test_new_clients_have_never_trained_and_forgetting_resets_what_reports_have_changed() -> None:
    counters = ClientCounters()
    counters.add(2)
    counters.add(1)
    assert counters.last_trained.tolist() == [NEVER] * 3
    for counter in (counters.offered, counters.learned, counters.misses, counters.backoff_until, counters.retired):
        assert counter.tolist() == [0, 0, 0]
        counter[:] = 6
    counters.last_trained[:] = 5
    counters.forget(0)
    for counter in (counters.offered, counters.learned, counters.misses, counters.backoff_until):
        assert counter.tolist() == [0, 6, 6]
    assert (counters.joined.tolist(), counters.last_trained.tolist()) == ([0, 0, 0], [5, 5, 5])


def test_restored_counters_are_copies_of_the_stored_ones() -> None:
    counters = ClientCounters()
    counters.add(3)
    counters.last_trained[1], counters.backoff_until[2], counters.retired[0] = 5, 9, 1
    stored = counters.stored()
    assert stored.keys() == {f"clients.{key}" for key in STORED_KEYS}
    assert stored["clients.last_trained"].tolist() == [NEVER, 5, NEVER]
    assert stored["clients.backoff_until"].tolist() == [0, 0, 9]
    restored = ClientCounters.restored({**stored, "clients.arrived": np.zeros(3)}, 3)
    restored.misses[0] = 3
    counters.misses[1] = 2
    assert (stored["clients.misses"].tolist(), counters.misses.tolist(), restored.misses.tolist()) == (
        [0, 0, 0],
        [0, 2, 0],
        [3, 0, 0],
    )
    assert restored.backing_off(8).tolist() == [False, False, True]
    assert not restored.backing_off(9).any(), "the last round of the back-off is over"
