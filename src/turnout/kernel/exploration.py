"""How wide the confidence band is: alpha of the paper, a number or the schedule of its lemma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from turnout.errors import SettingError
from turnout.kernel.arrays import as_number


@dataclass(frozen=True, slots=True)
class ConstantExploration:
    """The same width of the band in every round: what the paper's experiments use."""

    width: float

    def __post_init__(self) -> None:
        as_number("exploration", self.width, SettingError, least=0)

    def __call__(self, round: int) -> float:  # noqa: ARG002
        """alpha of the paper."""
        return self.width


@dataclass(frozen=True, slots=True)
class TheoreticalExploration:
    """The schedule of the paper's lemma: with it the band holds with probability 1 − delta.

    alpha_t = R·sqrt(d·log((1 + t·L²/ridge)/delta)) + sqrt(ridge)·S for d features, where the noise is
    R-sub-Gaussian, ‖theta‖ ≤ S and ‖c‖ ≤ L.
    """

    R: float
    S: float
    L: float
    delta: float
    ridge: float = 1.0
    features: int = 3

    def __post_init__(self) -> None:
        for name in ("R", "S", "L"):
            as_number(name, getattr(self, name), SettingError, least=0)
        as_number("delta", self.delta, SettingError, above=0, most=1)

    def __call__(self, round: int) -> float:
        """alpha_t of the paper."""
        spread = math.log((1 + round * self.L**2 / self.ridge) / self.delta)
        return self.R * math.sqrt(self.features * spread) + math.sqrt(self.ridge) * self.S


def exploration_from(
    exploration: float | str, theory: Mapping[str, float] | None, *, ridge: float, features: int
) -> ConstantExploration | TheoreticalExploration:
    """A number, or "theory" with R, S, L and delta given."""
    if exploration != "theory":
        if isinstance(exploration, str):
            raise SettingError(f"exploration must be a number or 'theory', not {exploration!r}")
        if theory is not None:
            raise SettingError("theory is given, but exploration is not 'theory'")
        return ConstantExploration(exploration)
    wanted = {"R", "S", "L", "delta"}
    if theory is None or set(theory) != wanted:
        given = "nothing" if theory is None else ", ".join(sorted(theory))
        raise SettingError(f"exploration='theory' needs theory={{'R', 'S', 'L', 'delta'}}: given is {given}")
    return TheoreticalExploration(**theory, ridge=ridge, features=features)
