"""The common style of all figures, how they are described and written, and labels that overlap nothing."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.lab.drawing.palette import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any  # for annotations; matplotlib is imported when a figure is drawn


def description_of(drawn: Figure) -> str:
    """Returns for each panel its axes, and the last value of each labelled line or the place of each labelled point."""
    shared = {axes: _shared_label(drawn, axes) for axes in drawn.axes}
    return " ".join(_panel(axes, shared[axes]) for axes in drawn.axes if axes.get_label() != "<colorbar>")


def _panel(axes: Axes, y_label: str) -> str:
    heading = _heading(axes)
    plotted = f"{y_label or 'rows'} against {axes.get_xlabel()}" if axes.get_xlabel() else y_label
    shown = ", ".join(_contents(axes))
    parts = [part for part in (heading, plotted, shown) if part]
    return ": ".join(parts) + "." if parts else ""


def _contents(axes: Axes) -> Iterator[str]:
    """Yields each labelled line with its last value, or its place if it is a point."""
    handles, labels = axes.get_legend_handles_labels()
    for handle, label in zip(handles, labels, strict=True):
        line = handle[0] if isinstance(handle, tuple) else handle
        data = line.get_data() if hasattr(line, "get_data") else ((), ())
        x, y = (np.asarray(values, dtype=np.float64) for values in data)
        if len(x) == 1:
            yield f"{label} at ({x[0]:.3g}, {y[0]:.3g})"
        elif len(x):
            yield f"{label} ends at {y[-1]:.3g}"


def _shared_label(drawn: Figure, axes: Axes) -> str:
    """Returns the label of the y axis, or that of the first panel of its row, which shares the axis."""
    if axes.get_ylabel():
        return axes.get_ylabel()
    siblings = axes.get_shared_y_axes().get_siblings(axes)
    return next((other.get_ylabel() for other in drawn.axes if other in siblings and other.get_ylabel()), "")


def _heading(axes: Axes) -> str:
    return axes.get_title(loc="left") or axes.get_title()


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
    title = "; ".join(dict.fromkeys(filter(None, map(_heading, drawn.axes))))
    words = f"<title>{escape(title)}</title>\n <desc>{escape(description_of(drawn))}</desc>"
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


#: Distances between a point and its label in points, the nearest first.
DISTANCES = (5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0)
#: Directions of a label from its point, the most readable first.
DIRECTIONS = ((1, 0.6), (1, -0.6), (-1, 0.6), (-1, -0.6), (0, 1), (0, -1), (1, 0), (-1, 0))
#: Beyond this distance in points, a thin line connects a label with its point.
NEAR = 10.0
#: The radius of a point in points.
RADIUS = 4.0
#: The distance between two places on a line that a label avoids, in pixels.
LINE_STEP = 4.0

Box = tuple[float, float, float, float]


def write_labels(axes: Axes, x: FloatArray, y: FloatArray, texts: Sequence[str]) -> None:
    """Writes a text beside each point of finished axes, where it overlaps as little as possible.

    Args:
        axes: The axes; their limits, scales and labels must not change afterwards.
        x: The x coordinates of the points.
        y: The y coordinates of the points.
        texts: The texts.
    """
    drawn = axes.get_figure(root=True)
    assert drawn is not None, "the axes belong to a figure"
    with patient():
        drawn.draw_without_rendering()
    scale = drawn.dpi / 72
    points = axes.transData.transform(np.column_stack([x, y])) / scale
    frame = axes.get_window_extent()
    limits = (frame.x0 / scale, frame.y0 / scale, frame.x1 / scale, frame.y1 / scale)
    taken: list[Box] = [(a - RADIUS, b - RADIUS, a + RADIUS, b + RADIUS) for a, b in points.tolist()]
    legend = axes.get_legend()
    if legend is not None:
        key = legend.get_window_extent()
        taken.append((key.x0 / scale, key.y0 / scale, key.x1 / scale, key.y1 / scale))
    lines = _along_lines(axes) / scale
    for index, text in enumerate(texts):
        at = x[index], y[index]
        note = axes.annotate(text, at, xytext=(0, 0), textcoords="offset points", fontsize=8, ha="center", va="center")
        note.set_in_layout(False)
        extent = note.get_window_extent()
        width, height = extent.width / scale, extent.height / scale
        offset, box = _best(points[index], width, height, taken, lines, limits)
        note.xyann = offset
        taken.append(box)
        if np.hypot(max(abs(offset[0]) - width / 2, 0.0), max(abs(offset[1]) - height / 2, 0.0)) > NEAR:
            arrow = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            edge = _edge(offset, width, height)
            line = axes.annotate("", at, xytext=edge, textcoords="offset points", arrowprops=arrow)
            line.set_in_layout(False)


def _best(
    point: FloatArray, width: float, height: float, taken: Sequence[Box], lines: FloatArray, limits: Box
) -> tuple[tuple[float, float], Box]:
    """Returns the first place that overlaps nothing, or else the one that overlaps least."""
    best: tuple[float, tuple[float, float], Box] | None = None
    for distance in DISTANCES:
        for right, up in DIRECTIONS:
            offset = (right * (distance + width / 2), up * (distance + height / 2))
            x, y = point[0] + offset[0], point[1] + offset[1]
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            covered = sum(_overlap(box, other) for other in taken) + width * height - _overlap(box, limits)
            inside = (lines > (box[0], box[1])).all(axis=1) & (lines < (box[2], box[3])).all(axis=1)
            covered += float(inside.sum())
            if best is None or covered < best[0] - 1e-9:
                best = (covered, offset, box)
            if covered < 1e-6:
                return offset, box
    assert best is not None, "there are directions and distances"
    return best[1], best[2]


def _along_lines(axes: Axes) -> FloatArray:
    """Returns places on all lines of the axes, in pixels: a label should not cover them."""
    places = [np.empty((0, 2))]
    for line in axes.get_lines():
        path = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=np.float64))
        if line.get_linestyle() != "None":
            for start, end in pairwise(path):
                steps = np.linspace(0.0, 1.0, max(int(np.hypot(*(end - start)) / LINE_STEP), 1), endpoint=False)
                places.append(start + steps[:, None] * (end - start))
    return np.concatenate(places)


def _overlap(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def _edge(offset: tuple[float, float], width: float, height: float) -> tuple[float, float]:
    """Returns the place on the label that is nearest to the point."""
    return (
        float(np.clip(0.0, offset[0] - width / 2, offset[0] + width / 2)),
        float(np.clip(0.0, offset[1] - height / 2, offset[1] + height / 2)),
    )
