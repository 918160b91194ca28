"""Random numbers for all clients of a world, and models of availability and quantities.

Every number is a pure function of (seed, purpose, round), so rounds can be requested in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, as_floats, as_number, refuse_where
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

    The specification is (low, high) for a uniform distribution, or a mapping: {"kind": "uniform", "low": …, "high": …}
    or {"kind": "lognormal", "median": …, "spread": …}.
    """

    def __init__(self, name: str, spec: Any, seed: int, clients: int) -> None:
        if isinstance(spec, list | tuple) and len(spec) == 2:
            spec = {"kind": "uniform", "low": spec[0], "high": spec[1]}
        if not isinstance(spec, Mapping):
            raise SettingError(f"{name} must be (low, high) or a mapping with a kind, not {spec!r}")
        needed = {"uniform": ("low", "high"), "lognormal": ("median", "spread")}
        kind, parameters = _parameters_of(name, spec, needed)
        for key, value in parameters.items():
            as_number(f"{name}.{key}", value, SettingError, above=0)
        if kind == "uniform" and parameters["low"] > parameters["high"]:
            raise SettingError(
                f"{name}.low must not be above {name}.high, but {parameters['low']} is above {parameters['high']}"
            )
        self._kind, self._parameters = kind, parameters
        self._draws = Draws(seed, name, clients, "normal" if kind == "lognormal" else "uniform")

    @property
    def lowest(self) -> float:
        """The lower bound of the quantity; 0 if its distribution has none."""
        return float(self._parameters.get("low", 0.0))

    def at(self, round: int) -> FloatArray:
        """Returns the values of this round, (N,)."""
        parameters, draws = self._parameters, self._draws.at(round)
        values: FloatArray = (
            parameters["low"] + (parameters["high"] - parameters["low"]) * draws
            if self._kind == "uniform"
            else parameters["median"] * np.exp(parameters["spread"] * draws)
        )
        return values


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


Availability: TypeAlias = Bernoulli | OnOff


def make_availability(spec: Any, seed: int, clients: int) -> Availability:
    """Builds an availability model from its specification.

    The specification is a share, a list with one share per client, or {"kind": "markov", "share": …, "persistence": …},
    whose share may be a list, too.
    """
    if not isinstance(spec, Mapping):
        return Bernoulli(_as_shares(spec, clients), seed)
    _, options = _parameters_of("availability", spec, {"markov": ("share", "persistence")})
    return OnOff(_as_shares(options["share"], clients), options["persistence"], seed)


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
