"""Labels beside points."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.text import Annotation

from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.style import figure


def test_labels_of_crowded_points_overlap_neither_each_other_nor_the_points() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(0.0, 1.0, 12), rng.uniform(0.0, 0.2, 12)
    texts = [f"contender {number}" for number in range(12)]
    with figure(9.0, 5.0) as drawn:
        axes = drawn.subplots()
        axes.plot(x, y, "o", markersize=4)
        axes.plot([0.0, 1.0], [0.5, 0.5])
        axes.set(xlim=(-0.1, 1.2), ylim=(-0.2, 1.0))
        write_labels(axes, x, y, texts)
        drawn.draw_without_rendering()
        notes = [child for child in axes.get_children() if isinstance(child, Annotation) and child.get_text()]
        boxes = [note.get_window_extent() for note in notes]
        points = axes.transData.transform(np.column_stack([x, y]))
    assert [note.get_text() for note in notes] == texts
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert not any(box.contains(*point) for point in points.tolist())
        assert axes.bbox.contains(box.x0, box.y0)
        assert axes.bbox.contains(box.x1, box.y1)


def test_a_label_does_not_cover_a_line_or_the_legend() -> None:
    with figure(5.0, 4.0) as drawn:
        axes = drawn.subplots()
        axes.plot([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], label="line")
        axes.legend(loc="upper left")
        write_labels(axes, np.array([1.0, 0.0]), np.array([1.0, 1.9]), ["a long label", "at the legend"])
        drawn.draw_without_rendering()
        notes = [child for child in axes.get_children() if isinstance(child, Annotation) and child.get_text()]
        line = axes.transData.transform(np.column_stack([np.linspace(0, 2, 400)] * 2))
        legend = axes.get_legend()
        assert legend is not None
        assert not any(notes[0].get_window_extent().contains(*point) for point in line.tolist())
        assert not notes[1].get_window_extent().overlaps(legend.get_window_extent())
