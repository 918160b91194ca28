"""Worlds made from a record: one that could go on like it, and one that plays its rounds again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SelectionError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, load_array, read_only
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundOffer, RoundReport, Selection
from turnout.simulator.distributions import Draws
from turnout.store.columns import RoundColumns

RIDGE = 1.0
OWN_TURNS = 5  # fewer than so many of a client tell little: then those of the whole fleet are drawn from
BLOCK_ROUNDS = 20  # rounds of recorded availability that stay together
LEAST_PREDICTION = 0.05  # of the mean time: below it a regression is not believed
LATE_COLUMNS = ("rounds", "clients", "contexts", "deadlines", "exchange_times", "learned_since")
FAILED, LATE = OUTCOMES.index("failed"), OUTCOMES.index("late")

ASSUMPTIONS = (
    "times: one regression a client on its recorded contexts, drawn towards the fleet's; what it leaves unexplained is "
    "kept as a factor and drawn from the client's own turns, failures included",
    "contexts: drawn from those in which the client was recorded; without whole offers these are its turns only",
    "availability: the recorded masks, in stretches of 20 rounds from random places; clients that joined late or left "
    "count as away in the other rounds",
    f"a client with fewer than {OWN_TURNS} turns is taken for one of the fleet",
)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedHistory:
    """A record to learn from.

    `cold_start`: the place of the feature that tells whether a client did not train in the round before; it is then not
    drawn, but follows from who was chosen. `deadline`: seconds after which a client is late, if rounds had one.
    `offers`: the contexts of everybody in every round, (rounds, clients, features), where whole offers were recorded;
    NaN of clients and rounds of which nothing was.
    """

    columns: RoundColumns
    cold_start: int | None = None
    deadline: float | None = None
    offers: FloatArray | None = None

    def __post_init__(self) -> None:
        columns = self.columns
        if not len(columns.chosen):
            raise SettingError("the record holds no turns: there is nothing to learn from")
        if columns.available is None or "available" in columns.absent:
            raise SettingError(
                "the record does not state who was available in every round: record complete rounds (keep='all'), "
                "or use another world"
            )
        if not columns.contexts.shape[1]:
            raise SettingError("the record holds no contexts (keep='choices'): record whole rounds, or state a world")
        if self.cold_start is not None and not 0 <= self.cold_start < columns.contexts.shape[1]:
            raise SettingError(f"cold_start must be a feature below {columns.contexts.shape[1]}, not {self.cold_start}")
        if self.deadline is not None:
            as_number("deadline", self.deadline, SettingError, above=0)
        if self.offers is not None:
            expected = (len(columns), columns.clients, columns.contexts.shape[1])
            if self.offers.shape != expected:
                raise SettingError(f"offers has shape {self.offers.shape}, expected is {expected}")

    @property
    def available(self) -> BoolArray:
        """Who was available in which round."""
        assert self.columns.available is not None
        return self.columns.available

    @property
    def is_whole(self) -> bool:
        """Are the contexts of all who were available on record?"""
        return self.offers is not None and not bool(np.isnan(self.offers[self.available]).any())

    @property
    def true_times(self) -> FloatArray:
        """Seconds of every turn; of a late client its true time, where it was told later."""
        columns = self.columns
        times: FloatArray = columns.exchange_times.copy()
        place_of = {int(round_): place for place, round_ in enumerate(columns.rounds)}
        for late in columns.late.values():
            for round_, client, seconds in zip(late.rounds, late.clients, late.exchange_times, strict=True):
                place = place_of.get(int(round_))
                if place is not None:
                    own = slice(*columns.starts[place : place + 2])
                    times[own][columns.chosen[own] == client] = seconds
        return times


class FittedTimes:
    """How long each client takes in a given context, and how far its turns were from that."""

    def __init__(self, past: RecordedHistory) -> None:
        columns = past.columns
        times, contexts, rows = past.true_times, columns.contexts, columns.chosen
        kinds = np.zeros(len(rows), dtype=np.uint8) if columns.outcomes is None else columns.outcomes
        teaches = (kinds != FAILED) & (times > 0)
        if not teaches.any():
            raise SettingError("the record holds no turn that came back: there is nothing to learn times from")
        self.theta = _regressions(rows[teaches], contexts[teaches], times[teaches], columns.clients)
        self._floor = LEAST_PREDICTION * _means_of(rows[teaches], times[teaches], columns.clients)
        predicted = self.predict(rows, contexts)
        factors = np.where(teaches, times / predicted, 1.0)
        factors[teaches] *= _corrections(rows[teaches], predicted[teaches], factors[teaches], times[teaches])[
            rows[teaches]
        ]
        #: Of each recorded turn, and which turns are whose.
        self.factors, self.failed, self.seconds = factors, kinds == FAILED, times
        self.turns = BootstrapSampler(rows, columns.clients)
        weights = np.bincount(rows[teaches], factors[teaches], columns.clients)
        counts = np.bincount(rows[teaches], minlength=columns.clients)
        fleet = float(factors[teaches].mean())
        self.mean_factors: FloatArray = np.where(self.turns.own & (counts > 0), weights / np.maximum(counts, 1), fleet)

    def predict(self, rows: IntArray, contexts: FloatArray) -> FloatArray:
        """Seconds by the regressions alone, never below a twentieth of the client's mean."""
        seconds: FloatArray = np.maximum((contexts * self.theta[rows]).sum(axis=1), self._floor[rows])
        return seconds


class BootstrapSampler:
    """Draws one of its own recorded things for each client; of those who have few, one of anybody's."""

    def __init__(self, rows: IntArray, clients: int) -> None:
        self._order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=clients)
        self.own: BoolArray = counts >= OWN_TURNS
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._starts = np.where(self.own, starts, 0)
        self._counts = np.where(self.own, counts, len(rows))

    def of(self, draws: FloatArray) -> IntArray:
        """Places, one a client, from numbers in [0, 1)."""
        places: IntArray = self._order[self._starts + (draws * self._counts).astype(np.int64)]
        return places


class FittedWorld:
    """A fleet that could have left this record, for any number of rounds and any seed; ASSUMPTIONS says how.

    `scale`: all times are multiplied by it. Clients are rather chosen when they are fast; without whole offers a fitted
    world is therefore too fast by a few per cent, which whoever knows the recorded policy can put right.
    """

    def __init__(self, past: RecordedHistory, seed: int = 0, *, scale: float = 1.0) -> None:
        self._scale = as_number("scale", scale, SettingError, above=0)
        self.past, self.seed = past, as_count("seed", seed, SettingError, least=0)
        self._clients = past.columns.clients
        self.times = FittedTimes(past)
        rows, contexts = past.columns.chosen, past.columns.contexts
        if past.offers is not None:
            place, rows = np.nonzero(past.available & ~np.isnan(past.offers).any(axis=2))
            contexts = past.offers[place, rows]
        if not len(rows):
            rows, contexts = past.columns.chosen, past.columns.contexts
        self._contexts, self._conditions = contexts, BootstrapSampler(rows, self._clients)
        self._places = Draws(seed, "recorded contexts", self._clients)
        self._lots = Draws(seed, "recorded turns", self._clients)
        self._trained: BoolArray = np.zeros(self._clients, dtype=np.bool_)

    @property
    def clients(self) -> int:
        """How many clients the record has."""
        return self._clients

    @property
    def availability(self) -> FloatArray:
        """In what share of the recorded rounds each was available."""
        shares: FloatArray = self.past.available.mean(axis=0)
        return shares

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is assumed and not recorded, in words."""
        return ASSUMPTIONS

    def offer(self, round: int) -> RoundOffer:
        """Who volunteers, and in what condition."""
        if round < 1:
            raise SettingError(f"rounds count from 1, not {round}")
        contexts = self._contexts[self._conditions.of(self._places.of(round))]
        return self._offered(round, self._available(round), contexts)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Draw what becomes of the chosen."""
        chosen = selection.clients
        if len(chosen) and (chosen.max() >= self._clients or not offer.available[chosen].all()):
            raise SelectionError(f"round {offer.round}: a chosen client is unknown or not available")
        contexts = offer.contexts[chosen]
        seconds, kinds = self._what_became(offer.round, chosen, contexts)
        self._trained = np.zeros(self._clients, dtype=np.bool_)
        self._trained[chosen[kinds == 0]] = True
        words = None if not kinds.any() else np.array(OUTCOMES)[kinds]
        return RoundReport(offer.round, chosen, contexts, seconds, available=offer.available, outcomes=words)

    def state(self) -> dict[str, Any]:
        """Who trained in the last round."""
        return {"trained": self._trained.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self._trained = load_array(state, "trained", self._trained)

    def _offered(self, round: int, available: BoolArray, contexts: FloatArray) -> RoundOffer:
        """With the cold starts that follow from who was chosen."""
        if self.past.cold_start is not None:
            contexts[:, self.past.cold_start] = ~self._trained
        expected = self.times.predict(np.arange(self._clients), contexts) * self.times.mean_factors * self._scale
        return RoundOffer(round, available, contexts, expected)

    def _available(self, round: int) -> BoolArray:
        rounds = len(self.past.available)
        stretch, place = divmod(round - 1, BLOCK_ROUNDS)
        first = int(round_rng(self.seed, "recorded availability", stretch).integers(rounds))
        mask: BoolArray = self.past.available[(first + place) % rounds]
        return mask

    def _what_became(
        self,
        round: int,
        rows: IntArray,
        contexts: FloatArray,
    ) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """Seconds and outcomes: the prediction times the factor of a turn drawn from the record."""
        drawn = self.times.turns.of(self._lots.of(round))[rows]
        failed = self.times.failed[drawn]
        seconds = self.times.predict(rows, contexts) * self.times.factors[drawn] * self._scale
        seconds = np.where(failed, self.times.seconds[drawn], seconds)
        kinds = np.where(failed, FAILED, 0).astype(np.uint8)
        if self.past.deadline is not None:
            kinds[~failed & (seconds > self.past.deadline)] = LATE
            seconds = np.minimum(seconds, self.past.deadline)
        return seconds, kinds


class RecordedWorld(FittedWorld):
    """The recorded rounds once more, for whatever policy: what was recorded is taken as it is, the rest is drawn.

    Exact: who was available; contexts where whole offers were recorded, else those of the turns; times of clients that
    were also chosen then, in the same condition. `known`: how many of the times told so far were exact; `told`: of
    how many.
    """

    def __init__(self, past: RecordedHistory, seed: int = 0) -> None:
        super().__init__(past, seed)
        self.known = self.told = 0
        self._late: set[tuple[int, int]] = set()

    def offer(self, round: int) -> RoundOffer:
        """As it was recorded; the contexts of those who were not chosen are drawn, unless they were recorded too."""
        if not 1 <= round <= len(self.past.columns):
            raise SettingError(f"the record has rounds 1 to {len(self.past.columns)}, not {round}")
        contexts = self._contexts[self._conditions.of(self._places.of(round))]
        if self.past.offers is not None:
            offered = self.past.offers[round - 1]
            on_record = ~np.isnan(offered).any(axis=1)
            contexts[on_record] = offered[on_record]
        own = self._turns_in(round)
        contexts[self.past.columns.chosen[own]] = self.past.columns.contexts[own]
        return self._offered(round, self._available(round), contexts)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """What was recorded of the chosen, and drawn of the others; true times of late clients when they were told."""
        report = super().play(offer, selection)
        told = self.past.columns.late.get(offer.round)
        if told is None:
            return report
        pairs = zip(told.rounds.tolist(), told.clients.tolist(), strict=True)
        here = np.array([pair in self._late for pair in pairs])
        if not here.any():
            return report
        return replace(report, late_arrivals=LateArrivals(**{name: getattr(told, name)[here] for name in LATE_COLUMNS}))

    def _available(self, round: int) -> BoolArray:
        mask: BoolArray = read_only(self.past.available[round - 1])
        return mask

    def _turns_in(self, round: int) -> slice:
        return slice(*self.past.columns.starts[round - 1 : round + 1].tolist())

    def _what_became(
        self,
        round: int,
        rows: IntArray,
        contexts: FloatArray,
    ) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """What was recorded; for another condition than then its time is scaled as the regression says."""
        seconds, kinds = super()._what_became(round, rows, contexts)
        own, columns = self._turns_in(round), self.past.columns
        then = {int(row): place for place, row in enumerate(columns.chosen[own], start=own.start)}
        for place, row in enumerate(rows.tolist()):
            if (at := then.get(row)) is None:
                continue
            kinds[place] = 0 if columns.outcomes is None else columns.outcomes[at]
            seconds[place] = columns.exchange_times[at]
            if np.array_equal(columns.contexts[at], contexts[place]):
                self.known += 1
                if kinds[place] == LATE:
                    self._late.add((round, row))
            elif not kinds[place]:
                both = self.times.predict(np.array([row, row]), np.array([contexts[place], columns.contexts[at]]))
                seconds[place] *= both[0] / both[1]
        self.told += len(rows)
        return seconds, kinds


def _regressions(rows: IntArray, contexts: FloatArray, times: FloatArray, clients: int) -> FloatArray:
    """One ridge regression a client, drawn towards that of the whole fleet."""
    width = contexts.shape[1]
    products = contexts[:, :, None] * contexts[:, None, :]
    fleet = np.linalg.solve(products.sum(axis=0) + 1e-6 * np.eye(width), contexts.T @ times)
    squares = np.zeros((clients, width, width))
    np.add.at(squares, rows, products)
    sums = np.zeros((clients, width))
    np.add.at(sums, rows, contexts * times[:, None])
    solved = np.linalg.solve(squares + RIDGE * np.eye(width), (sums + RIDGE * fleet)[:, :, None])
    return np.asarray(solved[:, :, 0], dtype=np.float64)


def _means_of(rows: IntArray, times: FloatArray, clients: int) -> FloatArray:
    """The mean time of each client, and of those without any that of all."""
    counts = np.bincount(rows, minlength=clients)
    means: FloatArray = np.bincount(rows, times, clients) / np.maximum(counts, 1)
    means[counts == 0] = float(times.mean())
    return means


def _corrections(rows: IntArray, predicted: FloatArray, factors: FloatArray, times: FloatArray) -> FloatArray:
    """With these, predictions and factors that are drawn apart have the mean of the recorded times."""
    counts = np.maximum(np.bincount(rows), 1)
    sums = [np.bincount(rows, one) / counts for one in (times, predicted, factors)]
    return np.divide(sums[0], sums[1] * sums[2], out=np.ones(len(counts)), where=sums[1] * sums[2] > 0)
