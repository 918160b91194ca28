"""The common style of all figures, and how they are written."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.lab.drawing.describing import description_of, title_of
from turnout.lab.drawing.palette import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

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
#: The number of markers on a line.
MARKERS = 6
#: Sizes in points of markers that look smaller or larger than others of the same size.
MARKER_SIZE = {"*": 9.0, "D": 4.5, "d": 6.0, "P": 6.0, "X": 6.0, "p": 6.0, "h": 6.0, "H": 6.0}


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
    band: FloatArray | None = None,
    *,
    style: Style,
    strong: bool = True,
    limits: tuple[float, float] = (-math.inf, math.inf),
    log: bool = False,
) -> None:
    """Draws a line with a few markers, and its confidence band.

    Args:
        axes: The axes to draw on.
        label: The contender.
        x: The x values.
        mean: The mean at each x.
        band: The half-width of the confidence interval at each x, if there is one.
        style: The colour, the line style and the marker of the contender.
        strong: Whether the line is thick; False for figures in which many lines cross.
        limits: The range of possible values, which the band does not leave.
        log: Whether markers are evenly spaced on a logarithmic axis.
    """
    axes.plot(
        x,
        mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=MARKER_SIZE.get(style.marker, 5.0) - (0 if strong else 1),
        markevery=_marked(x, style, log=log),
        label=label,
        linewidth=1.6 if strong else 1.2,
    )
    if band is not None:
        low, high = np.maximum(mean - band, limits[0]), np.minimum(mean + band, limits[1])
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18 if strong else 0.1, linewidth=0)


def points(axes: Axes, x: Any, y: Any, style: Style, *, filled: bool = True, **options: Any) -> None:
    """Draws points with error bars, as `Axes.errorbar` does with these options; hollow ones unless they are filled."""
    axes.errorbar(
        x,
        y,
        color=style.colour,
        marker=style.marker,
        markerfacecolor=style.colour if filled else "white",
        **{"markersize": 4, "elinewidth": 0.8, **options},
    )


def note(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **options: Any) -> None:
    """Writes a small text beside a point, at an offset in points."""
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **{"fontsize": 9, **options})


def set_ticks(axis: Axis, ticks: Iterable[float], low: float, high: float) -> None:
    """Writes only the ticks of an axis that lie in a range, as plain numbers, and removes the minor ones."""
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, labels=[f"{tick:g}".replace("-", "−") for tick in shown])
    axis.set_ticks([], minor=True)


def legend_outside(drawn: Figure, axes: Axes, *, columns: int | None = None) -> None:
    """Draws the legend of the axes beside the figure or, in columns, below it, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(
        handles,
        labels,
        loc="outside right center" if columns is None else "outside lower center",
        ncols=columns or 1,
        fontsize=9,
        handlelength=3.2,
        columnspacing=1.6,
    )


@contextmanager
def patient() -> Iterator[None]:
    """Silences matplotlib's warning that a legend took more than a second, as it may on a busy machine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message='Creating legend with loc="best" can be slow')
        yield


def save_as(drawn: Figure, path: Path) -> Path:
    """Writes the figure to a file; the suffix of the path determines the format."""
    try:
        with _matplotlib()[0].rc_context(STYLE), patient():
            if path.suffix == ".svg":
                path.write_text(as_svg(drawn), encoding="utf-8")
            else:
                drawn.savefig(path)
    except (OSError, ValueError) as error:
        raise SettingError(f"cannot draw into {path}: {error}") from error
    return path


def save(drawn: Figure, folder: Path, name: str) -> list[Path]:
    """Writes the figure as SVG and PNG, and returns their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"cannot write figures into {folder}: {error.strerror or error}") from error
    return [save_as(drawn, folder / f"{name}{suffix}") for suffix in (".svg", ".png")]


def as_svg(drawn: Figure) -> str:
    """Returns the figure as SVG text with a title and a description, byte for byte the same for the same data."""
    text = io.StringIO()
    with _matplotlib()[0].rc_context(STYLE), patient():
        drawn.savefig(text, format="svg", metadata={"Date": None})
    head, opening, body = text.getvalue().partition("<svg ")
    attributes, end, content = body.partition(">")
    words = f"<title>{escape(title_of(drawn))}</title>\n <desc>{escape(description_of(drawn))}</desc>"
    return f'{head}{opening}role="img" {attributes}{end}\n {words}{content}'


def thin_curve(values: FloatArray, most: int = 500) -> tuple[FloatArray, FloatArray]:
    """Returns at most `most` rounds and values of a long curve, evenly spaced on a logarithmic axis.

    The first and the last round are always included.
    """
    rounds = np.unique(np.geomspace(1, len(values), most).round().astype(np.int64))
    return rounds.astype(np.float64), values[rounds - 1]


def _marked(x: FloatArray, style: Style, *, log: bool) -> list[int]:
    """Returns the indices of the points with a marker; different markers begin at different points."""
    if not len(x):
        return []
    first = (sum(map(ord, style.marker)) % 7 + 1) / 8
    steps = (np.arange(MARKERS) + first) / MARKERS
    low, high = max(float(x[0]), float(x[-1]) / 1000 if log else float(x[0])), float(x[-1])
    wanted = low * (high / low) ** steps if log and low > 0 else low + (high - low) * steps
    return sorted(set(np.minimum(np.searchsorted(x, wanted), len(x) - 1).tolist()))


def _matplotlib() -> tuple[Any, type[Figure]]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingError("figures need matplotlib: pip install 'turnout[plots]'") from error
    return mpl, Figure
