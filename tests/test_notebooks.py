"""The notebooks of `examples/`: their cells are those of their scripts, and they run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks import EXAMPLES, NOTEBOOKS, as_notebook, as_text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_the_cells_of_its_script(name: str) -> None:
    script = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    written = (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    assert written == as_text(as_notebook(script)), "run python tests/notebooks.py"


def test_every_notebook_is_known() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == sorted(NOTEBOOKS)


@pytest.mark.thorough
def test_the_first_comparison_runs_cell_by_cell(tmp_path: Path) -> None:
    """The cells' code runs without a Jupyter kernel, which takes longer to start than the notebook to run."""
    cells = json.loads((EXAMPLES / "first_comparison.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = "import json, sys\nspace = {}\nfor source in json.load(sys.stdin):\n    exec(source, space)\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPLBACKEND": "Agg", "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "9 runs in runs.turnout" in done.stdout
    (fair, _, random) = re.findall(r"^(?:FairPace|RBCS-F, weight 20|random) +(\d+\.\d+)", done.stdout, re.MULTILINE)[:3]
    assert float(fair) < float(random)
    (picture,) = tmp_path.rglob("comparison.png")
    assert picture.stat().st_size > 10_000
