"""Draws for whole fleets, and how availability, quantities and speeds vary from round to round.

Every number is a pure function of (seed, purpose, round): rounds may be asked for in any order.
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


class Draws:
    """One number a client and round, drawn many rounds at a time: small fleets would spend their time on seeding."""

    def __init__(self, seed: int, purpose: str, clients: int, kind: Literal["uniform", "normal"] = "uniform") -> None:
        self._seed, self._purpose, self._clients, self._kind = seed, purpose, clients, kind
        self._rounds = max(min(64, 65536 // clients), 1)
        self._block = -1
        self._numbers: FloatArray = np.empty((0, clients))

    def of(self, round: int) -> FloatArray:
        """The numbers of this round, one a client."""
        block, place = divmod(round - 1, self._rounds)
        if block != self._block:
            rng = round_rng(self._seed, self._purpose, block)
            shape = (self._rounds, self._clients)
            self._numbers = rng.random(shape) if self._kind == "uniform" else rng.standard_normal(shape)
            self._block = block
        numbers: FloatArray = self._numbers[place]
        return numbers


class Quantity:
    """A positive quantity that is drawn anew for each client and round.

    Given as (low, high), uniform; or as a table: {"kind": "uniform", "low": …, "high": …}, {"kind": "constant",
    "value": …}, {"kind": "lognormal", "median": …, "spread": …}.
    """

    def __init__(self, name: str, spec: Any, seed: int, clients: int) -> None:
        table = _as_table(name, spec)
        kind = table.pop("kind", None)
        needed = {"uniform": ("low", "high"), "constant": ("value",), "lognormal": ("median", "spread")}
        if kind not in list(needed):
            raise SettingError(f"{name}.kind must be one of {', '.join(needed)}, not {kind!r}")
        values = _exactly(name, table, needed[kind])
        for key, value in values.items():
            as_number(f"{name}.{key}", value, SettingError, above=0)
        if kind == "uniform" and values["low"] > values["high"]:
            raise SettingError(f"{name}.low must not be above {name}.high")
        self._kind, self._values = kind, values
        self._draws = Draws(seed, name, clients, "normal" if kind == "lognormal" else "uniform")
        self._clients = clients

    @property
    def lowest(self) -> float:
        """Below this it never falls."""
        return float(self._values.get("low", self._values.get("value", 0.0)))

    def of(self, round: int) -> FloatArray:
        """The quantity in this round, one number a client."""
        values = self._values
        if self._kind == "constant":
            return np.full(self._clients, values["value"])
        drawn = self._draws.of(round)
        numbers: FloatArray = (
            values["low"] + (values["high"] - values["low"]) * drawn
            if self._kind == "uniform"
            else values["median"] * np.exp(values["spread"] * drawn)
        )
        return numbers


class Availability(Protocol):
    """Who volunteers."""

    @property
    def shares(self) -> FloatArray:
        """In what share of the rounds each client does, in the long run."""

    def of(self, round: int) -> BoolArray:
        """Who does in this round."""


class Bernoulli:
    """Each client on its own, in each round anew."""

    def __init__(self, shares: FloatArray, seed: int) -> None:
        self.shares = shares
        self._draws = Draws(seed, "availability", len(shares))

    def of(self, round: int) -> BoolArray:
        """Who volunteers in this round."""
        return self._draws.of(round) < self.shares


class OnOff:
    """A Markov chain a client: who is there tends to stay, who is away tends to stay away.

    `persistence`: after how many rounds, on average, a client makes up its mind anew.
    """

    def __init__(self, shares: FloatArray, persistence: float, seed: int) -> None:
        self.shares = shares
        self._stay = 1 - 1 / as_number("availability.persistence", persistence, SettingError, least=1)
        self._draws = Draws(seed, "availability", len(shares))
        self._round, self._there = 0, np.zeros(len(shares), dtype=np.bool_)

    def of(self, round: int) -> BoolArray:
        """Who volunteers in this round; the chain is walked on from the last one asked for."""
        if round < self._round:
            self._round = 0
        while self._round < round:
            self._round += 1
            stay = self._stay if self._round > 1 else 0.0
            self._there = self._draws.of(self._round) < stay * self._there + (1 - stay) * self.shares
        return self._there


class Daily:
    """A daily rhythm: the chance to volunteer rises and falls, for all clients at about the same hour.

    chance = share · (1 + amplitude · sin 2π(round/period + phase)); phases differ by up to `scatter` of a day.
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
        self.shares: FloatArray = np.mean([self._chances(hour) for hour in range(self._period)], axis=0)

    def of(self, round: int) -> BoolArray:
        """Who volunteers in this round."""
        return self._draws.of(round) < self._chances(round)

    def _chances(self, round: int) -> FloatArray:
        wave = np.sin(2 * math.pi * (round / self._period + self._phases))
        chances: FloatArray = np.clip(self._shares * (1 + self._amplitude * wave), 0, 1)
        return chances


def availability_from(spec: Any, seed: int, clients: int) -> Availability:
    """A share, one share a client, or a table with `kind` "bernoulli", "markov" or "daily" and a `share`."""
    if not isinstance(spec, Mapping):
        return Bernoulli(_as_shares(spec, clients), seed)
    table = dict(spec)
    kind = table.pop("kind", "bernoulli")
    if "share" not in table:
        raise SettingError("availability needs a share, such as {kind = 'markov', share = 0.8, persistence = 10}")
    shares = _as_shares(table.pop("share"), clients)
    options = {"bernoulli": (), "markov": ("persistence",), "daily": ("amplitude", "period", "scatter")}
    if kind not in list(options):
        raise SettingError(f"availability.kind must be one of {', '.join(options)}, not {kind!r}")
    for name in table:
        if name not in options[kind]:
            raise SettingError(
                f"availability of kind {kind} has no {name!r}; it has {', '.join(options[kind]) or 'none'}"
            )
    if kind == "markov":
        return OnOff(shares, table.get("persistence", 10.0), seed)
    if kind == "daily":
        return Daily(shares, seed, **table)
    return Bernoulli(shares, seed)


class Drift:
    """How much slower than at first each client computes, round by round.

    None: not at all. {"kind": "step", "round": r, "factor": f, "share": s}: from round r on a share s of the clients
    takes f times as long. {"kind": "wave", "size": a, "period": p}: exp(a · sin) with a phase of its own a client.
    """

    def __init__(self, spec: Any, seed: int, clients: int) -> None:
        if spec is not None and not isinstance(spec, Mapping):
            raise SettingError(f"drift must be a table with a kind, step or wave, not {spec!r}")
        table = dict(spec or {})
        self._kind = table.pop("kind", None)
        needed = {None: (), "step": ("round", "factor", "share"), "wave": ("size", "period")}
        if self._kind not in list(needed):
            raise SettingError(f"drift.kind must be step or wave, not {self._kind!r}")
        self._values = _exactly("drift", table, needed[self._kind])
        for key, value in self._values.items():
            most = 1 if key == "share" else math.inf
            as_number(f"drift.{key}", value, SettingError, least=0, most=most, above=0 if key == "period" else -1)
        #: Does anything ever change?
        self.moves = self._kind is not None
        lots = round_rng(seed, "drift", 0).random(clients)
        self._lots = lots
        self.still = np.ones(clients)

    def of(self, round: int) -> FloatArray:
        """The factor on computing times in this round."""
        values = self._values
        if self._kind == "step" and round >= values["round"]:
            return np.where(self._lots < values["share"], values["factor"], 1.0)
        if self._kind == "wave":
            wave: FloatArray = values["size"] * np.sin(2 * math.pi * (round / values["period"] + self._lots))
            return np.exp(wave)
        return self.still


def _as_shares(value: npt.ArrayLike, clients: int) -> FloatArray:
    shares = np.array(value)
    if shares.ndim == 0:
        shares = np.full(clients, shares)
    shares = as_floats("availability", shares, 1, SettingError)
    if len(shares) != clients:
        raise SettingError(f"availability has {len(shares)} shares, but there are {clients} clients")
    refuse_where((shares < 0) | (shares > 1), "availability", shares, "must lie in [0, 1]", SettingError)
    return shares


def _as_table(name: str, spec: Any) -> dict[str, Any]:
    if isinstance(spec, Mapping):
        return dict(spec)
    if isinstance(spec, list | tuple) and len(spec) == 2:
        return {"kind": "uniform", "low": spec[0], "high": spec[1]}
    raise SettingError(f"{name} must be (low, high) or a table with a kind, not {spec!r}")


def _exactly(name: str, table: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    if set(table) != set(needed):
        raise SettingError(f"{name} needs {', '.join(needed)}; given is {', '.join(sorted(table)) or 'nothing'}")
    return table
