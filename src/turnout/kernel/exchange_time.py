"""Estimation of exchange times: one ridge regression per client, all of them in one bank of arrays."""

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
    require_length,
    save_array,
)
from turnout.kernel.backend import compiled_kernel
from turnout.kernel.regression import MIN_SQUARE, FleetRegression, Prior, as_columns, inverse_matrices
from turnout.kernel.rounds import RoundReport

#: The ridge follows the features' mean squares when one of them has changed by this factor.
RESCALE = 2.0
# A block of this many clients stays in the processor's cache from the first operation to the last.
BLOCK = 4096


class ExchangeTimeModel:
    """Learns each client's exchange time from its own history (H and b in the paper).

    For each client H = ridge·I + Σ c cᵀ and theta-hat = H⁻¹ Σ tau·c. The model stores the upper triangle of H⁻¹ and
    theta-hat in `bank`, features-major: `bank[i]` holds the same coefficient of all clients. A new time changes only
    the regression of its client, by a rank-one update.

    Args:
        clients: The number of clients.
        features: The number of features of a context.
        ridge: The weight of the regularisation: in units of the features' squares, or with `relative_ridge` the number
            of typical times that it counts for.
        forgetting: The factor by which each new time of a client discounts the weight of its older times; 1 keeps
            all times. The ridge is not discounted.
        prior: The estimate for a client without history, towards which the ridge shrinks every estimate. "zero" is
            the paper's choice. With "fleet" it is theta0, the coefficients of one regression over the times of all
            clients: theta-hat = H⁻¹ (Σ tau·c + ridge·theta0). theta0 is recomputed, for all clients, whenever the
            number of learned times has grown by a tenth.
        relative_ridge: Whether the ridge of each feature is multiplied by the mean square of that feature over all
            learned contexts, so that estimates do not depend on the units of the features. The ridges follow these
            mean squares when one of them has changed by a factor of 2. Clients are also expected to differ in all
            coefficients together: in this direction, theta0 counts for one typical time only (`Prior`). It needs
            prior="fleet".

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
        relative_ridge: bool = False,
    ) -> None:
        clients = as_count("clients", clients, SettingError)
        self.features = as_count("features", features, SettingError)
        self.ridge = as_number("ridge", ridge, SettingError, above=0)
        self.forgetting = as_number("forgetting", forgetting, SettingError, above=0, most=1)
        if prior not in ("zero", "fleet"):
            raise SettingError(f"prior must be 'zero' or 'fleet', not {prior!r}")
        self._pairs = [(a, b) for a in range(self.features) for b in range(a, self.features)]
        self._diagonal = [index for index, (a, b) in enumerate(self._pairs) if a == b]
        if relative_ridge and prior != "fleet":
            raise SettingError("relative_ridge needs prior='fleet': set it, or leave relative_ridge out")
        self._relative = relative_ridge
        self._ridges: FloatArray = np.full(self.features, self.ridge)
        pool_ridge = 0.0 if relative_ridge else self.ridge
        self._fleet = FleetRegression(self.features, pool_ridge) if prior == "fleet" else None
        self.bank = np.repeat(self._new_column(), clients, axis=1)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.bank.shape[1])

    @property
    def coefficients(self) -> FloatArray:
        """The estimated coefficients theta-hat, features-major: (features, clients)."""
        return self.bank[len(self._pairs) :]

    def predict(self, contexts: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> FloatArray:
        """Returns the expected exchange times c·theta-hat.

        `contexts` has one row per client, or one per client of `rows` if that is given.
        """
        return self._estimate(contexts, rows, lambda mean, _: mean)

    def uncertainty(self, contexts: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> FloatArray:
        """Returns sqrt(cᵀ H⁻¹ c), the uncertainty of the estimate in the direction of each context."""
        return self._estimate(contexts, rows, lambda _, square: np.sqrt(np.where(square > 0, square, 0.0)))

    def optimistic(self, contexts: npt.ArrayLike, exploration: float, rows: npt.ArrayLike | None = None) -> FloatArray:
        """Returns the lower confidence bounds max(predict − exploration·uncertainty, 0): tau-bar of the paper."""

        def lower_bound(mean: FloatArray, square: FloatArray) -> FloatArray:
            times = mean - exploration * np.sqrt(np.where(square > 0, square, 0.0))
            return np.where(times > 0, times, 0.0)

        return self._estimate(contexts, rows, lower_bound)

    def learn(self, rows: npt.ArrayLike, contexts: npt.ArrayLike, times: npt.ArrayLike) -> None:
        """Updates the model with one exchange time for each client of `rows`; for a late client, its deadline."""
        clients, features = self._check_input(rows, contexts)
        seconds = as_times("times", times, ReportError)
        require_length("times", seconds, len(clients), "rows", ReportError)
        self._update(clients, features, seconds)

    def _update(self, clients: IntArray, features: FloatArray, seconds: FloatArray) -> None:
        compiled = compiled_kernel()
        if self._relative and self._fleet is not None and len(clients):
            self._rescale(self._fleet.mean_squares_with(features[np.argsort(clients)]))
        if self.forgetting < 1:
            self.bank[:, clients] = self._discounted_update(self.bank.take(clients, axis=1), features, seconds)
        elif compiled is not None:
            compiled.learn(self.bank, np.ascontiguousarray(clients), features, np.ascontiguousarray(seconds))
        else:
            self.bank[:, clients] = self._rank_one_update(self.bank.take(clients, axis=1), features, seconds)
        if self._fleet is not None:
            order = np.argsort(clients)  # the sum of floats depends on their order
            if self._fleet.learn(features[order], seconds[order]):
                self._change_prior(self._fleet)

    def learn_from(self, report: RoundReport) -> None:
        """Updates the model with a round's report.

        Times of clients that arrived or were late are learned, if their contexts are known. A failure gives no
        information about speed.
        """
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
        informative = report.informative()
        if informative is not None:
            clients, contexts, times = clients[informative], contexts[informative], times[informative]
        self._update(clients, contexts, times)  # the report was validated when it was created

    def correct(
        self,
        rows: npt.ArrayLike,
        contexts: npt.ArrayLike,
        learned: npt.ArrayLike,
        times: npt.ArrayLike,
        *,
        learned_since: npt.ArrayLike | None = None,
    ) -> None:
        """Replaces the times that were learned for late clients by their true times, exactly: b += (tau − D)·c.

        H does not change.

        Args:
            rows: The late clients; a client appears once for each of its late arrivals.
            contexts: The contexts with which the times were learned.
            learned: The times that were learned: the deadlines.
            times: The true exchange times.
            learned_since: How many times of the same client were learned after the one to correct; it matters only
                with forgetting.
        """
        clients = np.asarray(rows, dtype=np.int64)
        _, features = self._check_input(np.unique(clients), contexts, len(clients))
        old_times = as_times("learned", learned, ReportError)
        new_times = as_times("times", times, ReportError)
        require_length("learned", old_times, len(clients), "rows", ReportError)
        require_length("times", new_times, len(clients), "rows", ReportError)
        since = np.asarray(0 if learned_since is None else learned_since)
        weight = (new_times - old_times) * self.forgetting**since
        columns = self.bank.take(clients, axis=1)
        for feature, gain in enumerate(self._gains(columns, features)):
            np.add.at(self.bank[len(self._pairs) + feature], clients, gain * weight)
        if self._fleet is not None:
            order = np.argsort(clients, kind="stable")
            self._fleet.sums += features[order].T @ (new_times - old_times)[order]

    def add(self, count: int) -> None:
        """Appends `count` clients without history."""
        new = np.repeat(self._new_column(), as_count("count", count, SettingError, least=0), axis=1)
        self.bank = np.concatenate([self.bank, new], axis=1)

    def forget(self, rows: npt.ArrayLike, *, samples: int = 0) -> None:
        """Resets these clients to the state without history.

        Their share in the fleet's prior remains, except with a relative ridge: then it is removed too, as far as it
        was not discounted by `forgetting`.

        Args:
            rows: The clients.
            samples: The number of times that were learned from them; only a relative ridge needs it.
        """
        clients = as_rows("rows", rows, ReportError, clients=self.clients)
        if self._relative and self._fleet is not None:
            self._remove_from_fleet(self._fleet, clients, samples)
        self.bank[:, clients] = self._new_column()

    def state(self) -> dict[str, Any]:
        """Returns everything that was learned, as plain arrays."""
        fleet = {} if self._fleet is None else {"pool": self._fleet.to_array()}
        ridges = {"ridges": self._ridges.copy()} if self._relative else {}
        return {"bank": save_array(self.bank), **fleet, **ridges}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; if that fails, the model is unchanged."""
        bank = load_array(state, "bank", self.bank)
        ridges = load_array(state, "ridges", self._ridges) if self._relative else self._ridges
        if self._fleet is not None:
            self._fleet.load(load_array(state, "pool", self._fleet.to_array()))
        self.bank, self._ridges = bank, ridges

    def _new_column(self) -> FloatArray:
        """Returns the column of a client without history, as an array with one column."""
        prior = self._prior()
        covariance = prior.covariance()
        return np.array([*(covariance[pair] for pair in self._pairs), *prior.mean])[:, None]

    def _prior(self) -> Prior:
        if self._fleet is None:
            return Prior(np.zeros(self.features), self._ridges)
        return Prior(self._fleet.prior, self._ridges, self._fleet.spread)

    def _change_prior(self, fleet: FleetRegression) -> None:
        """Computes the prior from all times so far, and changes every estimate to what it would be with it.

        The columns of clients without history get the new column itself: a client that joins now has the same state.
        """
        rows, old = np.flatnonzero(self._has_history()), self._prior()
        fleet.prior = fleet.solve(self._ridges / self.ridge if self._relative else None)
        fleet.spread = fleet.speed_spread(fleet.prior) if self._relative else 0.0
        new = self._prior()
        columns = self.bank[:, rows]
        theta = columns[len(self._pairs) :]
        shift = np.repeat((new.pull() - old.pull())[None, :], len(rows), axis=0)
        for vector, weight in ((old.weighted, old.relief), (new.weighted, -new.relief)):
            shift -= weight * np.outer(vector @ theta, vector)
            if weight:
                self._add_square(columns, np.broadcast_to(vector, shift.shape), weight)
        for feature, gain in enumerate(self._gains(columns, shift)):
            theta[feature] += gain
        self.bank[:] = self._new_column()
        self.bank[:, rows] = columns

    def _remove_from_fleet(self, fleet: FleetRegression, clients: IntArray, samples: int) -> None:
        """Removes what these clients contributed to the fleet's regression, which their own matrices hold."""
        own = clients[self._has_history()[clients]]
        if not len(own) and not samples:
            return
        squares = np.linalg.inv(inverse_matrices(self.bank[:, own], self._pairs, self.features))
        prior = self._prior()
        sums = np.einsum("nab,nb->a", squares, self.coefficients[:, own].T) - len(own) * prior.pull()
        fleet.remove(squares.sum(axis=0) - len(own) * prior.precision(), sums, samples)
        self._rescale(fleet.mean_squares_with(np.zeros((0, self.features))), always=True)
        self._change_prior(fleet)

    def _rescale(self, mean_squares: FloatArray, *, always: bool = False) -> None:
        """Changes the ridges to the mean squares if one of them has changed much; no other estimate is affected."""
        wanted = self.ridge * np.where(mean_squares > MIN_SQUARE, mean_squares, 1.0)
        ratio = wanted / self._ridges
        is_first = self._fleet is not None and not self._fleet.samples
        if not (always or is_first) and ((ratio <= RESCALE) & (ratio >= 1 / RESCALE)).all():
            return
        rows, old = np.flatnonzero(self._has_history()), self._prior()
        squares = np.linalg.inv(inverse_matrices(self.bank[:, rows], self._pairs, self.features))
        sums = np.einsum("nab,nb->na", squares, self.coefficients[:, rows].T)
        self._ridges = wanted
        new = self._prior()
        squares, sums = squares + (new.precision() - old.precision()), sums + (new.pull() - old.pull())
        self.bank[:] = self._new_column()
        self.bank[:, rows] = as_columns(squares, sums, self._pairs)

    def _has_history(self) -> npt.NDArray[np.bool_]:
        """Returns whether each client's matrix differs from that of a client without history."""
        new = self._new_column()[self._diagonal]
        return np.asarray((self.bank[self._diagonal] != new).any(axis=0), dtype=np.bool_)

    def _check_input(
        self, rows: npt.ArrayLike, contexts: npt.ArrayLike, count: int | None = None
    ) -> tuple[IntArray, FloatArray]:
        clients = as_rows("rows", rows, ReportError, clients=self.clients)
        features = as_contexts(contexts, ReportError)
        require_length("contexts", features, len(clients) if count is None else count, "rows", ReportError)
        self._check_features(features)
        return clients, features

    def _check_features(self, contexts: FloatArray) -> None:
        if contexts.shape[1] != self.features:
            raise ReportError(f"contexts have {contexts.shape[1]} features, this model has {self.features}")

    def _estimate(
        self,
        contexts: npt.ArrayLike,
        rows: npt.ArrayLike | None,
        combine: Callable[[FloatArray, FloatArray], FloatArray],
    ) -> FloatArray:
        """Returns combine(c·theta-hat, cᵀ H⁻¹ c) for each context, block by block."""
        if rows is not None:
            clients, features = self._check_input(rows, contexts)
            return combine(*self._mean_and_square(features, self.bank.take(clients, axis=1)))
        features = as_contexts(contexts, ReportError)
        self._check_features(features)
        require_length("contexts", features, self.clients, "clients", ReportError)
        combined = np.empty(self.clients)
        for start in range(0, self.clients, BLOCK):
            block = slice(start, start + BLOCK)
            combined[block] = combine(*self._mean_and_square(features[block], self.bank[:, block]))
        return combined

    def _mean_and_square(self, contexts: FloatArray, bank: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns c·theta-hat and cᵀ H⁻¹ c, with the operations of the compiled kernel in the same order."""
        columns = contexts.T
        mean = square = np.zeros(0)
        index = 0
        for a in range(self.features):
            row = bank[index] * columns[a]
            index += 1
            cross = np.zeros(0)
            for b in range(a + 1, self.features):
                term = bank[index] * columns[b]
                cross = cross + term if b > a + 1 else term
                index += 1
            if len(cross):
                row += cross + cross
            row *= columns[a]
            part = bank[len(self._pairs) + a] * columns[a]
            square, mean = (square + row, mean + part) if a else (row, part)
        return mean, square

    def _gains(self, columns: FloatArray, contexts: FloatArray) -> list[FloatArray]:
        """Returns H⁻¹ c as one array per feature."""
        gains = [np.zeros(len(contexts)) for _ in range(self.features)]
        for index, (a, b) in enumerate(self._pairs):
            gains[a] = gains[a] + columns[index] * contexts[:, b]
            if a != b:
                gains[b] = gains[b] + columns[index] * contexts[:, a]
        return gains

    def _rank_one_update(self, columns: FloatArray, contexts: FloatArray, times: FloatArray) -> FloatArray:
        """Applies the Sherman-Morrison update, with the operations of the compiled kernel in the same order."""
        theta = columns[len(self._pairs) :]
        residual = times
        for feature in range(self.features):
            residual = residual - theta[feature] * contexts[:, feature]
        gains, denominator = self._add_square(columns, contexts)
        for feature, gain in enumerate(gains):
            theta[feature] += gain * (residual / denominator)
        return columns

    def _add_square(
        self, columns: FloatArray, contexts: FloatArray, weight: float = 1.0
    ) -> tuple[list[FloatArray], FloatArray]:
        """Adds weight · c cᵀ to H, of which the columns hold the inverse; returns H⁻¹ c and 1 + weight · cᵀ H⁻¹ c."""
        gains = self._gains(columns, contexts)
        denominator = np.ones(len(contexts))
        for feature, gain in enumerate(gains):
            denominator = denominator + contexts[:, feature] * gain * weight
        for index, (a, b) in enumerate(self._pairs):
            columns[index] -= gains[a] * gains[b] * weight / denominator
        return gains, denominator

    def _discounted_update(self, columns: FloatArray, contexts: FloatArray, times: FloatArray) -> FloatArray:
        """Updates H = ridge·I + Σ forgetting^age · c cᵀ.

        The ridge is not discounted, so the change is not of rank one and needs two inversions.
        """
        theta = columns[len(self._pairs) :].T
        squares = np.linalg.inv(inverse_matrices(columns, self._pairs, self.features))
        sums = np.einsum("nab,nb->na", squares, theta) * self.forgetting + times[:, None] * contexts
        squares *= self.forgetting
        squares += contexts[:, :, None] * contexts[:, None, :]
        prior = self._prior()
        squares += (1 - self.forgetting) * prior.precision()
        sums += (1 - self.forgetting) * prior.pull()
        return as_columns(squares, sums, self._pairs)
