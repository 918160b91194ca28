"""Training without rounds: every client trains on the model at the start of its turn, and updates are buffered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray, as_count, as_number, saved_value
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.learners.base import Cohort, Weights
from turnout.lab.world import Federation
from turnout.policies.base import prefixed, subset
from turnout.simulator.world import ClockedWorld, World

#: The metrics that a turn has in addition to those of the inner world.
STALENESS, VERSION = "staleness", "version"


class BufferedTraining:
    """Wraps a world: the inner world determines availability and exchange times, this one trains without rounds.

    The model has versions, from 0. A client trains on the version at the start of its turn. Its update is discounted by
    (1 + staleness)^−`discount`, where the staleness is the number of versions since then.

    *FedBuff* (Nguyen et al. 2022): when `buffer` updates have arrived, the next version is the last one plus
    `server_rate` times the mean of the discounted differences between trained and received weights. *FedAsync* (Xie et
    al. 2019), with `mixing`: every update makes a version, (1 − a) · model + a · trained weights, where a is `mixing`
    times the discount.

    The report of a turn gains its training loss, the metrics `staleness` and `version` (after its update), and the test
    `accuracy` if its update made a version that is evaluated. Updates that fail, are late or are not finite do not
    count.

    Args:
        inner: The inner world.
        federation: The learner and the data; `evaluate_every` counts versions.
        buffer: The number of updates of a version.
        server_rate: The factor of the mean update.
        discount: The exponent of the discount for staleness.
        mixing: The weight of a fresh update, for FedAsync; None for FedBuff.
    """

    def __init__(
        self,
        inner: World,
        federation: Federation,
        *,
        buffer: int = 8,
        server_rate: float = 1.0,
        discount: float = 0.5,
        mixing: float | None = None,
    ) -> None:
        clients = federation.partition.clients
        if clients != inner.clients:
            raise SettingError(f"the data is split over {clients} clients, the world has {inner.clients}")
        self.buffer = as_count("buffer", buffer, SettingError)
        self.server_rate = as_number("server_rate", server_rate, SettingError, above=0)
        self.discount = as_number("discount", discount, SettingError, least=0)
        self.mixing = None if mixing is None else as_number("mixing", mixing, SettingError, above=0, most=1)
        if mixing is not None and self.buffer != 1:
            raise SettingError(f"mixing makes a version of every update, but buffer is {buffer}: set buffer to 1")
        self.inner, self.federation = inner, federation
        self.weights = federation.learner.initial_weights(federation.seed)
        self.version = 0
        self._received: dict[int, int] = {}  # the version that each training client received
        self._versions: dict[int, Weights] = {0: self.weights}  # those that are still needed
        self._sum: Weights | None = None  # of the buffered differences
        self._buffered = 0

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.inner.clients

    @property
    def availability(self) -> FloatArray:
        """The long-run share of rounds in which each client is available."""
        return self.inner.availability

    @property
    def idle_seconds(self) -> float:
        """The seconds after which a server looks again if no client is available."""
        return self.inner.idle_seconds if isinstance(self.inner, ClockedWorld) else 0.0

    def set_clock(self, seconds: float) -> None:
        """Sets the time of the inner world, if it has a clock."""
        if isinstance(self.inner, ClockedWorld):
            self.inner.set_clock(seconds)

    def offer(self, round: int) -> RoundOffer:
        """Returns the offer of the inner world."""
        return self.inner.offer(round)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Starts the turn of one client, which receives the present version of the model."""
        report = self.inner.play(offer, selection)
        (client,) = report.clients.tolist()
        if client in self._received:
            raise StateError(f"client {client} is training already")
        self._received[client] = self.version
        self._versions[self.version] = self.weights
        return report

    def finish(self, report: RoundReport) -> RoundReport:
        """Trains the client of a turn that has ended, and adds its update to the buffer."""
        (client,) = report.clients.tolist()
        received = self._received.pop(client, None)
        if received is None:
            raise StateError(f"client {client} is not training")
        start, stale = self._versions[received], self.version - received
        metrics = {**report.metrics, STALENESS: float(stale)}
        loss = np.nan
        if report.with_outcome("arrived").all():
            orders = self.federation.orders(report.clients, report.round)
            (result,) = self.federation.learner.train([Cohort(start, orders, np.ones(1))])
            metrics["diverged"] = float((~result.finite).sum())
            loss = float(result.losses[0])
            if result.finite[0] and self._add(start, result.weights, stale):
                self.version += 1
                if self.version % self.federation.evaluate_every == 0:
                    (metrics["accuracy"],) = self.federation.learner.evaluate([self.weights])
        metrics[VERSION] = float(self.version)
        self._drop_versions()
        return replace(report, losses=np.array([loss]), metrics=metrics)

    def state(self) -> dict[str, Any]:
        """Returns the model, the versions that clients train on, the buffer, and the state of the inner world."""
        saved = self.federation.learner.saved
        numbers = sorted(self._versions)
        return {
            "weights": saved(self.weights),
            "version": self.version,
            "versions": np.array(numbers, dtype=np.int64),
            "models": np.array([saved(self._versions[number]) for number in numbers]),
            "training": np.array(list(self._received), dtype=np.int64),
            "received": np.array(list(self._received.values()), dtype=np.int64),
            "sum": np.empty(0) if self._sum is None else saved(self._sum),
            "buffered": self._buffered,
            **prefixed("inner", self.inner.state()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; changes nothing if the state does not fit."""
        loaded = self.federation.learner.loaded
        weights = loaded(saved_value(state, "weights"))
        models = [loaded(model) for model in saved_value(state, "models")]
        versions = dict(zip(np.asarray(saved_value(state, "versions")).tolist(), models, strict=True))
        training = np.asarray(saved_value(state, "training")).tolist()
        received = dict(zip(training, np.asarray(saved_value(state, "received")).tolist(), strict=True))
        if not set(received.values()) <= set(versions):
            raise StateError("the saved state lacks the model of a client that is training")
        buffered = as_count("buffered", int(saved_value(state, "buffered")), StateError, least=0)
        total = saved_value(state, "sum")
        self.inner.restore(subset(state, "inner"))
        self.weights, self._versions, self._received, self._buffered = weights, versions, received, buffered
        self.version = int(saved_value(state, "version"))
        self._sum = loaded(total) if len(total) else None

    def _add(self, start: Weights, trained: Weights, stale: int) -> bool:
        """Adds an update; returns whether it made a version."""
        fresh = (1.0 + stale) ** -self.discount
        if self.mixing is not None:
            share = self.mixing * fresh
            self.weights = (1.0 - share) * self.weights + share * trained
            return True
        difference = fresh * (trained - start)
        self._sum = difference if self._sum is None else self._sum + difference
        self._buffered += 1
        if self._buffered < self.buffer:
            return False
        self.weights = self.weights + (self.server_rate / self.buffer) * self._sum
        self._sum, self._buffered = None, 0
        return True

    def _drop_versions(self) -> None:
        needed = {self.version, *self._received.values()}
        self._versions = {number: model for number, model in self._versions.items() if number in needed}
        self._versions[self.version] = self.weights
