"""The title and the description of a figure in words, computed from what it shows, for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def title_of(drawn: Figure) -> str:
    """Returns the titles of all panels, each once."""
    return "; ".join(dict.fromkeys(filter(None, map(_heading, drawn.axes))))


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
        x, y = (np.asarray(values, dtype=np.float64) for values in _data(line))
        if len(x) == 1:
            yield f"{label} at ({x[0]:.3g}, {y[0]:.3g})"
        elif len(x):
            yield f"{label} ends at {y[-1]:.3g}"


def _data(line: Any) -> tuple[Any, Any]:
    return line.get_data() if hasattr(line, "get_data") else ((), ())


def _shared_label(drawn: Figure, axes: Axes) -> str:
    """Returns the label of the y axis, or that of the first panel of its row, which shares the axis."""
    if axes.get_ylabel():
        return axes.get_ylabel()
    siblings = axes.get_shared_y_axes().get_siblings(axes)
    return next((other.get_ylabel() for other in drawn.axes if other in siblings and other.get_ylabel()), "")


def _heading(axes: Axes) -> str:
    return axes.get_title(loc="left") or axes.get_title()
