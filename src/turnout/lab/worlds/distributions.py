"""Random numbers for all clients of a world, and models of availability, quantities and drift over the rounds.

Every number is a pure function of (seed, purpose, round), so rounds can be requested in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, as_count, as_floats, as_number, refuse_where
from turnout.kernel.randomness import round_rng
from turnout.lab.worlds.base import check_choice


class Draws:
    """One random number per client and round.

    The numbers of many rounds are drawn as one block, because seeding a generator for every round dominates the run
    time of small worlds.
    """

    def __init__(self, seed: int, purpose: str, clients: int, kind: Literal["uniform", "normal"] = "uniform") -> None:
        self._seed, self._purpose, self._clients, self._kind = seed, purpose, clients, kind
        self._rounds = max(min(64, 65536 // clients), 1)
        self._block_index = -1
        self._values: FloatArray = np.empty((0, clients))

    def at(self, round: int) -> FloatArray:
        """Returns the numbers of this round, (N,)."""
        block, index = divmod(round - 1, self._rounds)
        if block != self._block_index:
            rng = round_rng(self._seed, self._purpose, block)
            shape = (self._rounds, self._clients)
            self._values = rng.random(shape) if self._kind == "uniform" else rng.standard_normal(shape)
            self._block_index = block
        values: FloatArray = self._values[index]
        return values


class Quantity:
    """A positive quantity with an independent value for each client and round.

    The specification is (low, high) for a uniform distribution, or a mapping: {"kind": "uniform", "low": …, "high": …},
    {"kind": "constant", "value": …} or {"kind": "lognormal", "median": …, "spread": …}.
    """

    def __init__(self, name: str, spec: Any, seed: int, clients: int) -> None:
        if isinstance(spec, list | tuple) and len(spec) == 2:
            spec = {"kind": "uniform", "low": spec[0], "high": spec[1]}
        if not isinstance(spec, Mapping):
            raise SettingError(f"{name} must be (low, high) or a mapping with a kind, not {spec!r}")
        needed = {"uniform": ("low", "high"), "constant": ("value",), "lognormal": ("median", "spread")}
        kind, parameters = _parameters_of(name, spec, needed)
        for key, value in parameters.items():
            as_number(f"{name}.{key}", value, SettingError, above=0)
        if kind == "uniform" and parameters["low"] > parameters["high"]:
            raise SettingError(
                f"{name}.low must not be above {name}.high, but {parameters['low']} is above {parameters['high']}"
            )
        self._kind, self._parameters = kind, parameters
        self._draws = Draws(seed, name, clients, "normal" if kind == "lognormal" else "uniform")
        self._clients = clients

    @property
    def lowest(self) -> float:
        """The lower bound of the quantity; 0 if its distribution has none."""
        return float(self._parameters.get("low", self._parameters.get("value", 0.0)))

    def at(self, round: int) -> FloatArray:
        """Returns the values of this round, (N,)."""
        parameters = self._parameters
        if self._kind == "constant":
            return np.full(self._clients, parameters["value"])
        draws = self._draws.at(round)
        values: FloatArray = (
            parameters["low"] + (parameters["high"] - parameters["low"]) * draws
            if self._kind == "uniform"
            else parameters["median"] * np.exp(parameters["spread"] * draws)
        )
        return values


class Availability(Protocol):
    """A model of the availability of clients."""

    @property
    def shares(self) -> FloatArray:
        """The long-run share of rounds in which each client is available, (N,)."""

    def at(self, round: int) -> BoolArray:
        """Returns which clients are available in this round, (N,)."""


class Bernoulli:
    """Availability that is independent for each client and round."""

    def __init__(self, shares: FloatArray, seed: int) -> None:
        self.shares = shares
        self._draws = Draws(seed, "availability", len(shares))

    def at(self, round: int) -> BoolArray:
        """Returns which clients are available in this round, (N,)."""
        return self._draws.at(round) < self.shares


class OnOff:
    """A two-state Markov chain per client: available and unavailable clients tend to keep their state.

    `persistence` is the mean number of rounds after which a client draws a new state, which may equal the old one.
    """

    def __init__(self, shares: FloatArray, persistence: float, seed: int) -> None:
        self.shares = shares
        self._keep_probability = 1 - 1 / as_number("availability.persistence", persistence, SettingError, least=1)
        self._draws = Draws(seed, "availability", len(shares))
        self._round, self._available = 0, np.zeros(len(shares), dtype=np.bool_)

    def at(self, round: int) -> BoolArray:
        """Returns which clients are available in this round; advances the chain from the last requested round."""
        if round < self._round:
            self._round = 0
        while self._round < round:
            self._round += 1
            keep = self._keep_probability if self._round > 1 else 0.0
            self._available = self._draws.at(self._round) < keep * self._available + (1 - keep) * self.shares
        return self._available


class Daily:
    """A daily cycle: the probability of being available rises and falls at about the same hour for all clients.

    probability = share · (1 + amplitude · sin 2π(round/period + phase)); phases differ by up to `scatter` of a day.

    Args:
        shares: The mean share of rounds in which each client is available, before probabilities are clipped to [0, 1].
        seed: The seed of the phases and the draws.
        amplitude: The relative amplitude of the cycle, in [0, 1].
        period: The number of rounds per day.
        scatter: The largest difference between phases, as a share of a day.
    """

    def __init__(
        self, shares: FloatArray, seed: int, *, amplitude: float = 0.8, period: int = 96, scatter: float = 0.25
    ) -> None:
        self._shares = shares
        self._amplitude = as_number("availability.amplitude", amplitude, SettingError, least=0, most=1)
        self._period = as_count("availability.period", period, SettingError)
        scatter = as_number("availability.scatter", scatter, SettingError, least=0, most=1)
        self._phases = round_rng(seed, "daily phases", 0).random(len(shares)) * scatter
        self._draws = Draws(seed, "availability", len(shares))
        self.shares: FloatArray = np.mean([self._probabilities(round_) for round_ in range(self._period)], axis=0)

    def at(self, round: int) -> BoolArray:
        """Returns which clients are available in this round, (N,)."""
        return self._draws.at(round) < self._probabilities(round)

    def _probabilities(self, round: int) -> FloatArray:
        wave = np.sin(2 * math.pi * (round / self._period + self._phases))
        probabilities: FloatArray = np.clip(self._shares * (1 + self._amplitude * wave), 0, 1)
        return probabilities


def make_availability(spec: Any, seed: int, clients: int) -> Availability:
    """Builds an availability model from its specification.

    The specification is a share, a list with one share per client, or a mapping with `kind` "bernoulli", "markov" or
    "daily", a `share` and the options of that kind.
    """
    if not isinstance(spec, Mapping):
        return Bernoulli(_as_shares(spec, clients), seed)
    options = dict(spec)
    kind = options.pop("kind", "bernoulli")
    if "share" not in options:
        raise SettingError("availability needs a share, such as {'kind': 'markov', 'share': 0.8, 'persistence': 10}")
    shares = _as_shares(options.pop("share"), clients)
    allowed = {"bernoulli": (), "markov": ("persistence",), "daily": ("amplitude", "period", "scatter")}
    check_choice("availability.kind", kind, list(allowed))
    for name in options:
        if name not in allowed[kind]:
            raise SettingError(
                f"availability of kind {kind} has no option {name!r}; its options are "
                f"{', '.join(allowed[kind]) or 'none'}"
            )
    if kind == "markov":
        return OnOff(shares, options.get("persistence", 10.0), seed)
    if kind == "daily":
        return Daily(shares, seed, **options)
    return Bernoulli(shares, seed)


class Drift:
    """The factor by which the computing time of each client differs from its initial value in each round.

    None: no drift. {"kind": "step", "round": r, "factor": f, "share": s}: from round r on, a share s of the clients
    takes f times as long. {"kind": "wave", "size": a, "period": p}: exp(a · sin 2π(round/p + phase)) with an individual
    phase per client.
    """

    def __init__(self, spec: Any, seed: int, clients: int) -> None:
        if spec is not None and not isinstance(spec, Mapping):
            raise SettingError(f"drift must be None or a mapping with the kind 'step' or 'wave', not {spec!r}")
        needed = {"step": ("round", "factor", "share"), "wave": ("size", "period")}
        self._kind, self._parameters = ("", {}) if spec is None else _parameters_of("drift", spec, needed)
        for key, value in self._parameters.items():
            most = 1 if key == "share" else math.inf
            as_number(f"drift.{key}", value, SettingError, least=0, most=most, above=0 if key == "period" else -1)
        #: Whether any factor ever differs from 1.
        self.is_active = spec is not None
        self._positions = round_rng(seed, "drift", 0).random(clients)
        self.no_drift = np.ones(clients)

    def at(self, round: int) -> FloatArray:
        """Returns the factors on the computing times in this round, (N,)."""
        parameters = self._parameters
        if self._kind == "step" and round >= parameters["round"]:
            return np.where(self._positions < parameters["share"], parameters["factor"], 1.0)
        if self._kind == "wave":
            phases = round / parameters["period"] + self._positions
            wave: FloatArray = parameters["size"] * np.sin(2 * math.pi * phases)
            return np.exp(wave)
        return self.no_drift


def _as_shares(value: npt.ArrayLike, clients: int) -> FloatArray:
    shares = np.array(value)
    if shares.ndim == 0:
        shares = np.full(clients, shares)
    shares = as_floats("availability", shares, 1, SettingError)
    if len(shares) != clients:
        raise SettingError(f"availability has {len(shares)} shares, but there are {clients} clients")
    refuse_where((shares < 0) | (shares > 1), "availability", shares, "must lie in [0, 1]", SettingError)
    return shares


def _parameters_of(
    name: str, spec: Mapping[str, Any], needed: Mapping[str, tuple[str, ...]]
) -> tuple[str, dict[str, Any]]:
    """Returns the kind of a specification, and exactly the parameters that it needs."""
    options = dict(spec)
    kind = options.pop("kind", None)
    check_choice(f"{name}.kind", kind, list(needed))
    if set(options) != set(needed[kind]):
        given = ", ".join(sorted(options)) or "nothing"
        raise SettingError(f"{name} needs exactly {', '.join(needed[kind])}, not {given}")
    return kind, options
