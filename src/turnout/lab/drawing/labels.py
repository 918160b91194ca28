"""Writes labels beside points so that they overlap neither each other nor the points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.drawing.style import patient

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def write_labels(axes: Axes, x: FloatArray, y: FloatArray, texts: Sequence[str], *, size: float = 8.0) -> None:
    """Writes a text beside each point of finished axes, where it overlaps as little as possible.

    Args:
        axes: The axes; their limits, scales and labels must not change afterwards.
        x: The x coordinates of the points.
        y: The y coordinates of the points.
        texts: The texts.
        size: The font size in points.
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
        note = axes.annotate(
            text,
            (x[index], y[index]),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=size,
            color="black",
            ha="center",
            va="center",
        )
        note.set_in_layout(False)
        extent = note.get_window_extent()
        width, height = extent.width / scale, extent.height / scale
        offset, box = _best(points[index], width, height, taken, lines, limits)
        note.xyann = offset
        taken.append(box)
        if np.hypot(*_gap(offset, width, height)) > NEAR:
            line = axes.annotate(
                "",
                (x[index], y[index]),
                xytext=_edge(offset, width, height),
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
            )
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
            covered = sum(_overlap(box, other) for other in taken) + _outside(box, limits)
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


def _outside(box: Box, limits: Box) -> float:
    area = (box[2] - box[0]) * (box[3] - box[1])
    return area - _overlap(box, limits)


def _gap(offset: tuple[float, float], width: float, height: float) -> tuple[float, float]:
    """Returns the distances between a point and the nearest edges of its label."""
    return max(abs(offset[0]) - width / 2, 0.0), max(abs(offset[1]) - height / 2, 0.0)


def _edge(offset: tuple[float, float], width: float, height: float) -> tuple[float, float]:
    """Returns the place on the label that is nearest to the point."""
    return (
        float(np.clip(0.0, offset[0] - width / 2, offset[0] + width / 2)),
        float(np.clip(0.0, offset[1] - height / 2, offset[1] + height / 2)),
    )
