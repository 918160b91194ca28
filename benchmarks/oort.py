"""Measures a round of Oort against the same rules with one dict per client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.literal_oort import LiteralOort, outcomes_of
from turnout.bench.oort import CLIENTS, COHORT, HISTORY, OortFleet
from turnout.bench.timing import in_turns
from turnout.policies.published.oort import Oort
from turnout.policies.small_fleet import SmallFleet

MIN_SPEEDUP = 20.0  # target
CHECKED_ROUNDS = 60  # in a small fleet, before the measurement


@dataclass(frozen=True, slots=True)
class OortComparison:
    """Median wall-clock seconds of a full round: offer, selection, report, learning."""

    clients: int
    cohort: int
    round_seconds: float
    literal_seconds: float

    @property
    def speedup(self) -> float:
        """Time of the literal implementation, divided by the time of turnout."""
        return self.literal_seconds / self.round_seconds

    @property
    def met(self) -> bool:
        """Whether the speed-up reaches its target."""
        return self.speedup >= MIN_SPEEDUP


def compare_oort(*, clients: int = CLIENTS, cohort: int = COHORT, repeats: int = 9) -> OortComparison:
    """Measures both implementations in turns, from the same history; both must select the same cohorts."""
    check_same_cohorts()
    fleet = OortFleet(clients)
    policy, literal = Oort(clients, cohort_size=cohort), LiteralOort(clients, cohort_size=cohort)
    for report in fleet.history():
        policy.tell(report)
        literal.learn(report.round, outcomes_of(report), {})
    available = np.flatnonzero(fleet.available).tolist()
    package_cohorts: list[list[int]] = []
    literal_cohorts: list[list[int]] = []

    def package_round() -> None:
        package_cohorts.append(fleet.play_round(policy, HISTORY + len(package_cohorts) + 1))

    def literal_round() -> None:
        number = HISTORY + len(literal_cohorts) + 1
        chosen = literal.choose(available, number)
        report = fleet.report(number, np.array(chosen, dtype=np.int64))
        literal.learn(number, outcomes_of(report), {})
        literal_cohorts.append(chosen)

    tasks: list[Callable[[], object]] = [package_round, literal_round]
    seconds = in_turns(tasks, repeats)
    if package_cohorts != literal_cohorts:
        raise AssertionError("the literal Oort selected other cohorts: one of the two implementations is wrong")
    return OortComparison(clients, cohort, *seconds)


def check_same_cohorts() -> None:
    """Plays both in a small fleet with failures, late clients and a blacklist, and compares every cohort."""
    fleet = SmallFleet(0, deadline=12.0, failure_rate=0.1, losses=True)
    policy, literal = Oort(40, max_turns=10), LiteralOort(40, max_turns=10)
    for number in range(1, CHECKED_ROUNDS + 1):
        offer = fleet.offer(number)
        selection = policy.ask(offer)
        if selection.clients.tolist() != literal.choose(np.flatnonzero(offer.available).tolist(), number):
            raise AssertionError(
                f"the literal Oort selected another cohort in round {number}: one of the two implementations is wrong"
            )
        report = fleet.play(offer, selection)
        policy.tell(report)
        literal.learn(number, outcomes_of(report), {})
