"""The colour, line style and marker of every policy, the same in every figure.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Line styles and markers carry the
same information without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

BLACK, ORANGE, SKY, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILLION, PURPLE, GREY = "#0072b2", "#d55e00", "#cc79a7", "#7f7f7f"
#: The colours of policies that are not ours.
MAGENTA, BROWN = "#e6007e", "#8c510a"
SOLID, DASHED, DOTTED, DASH_DOT, LONG = "-", "--", ":", "-.", (0, (8, 2))
LineStyle = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Style:
    """How a figure draws one contender."""

    colour: str
    line: LineStyle = SOLID
    marker: str = "o"


#: Each policy by its name.
POLICIES: Mapping[str, Style] = {
    "fair-pace": Style(VERMILLION, SOLID, "*"),
    "rbcsf": Style(BLUE, SOLID, "o"),
    "with-guarantee": Style(GREEN, SOLID, "s"),
    "random": Style(GREY, DASHED, "^"),
    "round-robin": Style(GREY, DASH_DOT, "v"),
    "skewed": Style(GREY, DOTTED, "d"),
    "oort": Style(ORANGE, SOLID, "P"),
    "tifl": Style(ORANGE, DASHED, "h"),
    "refl": Style(ORANGE, DASH_DOT, "<"),
    "e3cs": Style(ORANGE, LONG, ">"),
    "power-of-choice": Style(ORANGE, DOTTED, "8"),
    "cs-ucb": Style(BLACK, DASHED, "p"),
    "cs-ucb-q": Style(BLACK, DASH_DOT, "H"),
    "ucb-cs": Style(BLACK, LONG, "X"),
    "active-fl": Style(BLACK, DOTTED, "d"),
    "data-size": Style(BLACK, SOLID, "v"),
    "fedcs": Style(SKY, DASH_DOT, "D"),
    "fastest": Style(SKY, DOTTED, "d"),
    "fair-oracle": Style(PURPLE, LONG, "X"),
}
#: The same hue for every contender that is given the true times: nobody can play it with real clients.
TRUE_TIMES = PURPLE
#: The first word of a label that is not the name of its policy.
GUARD = "guard"
#: Labels with a style of their own: larger weights and concentrations are darker.
NAMED: Mapping[str, Style] = {
    "RBCS-F, weight 1": Style(SKY, SOLID, "o"),
    "RBCS-F, weight 5": Style(BLUE, DASHED, "s"),
    "RBCS-F, weight 20": Style("#00476f", DASH_DOT, "p"),
    "RBCS-F, weight 50": Style("#00121c", LONG, "h"),
    "FedCS(3)": Style(TRUE_TIMES, DASH_DOT, "D"),
    "concentration 0.1": Style("#f0b429", DOTTED, "v"),
    "concentration 1": Style(VERMILLION, DASH_DOT, "s"),
    "concentration 10": Style("#9c2f5f", DASHED, "D"),
    "even": Style("#2b0b3a", SOLID, "^"),
}
#: Styles of labels that name no policy, by index.
OTHERS = (
    Style(MAGENTA, SOLID, "o"),
    Style(BROWN, DASHED, "s"),
    Style(GREEN, DASH_DOT, "^"),
    Style(PURPLE, LONG, "D"),
    Style(ORANGE, DOTTED, "v"),
    Style(BLACK, SOLID, "P"),
    Style(SKY, DASHED, "X"),
)
_LINES = (SOLID, DASHED, DASH_DOT, LONG, DOTTED)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")


def policy_style(policy: str, *, true_times: bool = False) -> Style:
    """Returns the style of a policy; one that is given the true times has the hue of these."""
    style = POLICIES.get(policy, OTHERS[0])
    return replace(style, colour=TRUE_TIMES) if true_times else style


def style_of(label: str, index: int = 0) -> Style:
    """Returns the style of a contender, the same in every figure; a label that names no policy gets one by index."""
    if label in NAMED:
        return NAMED[label]
    if label.startswith(GUARD):
        return POLICIES["with-guarantee"]
    policies = [policy for policy in POLICIES if _letters(label).startswith(_letters(policy))]
    if policies:
        return POLICIES[max(policies, key=len)]
    return OTHERS[index % len(OTHERS)]


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Returns a different style for each label of a figure: variants of a policy share only its colour."""
    chosen: dict[str, Style] = {}
    for index, label in enumerate(labels):
        style = style_of(label, index)
        taken = set(chosen.values())
        for step in range(len(_LINES) * len(_MARKERS)):
            if style not in taken:
                break
            style = replace(
                style, line=_LINES[step % len(_LINES)], marker=_MARKERS[(step + step // len(_MARKERS)) % len(_MARKERS)]
            )
        chosen[label] = style
    return chosen


def _letters(name: str) -> str:
    """Returns a name without case, spaces and signs: labels of policies differ from their names in these."""
    return "".join(filter(str.isalnum, name.lower()))
