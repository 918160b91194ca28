"""What a round of Oort costs, beside the same rules with one dictionary a client, measured in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turnout.bench.literal_oort import LiteralOort, fates_of
from turnout.bench.timing import in_turns
from turnout.kernel.arrays import IntArray
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.published.oort import Oort
from turnout.policies.small_fleet import SmallFleet

CLIENTS, COHORT = 100_000, 100
LEAST = 20.0  # times faster than one dictionary a client
CHECKED_ROUNDS = 60  # on a small fleet, before anything is measured
HISTORY = 10  # rounds, in which half the fleet has had a turn
OUTCOMES = ("arrived", "arrived", "arrived", "arrived", "late", "failed")


@dataclass(frozen=True, slots=True)
class OortFigures:
    """Median wall seconds of a full round: offer, choice, report, learning."""

    clients: int
    cohort: int
    round_seconds: float
    literal_seconds: float

    @property
    def speedup(self) -> float:
        """How many times faster than one dictionary a client."""
        return self.literal_seconds / self.round_seconds

    @property
    def met(self) -> bool:
        """Whether that is enough."""
        return self.speedup >= LEAST


def measure_oort(*, clients: int = CLIENTS, cohort: int = COHORT, repeats: int = 9) -> OortFigures:
    """Both are fed the same history, and must choose the same cohorts: in a small fleet first, then in each round."""
    check_same_choices()
    policy, literal = Oort(clients, cohort_size=cohort), LiteralOort(clients, cohort_size=cohort)
    fates = _Fates(clients)
    for number, rows in enumerate(_history(clients), start=1):
        report = fates.report(number, rows)
        policy.tell(report)
        literal.learn(number, fates_of(report), {})
    available = round_rng(0, "available", 0).random(clients) < 0.8
    there, contexts = np.flatnonzero(available).tolist(), np.ones((3, clients)).T
    ours: list[list[int]] = []
    theirs: list[list[int]] = []

    def round_of_arrays() -> None:
        number = HISTORY + len(ours) + 1
        chosen = policy.ask(RoundOffer(number, available, contexts)).clients
        policy.tell(fates.report(number, chosen))
        ours.append(chosen.tolist())

    def round_of_dictionaries() -> None:
        number = HISTORY + len(theirs) + 1
        chosen = literal.choose(there, number)
        literal.learn(number, fates_of(fates.report(number, np.array(chosen, dtype=np.int64))), {})
        theirs.append(chosen)

    tasks: list[Callable[[], None]] = [round_of_arrays, round_of_dictionaries]
    seconds = in_turns(tasks, repeats)
    if ours != theirs:
        raise AssertionError("one dictionary a client chose otherwise: one of the two is wrong")
    return OortFigures(clients, cohort, *seconds)


def check_same_choices() -> None:
    """Play both in a small fleet, with failures, late clients and a blacklist."""
    fleet = SmallFleet(0, deadline=12.0, failure_rate=0.1, losses=True)
    policy, literal = Oort(40, max_turns=10), LiteralOort(40, max_turns=10)
    for number in range(1, CHECKED_ROUNDS + 1):
        offer = fleet.offer(number)
        selection = policy.ask(offer)
        if selection.clients.tolist() != literal.choose(np.flatnonzero(offer.available).tolist(), number):
            raise AssertionError(f"one dictionary a client chose otherwise in round {number}: one of the two is wrong")
        report = fleet.play(offer, selection)
        policy.tell(report)
        literal.learn(number, fates_of(report), {})


def _history(clients: int) -> list[IntArray]:
    """Half the fleet, a part of it in each round."""
    rows = round_rng(0, "history", 0).permutation(clients)[: clients // 2]
    return [np.sort(part) for part in np.array_split(rows, HISTORY)]


class _Fates:
    """Heavy-tailed times; some clients are always late and some always fail, and those tell no loss."""

    def __init__(self, clients: int) -> None:
        rng = round_rng(0, "fates", 0)
        self.times = rng.lognormal(2.0, 1.0, clients)
        self.outcomes = rng.choice(OUTCOMES, clients)
        self.losses = np.where(self.outcomes == "arrived", rng.gamma(2.0, 1.0, clients), np.nan)

    def report(self, number: int, rows: IntArray) -> RoundReport:
        """What becomes of these."""
        contexts, outcomes, losses = np.ones((len(rows), 3)), self.outcomes[rows], self.losses[rows]
        return RoundReport(number, rows, contexts, self.times[rows], outcomes=outcomes, losses=losses)
