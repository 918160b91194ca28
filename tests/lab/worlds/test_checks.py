"""The checks of worlds: every one of them fails for a world that violates it, and for no other reason."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout.errors import CheckError, ReportError
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab import PaperWorld, TraceWorld, check_world
from turnout.lab.worlds.checks import CHECKS

#: Worlds that must differ take another number each.
NUMBERS = itertools.count()


@pytest.mark.parametrize("world", [PaperWorld, TraceWorld])
def test_our_worlds_pass_all_checks(world: type[PaperWorld | TraceWorld]) -> None:
    assert check_world(world) == [check.__name__.replace("_", " ") for check in CHECKS]


class WithoutRestore:
    """Has all methods of a world but one, and is none."""

    clients, availability = 40, np.ones(40)
    offer, play, state = PaperWorld.offer, PaperWorld.play, PaperWorld.state

    def __init__(self, seed: int) -> None:
        pass

    def __repr__(self) -> str:
        return "WithoutRestore"


def broken(**members: Any) -> type[PaperWorld]:
    """Returns the paper's world with other members."""
    return type("Broken", (PaperWorld,), members)


def reporting(change: Callable[[RoundReport], RoundReport]) -> type[PaperWorld]:
    """Returns the paper's world with other reports."""
    return broken(play=lambda self, offer, selection: change(PaperWorld.play(self, offer, selection)))


def selecting(change: Callable[[RoundOffer, Selection], Selection]) -> type[PaperWorld]:
    """Returns the paper's world, which plays another selection than the given one."""
    return broken(play=lambda self, offer, selection: PaperWorld.play(self, offer, change(offer, selection)))


def never_empty(offer: RoundOffer, selection: Selection) -> Selection:
    first = np.flatnonzero(offer.available)[:1]
    return selection if len(selection.clients) else replace(selection, clients=first)


def refuse_empty(_: RoundOffer, selection: Selection) -> Selection:
    if not len(selection.clients):
        raise ReportError("nobody was selected")
    return selection


def draw_globally(_: RoundOffer, selection: Selection) -> Selection:
    random.random()
    return selection


class TiredClients(PaperWorld):
    """Clients that trained are not available for the next round, and the state does not say so."""

    def offer(self, round: int) -> RoundOffer:
        offer = super().offer(round)
        return replace(offer, available=offer.available & ~self._trained)

    def state(self) -> dict[str, Any]:
        return {}


class SmallerOffers(PaperWorld):
    """Has one more client after the first offer, but does not offer it."""

    joined = 0

    @property
    def clients(self) -> int:
        return super().clients + self.joined

    def offer(self, round: int) -> RoundOffer:
        self.joined = 1
        return super().offer(round)


class CountsOffers(PaperWorld):
    """Another offer of the same round has other contexts."""

    offers = 0

    def offer(self, round: int) -> RoundOffer:
        self.offers += 1
        offer = super().offer(round)
        return replace(offer, contexts=offer.contexts + self.offers)


class StoresOffers(PaperWorld):
    """Stores in its state which round was offered."""

    offered = 0

    def offer(self, round: int) -> RoundOffer:
        self.offered = round
        return super().offer(round)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "offered": self.offered}


class ReturnsOwnArray(PaperWorld):
    """Changes the state that it returned."""

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        own = self._trained
        report = super().play(offer, selection)
        own[:], self._trained = self._trained, own
        return report

    def state(self) -> dict[str, Any]:
        return {"trained": self._trained}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._trained = state["trained"].copy()


class SeedsGlobally(PaperWorld):
    """Reseeds the global generator of NumPy."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        np.random.seed(seed)  # noqa: NPY002


@pytest.mark.parametrize(
    ("world", "violation"),
    [
        (WithoutRestore, "it is a world: WithoutRestore is not a turnout.lab.World"),
        (broken(clients=0), "it is a world: clients is 0"),
        (
            broken(availability=np.array([0.8])),
            r"it is a world: availability has the shape \(1,\), not one entry per client",
        ),
        (broken(availability=np.full(40, 80.0)), "it is a world: availability has an entry outside 0 to 1"),
        (
            lambda seed: PaperWorld(seed + next(NUMBERS)),
            "the same seed plays the same rounds: two worlds .* differ: the offers of round 1",
        ),
        (
            reporting(lambda report: replace(report, exchange_times=report.exchange_times + next(NUMBERS))),
            "the same seed plays the same rounds: two worlds .* differ: the reports of round 1",
        ),
        (TiredClients, "every policy gets the same world: round 2: another selection before it changed"),
        (
            broken(offer=lambda self, number: PaperWorld.offer(self, number + 1)),
            r"offers and reports are complete: offer\(1\) has the round 2",
        ),
        (SmallerOffers, "offers and reports are complete: an offer has 40 clients, the world 41"),
        (
            reporting(lambda report: replace(report, round=report.round + 1)),
            "offers and reports are complete: the report of round 1 has the round 2",
        ),
        (
            selecting(lambda _, selection: replace(selection, clients=selection.clients[1:])),
            "offers and reports are complete: round 1: .* were selected, .* are in the report",
        ),
        (selecting(never_empty), r"an empty cohort is valid: nobody was selected, but \[\d+\] are in the report"),
        (selecting(refuse_empty), r"an empty cohort is valid: the world raised ReportError\('nobody was selected'\)"),
        (CountsOffers, "offering changes nothing: two offers of round 1 differ"),
        (StoresOffers, "offering changes nothing: offer changed the state"),
        (
            broken(state=lambda _: {"nothing": 0}, restore=lambda *_: None),
            "a restored world goes on alike: the restored world differs: the offers of round 11",
        ),
        (
            broken(state=lambda self: {"trained": self._trained.tolist()}),
            r"a restored world goes on alike: state\['trained'\] is a list, not a plain array or number",
        ),
        (ReturnsOwnArray, "a restored world goes on alike: later rounds changed a saved state"),
        (selecting(draw_globally), "global random state is untouched: a global random generator was drawn from"),
        (SeedsGlobally, "global random state is untouched: a global random generator was drawn from"),
    ],
)
def test_a_violated_contract_is_found(world: Any, violation: str) -> None:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with pytest.raises(CheckError, match=f"^{violation}"):
            check_world(world)
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
