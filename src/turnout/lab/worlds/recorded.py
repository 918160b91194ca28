"""A world that replays the offers of recorded rounds, and resamples what was not recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, read_only
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundOffer, RoundReport, Selection
from turnout.lab.columns import LATE_COLUMNS, RoundColumns
from turnout.lab.worlds.base import ColdStartWorld
from turnout.lab.worlds.distributions import Draws

RIDGE = 1.0
MIN_OWN_TURNS = 5  # a client with fewer turns is resampled from the turns of the whole fleet
MIN_PREDICTION = 0.05  # the lower bound of a predicted time, as a share of the client's mean time
FAILED, LATE = OUTCOMES.index("failed"), OUTCOMES.index("late")

ASSUMPTION = (
    "times: one regression per client on its recorded contexts, shrunk towards the fleet-wide regression; the residual "
    "factors, including failures, are resampled from the client's own turns"
)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedHistory:
    """Recorded rounds from which a world is built.

    `cold_start`: the index of the feature that states whether a client did not train in the previous round; the worlds
    compute this feature from the selections instead of resampling it. `deadline`: the number of seconds after which a
    client is late, if rounds had a deadline. `offers`: the contexts of all clients in all rounds, (rounds, clients,
    features), if complete offers were recorded; NaN where a context was not recorded.
    """

    columns: RoundColumns
    cold_start: int | None = None
    deadline: float | None = None
    offers: FloatArray | None = None

    def __post_init__(self) -> None:
        columns = self.columns
        if not len(columns.chosen):
            raise SettingError(
                "the record holds no turns, so no times can be learned: record at least one round with a selection"
            )
        if columns.available is None or "available" in columns.absent:
            raise SettingError(
                "the record does not state who was available in every round: record complete rounds (keep='all'), "
                "or use another world"
            )
        if not columns.contexts.shape[1]:
            raise SettingError(
                "the record holds no contexts: record complete rounds (keep='all'), or use another world"
            )
        if self.cold_start is not None and not 0 <= self.cold_start < columns.contexts.shape[1]:
            raise SettingError(
                f"cold_start must be the index of a feature, below {columns.contexts.shape[1]}, not {self.cold_start}"
            )
        if self.deadline is not None:
            as_number("deadline", self.deadline, SettingError, above=0)
        if self.offers is not None:
            expected = (len(columns), columns.clients, columns.contexts.shape[1])
            if self.offers.shape != expected:
                raise SettingError(f"offers must have the shape {expected}, not {self.offers.shape}")

    @property
    def available(self) -> BoolArray:
        """The available clients of each round, (rounds, clients)."""
        assert self.columns.available is not None
        return self.columns.available

    @property
    def has_all_contexts(self) -> bool:
        """Whether the contexts of all available clients were recorded."""
        return self.offers is not None and not bool(np.isnan(self.offers[self.available]).any())

    @property
    def true_times(self) -> FloatArray:
        """The seconds of every turn; for a late client its true time, if it arrived later."""
        columns = self.columns
        times: FloatArray = columns.exchange_times.copy()
        index_of_round = {int(round_): index for index, round_ in enumerate(columns.rounds)}
        for late in columns.late.values():
            for round_, client, seconds in zip(late.rounds, late.clients, late.exchange_times, strict=True):
                index = index_of_round.get(int(round_))
                if index is not None:
                    turns = slice(*columns.starts[index : index + 2])
                    times[turns][columns.chosen[turns] == client] = seconds
        return times


class FittedTimes:
    """Regressions of the exchange times on the contexts, one per client, and the residual factor of each turn."""

    def __init__(self, history: RecordedHistory) -> None:
        columns = history.columns
        times, contexts, rows = history.true_times, columns.contexts, columns.chosen
        outcomes = np.zeros(len(rows), dtype=np.uint8) if columns.outcomes is None else columns.outcomes
        usable = (outcomes != FAILED) & (times > 0)
        if not usable.any():
            raise SettingError(
                "the record holds no successful turn, so no times can be learned: at least one client must have arrived"
            )
        self.theta = _regressions(rows[usable], contexts[usable], times[usable], columns.clients)
        self._floor = MIN_PREDICTION * _client_means(rows[usable], times[usable], columns.clients)
        predicted = self.predict(rows, contexts)
        factors = np.where(usable, times / predicted, 1.0)
        factors[usable] *= _corrections(rows[usable], predicted[usable], factors[usable], times[usable])[rows[usable]]
        #: Residual factor, failure flag and seconds of each recorded turn.
        self.factors, self.failed, self.seconds = factors, outcomes == FAILED, times
        self.sampler = BootstrapSampler(rows, columns.clients)
        weights = np.bincount(rows[usable], factors[usable], columns.clients)
        counts = np.bincount(rows[usable], minlength=columns.clients)
        fleet = float(factors[usable].mean())
        self.mean_factors: FloatArray = np.where(
            self.sampler.has_own_records & (counts > 0), weights / np.maximum(counts, 1), fleet
        )

    def predict(self, rows: IntArray, contexts: FloatArray) -> FloatArray:
        """Returns the seconds that the regressions predict, at least MIN_PREDICTION times the client's mean."""
        seconds: FloatArray = np.maximum((contexts * self.theta[rows]).sum(axis=1), self._floor[rows])
        return seconds


class BootstrapSampler:
    """Resamples each client's own records, or the whole fleet's if it has fewer than MIN_OWN_TURNS."""

    def __init__(self, rows: IntArray, clients: int) -> None:
        self._order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=clients)
        self.has_own_records: BoolArray = counts >= MIN_OWN_TURNS
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._starts = np.where(self.has_own_records, starts, 0)
        self._counts = np.where(self.has_own_records, counts, len(rows))

    def sample(self, draws: FloatArray) -> IntArray:
        """Returns the index of one record per client, (N,), from uniform numbers in [0, 1)."""
        indices: IntArray = self._order[self._starts + (draws * self._counts).astype(np.int64)]
        return indices


class RecordedWorld(ColdStartWorld):
    """Replays the recorded offers for any policy: recorded values are used unchanged, missing ones are resampled.

    Recorded are the available clients, the contexts (of all clients if complete offers were recorded, else those of the
    turns), and for clients that were also selected in the recorded round their losses and signals and, with the same
    context, their times. ASSUMPTION says where other times come from.
    `recorded_times` counts the reported times that are recorded ones, `reported_times` all times reported so far.
    """

    def __init__(self, history: RecordedHistory, seed: int = 0) -> None:
        super().__init__(history.columns.clients)
        self.history, self.seed = history, as_count("seed", seed, SettingError, least=0)
        self.times = FittedTimes(history)
        rows, contexts = history.columns.chosen, history.columns.contexts
        if history.offers is not None:
            rounds, rows = np.nonzero(history.available & ~np.isnan(history.offers).any(axis=2))
            contexts = history.offers[rounds, rows]
        if not len(rows):
            rows, contexts = history.columns.chosen, history.columns.contexts
        self._contexts, self._context_sampler = contexts, BootstrapSampler(rows, self._clients)
        self._context_draws = Draws(seed, "recorded contexts", self._clients)
        self._turn_draws = Draws(seed, "recorded turns", self._clients)
        self.recorded_times = self.reported_times = 0
        self._late: set[tuple[int, int]] = set()

    @property
    def availability(self) -> FloatArray:
        """The share of the recorded rounds in which each client was available, (N,)."""
        shares: FloatArray = self.history.available.mean(axis=0)
        return shares

    def offer(self, round: int) -> RoundOffer:
        """Returns the recorded offer with expected times; contexts that were not recorded are resampled."""
        if not 1 <= round <= len(self.history.columns):
            raise SettingError(
                f"round must be one of the recorded rounds, 1 to {len(self.history.columns)}, not {round}"
            )
        contexts = self._contexts[self._context_sampler.sample(self._context_draws.at(round))]
        if self.history.offers is not None:
            recorded = self.history.offers[round - 1]
            is_recorded = ~np.isnan(recorded).any(axis=1)
            contexts[is_recorded] = recorded[is_recorded]
        turns = self._turns_of(round)
        contexts[self.history.columns.chosen[turns]] = self.history.columns.contexts[turns]
        if self.history.cold_start is not None:
            contexts[:, self.history.cold_start] = ~self._trained
        expected = self.times.predict(np.arange(self._clients), contexts) * self.times.mean_factors
        return RoundOffer(round, read_only(self.history.available[round - 1]), contexts, expected)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Reports the recorded results of the selected clients, and resampled results where there are none.

        The true times of late clients are reported in the round in which they were recorded.
        """
        chosen = self._selected(offer, selection)
        contexts = offer.contexts[chosen]
        seconds, outcomes = self._outcomes(offer.round, chosen, contexts)
        self._set_trained(chosen[outcomes == 0])
        names = None if not outcomes.any() else np.array(OUTCOMES)[outcomes]
        report = RoundReport(offer.round, chosen, contexts, seconds, available=offer.available, outcomes=names)
        report = self._with_signals(report)
        arrivals = self.history.columns.late.get(offer.round)
        if arrivals is None:
            return report
        pairs = zip(arrivals.rounds.tolist(), arrivals.clients.tolist(), strict=True)
        selected_here = np.array([pair in self._late for pair in pairs])
        if not selected_here.any():
            return report
        late_arrivals = LateArrivals(**{name: getattr(arrivals, name)[selected_here] for name in LATE_COLUMNS})
        return replace(report, late_arrivals=late_arrivals)

    def _with_signals(self, report: RoundReport) -> RoundReport:
        """Adds the recorded losses and signals of the clients that were also selected in the record."""
        columns = self.history.columns
        if columns.losses is None and not columns.signals:
            return report
        indices, recorded = self._recorded(report.round, report.clients)

        def known(column: FloatArray) -> FloatArray:
            values = np.full(len(report.clients), np.nan)
            values[indices] = column[recorded]
            return values

        losses = None if columns.losses is None else known(columns.losses)
        return replace(report, losses=losses, signals={name: known(column) for name, column in columns.signals.items()})

    def _turns_of(self, round: int) -> slice:
        return slice(*self.history.columns.starts[round - 1 : round + 1].tolist())

    def _recorded(self, round: int, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the indices of the rows that were selected in the recorded round too, and their recorded turns."""
        turns, turn_of_row = self._turns_of(round), np.full(self._clients, -1)
        turn_of_row[self.history.columns.chosen[turns]] = np.arange(turns.start, turns.stop)
        indices = np.flatnonzero(turn_of_row[rows] >= 0)
        return indices, turn_of_row[rows[indices]]

    def _outcomes(self, round: int, rows: IntArray, contexts: FloatArray) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """Returns seconds and outcomes: recorded ones, else the predicted time by the factor of a resampled turn.

        A recorded time in another context is scaled by the ratio of the predictions.
        """
        resampled = self.times.sampler.sample(self._turn_draws.at(round))[rows]
        failed = self.times.failed[resampled]
        seconds = self.times.predict(rows, contexts) * self.times.factors[resampled]
        seconds = np.where(failed, self.times.seconds[resampled], seconds)
        outcomes = np.where(failed, FAILED, 0).astype(np.uint8)
        columns, (indices, turns) = self.history.columns, self._recorded(round, rows)
        outcomes[indices] = 0 if columns.outcomes is None else columns.outcomes[turns]
        seconds[indices] = columns.exchange_times[turns]
        same = (columns.contexts[turns] == contexts[indices]).all(axis=1)
        self.recorded_times += int(same.sum())
        late = indices[same & (outcomes[indices] == LATE)]
        self._late.update((round, row) for row in rows[late].tolist())
        elsewhere = ~same & (outcomes[indices] == 0)
        here, other = contexts[indices[elsewhere]], columns.contexts[turns[elsewhere]]
        own = rows[indices[elsewhere]]
        seconds[indices[elsewhere]] *= self.times.predict(own, here) / self.times.predict(own, other)
        if self.history.deadline is not None:
            beyond = (outcomes == 0) & (seconds > self.history.deadline)
            beyond[indices[same]] = False  # what was recorded is exact
            outcomes[beyond], seconds[beyond] = LATE, self.history.deadline
        self.reported_times += len(rows)
        return seconds, outcomes


def _regressions(rows: IntArray, contexts: FloatArray, times: FloatArray, clients: int) -> FloatArray:
    """Fits one ridge regression per client, shrunk towards the fleet-wide regression."""
    width = contexts.shape[1]
    products = contexts[:, :, None] * contexts[:, None, :]
    fleet = np.linalg.solve(products.sum(axis=0) + 1e-6 * np.eye(width), contexts.T @ times)
    squares = np.zeros((clients, width, width))
    np.add.at(squares, rows, products)
    sums = np.zeros((clients, width))
    np.add.at(sums, rows, contexts * times[:, None])
    solved = np.linalg.solve(squares + RIDGE * np.eye(width), (sums + RIDGE * fleet)[:, :, None])
    return np.asarray(solved[:, :, 0], dtype=np.float64)


def _client_means(rows: IntArray, times: FloatArray, clients: int) -> FloatArray:
    """Returns the mean time of each client, or the overall mean for clients without turns."""
    counts = np.bincount(rows, minlength=clients)
    means: FloatArray = np.bincount(rows, times, clients) / np.maximum(counts, 1)
    means[counts == 0] = float(times.mean())
    return means


def _corrections(rows: IntArray, predicted: FloatArray, factors: FloatArray, times: FloatArray) -> FloatArray:
    """Returns factors per client that make independently drawn predictions and factors match the recorded mean time."""
    counts = np.maximum(np.bincount(rows), 1)
    means = [np.bincount(rows, values) / counts for values in (times, predicted, factors)]
    return np.divide(means[0], means[1] * means[2], out=np.ones(len(counts)), where=means[1] * means[2] > 0)
