"""check_policy accepts every policy of the package, and detects every violation of the contract."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from policies.examples import Contract
from turnout import POLICIES, RoundOffer, RoundReport, Selection, SelectionPolicy, check_policy, make_policy
from turnout.errors import PolicyCheckError
from turnout.kernel import cohort, exchange_time
from turnout.kernel.arrays import IntArray
from turnout.kernel.backend import compiled_kernel, using_kernel
from turnout.kernel.pace import prices
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.checks import CHECKS

#: What RBCS-F can do beyond the paper.
EXTENSIONS: list[dict[str, Any]] = [
    {"horizon": 60},
    {"prior": "fleet"},
    {"horizon": 60, "prior": "fleet", "forgetting": 0.98},
]
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in POLICIES),
    ("fedcs", {"estimates": "learned"}),
    ("rbcsf", {"accrual": "available", "max_owed": 2, "counts": "completed", "forgetting": 0.9}),
    ("rbcsf", {"guaranteed_rate": [0.1, 0.2] * 20, "speed_weight": 0.0}),
    ("rbcsf", {"exploration": "theory", "theory": {"R": 1.0, "S": 5.0, "L": 11.0, "delta": 0.1}}),
    *(("rbcsf", {"cohort_size": 3, "guaranteed_rate": 0.05, **extension}) for extension in EXTENSIONS),
    ("fair-pace", {"accrual": "always", "counts": "completed"}),
    ("fair-pace", {"exploration": 0.3, "forgetting": 0.95}),
    ("fair-pace", {"times": "expected"}),
    ("fair-pace", {"value": "loss", "head_start": 2.0}),
    ("fair-pace", {"value": "utility", "accrual": "always"}),
    ("cool-down", {"policy": "fair-pace", "settings": {"value": "utility"}}),
    ("data-size", {"sizes": [float(row % 5) for row in range(40)], "replacement": True}),
    ("oort", {"max_turns": 2, "pacer_window": 3}),
    ("oort", {"pacer_unit": "seconds", "pacer_start": 4.0}),
    ("oort", {"cohort_size": 1000}),
    ("oort", {"exploration": 0.0}),
    ("power-of-choice", {"candidates": 8, "sizes": [float(row % 4) for row in range(40)]}),
    ("e3cs", {"quota": [(1, 0.0), (7, 1.0)]}),
    ("refl", {"window": 4, "hold_off": 0}),
    ("active-fl", {"dropped": 1.0, "uniform": 0.5}),
    ("cs-ucb-q", {"accrual": "available", "max_owed": 2, "counts": "completed", "longest": 15.0}),
    ("tifl", {"credits": 1, "tiers": 3, "interval": 1, "retier_every": 3, "profiling_rounds": 0}),
    ("tifl", {"tiers": 1}),
    ("ucb-cs", {"spread": 0.5, "forgetting": 1.0}),
    *(
        ("with-guarantee", {"policy": "rbcsf", "settings": {"speed_weight": 2.0}, **settings})
        for settings in (
            {},
            {"accrual": "available", "counts": "completed", "max_owed": 3, "urgency": 1},
            {"urgency": 0.3},
        )
    ),
    ("skewed", {"concentration": 0.05, "cohort_size": 39}),
    ("random", {"cohort_size": 1000}),
]


def uses_kernel(name: str, settings: dict[str, Any]) -> bool:
    """Returns whether a kernel computes cohorts, prices or estimates; otherwise both kernels only check arrays."""
    return (
        name in ("fair-pace", "rbcsf", "fair-oracle", "with-guarantee", "cool-down")
        or settings.get("estimates") == "learned"
    )


@pytest.mark.parametrize(
    ("name", "settings", "kernel"),
    [
        pytest.param(*case, kernel, marks=pytest.mark.thorough if case[1] and kernel == kernels[-1] else ())
        for case in SETTINGS
        for kernels in [("compiled", "numpy") if uses_kernel(*case) else ("compiled",)]
        for kernel in kernels
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_policy_satisfies_the_contract(
    name: str, settings: dict[str, Any], kernel: str, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[ModuleType | None] = []

    def find_kernel() -> ModuleType | None:
        results.append(compiled_kernel())
        return results[-1]

    for module in (cohort, exchange_time, prices):
        monkeypatch.setattr(module, "compiled_kernel", find_kernel)
    with using_kernel(kernel):
        contract(lambda clients: make_policy(name, clients, **settings))
    assert bool(results) == uses_kernel(name, settings)
    assert all((used is None) == (kernel == "numpy") for used in results)


class LowestRows(SelectionPolicy):
    """The smallest valid policy: what a user would write."""

    name = "lowest-rows"
    cohort_size = 3

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round, np.sort(self.ranked(offer)[: self.places(offer)]))

    def ranked(self, offer: RoundOffer) -> IntArray:
        """Returns the clients in the order in which they are preferred."""
        return np.flatnonzero(offer.available)

    def tell(self, report: RoundReport) -> None:
        self.check_report(report)


class Nameless(LowestRows):
    name = ""


class StoresNumber(LowestRows):
    """Has a number as its state: the base class of invalid policies."""

    number = 0

    def state(self) -> dict[str, Any]:
        return {"number": self.number}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


class CountsAsks(StoresNumber):
    """Changes its state in `ask`."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.number += 1
        return super().ask(offer)


class Alternates(LowestRows):
    """Answers differently when it is asked again."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.orders = itertools.cycle([1, -1])

    def ranked(self, offer: RoundOffer) -> IntArray:
        return super().ranked(offer)[:: next(self.orders)]


class WritesOffers(LowestRows):
    """Changes the contexts of the offer."""

    def ask(self, offer: RoundOffer) -> Selection:
        selection = super().ask(offer)
        contexts = offer.contexts
        object.__setattr__(offer, "contexts", np.where(contexts > 0, contexts + 1, contexts))
        return selection


class IgnoresAvailability(LowestRows):
    """Selects unavailable clients."""

    def ranked(self, offer: RoundOffer) -> IntArray:
        return np.arange(len(offer.available))

    def tell(self, report: RoundReport) -> None:
        pass


class SelectsTwice(LowestRows):
    """Selects one client several times."""

    def ask(self, offer: RoundOffer) -> Selection:
        selection = super().ask(offer)
        object.__setattr__(selection, "clients", np.repeat(selection.clients[:1], 3))
        return selection


class SelectsTooFew(LowestRows):
    """Selects two clients, although cohort_size is 3."""

    def ranked(self, offer: RoundOffer) -> IntArray:
        return super().ranked(offer)[:2]


class NeverEmpty(LowestRows):
    """Selects a client even if none is available."""

    cohort_size = None  # type: ignore[assignment]

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round, np.flatnonzero(offer.available)[:1] if offer.available.any() else np.array([0]))


class NextRound(LowestRows):
    """Selects for another round than the offered one."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round + 1, np.flatnonzero(offer.available)[: self.places(offer)])


class ReadsUnavailable(LowestRows):
    """Depends on the contexts of unavailable clients."""

    def ranked(self, offer: RoundOffer) -> IntArray:
        absent, rows = offer.contexts[~offer.available], super().ranked(offer)
        return rows[::-1] if len(absent) and absent[0, 0] > 1 else rows


class StoresFirst(StoresNumber):
    """Stores which client comes first in a report."""

    def tell(self, report: RoundReport) -> None:
        self.check_report(report)
        self.number = int(report.clients[0]) if len(report.clients) else -1


class CountsTurns(LowestRows):
    """Counts turns: a valid policy with state, and the base class of invalid ones below."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.turns = np.zeros(clients)

    def ranked(self, offer: RoundOffer) -> IntArray:
        rows = super().ranked(offer)
        return rows[np.argsort(self.turns[rows], kind="stable")]

    def tell(self, report: RoundReport) -> None:
        self.check_report(report)
        self.turns[report.clients] += 1

    def state(self) -> dict[str, Any]:
        return {"turns": self.turns.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.turns = np.array(state["turns"])

    def add(self, count: int) -> None:
        super().add(count)
        self.turns = np.append(self.turns, np.zeros(count))

    def forget(self, rows: Any) -> None:
        self.turns[rows] = 0


class AssignsTemporarily(LowestRows):
    """Assigns an attribute in `ask` and restores it."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.cohort_size, own = self.places(offer), self.cohort_size
        try:
            return super().ask(offer)
        finally:
            self.cohort_size = own


class WithoutForget(CountsTurns):
    """Has state but no method `forget` of its own."""

    def forget(self, rows: Any) -> None:
        SelectionPolicy.forget(self, rows)


class KeepsLongest(CountsTurns):
    """Keeps the longest time of a forgotten client."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.longest = np.zeros(clients)

    def tell(self, report: RoundReport) -> None:
        super().tell(report)
        self.longest[report.clients] = np.maximum(self.longest[report.clients], report.exchange_times)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "longest": self.longest.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.longest = np.array(state["longest"])


class KeepsHalf(KeepsLongest):
    """Keeps half of that time, so that the reported number itself is not in the state."""

    def state(self) -> dict[str, Any]:
        return {**CountsTurns.state(self), "longest": self.longest / 2}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({**state, "longest": np.array(state["longest"]) * 2})


class RestoresNothing(CountsTurns):
    """Ignores the state that it should restore."""

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class ReturnsList(CountsTurns):
    """Returns a state that is not a plain array."""

    def state(self) -> dict[str, Any]:
        return {"turns": list(self.turns)}


class ReturnsOwnArray(CountsTurns):
    """Returns its own array as the saved state."""

    def state(self) -> dict[str, Any]:
        return {"turns": self.turns}


class LearnsFromOffers(CountsTurns):
    """Learns from offers, not only from reports."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.asked = [0]

    def ask(self, offer: RoundOffer) -> Selection:
        self.asked[0] = offer.round
        return super().ask(offer)

    def tell(self, report: RoundReport) -> None:
        super().tell(report)
        self.turns[0] += self.asked[0] > 5


class AcceptsAnyOffer(LowestRows):
    """Accepts offers with another number of clients."""

    def ask(self, offer: RoundOffer) -> Selection:
        return Selection(offer.round, np.flatnonzero(offer.available)[: self.places(offer)])


class CountsStrangeOffers(CountsTurns):
    """Counts offers of other fleets before it refuses them."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.turns[0] += offer.clients != self.clients
        return super().ask(offer)


class CountsIncompleteOffers(CountsTurns):
    """Counts offers without expected times before it refuses them."""

    requires_expected_times = True

    def ask(self, offer: RoundOffer) -> Selection:
        self.turns[0] += offer.expected_times is None
        return super().ask(offer)


class AcceptsAnyReport(CountsTurns):
    """Raises an IndexError for an unknown client."""

    def tell(self, report: RoundReport) -> None:
        self.turns[report.clients] += 1


class UsesGlobalGenerator(LowestRows):
    """Draws from the global random generator."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        state = random.getstate()
        random.seed(offer.round)
        rows = sorted(
            random.sample(np.flatnonzero(offer.available).tolist(), min(self.places(offer), int(offer.available.sum())))
        )
        if offer.round < 6:
            random.setstate(state)
        return Selection(offer.round, np.array(rows, dtype=np.int64))


class CountsSlotsAnyway(LowestRows):
    """Counts turns for slots although it does not declare that it can."""

    def tell_started(self, turn: TurnStart) -> None:
        pass


class RemembersStarts(LowestRows):
    """Depends on the turns that were given, which its state does not contain."""

    fills_slots = True

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.last = 0

    def ranked(self, offer: RoundOffer) -> IntArray:
        return np.roll(super().ranked(offer), -self.last)

    def tell_started(self, turn: TurnStart) -> None:
        self.last = turn.client + 1


@pytest.mark.parametrize(
    ("policy", "violation"),
    [
        (CountsSlotsAnyway, "turns can be given one at a time or are refused: a turn that was given for a slot"),
        (RemembersStarts, "turns can be given one at a time or are refused: decision 2: a restored policy selects"),
        (Nameless, "it has a name"),
        (CountsAsks, "asking changes nothing"),
        (AssignsTemporarily, "asking changes nothing: ask with places=None assigned the attribute 'cohort_size'"),
        (WithoutForget, "a forgotten client leaves no trace: lowest-rows has state but no method forget"),
        (
            KeepsLongest,
            r"a forgotten client leaves no trace: state\['longest'\] holds a number that the client reported",
        ),
        (KeepsHalf, r"a forgotten client leaves no trace: state\['longest'\] still depends on what"),
        (Alternates, "asking twice gives the same answer"),
        (WritesOffers, "the offer is left as it was"),
        (IgnoresAvailability, r"the cohort is a set of available clients: round 1: \[0\] were chosen"),
        (SelectsTwice, "the cohort is a set of available clients: .* holds a client twice"),
        (SelectsTooFew, "the cohort has the requested size"),
        (NeverEmpty, "an empty offer gives an empty cohort"),
        (NextRound, "the selection is of the offered round"),
        (ReadsUnavailable, "order does not matter: the contexts of unavailable clients"),
        (StoresFirst, "order does not matter: the order of the report"),
        (RestoresNothing, "state and restore round trip"),
        (ReturnsList, "state and restore round trip: state"),
        (ReturnsOwnArray, "a saved state does not change"),
        (LearnsFromOffers, "replay gives the same next selection"),
        (AcceptsAnyOffer, "bad offers and reports are refused: an offer with one more client was accepted"),
        (CountsStrangeOffers, "bad offers and reports are refused: a refused offer or report changed the state"),
        (CountsIncompleteOffers, "bad offers and reports are refused: a refused offer or report changed the state"),
        (AcceptsAnyReport, "bad offers and reports are refused: a report of an unknown client raised IndexError"),
        (UsesGlobalGenerator, "global random state is untouched"),
    ],
)
@pytest.mark.usefixtures("few_rounds")
def test_a_violation_is_detected_and_described(policy: type[SelectionPolicy], violation: str) -> None:
    with pytest.raises(PolicyCheckError, match=f"^({violation})"):
        check_policy(policy)


@pytest.mark.parametrize(
    "build", [LowestRows, lambda clients: LowestRows(clients), lambda: LowestRows(17), CountsTurns]
)
@pytest.mark.usefixtures("few_rounds")
def test_the_base_classes_of_the_invalid_policies_are_valid(build: Any) -> None:
    """Policies without state and with it, given as a class, as a factory or as a function without arguments."""
    assert len(check_policy(build)) == len(CHECKS)
