"""FairPace in the paper's world: how long rounds last, and how far any client ever falls behind."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from turnout.lab import PaperWorld, play
from turnout.policies import FairPace

SEEDS, ROUNDS, RATE, TOLERANCE = 20, 500, 0.15, 2.0
#: The targets: seconds per round on average, and turns that nobody may ever be behind.
MAX_MEAN_ROUND, MAX_BEHIND = 9.0, TOLERANCE


@dataclass(frozen=True, slots=True)
class WorldFigures:
    """The mean round in seconds, and how many turns a client was behind at most, after any round and at the end."""

    mean_round: float
    largest_behind: float
    behind_at_end: float

    @property
    def met(self) -> bool:
        """Whether both figures are within their targets."""
        return self.mean_round <= MAX_MEAN_ROUND and self.largest_behind <= MAX_BEHIND


def play_papers_world(seed: int, *, rounds: int = ROUNDS, skip: int = 0, tolerance: float = TOLERANCE) -> WorldFigures:
    """Plays FairPace with a rate of 0.15 that accrues in every round.

    Args:
        seed: The seed of the world.
        rounds: The number of rounds.
        skip: The number of rounds at the beginning that the mean leaves out.
        tolerance: The number of turns that a client may be behind.
    """
    policy = FairPace(40, guaranteed_rate=RATE, tolerance=tolerance, accrual="always", availability=0.8)
    seconds, largest = [], 0.0
    for record in play(policy, PaperWorld(seed), rounds):
        largest = max(largest, float(policy.certificate().behind.max()))
        seconds.append(record.report.duration)
    return WorldFigures(statistics.fmean(seconds[skip:]), largest, float(policy.certificate().behind.max()))


def summarize(figures: list[WorldFigures]) -> WorldFigures:
    """Returns the mean over seeds of the mean round, and the largest shortfalls of any seed."""
    return WorldFigures(
        statistics.fmean(each.mean_round for each in figures),
        max(each.largest_behind for each in figures),
        max(each.behind_at_end for each in figures),
    )
