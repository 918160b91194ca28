"""Notebooks are kept as scripts in percent format; `python tests/notebooks.py` writes the notebooks of `examples/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = ("first_comparison",)
CELL, MARKDOWN = "# %%", "# %% [markdown]"


def as_notebook(script: str) -> dict[str, Any]:
    """Returns the notebook (format 4.5) with the cells of a script."""
    cells: list[tuple[bool, list[str]]] = []
    for line in script.splitlines():
        if line.startswith(CELL):
            cells.append((line == MARKDOWN, []))
        elif cells:
            cells[-1][1].append(line)
        elif line:
            raise ValueError(f"the script must begin with {CELL!r}, not with {line!r}")
    return {
        "cells": [_cell(number, *cell) for number, cell in enumerate(cells, start=1)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def as_text(notebook: dict[str, Any]) -> str:
    """Returns a notebook as it is written to a file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, is_markdown: bool, lines: list[str]) -> dict[str, Any]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    if is_markdown:
        lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
    source = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    if is_markdown:
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": source}
    code: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": {},
        "outputs": [],
    }
    return {**code, "source": source}


if __name__ == "__main__":
    for name in NOTEBOOKS:
        script = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        (EXAMPLES / f"{name}.ipynb").write_text(as_text(as_notebook(script)), encoding="utf-8")
