"""What a fleet tells about its clients before a choice, and what a policy makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError, SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_number

Columns = Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """How a client is now: its free share of CPU, and its bandwidth in the unit of the model's size, a second."""

    free_cpu: float
    bandwidth: float


@dataclass(frozen=True, slots=True, eq=False)
class FleetStatus:
    """Many clients at once, in arrays: `columns` has one number a client under each declared name.

    `rows`: which clients these are (Scheduler.rows gives them once and for all); None means all, in order.
    """

    columns: Mapping[str, npt.ArrayLike]
    rows: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """One number of a status: its credible range, its unit, and who knows it: the "client" or the "server"."""

    name: str
    low: float
    high: float
    unit: str = ""
    source: Literal["client", "server"] = "client"

    def __post_init__(self) -> None:
        as_number(f"low of {self.name}", self.low, SettingError)
        as_number(f"high of {self.name}", self.high, SettingError, least=self.low)
        if self.source not in ("client", "server"):
            raise SettingError(f"source of {self.name} must be 'client' or 'server', not {self.source!r}")


def paper_contexts(columns: Columns) -> Sequence[FloatArray]:
    """[1/free_cpu, needs_cold_start, model_size/bandwidth]."""
    return 1 / columns["free_cpu"], columns["needs_cold_start"], columns["model_size"] / columns["bandwidth"]


@dataclass(frozen=True, slots=True)
class Features:
    """Which numbers a status must have, and how they become a context.

    `compute` takes one array a name and gives one array a feature. Besides the declared names it finds
    "needs_cold_start" (1 for a client that did not train in the round before) and "model_size". Without it the declared
    numbers themselves are the features, in order. It is code and is not kept in the file: give it again when opening.
    """

    declared: tuple[Feature, ...] = (
        Feature("free_cpu", 1e-3, 1e3, "cores"),
        Feature("bandwidth", 1e-6, 1e9, "model size a second"),
    )
    compute: Callable[[Columns], Sequence[npt.ArrayLike]] | None = field(default=paper_contexts, compare=False)
    outputs: int = 3

    def __post_init__(self) -> None:
        names = [one.name for one in self.declared]
        if not names or len(set(names)) < len(names):
            raise SettingError(f"features need different names, at least one: {', '.join(names) or 'there are none'}")
        if self.compute is None and self.outputs != len(names):
            raise SettingError(f"outputs must be {len(names)}, the number of declared features, or give compute")

    @classmethod
    def of(
        cls,
        *declared: Feature,
        compute: Callable[[Columns], Sequence[npt.ArrayLike]] | None = None,
        outputs: int | None = None,
    ) -> Features:
        """A fleet's own."""
        return cls(declared, compute, len(declared) if outputs is None else outputs)

    def check(self, client: str, status: Any) -> None:
        """Refuse a status that lacks a number, or has one that is not credible."""
        columns = self.columns([(client, status)])
        for feature in self.declared:
            self._check(feature, columns[feature.name], lambda _: repr(client))

    def columns(self, statuses: Sequence[tuple[str, Any]]) -> dict[str, FloatArray]:
        """One array a declared name, from one status a client."""
        table = np.empty((len(self.declared), len(statuses)))
        for place, (client, status) in enumerate(statuses):
            for which, feature in enumerate(self.declared):
                table[which, place] = _number(client, status, feature)
        return {feature.name: table[which] for which, feature in enumerate(self.declared)}

    def contexts(self, columns: Columns, server: Columns, name_of: Callable[[int], str]) -> FloatArray:
        """(clients, features), once every number is known to be credible."""
        for feature in self.declared:
            self._check(feature, columns[feature.name], name_of)
        known = {**server, **columns}
        parts = [columns[feature.name] for feature in self.declared] if self.compute is None else self.compute(known)
        if len(parts) != self.outputs:
            raise OfferError(f"compute gave {len(parts)} features, expected are {self.outputs}")
        clients = len(next(iter(columns.values())))
        contexts = np.empty((clients, self.outputs), order="F")
        for place, part in enumerate(parts):
            if np.shape(part) not in ((), (clients,)):
                raise OfferError(f"compute gave shape {np.shape(part)} for feature {place}, expected is ({clients},)")
            contexts[:, place] = part
        return contexts

    def told(self) -> dict[str, Any]:
        """What of it is kept in the file."""
        return {
            "declared": [[one.name, one.low, one.high, one.unit, one.source] for one in self.declared],
            "computed": self.compute is not None,
            "outputs": self.outputs,
        }

    def _check(self, feature: Feature, values: FloatArray, name_of: Callable[[int], str]) -> None:
        if not len(values) or (values.min() >= feature.low and values.max() <= feature.high):
            return
        place = int(np.flatnonzero(~((values >= feature.low) & (values <= feature.high)))[0])
        raise OfferError(
            f"{feature.name} of {name_of(place)} is {values[place]:g}, allowed is {feature.low:g} to {feature.high:g}"
            f"{f' {feature.unit}' if feature.unit else ''}: correct it, or leave the client out of this round"
        )


PAPER_FEATURES = Features()


def _number(client: str, status: Any, feature: Feature) -> float:
    value = status.get(feature.name) if isinstance(status, Mapping) else getattr(status, feature.name, None)
    if value is None:
        raise OfferError(
            f"the status of {client!r} has no {feature.name!r}: give {feature.name}, {feature.unit or 'a number'}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise OfferError(f"{feature.name} of {client!r} must be a number, not {value!r}")
    return float(value)
