"""The code blocks in the documentation run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

from adapters.flower.in_process import InProcessGrid, Node, model, plain_app, weights
from turnout.adapters.flower import identify_clients
from turnout.adapters.flower.client import with_status

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("document", ["README.md", "docs/flower.md"])
def test_the_code_in_the_documentation_trains_fairly(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if "FairSelection(" in block]
    assert len([line for line in code.splitlines() if line]) == 6
    grid = InProcessGrid([Node(100 + n, with_status(plain_app()), {"client-id": f"c{n}"}) for n in range(12)])
    names: dict[str, Any] = {"FedAvg": FedAvg, "grid": grid, "arrays": model(0.0)}
    exec(code.replace("/srv/", ""), names)
    assert sorted(names["result"].train_metrics_clientapp) == list(range(1, 101))
    assert weights(names["result"].arrays) > [0.0]
    cohorts = grid.asked("train")
    assert [len(cohort) for cohort in cohorts] == [8] * 100
    turns = [sum(f"c{n}" in cohort for cohort in cohorts) for n in range(12)]
    assert min(turns) >= 10
    with names["fair"].scheduler as scheduler:
        assert scheduler.certificate().status == "kept"


def test_the_line_for_clients_wraps_an_app() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/flower.md").read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if "with_status(app)" in block]
    app = plain_app()
    names: dict[str, Any] = {"app": app}
    exec(code, names)
    grid = InProcessGrid([Node(100, names["app"], {"client-id": "hospital-7"})])
    assert names["app"] is not app
    assert list(identify_clients(grid)) == ["hospital-7"]
