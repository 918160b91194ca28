"""How long a client takes: one ridge regression a client, all of them in one bank of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import (
    FloatArray,
    IntArray,
    as_contexts,
    as_count,
    as_number,
    as_rows,
    as_times,
    load_array,
    same_length,
)
from turnout.kernel.backend import compiled_kernel
from turnout.kernel.rounds import TIMED_OUTCOMES, RoundReport

# A few thousand clients at a time stay in the processor's cache from the first operation to the last.
BLOCK = 4096


class ExchangeTimeModel:
    """Learns each client's exchange time from its own history: H and b of the paper.

    For each client H = ridge·I + Σ c cᵀ and theta-hat = H⁻¹ Σ tau·c. Kept are H⁻¹ (its upper triangle)
    and theta-hat, features-major: `bank[i]` holds one number of all clients. A new time changes only
    its client, by a rank-one update. With `forgetting` below 1 each new time of a client takes that
    factor off the weight of its older ones; the ridge does not fade.

    `prior`: what a client is taken for of which nothing is known, and what the ridge draws every estimate to: "zero" as
    in the paper, or "fleet": theta0 of one regression over everybody's times. Then theta-hat = H⁻¹ (Σ tau·c +
    ridge·theta0); theta0 is taken anew, for all, whenever the fleet has learned a tenth more times.

    >>> model = ExchangeTimeModel(clients=2, features=1, ridge=1.0)
    >>> model.learn([1], [[2.0]], [6.0])
    >>> model.predict([[1.0], [1.0]])
    array([0. , 2.4])
    >>> model.optimistic([[1.0], [1.0]], exploration=0.5).round(3)
    array([0.   , 2.176])
    """

    def __init__(
        self,
        clients: int,
        *,
        features: int = 3,
        ridge: float = 1.0,
        forgetting: float = 1.0,
        prior: Literal["zero", "fleet"] = "zero",
    ) -> None:
        clients = as_count("clients", clients, SettingError)
        self.features = as_count("features", features, SettingError)
        self.ridge = as_number("ridge", ridge, SettingError, above=0)
        self.forgetting = as_number("forgetting", forgetting, SettingError, above=0, most=1)
        if prior not in ("zero", "fleet"):
            raise SettingError(f"prior must be 'zero' or 'fleet', not {prior!r}")
        self._pairs = [(a, b) for a in range(self.features) for b in range(a, self.features)]
        self._pool = _Pool(self.features, self.ridge) if prior == "fleet" else None
        self.bank = self._unlearned(clients)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.bank.shape[1])

    def predict(self, contexts: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> FloatArray:
        """Expected exchange times c·theta-hat; one context a client, or a client of `rows`."""
        return self._blockwise(contexts, rows, lambda mean, _: mean)

    def uncertainty(self, contexts: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> FloatArray:
        """sqrt(cᵀ H⁻¹ c): how little is known in the direction of each context."""
        return self._blockwise(contexts, rows, lambda _, square: np.sqrt(np.where(square > 0, square, 0.0)))

    def optimistic(self, contexts: npt.ArrayLike, exploration: float, rows: npt.ArrayLike | None = None) -> FloatArray:
        """Lower confidence bounds max(predict − exploration·uncertainty, 0): tau-bar of the paper."""

        def bound(mean: FloatArray, square: FloatArray) -> FloatArray:
            times = mean - exploration * np.sqrt(np.where(square > 0, square, 0.0))
            return np.where(times > 0, times, 0.0)

        return self._blockwise(contexts, rows, bound)

    def learn(self, rows: npt.ArrayLike, contexts: npt.ArrayLike, times: npt.ArrayLike) -> None:
        """Take in one exchange time of each client of `rows`; for a late client its deadline."""
        clients, features = self._entering(rows, contexts)
        seconds = as_times("times", times, ReportError)
        same_length("times", seconds, len(clients), "rows", ReportError)
        self._take_in(clients, features, seconds)

    def _take_in(self, clients: IntArray, features: FloatArray, seconds: FloatArray) -> None:
        compiled = compiled_kernel()
        if self.forgetting < 1:
            self.bank[:, clients] = self._fading(self.bank.take(clients, axis=1), features, seconds)
        elif compiled is not None:
            compiled.learn(self.bank, np.ascontiguousarray(clients), features, np.ascontiguousarray(seconds))
        else:
            self.bank[:, clients] = self._rank_one(self.bank.take(clients, axis=1), features, seconds)
        if self._pool is not None:
            in_order = np.argsort(clients)  # sums of floats depend on it
            if self._pool.learn(features[in_order], seconds[in_order]):
                self._move(self._pool, self._pool.solved())

    def learn_from(self, report: RoundReport) -> None:
        """Learn a round: who arrived or was late teaches, a failure teaches nothing about speed."""
        late = report.late_arrivals
        if late is not None:
            self.correct(
                late.clients,
                late.contexts,
                late.deadlines,
                late.exchange_times,
                learned_since=late.learned_since,
            )
        clients, contexts, times = report.clients, report.contexts, report.exchange_times
        if len(clients) and int(clients.max()) >= self.clients:
            raise ReportError(f"client {clients.max()} is unknown: there are {self.clients} clients")
        self._check_features(contexts)
        if report.outcomes is not None:
            teaches = report.with_outcome(*TIMED_OUTCOMES)
            clients, contexts, times = clients[teaches], contexts[teaches], times[teaches]
        self._take_in(clients, contexts, times)  # the report was checked when it was made

    def correct(
        self,
        rows: npt.ArrayLike,
        contexts: npt.ArrayLike,
        learned: npt.ArrayLike,
        times: npt.ArrayLike,
        *,
        learned_since: npt.ArrayLike | None = None,
    ) -> None:
        """Replace what was `learned` of a late client by its true time, exactly: b += (tau − D)·c.

        The contexts are those it was learned with; H stays as it is. A client may stand there several
        times, once for each late arrival. `learned_since` tells how many times of the same client were
        learned after the one to correct, which matters only with forgetting.
        """
        clients = np.asarray(rows, dtype=np.int64)
        _, features = self._entering(np.unique(clients), contexts, len(clients))
        was = as_times("learned", learned, ReportError)
        now = as_times("times", times, ReportError)
        same_length("learned", was, len(clients), "rows", ReportError)
        same_length("times", now, len(clients), "rows", ReportError)
        since = np.asarray(0 if learned_since is None else learned_since)
        weight = (now - was) * self.forgetting**since
        columns = self.bank.take(clients, axis=1)
        for feature, gain in enumerate(self._gains(columns, features)):
            np.add.at(self.bank[len(self._pairs) + feature], clients, gain * weight)
        if self._pool is not None:
            in_order = np.argsort(clients, kind="stable")
            self._pool.sums += features[in_order].T @ (now - was)[in_order]

    def add(self, count: int) -> None:
        """Append `count` clients of which nothing is known."""
        fresh = self._unlearned(as_count("count", count, SettingError, least=0))
        self.bank = np.concatenate([self.bank, fresh], axis=1)

    def forget(self, rows: npt.ArrayLike) -> None:
        """Nothing is known of these clients any more; what they taught the fleet as a whole stays."""
        clients = as_rows("rows", rows, ReportError, clients=self.clients)
        self.bank[:, clients] = self._unlearned(len(clients))

    def state(self) -> dict[str, Any]:
        """All that was learned, as plain arrays."""
        pool = {} if self._pool is None else {"pool": self._pool.numbers()}
        return {"bank": self.bank.copy(), **pool}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; all of it, or nothing."""
        bank = load_array(state, "bank", self.bank)
        if self._pool is not None:
            self._pool.take(load_array(state, "pool", self._pool.numbers()))
        self.bank = bank

    def _unlearned(self, clients: int) -> FloatArray:
        bank = np.zeros((len(self._pairs) + self.features, clients))
        for place, (a, b) in enumerate(self._pairs):
            if a == b:
                bank[place] = 1 / self.ridge
        if self._pool is not None:
            bank[len(self._pairs) :] = self._pool.prior[:, None]
        return bank

    def _move(self, pool: _Pool, prior: FloatArray) -> None:
        """Every theta-hat as if it had begun at `prior`: it is linear in it."""
        step = self.ridge * (prior - pool.prior)
        gains = self._gains(self.bank, np.broadcast_to(step, (self.clients, self.features)))
        for feature, gain in enumerate(gains):
            self.bank[len(self._pairs) + feature] += gain
        pool.prior = prior

    def _entering(
        self, rows: npt.ArrayLike, contexts: npt.ArrayLike, count: int | None = None
    ) -> tuple[IntArray, FloatArray]:
        clients = as_rows("rows", rows, ReportError, clients=self.clients)
        features = as_contexts(contexts, ReportError)
        same_length("contexts", features, len(clients) if count is None else count, "rows", ReportError)
        self._check_features(features)
        return clients, features

    def _check_features(self, contexts: FloatArray) -> None:
        if contexts.shape[1] != self.features:
            raise ReportError(f"contexts have {contexts.shape[1]} features, this model has {self.features}")

    def _blockwise(
        self,
        contexts: npt.ArrayLike,
        rows: npt.ArrayLike | None,
        combine: Callable[[FloatArray, FloatArray], FloatArray],
    ) -> FloatArray:
        if rows is not None:
            clients, features = self._entering(rows, contexts)
            return combine(*self._mean_and_square(features, self.bank.take(clients, axis=1)))
        features = as_contexts(contexts, ReportError)
        self._check_features(features)
        same_length("contexts", features, self.clients, "clients", ReportError)
        combined = np.empty(self.clients)
        for start in range(0, self.clients, BLOCK):
            block = slice(start, start + BLOCK)
            combined[block] = combine(*self._mean_and_square(features[block], self.bank[:, block]))
        return combined

    def _mean_and_square(self, contexts: FloatArray, bank: FloatArray) -> tuple[FloatArray, FloatArray]:
        """c·theta-hat and cᵀ H⁻¹ c. The compiled kernel does the same operations in the same order."""
        columns = contexts.T
        mean = square = np.zeros(0)
        place = 0
        for a in range(self.features):
            row = bank[place] * columns[a]
            place += 1
            cross = np.zeros(0)
            for b in range(a + 1, self.features):
                term = bank[place] * columns[b]
                cross = cross + term if b > a + 1 else term
                place += 1
            if len(cross):
                row += cross + cross
            row *= columns[a]
            part = bank[len(self._pairs) + a] * columns[a]
            square, mean = (square + row, mean + part) if a else (row, part)
        return mean, square

    def _gains(self, columns: FloatArray, contexts: FloatArray) -> list[FloatArray]:
        """H⁻¹ c, one array a feature."""
        gains = [np.zeros(len(contexts)) for _ in range(self.features)]
        for place, (a, b) in enumerate(self._pairs):
            gains[a] = gains[a] + columns[place] * contexts[:, b]
            if a != b:
                gains[b] = gains[b] + columns[place] * contexts[:, a]
        return gains

    def _rank_one(self, columns: FloatArray, contexts: FloatArray, times: FloatArray) -> FloatArray:
        """Sherman and Morrison's update of the inverse. The compiled kernel does the same in the same order."""
        gains = self._gains(columns, contexts)
        theta = columns[len(self._pairs) :]
        growth = np.ones(len(times))
        surprise = times
        for feature, gain in enumerate(gains):
            growth = growth + contexts[:, feature] * gain
            surprise = surprise - theta[feature] * contexts[:, feature]
        for place, (a, b) in enumerate(self._pairs):
            columns[place] -= gains[a] * gains[b] / growth
        for feature, gain in enumerate(gains):
            theta[feature] += gain * (surprise / growth)
        return columns

    def _fading(self, columns: FloatArray, contexts: FloatArray, times: FloatArray) -> FloatArray:
        """H = ridge·I + Σ fading c cᵀ: two inversions, as the ridge that stays is not of rank one."""
        inverse = np.empty((len(times), self.features, self.features))
        for place, (a, b) in enumerate(self._pairs):
            inverse[:, a, b] = inverse[:, b, a] = columns[place]
        theta = columns[len(self._pairs) :].T
        samples = np.linalg.inv(inverse)
        sums = np.einsum("nab,nb->na", samples, theta) * self.forgetting + times[:, None] * contexts
        samples *= self.forgetting
        samples += contexts[:, :, None] * contexts[:, None, :]
        samples += (1 - self.forgetting) * self.ridge * np.eye(self.features)
        if self._pool is not None:
            sums += (1 - self.forgetting) * self.ridge * self._pool.prior
        inverse = np.linalg.inv(samples)
        for place, (a, b) in enumerate(self._pairs):
            columns[place] = (inverse[:, a, b] + inverse[:, b, a]) / 2
        columns[len(self._pairs) :] = np.einsum("nab,nb->an", inverse, sums)
        return columns


class _Pool:
    """One regression over everybody's times, and `prior`, what was last made of it."""

    def __init__(self, features: int, ridge: float) -> None:
        self.squares = ridge * np.eye(features)
        self.sums = np.zeros(features)
        self.prior: FloatArray = np.zeros(features)
        self._lessons = self._used = 0

    def learn(self, contexts: FloatArray, times: FloatArray) -> bool:
        """Take these times in; whether so many are new that the prior should be taken anew."""
        self.squares += contexts.T @ contexts
        self.sums += contexts.T @ times
        self._lessons += len(times)
        if self._lessons * 10 < self._used * 11 or not len(times):
            return False
        self._used = self._lessons
        return True

    def solved(self) -> FloatArray:
        """theta0 of all times so far."""
        theta: FloatArray = np.linalg.solve(self.squares, self.sums).astype(np.float64)
        return theta

    def numbers(self) -> FloatArray:
        """All of it in one array."""
        return np.concatenate([self.squares.ravel(), self.sums, self.prior, [self._lessons, self._used]])

    def take(self, numbers: FloatArray) -> None:
        """Take it back."""
        features = len(self.sums)
        squares, self.sums, self.prior, counts = np.split(numbers, np.cumsum([features**2, features, features]))
        self.squares = squares.reshape(features, features)
        self._lessons, self._used = (int(count) for count in counts)
