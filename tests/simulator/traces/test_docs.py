from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.simulator.traces.formats.files import read_traces

PAGE = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")


def examples(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_example_files_of_the_page_are_valid(kind: str, tmp_path: Path) -> None:
    assert examples(kind)
    for number, text in enumerate(examples(kind)):
        path = tmp_path / f"{number}.{kind}"
        path.write_text(text)
        assert read_traces(path).parts


def test_the_example_program_of_the_page_runs(tmp_path: Path) -> None:
    (program,) = examples("python")
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "devices: generated" in process.stdout
