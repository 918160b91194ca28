from __future__ import annotations

import numpy as np
import pytest

from turnout import RoundOffer, RoundReport
from turnout.kernel.randomness import round_rng
from turnout.policies import REFL
from turnout.policies.small_fleet import SmallFleet


@pytest.mark.parametrize(("window", "hold_off"), [(1, 5), (3, 0)])
def test_150_rounds_equal_a_literal_implementation(window: int, hold_off: int) -> None:
    policy = REFL(40, cohort_size=6, window=window, hold_off=hold_off, seed=9)
    fleet = SmallFleet(2, availability=0.4)
    available_in: list[set[int]] = []
    last: dict[int, int] = {}
    for round_ in range(1, 151):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        rows = np.flatnonzero(offer.available).tolist()
        tie_break = round_rng(9, "refl", round_).standard_exponential(40).tolist()

        def rank(row: int, now: int = round_, tie_break: list[float] = tie_break) -> tuple[bool, float, float]:
            before = [t for t in range(len(available_in) - window) if row in available_in[t]]
            again = [t for t in before if row in available_in[t + window]]
            held_off = row in last and now - last[row] <= hold_off
            return held_off, (len(again) + 1) / (len(before) + 2), tie_break[row]

        if round_ % 10 == 0:
            assert selection.clients.tolist() == sorted(sorted(rows, key=rank)[:6])
        available_in.append(set(rows))
        last.update(dict.fromkeys(selection.clients.tolist(), round_))
        policy.tell(fleet.play(offer, selection))


def test_clients_that_are_rarely_available_again_are_selected_first() -> None:
    policy = REFL(6, cohort_size=2, hold_off=0)
    contexts = np.ones((6, 3))
    for round_ in range(1, 41):
        available = np.array([True, True, True, True, round_ % 4 == 0, round_ % 5 == 0])
        policy.tell(RoundReport(round_, np.empty(0, dtype=np.int64), contexts[:0], np.empty(0), available=available))
    assert policy.chances[:4].min() > 0.9 > 0.2 > policy.chances[4:].max()
    assert policy.ask(RoundOffer(41, np.ones(6, dtype=bool), contexts)).clients.tolist() == [4, 5]


def test_ties_are_broken_at_random_and_recent_participants_are_held_off() -> None:
    policy = REFL(10, cohort_size=2, hold_off=3)
    available, contexts = np.ones(10, dtype=bool), np.ones((10, 3))
    assert len({tuple(policy.ask(RoundOffer(round_, available, contexts)).clients) for round_ in range(1, 40)}) > 20
    for round_ in range(1, 60):
        chosen = policy.ask(RoundOffer(round_, available, contexts)).clients
        last = policy.last_rounds[chosen]
        assert ((round_ - last > 3) | (last == 0)).all()
        policy.tell(RoundReport(round_, chosen, contexts[:2], np.ones(2), available=available))


def test_a_client_that_is_held_off_is_selected_if_no_other_is_left() -> None:
    policy = REFL(3, cohort_size=2, hold_off=9)
    available, contexts = np.ones(3, dtype=bool), np.ones((3, 3))
    policy.tell(RoundReport(1, np.array([0, 1]), contexts[:2], np.ones(2), available=available))
    assert 2 in policy.ask(RoundOffer(2, available, contexts)).clients
    assert len(policy.ask(RoundOffer(2, available, contexts)).clients) == 2
