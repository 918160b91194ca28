"""A figure of the partition of a dataset over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnout.kernel.arrays import IntArray
from turnout.lab.drawing.style import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_partition(counts: IntArray, classes: Sequence[str], title: str) -> Figure:
    """Draws the number of items of each class (rows) at each client (columns); brighter means more items."""
    with figure(8.0, 3.2) as drawn:
        axes = drawn.subplots()
        image = axes.imshow(counts.T, aspect="auto", cmap="cividis", interpolation="nearest", vmin=0)
        axes.set(title=f"Items of each class: {title}", xlabel="client, by index", ylabel="class")
        axes.set_yticks(range(len(classes)), classes)
        drawn.colorbar(image, ax=axes, label="items")
        return drawn
