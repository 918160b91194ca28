"""The width of the confidence band (alpha in the paper): a constant, a named schedule, or a function of the round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import as_number

#: The schedules that are named with a factor, such as "decay:2": the width for a factor of 1, by round.
SCHEDULES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "sqrt-log": lambda number: math.sqrt(math.log(1 + number)),
        "decay": lambda number: 1 / math.sqrt(number),
    }
)


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


@dataclass(frozen=True, slots=True)
class NamedExploration:
    """Multiplies a named schedule by a factor.

    "sqrt-log": factor·sqrt(log(1 + t)), which grows like the schedule of the lemma but without its constants.
    "decay": factor/sqrt(t), which explores in the first rounds.

    >>> NamedExploration.parse("decay:2")(4)
    1.0
    """

    name: str
    factor: float

    def __post_init__(self) -> None:
        as_number(f"the factor of exploration {self.name!r}", self.factor, SettingError, least=0)

    @classmethod
    def parse(cls, text: str) -> NamedExploration:
        """Reads a name and a factor, such as "sqrt-log:0.5"."""
        name, _, factor = text.partition(":")
        if name not in SCHEDULES:
            examples = " or ".join(repr(f"{schedule}:0.5") for schedule in SCHEDULES)
            raise SettingError(
                f"exploration must be a number, a function of the round, 'theory', or a schedule with its factor, such "
                f"as {examples}, got {text!r}{suggestion(name, [*SCHEDULES, 'theory'])}"
            )
        try:
            number = float(factor)
        except ValueError:
            raise SettingError(f"exploration {name!r} needs a factor, such as '{name}:0.5', got {text!r}") from None
        return cls(name, number)

    def __call__(self, round: int) -> float:
        """Returns the width for this round."""
        return self.factor * SCHEDULES[self.name](round)


@dataclass(frozen=True, slots=True)
class CustomExploration:
    """Uses a function of the round, from 1 on; its results must be finite and at least 0.

    The function must give the same width whenever it is called for a round, because `ask` has no side effects.
    """

    schedule: Callable[[int], float]

    def __post_init__(self) -> None:
        self(1)

    def __call__(self, round: int) -> float:
        """Returns the width that the function gives for this round."""
        return as_number(f"exploration in round {round}", self.schedule(round), SettingError, least=0)


def exploration_from(
    exploration: float | str | Callable[[int], float],
    theory: Mapping[str, float] | None,
    *,
    ridge: float,
    features: int,
) -> ConstantExploration | TheoreticalExploration | NamedExploration | CustomExploration:
    """Builds the exploration schedule from a number, a function of the round, or a name.

    The name is "theory", with R, S, L and delta in `theory`, or that of `NamedExploration` with its factor.
    """
    if exploration != "theory":
        if theory is not None:
            raise SettingError(
                f"theory is used only with exploration='theory', but exploration is {exploration!r}: leave theory out, "
                "or set exploration='theory'"
            )
        if isinstance(exploration, str):
            return NamedExploration.parse(exploration)
        return CustomExploration(exploration) if callable(exploration) else ConstantExploration(exploration)
    if theory is not None and not isinstance(theory, Mapping):
        raise SettingError(f"theory must be a mapping with the keys R, S, L and delta, got {theory!r}")
    if theory is None or set(theory) != {"R", "S", "L", "delta"}:
        keys = "nothing" if theory is None else ", ".join(sorted(theory)) or "an empty mapping"
        raise SettingError(f"exploration='theory' needs theory with the keys R, S, L and delta, got {keys}")
    return TheoreticalExploration(**theory, ridge=ridge, features=features)
