"""Policies, wrappers, offers and reports that several tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy, make_policy
from turnout.kernel.arrays import IntArray
from turnout.kernel.rounds import LateArrivals
from turnout.policies import (
    RBCSF,
    CoolDown,
    Eligible,
    ExcludeBusy,
    Fastest,
    FedCS,
    Overcommit,
    Quota,
    UniformRandom,
    WarmUp,
    WithGuarantee,
)
from turnout.policies.check_support import SmallFleet
from turnout.policies.wrappers.base import Wrapper

#: Requires a policy, or what builds it, to satisfy the contract: the fixture `contract`.
Contract = Callable[[Any], None]

GROUPS = ["phone", "car", "phone", "tv", None] * 8
#: Rows of allowed clients, including some that join later.
ALLOWED = np.arange(0, 40, 3)
WRAP: dict[str, Callable[[SelectionPolicy], Wrapper]] = {
    "overcommit": lambda policy: Overcommit(policy, 1.3),
    "eligible": lambda policy: Eligible(policy, ALLOWED),
    "exclude-busy": lambda policy: ExcludeBusy(policy, 3),
    "cool-down": lambda policy: CoolDown(policy, 2),
    "cool-down-strict": lambda policy: CoolDown(policy, 2, strict=True),
    "quota": lambda policy: Quota(policy, {"car": 2, "tv": 1}, GROUPS),
    "warm-up": lambda policy: WarmUp(policy, 10, cohort_size=policy.cohort_size or 5),
    "with-guarantee": lambda policy: WithGuarantee(policy, 0.1, accrual="available", allow_infeasible=True),
}
LIVE: dict[str, Any] = {"accrual": "available", "counts": "completed", "max_owed": 5, "speed_weight": 2.0}
INNER: dict[str, Callable[[int], SelectionPolicy]] = {
    "random": lambda clients: UniformRandom(clients, cohort_size=min(6, clients)),
    "fastest": lambda clients: Fastest(clients, cohort_size=5),
    "rbcsf": lambda clients: RBCSF(clients, cohort_size=5, guaranteed_rate=0.1, **LIVE),
    "oort": lambda clients: make_policy("oort", clients, cohort_size=5),
    "tifl": lambda clients: make_policy("tifl", clients, cohort_size=5),
    "fedcs": lambda clients: FedCS(clients, estimates="learned", deadline=9.0),
}
#: Policies whose cohorts have no fixed size, and wrappers that need one.
WITHOUT_SIZE, NEEDS_SIZE = {"fedcs"}, {"overcommit", "quota"}

PAIRS = [(wrap, inner) for wrap in WRAP for inner in INNER if not (inner in WITHOUT_SIZE and wrap in NEEDS_SIZE)]
SOME_PAIRS = [
    pair
    for position, wrap in enumerate(WRAP)
    for pair in PAIRS
    if pair in ((wrap, "rbcsf"), (wrap, list(INNER)[position % 6]))
]


def around(wrapper: str, inner: str, clients: int = 40) -> Wrapper:
    return WRAP[wrapper](INNER[inner](clients))


def nested(clients: int = 40) -> Wrapper:
    return ExcludeBusy(CoolDown(WithGuarantee(INNER["rbcsf"](clients), 0.1, accrual="available"), 1), 4)


def offer_of(round: int, available: Any, times: Any = None) -> RoundOffer:
    mask = np.array(available, dtype=bool)
    return RoundOffer(round, mask, np.ones((len(mask), 3)), None if times is None else np.array(times, dtype=float))


def report_of(round: int, clients: Any, times: Any = None, **fields: Any) -> RoundReport:
    rows = np.array(clients, dtype=np.int64)
    seconds = np.ones(len(rows)) if times is None else np.array(times, dtype=float)
    return RoundReport(round, rows, np.ones((len(rows), 3)), seconds, **fields)


def make_report(round: int, clients: Any, contexts: Any, times: Any, **fields: Any) -> RoundReport:
    rows = np.asarray(clients, dtype=np.int64)
    return RoundReport(round, rows, np.asarray(contexts, dtype=float), np.asarray(times, dtype=float), **fields)


def late_arrivals(pairs: list[tuple[int, int]]) -> LateArrivals | None:
    """Returns late arrivals of these rounds and rows, 3 seconds after a deadline of 9; None if there are none."""
    if not pairs:
        return None
    rounds, rows = zip(*pairs, strict=True)
    count = len(pairs)
    return LateArrivals(
        np.array(rounds), np.array(rows), np.ones((count, 3)), np.full(count, 9.0), np.full(count, 12.0)
    )


def same_state(state: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compares states; one number for all clients equals the same number for each."""
    pairs = [np.broadcast_arrays(state[key], other[key]) for key in state.keys() | other.keys()]
    return all(np.array_equal(first, second) for first, second in pairs)


def played(
    policy: SelectionPolicy, fleet: SmallFleet, last: int, first: int = 1
) -> Iterator[tuple[RoundOffer, Selection, RoundReport]]:
    """Plays rounds, and yields each of them before the policy gets its report."""
    for round_ in range(first, last + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        report = fleet.play(offer, selection)
        yield offer, selection, report
        policy.tell(report)


def play_rounds(
    policy: SelectionPolicy, fleet: SmallFleet, first: int, last: int
) -> list[tuple[RoundOffer, Selection]]:
    return [(offer, selection) for offer, selection, _ in played(policy, fleet, last, first)]


def turns_after(policy: SelectionPolicy, rounds: int, **fleet: Any) -> IntArray:
    """Plays rounds of a small fleet, and returns how often each client was selected."""
    played = play_rounds(policy, SmallFleet(clients=policy.clients, **fleet), 1, rounds)
    return np.bincount(np.concatenate([selection.clients for _, selection in played]), minlength=policy.clients)


class Spy(UniformRandom):
    """Records the offers and reports that it gets."""

    def __init__(self, clients: int, **settings: Any) -> None:
        super().__init__(clients, **settings)
        self.offers: list[RoundOffer] = []
        self.reports: list[RoundReport] = []

    def ask(self, offer: RoundOffer) -> Selection:
        self.offers.append(offer)
        return super().ask(offer)

    def tell(self, report: RoundReport) -> None:
        super().tell(report)
        self.reports.append(report)
