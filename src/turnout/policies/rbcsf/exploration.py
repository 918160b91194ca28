"""The width of the confidence band (alpha in the paper): a constant, or the schedule of the lemma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from turnout.errors import SettingError
from turnout.kernel.arrays import as_number


@dataclass(frozen=True, slots=True)
class ConstantExploration:
    """Uses the same width in every round, as the paper's experiments do."""

    width: float

    def __post_init__(self) -> None:
        as_number("exploration", self.width, SettingError, least=0)

    def __call__(self, round: int) -> float:  # noqa: ARG002
        """Returns alpha of the paper."""
        return self.width


@dataclass(frozen=True, slots=True)
class TheoreticalExploration:
    """Computes the schedule of the paper's lemma: the band covers the mean with probability 1 − delta.

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
        """Returns alpha_t of the paper for this round."""
        spread = math.log((1 + round * self.L**2 / self.ridge) / self.delta)
        return self.R * math.sqrt(self.features * spread) + math.sqrt(self.ridge) * self.S


def exploration_from(
    exploration: float | str, theory: Mapping[str, float] | None, *, ridge: float, features: int
) -> ConstantExploration | TheoreticalExploration:
    """Builds the exploration from a number, or from "theory" with R, S, L and delta in `theory`."""
    if exploration != "theory":
        if theory is not None:
            raise SettingError(
                f"theory is used only with exploration='theory', but exploration is {exploration!r}: leave theory out, "
                "or set exploration='theory'"
            )
        if isinstance(exploration, str):
            raise SettingError(f"exploration must be a number or 'theory', got {exploration!r}")
        return ConstantExploration(exploration)
    if theory is not None and not isinstance(theory, Mapping):
        raise SettingError(f"theory must be a mapping with the keys R, S, L and delta, got {theory!r}")
    if theory is None or set(theory) != {"R", "S", "L", "delta"}:
        keys = "nothing" if theory is None else ", ".join(sorted(theory)) or "an empty mapping"
        raise SettingError(f"exploration='theory' needs theory with the keys R, S, L and delta, got {keys}")
    return TheoreticalExploration(**theory, ridge=ridge, features=features)
