"""FairPace's choice: a price in seconds for a turn of each client, and the cohort that it gives.

    slack_i = a_i − b_i        turns that client i may still fall behind before it is urgent
    room_i = min(slack_i, c_i) + max(slack_i − c_i, 0) · (25 + n) / (25 + n_i),  c_i = max(a_i, tolerance/2) + tolerance
    p_i = max(s_i + (1 − 1/m) · (s_i − t_i), 0)     seconds: the usual time, and what it takes less than usual now
    price_i = p_i / (0.7 · m) · max(a_i, tolerance/2) / (room_i + h) + value_i     seconds that its turn is worth

h is the head start of the first rounds, value_i what the client's loss adds, 0 unless it is asked for. n_i is the
number of rounds in which the client accrued, n that of all rounds: what a new client is ahead, beyond the tolerance,
counts as if it had gone on like this from the first round.
b_i is how far the client is behind, a_i how far it may be, s_i its usual time, t_i its time in this round and m the
number of places. Clients with slack_i ≤ 0 are urgent and come first, the smallest slack before the others, among equals
the faster, then the lower row. The places that are left minimise

    max(time over the whole cohort) − Σ price

with the exact solver of `turnout.kernel.cohort`. Prices are rounded to a common power of two, so that their sums are
exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, at_rows
from turnout.kernel.backend import compiled_kernel, kernel_threads
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import EMPTY_COHORT, SolvedCohort, as_exact, numpy_cohort
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.pace.usual import Presence, UsualContexts, absence

#: The share of a cohort among which the cost of a slow round is divided. Not all members of a slow round are as slow as
#: its slowest member, so the share of each slow one is larger than one place. The constant was found by trial; the mean
#: round is flat around it.
SHARING = 0.7
#: The rounds in which a head start fades.
HEAD_ROUNDS = 100
#: A surplus beyond the tolerance counts (SETTLING + all rounds) / (SETTLING + rounds of the client) times. Otherwise a
#: new client takes most places until it has the surplus that the others gathered in thousands of rounds.
SETTLING = 25.0
#: The largest price, in seconds: a sum of such prices is finite.
MAX_PRICE = 1e290


class Pace(NamedTuple):
    """How far each client is behind its promise, and how far it may be, in units of 1 / units_per_turn turns.

    Attributes:
        rates: The guaranteed rate in units per round: one for all clients, or one per client.
        rounds: The number of rounds in which each client accrued before this one.
        turns: The turns that each client took.
        units_per_turn: The number of units in a turn.
        allowed: How far each client may be behind (a): one value for all clients, or one per client.
        least_allowed: The lower limit of `allowed` in the numerator of a price.
        base: What each client was promised before an amendment of its rate, as in `Accounts`; 0 without one.
        head_start: Units that prices count in addition to the slack.
        losses: The loss of each client, relative to the usual one; None if losses do not count.
        loss_price: What a turn of a client with a loss of 1 is worth in addition, in seconds.
        age: The number of rounds before this one, whoever accrued in them.
    """

    rates: int | IntArray
    rounds: int | IntArray
    turns: npt.NDArray[np.int32]
    units_per_turn: int
    allowed: float | FloatArray
    least_allowed: float
    base: int | IntArray = 0
    head_start: float | FloatArray = 0.0
    losses: FloatArray | None = None
    loss_price: float = 0.0
    age: int | IntArray = 0

    def behind(self, rows: IntArray) -> IntArray:
        """Returns how far these clients are behind (b), in units, this round's accrual included."""
        promised: IntArray = at_rows(self.base, rows) + at_rows(self.rates, rows) * (at_rows(self.rounds, rows) + 1)
        return promised - self.turns[rows].astype(np.int64) * self.units_per_turn

    def slack(self, rows: IntArray) -> FloatArray:
        """Returns how much further each client may fall behind before it is urgent, in units."""
        slack: FloatArray = at_rows(self.allowed, rows) - self.behind(rows).astype(np.float64)
        return slack

    def room(self, rows: IntArray) -> FloatArray:
        """Returns the slack in units, of which a large surplus of a new client counts several times."""
        slack = self.slack(rows)
        full = np.maximum(at_rows(self.allowed, rows), self.least_allowed) + 2 * self.least_allowed
        share = (SETTLING + self.age) / (SETTLING + np.asarray(at_rows(self.rounds, rows), dtype=np.float64))
        room: FloatArray = np.where(slack > full, full + (slack - full) * share, slack)
        return room

    def prices(
        self, rows: IntArray, times: FloatArray, usual: FloatArray, weights: FloatArray | float, places: int
    ) -> FloatArray:
        """Returns the price of a turn of each client in seconds; −1 for urgent clients.

        Args:
            rows: The clients.
            times: Their times in this round.
            usual: Their usual times, multiplied by `weights`.
            weights: What the usual times were multiplied by.
            places: The number of clients to select.
        """
        slack = self.slack(rows)
        allowed = np.maximum(at_rows(self.allowed, rows), self.least_allowed)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            seconds = priced_times(times, usual, weights, places)
            prices: FloatArray = seconds * allowed / (weights * sharers(places) * (self.room(rows) + self.head_start))
        if self.losses is not None:
            prices += self.losses[rows] * self.loss_price
        prices = np.where(prices < MAX_PRICE, prices, MAX_PRICE)
        return np.where(slack > 0, prices, -1.0)

    def kernel_terms(self, places: int) -> tuple[Any, ...]:
        """Returns the terms as the compiled kernel takes them, which computes rates · (rounds + 1) promised units.

        For amended rates these are 1 · (promised units − 1 + 1), and the rounds follow as the last term.
        """
        terms, ages = self, None
        if not isinstance(self.base, int) or self.base:
            promised = self.base + self.rates * (self.rounds + 1)
            terms, ages = self._replace(rates=1, rounds=promised - 1), self.rounds
        extra = self.head_start, self.losses, self.loss_price
        return (*terms[:6], sharers(places), advantage_weight(places), *extra, SETTLING + self.age, SETTLING, ages)


class PaceOutlook(NamedTuple):
    """How the price of a client's turn develops if the client waits and nothing else changes.

    Attributes:
        pace: How far each client is behind now.
        times: The time of each client in this round.
        usual: The usual time of each client, multiplied by `weights`.
        weights: What the usual times were multiplied by.
        places: The number of clients to select.
        presence: How often each client was available, if how far it may be behind depends on that.
        round: The number of this round.
        head_start: The head start of the first round, in units.
    """

    pace: Pace
    times: FloatArray
    usual: FloatArray
    weights: FloatArray
    places: int
    presence: Presence | None
    round: int
    head_start: float

    def after(self, row: int, waited: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns slack and price of a client after these numbers of rounds for which it is available."""
        pace, steps = self.pace, np.arange(len(waited))
        rate, rounds = int(at_rows(pace.rates, row)), int(at_rows(pace.rounds, row))
        allowed = np.full(len(waited), at_rows(pace.allowed, row), dtype=np.float64)
        if self.presence is not None:
            present, of = self.presence.of(row, rounds)
            allowed = 2 * pace.least_allowed - rate * (1 + absence(present + waited, of + waited))
        waiting = pace._replace(
            rates=rate,
            rounds=rounds + waited,
            turns=np.full(len(waited), pace.turns[row]),
            allowed=allowed,
            base=int(at_rows(pace.base, row)),
            head_start=fading(self.head_start, self.round + waited),
            losses=None if pace.losses is None else np.full(len(waited), pace.losses[row]),
            age=pace.age + waited,
        )
        times, usual, weights = (np.full(len(waited), of[row]) for of in (self.times, self.usual, self.weights))
        return waiting.slack(steps), waiting.prices(steps, times, usual, weights, self.places)


class ClientPrices(NamedTuple):
    """What the price of a client's turn consists of, for one client at a time: in large fleets few are asked for.

    Attributes:
        pace: How far each client is behind; how far it may be is left out.
        usual: Returns the usual time of a client, in seconds.
        head_start: What is left of the head start, in turns.
        fading: The turns of the head start that fade with each round.
    """

    pace: Pace
    usual: Callable[[int], float]
    head_start: float
    fading: float

    def rate(self, row: int) -> float:
        """Returns the guaranteed rate of a client, in turns per round."""
        return float(at_rows(self.pace.rates, row)) / self.pace.units_per_turn

    def behind(self, row: int) -> float:
        """Returns how many turns a client is behind, this round's accrual included."""
        return float(self.pace.behind(np.array([row]))[0]) / self.pace.units_per_turn


class PacedCohort(NamedTuple):
    """A cohort, and the rows of its urgent members, the most urgent first."""

    cohort: SolvedCohort
    urgent: IntArray


def paced_cohort_of_contexts(
    model: ExchangeTimeModel,
    contexts: FloatArray,
    exploration: float,
    usual: UsualContexts,
    pace: Pace,
    size: int,
    available: BoolArray,
) -> PacedCohort:
    """Selects the cohort for the model's times; the compiled kernel does everything in one pass.

    Args:
        model: The model that estimates the exchange times.
        contexts: One row of features per client.
        exploration: The width of the confidence band.
        usual: The usual context of each client.
        pace: How far each client is behind.
        size: The number of clients to select.
        available: A mask of the clients that may be selected.
    """
    places, size = size, min(size, int(np.count_nonzero(available)))
    if size == 0:
        return PacedCohort(EMPTY_COHORT, np.empty(0, dtype=np.int64))
    mean = usual.fleet_mean()
    compiled = compiled_kernel()
    if compiled is None:
        rows = np.flatnonzero(available)
        times = model.optimistic(contexts, exploration)[rows]
        prices = pace.prices(rows, times, *usual.terms(model, mean, rows), places)
        return _numpy_paced(rows, times, prices, pace, size)
    mask, threads = available.view(np.uint8), kernel_threads(len(contexts))
    cohort, urgent = compiled.paced_cohort_of_contexts(
        contexts, model.bank, exploration, usual.sums, mean, pace.kernel_terms(places), mask, size, threads
    )
    return PacedCohort(SolvedCohort(*cohort), urgent)


def paced_cohort_of_times(
    times: FloatArray, usual_times: FloatArray, pace: Pace, size: int, available: BoolArray
) -> PacedCohort:
    """Selects the cohort for known times.

    Args:
        times: The time of each client in this round.
        usual_times: The usual time of each client, not negative.
        pace: How far each client is behind.
        size: The number of clients to select.
        available: A mask of the clients that may be selected.
    """
    places, size = size, min(size, int(np.count_nonzero(available)))
    if size == 0:
        return PacedCohort(EMPTY_COHORT, np.empty(0, dtype=np.int64))
    compiled = compiled_kernel()
    if compiled is None:
        rows = np.flatnonzero(available)
        prices = pace.prices(rows, times[rows], usual_times[rows], 1.0, places)
        return _numpy_paced(rows, times[rows], prices, pace, size)
    mask, threads = available.view(np.uint8), kernel_threads(len(times))
    cohort, urgent = compiled.paced_cohort_of_times(times, usual_times, pace.kernel_terms(places), mask, size, threads)
    return PacedCohort(SolvedCohort(*cohort), urgent)


def sharers(places: int) -> float:
    """Returns among how many clients the cost of a slow round is divided; a single client bears all of it."""
    return max(SHARING * places, 1.0)


def advantage_weight(places: int) -> float:
    """Returns the weight of the seconds by which a client is faster than usual: the share of all places but one.

    One member of a cohort determines how long the round lasts. The duration does not show what the other members save
    by training now. With a single place, the duration shows all of it.
    """
    return 1 - 1 / max(places, 1)


def priced_times(times: FloatArray, usual: FloatArray, weights: FloatArray | float, places: int) -> FloatArray:
    """Returns the times of which prices are shares, multiplied by `weights`: more than usual if a client is faster now.

    The arguments are those of `Pace.prices`.

    >>> priced_times(np.array([4.0, 12.0]), np.array([8.0, 8.0]), 1.0, places=8).tolist()
    [11.5, 4.5]
    """
    seconds: FloatArray = usual + advantage_weight(places) * (usual - times * weights)
    return np.where(seconds > 0, seconds, 0.0)


def room_at(price: float, usual: float, allowed: float) -> float:
    """Returns the room, head start included, with which a turn has this price if there is one place.

    It is the inverse of `Pace.prices`. Of a client that joined late, the room counts a surplus several times.

    >>> room_at(price=8.0, usual=6.0, allowed=1.0)
    0.75
    """
    return usual * allowed / price


def fading(head_start: float, round: int | IntArray) -> float | FloatArray:
    """Returns what is left of a head start in a round."""
    left: float | FloatArray = head_start * np.maximum(1 - (round - 1) / HEAD_ROUNDS, 0.0)
    return float(left) if isinstance(round, int) else left


def exact_prices(prices: FloatArray, size: int) -> OwedTurns:
    """Rounds prices to integers of a common unit, for which the sum of `size` prices is exact."""
    return as_exact("prices", prices, size)


def price_order(prices: FloatArray) -> IntArray:
    """Returns integers with the order of prices that are not negative: their bit patterns.

    They distinguish prices that `exact_prices` rounds to the same integer.
    """
    return np.ascontiguousarray(prices).view(np.int64)


def most_urgent(rows: IntArray, slack: FloatArray, times: FloatArray, size: int) -> IntArray:
    """Returns the `size` rows with the smallest slack; ties go to the faster client, then to the lower row."""
    return rows[np.lexsort((rows, times, slack))[:size]]


def _numpy_paced(rows: IntArray, times: FloatArray, prices: FloatArray, pace: Pace, size: int) -> PacedCohort:
    """Selects urgent clients, then solves the problem of the places that are left, with NumPy.

    Args:
        rows: The available clients.
        times: Their times.
        prices: Their prices; −1 for urgent clients.
        pace: How far each client is behind.
        size: The number of clients to select, at most len(rows).
    """
    is_urgent = prices < 0
    indices = np.flatnonzero(is_urgent)
    first = most_urgent(indices, pace.slack(rows[indices]), times[indices], size)
    floor = float(times[first].max(initial=0.0))
    left = size - len(first)
    others = np.flatnonzero(~is_urgent)
    members, threshold, objective = first, floor, floor
    if left:
        values = exact_prices(prices[others], size)
        everyone = np.ones(len(others), dtype=np.bool_)
        order = price_order(prices[others])
        rest = numpy_cohort(times[others], values, left, 1.0, everyone, floor=floor, order=order)
        members = np.concatenate([first, others[rest.rows]])
        threshold, objective = max(rest.threshold, floor), rest.objective
    members = np.sort(members)
    cohort = SolvedCohort(rows[members], times[members], threshold, objective, len(others))
    return PacedCohort(cohort, rows[first])
