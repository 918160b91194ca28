"""How our figures look: quiet axes, colours that a colour-blind reader tells apart."""

from __future__ import annotations

import io
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

# Okabe and Ito's palette; weights, and evenness, go from light to dark, the baselines stand apart.
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


def colour_of(label: str, place: int = 0) -> str:
    """The same contender has the same colour in every figure."""
    return COLOURS.get(label, OTHERS[place % len(OTHERS)])


@contextmanager
def figure(width: float = 7.0, height: float = 4.0) -> Iterator[Figure]:
    """An empty figure in our style."""
    mpl, figure_class = _matplotlib()
    with mpl.rc_context(STYLE):
        yield figure_class(figsize=(width, height), layout="constrained")


def curve(
    axes: Axes, label: str, x: FloatArray, mean: FloatArray, band: FloatArray, place: int = 0, *, strong: bool = True
) -> None:
    """A line with its confidence band; not so strong where many cross."""
    colour = colour_of(label, place)
    axes.plot(x, mean, color=colour, label=label, linewidth=1.6 if strong else 1.2)
    axes.fill_between(x, mean - band, mean + band, color=colour, alpha=0.18 if strong else 0.1, linewidth=0)


def save_as(drawn: Figure, path: Path) -> None:
    """The figure in one file, of the kind its name says."""
    try:
        with _matplotlib()[0].rc_context(STYLE):
            drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as refused:
        raise SettingError(f"cannot draw into {path}: {refused}") from refused


def save(drawn: Figure, folder: Path, name: str) -> list[Path]:
    """The figure as SVG and PNG."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(as_svg(drawn), encoding="utf-8")
        drawn.savefig(paths[1])
    except OSError as refused:
        raise SettingError(f"cannot write figures into {folder}: {refused.strerror or refused}") from refused
    return paths


def as_svg(drawn: Figure) -> str:
    """The figure as text, the same to the byte for the same data."""
    text = io.StringIO()
    with _matplotlib()[0].rc_context(STYLE):
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def thinned(values: FloatArray, most: int = 500) -> tuple[FloatArray, FloatArray]:
    """Rounds and values of a long curve, as many as a logarithmic axis can show; the first and the last among them."""
    rounds = np.unique(np.geomspace(1, len(values), most).round().astype(np.int64))
    return rounds.astype(np.float64), values[rounds - 1]


def _matplotlib() -> tuple[Any, type[Figure]]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise SettingError("figures need matplotlib: pip install 'turnout[plots]'") from missing
    return mpl, Figure
