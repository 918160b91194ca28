"""The proofs about FairPace, attacked: every play of small fleets, and a play for each counterexample."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest

from turnout import FairPace, RoundOffer, RoundReport
from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray
from turnout.kernel.pace.bounds import ABSENT, FAILING, OVERLOAD, TRAINING, Circumstances, proved_bound
from turnout.kernel.slots.turns import RunningTurns, TurnStart

TOLERANCE = 5
FAILS_NEVER = Circumstances(failures=0)


class State(NamedTuple):
    """How far each client is beyond the point where it is urgent, in units; None if it is not urgent.

    A client that is not urgent can have any debt, because nothing is assumed about the choice among such clients.
    """

    excess: tuple[int | None, ...]
    failed: tuple[int, ...]
    missing: int


@dataclass(frozen=True)
class Game:
    """All rounds that can follow each other, if an adversary decides everything but the order of urgent clients."""

    rates: tuple[int, ...]
    unit: int
    places: int
    known: Circumstances = FAILS_NEVER
    faulty: int = 0

    def bound(self) -> Fraction:
        """Returns the proved bound on what `worst` returns."""
        rates = [Fraction(rate, self.unit) for rate in self.rates]
        counts = "selected" if self.known.failures == 0 else "completed"
        given = list(map(str, rates))
        answer = proved_bound(given, len(rates), self.places, tolerance=TOLERANCE, counts=counts, known=self.known)
        assert math.isfinite(answer.turns), answer.reason
        beyond = Fraction(answer.turns).limit_denominator(10**6) - TOLERANCE
        return beyond if self.known.in_a_row else beyond + min(rates)

    def worst(self) -> Fraction:
        """Plays everything, and returns the largest overshoot beyond tolerance − rate; if turns fail, the tolerance."""
        count = len(self.rates)
        start = State((None,) * count, (0,) * count, 0)
        seen, waiting, largest = {start}, [start], -self.unit
        while waiting:
            for state in self._next(waiting.pop()):
                if state not in seen:
                    seen.add(state)
                    waiting.append(state)
                    for row in range(self.faulty, count):
                        excess = state.excess[row]
                        if excess is not None:
                            largest = max(largest, excess - self.rates[row] * (2 if self.known.in_a_row else 1))
            assert len(seen) < 400_000
            assert largest < 50 * self.unit
        return Fraction(largest, self.unit)

    def _next(self, state: State) -> Iterator[State]:
        for row, excess in enumerate(state.excess):
            if excess is None:  # it waits while others with a surplus are selected, until it is urgent
                for value in range(self.rates[row]):
                    yield State(_with(state.excess, row, value), state.failed, state.missing)
        urgent = [row for row, excess in enumerate(state.excess) if excess is not None]
        for size in range(1, len(urgent) + 1):
            for available in combinations(urgent, size):
                for fewer in range(min(self.places, self.known.missing_places - state.missing) + 1):
                    for selected in self._selections(state, available, self.places - fewer):
                        yield from self._outcomes(state, available, selected, fewer)

    def _selections(self, state: State, available: tuple[int, ...], places: int) -> Iterator[tuple[int, ...]]:
        """Yields the most urgent clients, with every choice among equals."""
        values = sorted((state.excess[row] or 0 for row in available), reverse=True)
        if places >= len(values) or not places:
            yield available[: places and None]
            return
        above = tuple(row for row in available if (state.excess[row] or 0) > values[places - 1])
        equal = [row for row in available if (state.excess[row] or 0) == values[places - 1]]
        for chosen in combinations(equal, places - len(above)):
            yield above + chosen

    def _outcomes(
        self, state: State, available: tuple[int, ...], selected: tuple[int, ...], fewer: int
    ) -> Iterator[State]:
        limit = self.known.in_a_row
        able = [row for row in selected if (row < self.faulty if limit is None else state.failed[row] < limit)]
        for count in range(min(self.known.failures or 0, len(able)) + 1):
            for failing in combinations(able, count):
                excess, failed = state.excess, state.failed
                for row in available:
                    value = (excess[row] or 0) + self.rates[row]
                    if row in failing:
                        failed = _with(failed, row, min(failed[row] + 1, limit or 0))
                    elif row in selected:
                        value += self.rates[row] * (self.known.longest_turn or 0) - self.unit
                        failed = _with(failed, row, 0)
                    if row < self.faulty:
                        value = min(value, 6 * self.unit)  # it is the most urgent of all in any case
                    excess = _with(excess, row, value if value >= 0 else None)
                yield State(excess, failed, state.missing + fewer)


def _with(values: tuple[Any, ...], row: int, value: Any) -> tuple[Any, ...]:
    return (*values[:row], value, *values[row + 1 :])


def completed(failures: int, in_a_row: int | None) -> Circumstances:
    return Circumstances(failures=failures, in_a_row=in_a_row)


def slots(longest_turn: int) -> Circumstances:
    return Circumstances(failures=0, slots=True, longest_turn=longest_turn)


def missing(places: int) -> Circumstances:
    return Circumstances(missing_places=places, failures=0)


GAMES = {
    "one rate": Game((2, 2, 2), 6, 1),
    "one rate, two places": Game((3, 3, 3, 3), 6, 2),
    "different rates, none above an equal share": Game((4, 3, 2), 12, 1),
    "different rates": Game((4, 3, 3), 10, 1),
    "nearly equal rates": Game((6, 5, 5), 16, 1),
    "one rate near 1": Game((10, 1, 1), 12, 1),
    "two clients": Game((17, 15), 32, 1),
    "different rates, two places": Game((5, 5, 4), 7, 2),
    "two places, one of them for one client": Game((5, 2, 2, 2), 6, 2),
    "four clients, two places": Game((3, 2, 1, 1), 4, 2),
    "missing places": Game((3, 3), 8, 1, missing(2)),
    "missing places, two places": Game((3, 3, 3), 6, 2, missing(2)),
    "missing places, different rates": Game((4, 2, 1), 7, 1, missing(1)),
    "failed turns": Game((2, 2, 2), 12, 2, completed(1, 1)),
    "failed turns, different rates": Game((4, 2, 1), 14, 2, completed(1, 1)),
    "failed turns, two in a row": Game((2, 1), 10, 2, completed(1, 2)),
    "failed turns, more places than clients": Game((4, 3), 14, 3, completed(1, 2)),
    "a client whose turns all fail": Game((2, 2, 2), 6, 2, completed(1, None), faulty=1),
    "slots": Game((2, 2, 2), 12, 1, slots(2)),
    "slots, different rates": Game((4, 2, 1), 12, 1, slots(1)),
}


@pytest.mark.parametrize("name", GAMES)
def test_no_play_reaches_the_bound(name: str) -> None:
    game = GAMES[name]
    assert game.worst() < game.bound()


def drawn_game(rng: random.Random) -> Game:
    """Draws a small fleet about which something is proved."""
    while True:
        count, places, unit = rng.choice([2, 3]), rng.choice([1, 2, 3]), rng.randint(5, 10)
        rates = tuple(rng.randint(1, rng.choice([unit, unit // 2, unit // 3])) for _ in range(count))
        kind = rng.randrange(5)
        known = (FAILS_NEVER, missing(2), completed(1, rng.choice([1, 2])), completed(1, None), slots(2))[kind]
        game = Game(rates, unit, 1 if kind == 4 else places, known, faulty=int(kind == 3))
        counts = "selected" if known.failures == 0 else "completed"
        given = [str(Fraction(rate, unit)) for rate in rates]
        if proved_bound(given, count, game.places, tolerance=TOLERANCE, counts=counts, known=known).conditions:
            return game


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 8))])
def test_no_play_of_a_drawn_fleet_reaches_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        game = drawn_game(rng)
        assert game.worst() < game.bound(), game


@pytest.mark.parametrize(
    ("game", "share"),
    [
        (Game((2, 2, 2), 6, 1), 0.7),
        (Game((6, 5, 5), 16, 1), 0.75),
        (Game((17, 15), 32, 1), 0.85),
        (Game((10, 1, 1), 12, 1), 0.75),
        (Game((3, 3), 8, 1, missing(2)), 0.65),
    ],
)
def test_some_play_comes_close_to_the_bound(game: Game, share: float) -> None:
    assert game.worst() > share * game.bound()


def test_the_bound_for_one_rate_does_not_hold_for_different_rates() -> None:
    """Not even with the largest rate, and not even within tolerance + 1."""
    assert Game((10, 1, 1), 12, 1).worst() - Fraction(1, 12) > 1
    assert Game((6, 5, 5), 16, 1).worst() == Fraction(19, 16), "r · (N − 1)/m is 12/16"


# Larger bounds


def test_one_rate_has_the_bound_of_the_lemma() -> None:
    assert proved_bound("1/4", 9, 4, tolerance=2).turns == 2.25
    assert proved_bound(0.25, 16, 4, tolerance=2).turns == 2.0 - 0.25 + 0.25 * 15 / 4, "just feasible"
    assert proved_bound([0.25] * 9, 9, 4, tolerance=2).turns == 2.25
    assert proved_bound([0.25] * 8 + [0.2], 9, 4, tolerance=2).turns == pytest.approx(2 - 0.2 + 0.25 * 8 / 4)
    assert proved_bound([0.25] * 9 + [0.0] * 50, 59, 4, tolerance=2).turns == 2.25, "rates of 0 do not count"


def test_a_few_clients_with_high_rates_take_at_most_one_place_each() -> None:
    rates = [0.9, 0.8, *[0.05] * 98]
    assert proved_bound(rates, 100, 8, tolerance=2).turns == pytest.approx(2 - 0.05 + 0.05 * 97 / 6)


def test_the_bound_of_a_large_fleet_with_different_rates_is_found_at_once() -> None:
    rates = np.random.default_rng(0).choice([0.001, 0.002, 0.004], 200_000)
    assert 2 < proved_bound(rates, 200_000, 900, tolerance=2).turns < 4


def test_turns_that_count_when_they_are_completed_are_missing_while_they_last() -> None:
    """Without rounds a selection counts at once, and a completed turn after its decision and three further ones."""
    selected, finished = (
        proved_bound(0.1, 4, 1, tolerance=2, counts=counts, known=slots(3)) for counts in ("selected", "completed")
    )
    assert finished.turns == pytest.approx(selected.turns + 0.1 * (1 + 3))
    assert {"no turn lasts longer than 3 further decisions", "no turn fails"} <= set(finished.conditions)
    assert "no turn fails" not in selected.conditions


# Where nothing is proved


@pytest.mark.parametrize(
    ("terms", "known", "counterexample"),
    [
        ({"accrual": "always"}, Circumstances(), ABSENT),
        ({"rate": 0.51}, Circumstances(), OVERLOAD),
        ({"counts": "completed"}, Circumstances(), FAILING),
        ({"counts": "completed"}, completed(2, None), FAILING),
        ({"rate": 0.4, "counts": "completed"}, completed(1, None), OVERLOAD),
        ({"places": 1}, Circumstances(slots=True), TRAINING),
        ({"places": 1}, Circumstances(slots=True, longest_turn=9), TRAINING),
        ({"rate": 0.3, "counts": "completed"}, completed(1, 1), ""),
        ({"places": 1, "counts": "completed"}, Circumstances(failures=1, in_a_row=1, slots=True, longest_turn=1), ""),
        ({"places": 1}, Circumstances(slots=True, longest_turn=8), ""),
        ({"tolerance": 0.1}, Circumstances(), ""),
    ],
)
def test_without_a_proof_the_reason_and_the_counterexample_are_named(
    terms: dict[str, Any], known: Circumstances, counterexample: str
) -> None:
    asked = {"rate": 0.1, "places": 2, "tolerance": 2, **terms}
    answer = proved_bound(asked.pop("rate"), 4, asked.pop("places"), known=known, **asked)
    assert (answer.turns, answer.conditions, answer.counterexample) == (math.inf, (), counterexample)
    assert answer.reason


def test_circumstances_are_counts() -> None:
    with pytest.raises(SettingError, match="failures must be at least 0"):
        Circumstances(failures=-1)


class Play:
    """FairPace in rounds or slots, with the clients that the adversary makes available."""

    def __init__(self, clients: int, places: int, **settings: Any) -> None:
        self.policy = FairPace(clients, cohort_size=places, times="expected", allow_infeasible=True, **settings)
        self.running = RunningTurns(clients)
        self.decision = 0

    def offer(self, available: BoolArray) -> RoundOffer:
        self.decision += 1
        clients = self.policy.clients
        return RoundOffer(self.decision, available, np.ones((clients, 3)), expected_times=np.ones(clients))

    def round(self, rows: list[int], failing: int | None = None) -> None:
        available = np.isin(np.arange(self.policy.clients), rows)
        offer = self.offer(available)
        chosen = self.policy.ask(offer).clients
        outcomes = np.where(chosen == failing, "failed", "arrived")
        times = np.ones(len(chosen))
        contexts = offer.contexts[chosen]
        self.policy.tell(
            RoundReport(self.decision, chosen, contexts, times, available=available, outcomes=outcomes.tolist())
        )

    def give(self, rows: list[int]) -> int:
        """Gives a turn to one of these clients, which begins to train."""
        available = np.isin(np.arange(self.policy.clients), rows) & self.running.idle
        (client,) = self.policy.ask(self.offer(available).restricted(available, 1)).clients.tolist()
        capped = self.running.capped(self.decision, self.policy.debts)
        turn = TurnStart(self.decision, client, available | ~self.running.idle, capped)
        self.policy.tell_started(turn)
        self.running.start(turn)
        return int(client)

    def finish(self, client: int) -> None:
        self.running.finish(client)
        self.policy.tell_finished(RoundReport(self.decision, np.array([client]), np.ones((1, 3)), np.ones(1)))

    def behind(self, row: int) -> float:
        return float(self.policy.certificate().behind[row])


def test_an_absent_client_falls_behind_without_limit_if_it_earns() -> None:
    play = Play(3, 1, guaranteed_rate=0.25, accrual="always")
    for _ in range(100):
        play.round([0, 1])
    assert play.behind(2) == 25


def test_clients_that_are_promised_too_much_fall_behind_without_limit() -> None:
    play = Play(3, 1, guaranteed_rate=0.4)
    for _ in range(300):
        play.round([0, 1, 2])
    assert sum(map(play.behind, range(3))) == pytest.approx(60)


def test_a_client_whose_turns_all_fail_falls_behind_without_limit() -> None:
    play = Play(3, 2, guaranteed_rate=0.25, counts="completed")
    for _ in range(100):
        play.round([0, 1, 2], failing=2)
    assert play.behind(2) == 25
    bound = proved_bound(0.25, 3, 2, tolerance=2, counts="completed", known=completed(1, None)).turns
    assert max(play.behind(0), play.behind(1)) < bound


def test_clients_that_earn_whole_turns_while_training_fall_behind_without_limit() -> None:
    """Two clients wait for each other in turn; a third has all other turns meanwhile. The rates sum to 3/4."""
    play = Play(3, 1, guaranteed_rate=0.25)
    for _ in range(100):
        client = play.give([0, 1])
        while not len(play.running.capped(play.decision + 1, play.policy.debts)):
            play.finish(play.give([2]))
        play.finish(client)
    assert min(play.behind(0), play.behind(1)) > 10
