"""check_policy passes over ours, and catches each way of breaking a promise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from turnout import POLICIES, RBCSF, RoundOffer, RoundReport, Selection, SelectionPolicy, check_policy, make_policy
from turnout.errors import PolicyCheckError
from turnout.kernel.backend import using_kernel
from turnout.policies.checks import CHECKS

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in POLICIES),
    ("fedcs", {"estimates": "learned"}),
    ("rbcsf", {"accrual": "available", "max_owed": 2, "paid": "contributed", "forgetting": 0.9}),
    ("rbcsf", {"guaranteed_rate": [0.1, 0.2] * 20, "speed_weight": 0.0}),
    ("rbcsf", {"exploration": "theory", "theory": {"R": 1.0, "S": 5.0, "L": 11.0, "delta": 0.1}}),
    ("skewed", {"concentration": 0.05, "cohort_size": 39}),
    ("random", {"cohort_size": 1000}),
]


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=lambda value: str(value)[:40])
def test_our_policies_keep_every_promise(name: str, settings: dict[str, Any], kernel: str) -> None:
    with using_kernel(kernel):
        assert len(check_policy(lambda clients: make_policy(name, clients, **settings))) == len(CHECKS)


def test_a_class_a_factory_and_a_closure_can_be_checked() -> None:
    for build in (RBCSF, lambda clients: RBCSF(clients), lambda: RBCSF(17)):
        assert len(check_policy(build)) == len(CHECKS)


class FirstOnes(SelectionPolicy):
    """The smallest honest policy: the example a user would write."""

    name = "first-ones"
    cohort_size = 3

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round, np.flatnonzero(offer.available)[: self.places(offer)])

    def tell(self, report: RoundReport) -> None:
        self.check_report(report)


def test_a_users_own_policy_needs_nothing_but_ask_and_tell() -> None:
    assert len(check_policy(FirstOnes)) == len(CHECKS)


class Nameless(FirstOnes):
    name = ""


class Remembering(FirstOnes):
    """ask changes the state."""

    asked = 0

    def ask(self, offer: RoundOffer) -> Selection:
        self.asked += 1
        return super().ask(offer)

    def state(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.asked = state["asked"]


class Fickle(FirstOnes):
    """Asked again, it answers something else."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.orders = itertools.cycle([1, -1])

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)[:: next(self.orders)]
        return Selection(offer.round, np.sort(rows[: self.places(offer)]))


class Scribbling(FirstOnes):
    """Writes into the offer's arrays behind its back."""

    def ask(self, offer: RoundOffer) -> Selection:
        selection = super().ask(offer)
        contexts = offer.contexts
        object.__setattr__(offer, "contexts", np.where(contexts > 0, contexts + 1, contexts))
        return selection


class Pressing(FirstOnes):
    """Chooses those who are not there."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round, np.arange(3))

    def tell(self, report: RoundReport) -> None:
        pass


class Doubling(FirstOnes):
    """Chooses one client twice."""

    def ask(self, offer: RoundOffer) -> Selection:
        selection = super().ask(offer)
        object.__setattr__(selection, "clients", np.repeat(selection.clients[:1], 3))
        return selection


class Stingy(FirstOnes):
    """Chooses fewer than wanted."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round, np.flatnonzero(offer.available)[:2])


class Insistent(FirstOnes):
    """Must have somebody, even of nobody."""

    cohort_size = None  # type: ignore[assignment]

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round, np.flatnonzero(offer.available)[:1] if offer.available.any() else np.array([0]))


class Stale(FirstOnes):
    """Answers for another round."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        return Selection(offer.round + 1, np.flatnonzero(offer.available)[: self.places(offer)])


class Nosy(FirstOnes):
    """Looks at the contexts of those who are absent."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        absent = offer.contexts[~offer.available]
        rows = np.flatnonzero(offer.available)
        rows = rows[::-1] if len(absent) and absent[0, 0] > 1 else rows
        return Selection(offer.round, np.sort(rows[: self.places(offer)]))


class OrderMinded(FirstOnes):
    """Remembers who was reported first."""

    first = -1

    def tell(self, report: RoundReport) -> None:
        self.check_report(report)
        self.first = int(report.clients[0]) if len(report.clients) else -1

    def state(self) -> dict[str, Any]:
        return {"first": self.first}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.first = state["first"]


class Counting(FirstOnes):
    """Counts turns: honest, and the stem of the forgetful ones below."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.turns = np.zeros(clients)

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        return Selection(offer.round, np.sort(rows[np.argsort(self.turns[rows], kind="stable")][: self.places(offer)]))

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


class Reassigning(FirstOnes):
    """Assigns an attribute during `ask` and restores it."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.cohort_size, own = self.places(offer), self.cohort_size
        try:
            return super().ask(offer)
        finally:
            self.cohort_size = own


class Unforgetting(Counting):
    """Has state but cannot forget a client."""

    def forget(self, rows: Any) -> None:
        SelectionPolicy.forget(self, rows)


class Retentive(Counting):
    """Keeps the longest time of each client after it was told to forget it."""

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


class Averaging(Retentive):
    """Keeps half of it, so that no reported number is left, but a trace is."""

    def state(self) -> dict[str, Any]:
        return {**Counting.state(self), "longest": self.longest / 2}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({**state, "longest": np.array(state["longest"]) * 2})


class Forgetful(Counting):
    """Does not take its state back."""

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class Pickled(Counting):
    """Its state is not plain."""

    def state(self) -> dict[str, Any]:
        return {"turns": list(self.turns)}


class Leaking(Counting):
    """Hands out its own array as the saved state."""

    def state(self) -> dict[str, Any]:
        return {"turns": self.turns}


class Secretive(Counting):
    """Keeps something that no report told it."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.asked = [0]

    def ask(self, offer: RoundOffer) -> Selection:
        self.asked[0] = offer.round
        return super().ask(offer)

    def tell(self, report: RoundReport) -> None:
        super().tell(report)
        self.turns[0] += self.asked[0] > 5


class Gullible(FirstOnes):
    """Accepts offers of any fleet."""

    def ask(self, offer: RoundOffer) -> Selection:
        return Selection(offer.round, np.flatnonzero(offer.available)[: self.places(offer)])


class Credulous(Counting):
    """Meets an unknown client with an IndexError."""

    def tell(self, report: RoundReport) -> None:
        self.turns[report.clients] += 1


class Global(FirstOnes):
    """Draws from the global generator."""

    def ask(self, offer: RoundOffer) -> Selection:
        self.check_offer(offer)
        state = random.getstate()
        random.seed(offer.round)
        rows = sorted(
            random.sample(np.flatnonzero(offer.available).tolist(), min(self.places(offer), int(offer.available.sum())))
        )
        if offer.round < 20:
            random.setstate(state)
        return Selection(offer.round, np.array(rows, dtype=np.int64))


@pytest.mark.parametrize(
    ("culprit", "promise"),
    [
        (Nameless, "it has a name"),
        (Remembering, "asking changes nothing"),
        (Reassigning, "asking changes nothing: ask with places=None assigned the attribute 'cohort_size'"),
        (Unforgetting, "a forgotten client leaves no trace: first-ones has state but no method forget"),
        (Retentive, r"a forgotten client leaves no trace: state\['longest'\] holds a number that the client reported"),
        (Averaging, r"a forgotten client leaves no trace: state\['longest'\] still depends on what"),
        (Fickle, "asking twice gives the same answer"),
        (Scribbling, "the offer is left as it was"),
        (Pressing, r"the cohort is a set of available clients: round 1: \[0\] were chosen"),
        (Doubling, "the cohort is a set of available clients: .* holds a client twice"),
        (Stingy, "the cohort has the requested size"),
        (Insistent, "an empty offer gives an empty cohort"),
        (Stale, "the selection is of the offered round"),
        (Nosy, "order does not matter: the contexts of unavailable clients"),
        (OrderMinded, "order does not matter: the order of the report"),
        (Forgetful, "state and restore round trip"),
        (Pickled, "state and restore round trip: state"),
        (Leaking, "a saved state does not change"),
        (Secretive, "replay gives the same next selection"),
        (Gullible, "bad offers and reports are refused: an offer with one more client was accepted"),
        (Credulous, "bad offers and reports are refused: a report of an unknown client raised IndexError"),
        (Global, "global random state is untouched"),
    ],
)
def test_a_broken_promise_is_named(culprit: type[SelectionPolicy], promise: str) -> None:
    with pytest.raises(PolicyCheckError, match=f"^({promise})"):
        check_policy(culprit)


def test_the_stem_of_the_forgetful_is_honest() -> None:
    assert len(check_policy(Counting)) == len(CHECKS)
