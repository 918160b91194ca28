"""The code blocks in the documentation run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

from adapters.flower.in_process import InProcessGrid, Node, model, named_nodes, open_to_all, plain_app, weights
from adapters.flower.test_client import context, message
from adapters.flower.test_legacy import Adder
from turnout.adapters.flower import ClientSettings, ExchangeSettings, identify_clients
from turnout.adapters.flower.client import with_status
from turnout.live import Scheduler

ROOT = Path(__file__).parents[3]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("document", ["README.md", "docs/flower.md"])
def test_the_code_in_documentation_trains_fairly(document: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    code = block_with("fair.start(", document)
    assert len([line for line in code.splitlines() if line]) == 6
    grid = InProcessGrid(named_nodes(12, [1.0 + n / 4 for n in range(12)]))
    names: dict[str, Any] = {"FedAvg": FedAvg, "grid": grid, "arrays": model(0.0)}
    rounds = 30
    assert "num_rounds=100" in code
    exec(code.replace("/srv/", "").replace("num_rounds=100", f"num_rounds={rounds}"), names)
    assert sorted(names["result"].train_metrics_clientapp) == list(range(1, rounds + 1))
    assert weights(names["result"].arrays) > [0.0]
    cohorts = grid.asked("train")
    assert [len(cohort) for cohort in cohorts] == [8] * rounds
    assert min([sum(f"c{n}" in cohort for cohort in cohorts) for n in range(12)]) >= 0.1 * rounds - 1
    with names["fair"].scheduler as scheduler:
        assert scheduler.certificate().status == "kept"


@pytest.mark.usefixtures("clock")
def test_the_code_without_rounds_trains_fairly(tmp_path: Path) -> None:
    grid = InProcessGrid(named_nodes(12, [1.0 + n / 4 for n in range(12)]))
    names: dict[str, Any] = {"Scheduler": Scheduler}
    names["strategy"] = open_to_all(fraction_evaluate=0.0)
    exec(block_with("VersionSettings(updates_per_version=4)").replace("/srv/", f"{tmp_path}/"), names)
    with names["scheduler"] as scheduler:
        assert len(names["fair"].start(grid, model(0.0), num_rounds=20).train_metrics_clientapp) == 20
        assert 80 <= scheduler.round <= 80 + 8 + 4
        assert scheduler.certificate().status == "kept"


def test_the_line_for_clients_of_the_older_interface_wraps_a_client_fn() -> None:
    sent = message("train")
    sent.content.config_records["config"]["step"] = 1.0
    names: dict[str, Any] = {"client_fn": lambda _: Adder()}
    exec(block_with("message_app(client_fn)"), names)
    assert names["app"](sent, context()).content.metric_records["metrics"]["num-examples"] == 10


def test_the_code_for_groups_reserves_places_also_for_clients_that_join_later(tmp_path: Path) -> None:
    app = with_status(plain_app())
    cities = ("berlin", "paris", "rome")
    nodes = [Node(100 + n, app, {"client-id": f"c{n}", "city": cities[n % 3]}) for n in range(12)]
    names: dict[str, Any] = {"Scheduler": Scheduler, "strategy": open_to_all()}
    exec(block_with('groups="city"').replace("/srv/", f"{tmp_path}/"), names)
    with names["scheduler"] as scheduler:
        names["fair"].start(InProcessGrid(nodes[:9]), model(0.0), num_rounds=1)
        assert scheduler.settings.settings["groups"] == [cities[n % 3] for n in range(9)]
        names["fair"].start(InProcessGrid(nodes), model(0.0), num_rounds=1)
        assert scheduler.clients[9:] == ["c10", "c11", "c9"]
        assert scheduler.settings.settings["groups"][9:] == ["paris", "rome", "berlin"]


def block_with(text: str, page: str = "docs/flower.md") -> str:
    """Returns the block of the documentation that contains a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if text in block]
    return str(code)


def test_the_line_for_clients_wraps_an_app() -> None:
    code = block_with("with_status(app)")
    app = plain_app()
    names: dict[str, Any] = {"app": app}
    exec(code, names)
    grid = InProcessGrid([Node(100, names["app"], {"client-id": "hospital-7"})])
    assert names["app"] is not app
    assert list(identify_clients(grid)) == ["hospital-7"]


def test_the_defaults_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "flower.md").read_text()
    (seconds,) = re.findall(r"`patience` \((\d+) s\)", page)
    assert ClientSettings().patience == float(seconds)
    (poll,) = re.findall(r"`poll` \((\S+) s\)", page)
    assert ExchangeSettings().poll == float(poll)
