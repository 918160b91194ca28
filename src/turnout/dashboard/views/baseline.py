"""Baseline: what random selection takes, in runs of the store or in the replay of `turnout fleet replay`."""

from __future__ import annotations

import threading
from typing import Any

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.recording import read_recording
from turnout.dashboard.views.common import mean_of
from turnout.dashboard.views.overview import rate_of
from turnout.dashboard.watch import Watch
from turnout.errors import TurnoutError
from turnout.lab.analysis.replay.replay import replay

#: The largest records that are replayed for a page: rounds or turns, and these times the clients.
MAX_ROUNDS, MAX_CELLS = 3000, 500_000
#: A replay is repeated when the record is this much longer.
GROWTH = 1.2
TOO_LONG = "This record is too long to be compared with random selection here: replay it on the command line."


class Baselines:
    """Comparisons with random selection; replays run one at a time, and are kept until the record has grown."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._lock = watch, threading.Lock()
        self._replays: dict[int | None, tuple[int, dict[str, Any]]] = {}

    def get(self, run: int | None) -> dict[str, Any]:
        """Returns the comparison with random selection, or the reason why there is none.

        Releases the lock of the watch first, because a replay takes seconds and reads the file itself.
        """
        with self._watch.locked_source(run) as source:
            if source.policy == "random" or not len(source.ledger):
                return {"random": None, "reason": None}
            if (measured := self._watch.random_rounds(source)) is not None and measured[0] > 0:
                return {"random": _compare_runs(source, *measured), "reason": None}
            rounds, clients, number = len(source.ledger), source.ledger.clients, source.run
        if rounds > MAX_ROUNDS or rounds * clients > MAX_CELLS:
            return {"random": None, "reason": TOO_LONG}
        with self._lock:
            if number not in self._replays or rounds >= GROWTH * self._replays[number][0]:
                self._replays[number] = rounds, self._replay(number)
            return self._replays[number][1]

    def _replay(self, run: int | None) -> dict[str, Any]:
        try:
            result = replay(read_recording(self._watch.path, run), "random", {})
        except TurnoutError as error:
            return {"random": None, "reason": f"There is no comparison with random selection: {error}"}
        unit = "round" if result.slots is None else "turn"
        figure = result["mean_round" if result.slots is None else "updates_per_second"]
        how = f"a replay of {pluralize(result.rounds, unit)}"
        return {"random": _comparison(figure.recorded, figure.replayed, how, figure.half_width), "reason": None}


def _compare_runs(source: Source, between: float, how: str) -> dict[str, Any]:
    """Compares a run with the mean time of a round, or from one decision to the next, of random selection."""
    ledger = source.ledger
    if ledger.slots is None:
        return _comparison(float(mean_of(ledger.round_column("seconds")) or 0.0), between, how)
    started, rate = ledger.round_column("started"), rate_of(ledger)
    return _comparison(rate, rate * float(started[-1]) / (between * len(started)), how)


def _comparison(own: float, random: float, how: str, half: float = 0.0) -> dict[str, Any]:
    """Returns the seconds of a round, or the updates per second, of random selection, and those of the run by these."""
    return {"value": random, "half": half, "ratio": own / random if random else None, "how": how}
