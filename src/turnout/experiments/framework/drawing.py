"""The common style of all figures, with a palette that colour-blind readers can distinguish."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette; larger weights and concentrations are darker, the baselines have distinct hues.
COLOURS = {
    "RBCS-F, weight 1": "#56b4e9",
    "RBCS-F, weight 5": "#0072b2",
    "RBCS-F, weight 20": "#009e73",
    "RBCS-F, weight 50": "#003f2d",
    "random": "#7f7f7f",
    "FedCS(3)": "#d55e00",
    "fair oracle": "#cc79a7",
    "concentration 0.1": "#f5c04a",
    "concentration 1": "#e8743b",
    "concentration 10": "#a8325e",
    "even": "#3d1152",
}
OTHERS = ("#e69f00", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7f7f7f")

STYLE = {
    "svg.hashsalt": "turnout",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "legend.frameon": False,
    "figure.dpi": 150,
}


def colour_of(label: str, index: int = 0) -> str:
    """Returns the colour of a contender, the same in every figure; unknown labels get a colour by index."""
    return COLOURS.get(label, OTHERS[index % len(OTHERS)])


@contextmanager
def figure(width: float = 7.0, height: float = 4.0) -> Iterator[Figure]:
    """Yields an empty figure in the common style."""
    mpl, figure_class = _matplotlib()
    with mpl.rc_context(STYLE):
        yield figure_class(figsize=(width, height), layout="constrained")


def curve(
    axes: Axes,
    label: str,
    x: FloatArray,
    mean: FloatArray,
    band: FloatArray,
    index: int = 0,
    *,
    strong: bool = True,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Draws a line with its confidence band.

    Args:
        axes: The axes to draw on.
        label: The contender, which determines the colour.
        x: The x values.
        mean: The mean at each x.
        band: The half-width of the confidence interval at each x.
        index: The number of the line, which determines the colour of an unknown label.
        strong: Whether the line is thick; False for figures in which many lines cross.
        limits: The range of possible values, which the band does not leave.
    """
    colour = colour_of(label, index)
    axes.plot(x, mean, color=colour, label=label, linewidth=1.6 if strong else 1.2)
    low, high = np.maximum(mean - band, limits[0]), np.minimum(mean + band, limits[1])
    axes.fill_between(x, low, high, color=colour, alpha=0.18 if strong else 0.1, linewidth=0)


def save_as(drawn: Figure, path: Path) -> None:
    """Writes the figure to a file; the suffix of the path determines the format."""
    try:
        with _matplotlib()[0].rc_context(STYLE):
            drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise SettingError(f"cannot draw into {path}: {error}") from error


def save(drawn: Figure, folder: Path, name: str) -> list[Path]:
    """Writes the figure as SVG and PNG, and returns their paths."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(as_svg(drawn), encoding="utf-8")
        drawn.savefig(paths[1])
    except OSError as error:
        raise SettingError(f"cannot write figures into {folder}: {error.strerror or error}") from error
    return paths


def as_svg(drawn: Figure) -> str:
    """Returns the figure as SVG text, byte for byte the same for the same data."""
    text = io.StringIO()
    with _matplotlib()[0].rc_context(STYLE):
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def thin_curve(values: FloatArray, most: int = 500) -> tuple[FloatArray, FloatArray]:
    """Returns at most `most` rounds and values of a long curve, evenly spaced on a logarithmic axis.

    The first and the last round are always included.
    """
    rounds = np.unique(np.geomspace(1, len(values), most).round().astype(np.int64))
    return rounds.astype(np.float64), values[rounds - 1]


def _matplotlib() -> tuple[Any, type[Figure]]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingError("figures need matplotlib: pip install 'turnout[plots]'") from error
    return mpl, Figure
