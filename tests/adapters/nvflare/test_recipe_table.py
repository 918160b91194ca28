"""Every recipe of the installed NVFlare is in the table of docs/nvflare.md, which says what becomes of it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nvflare
import pytest

from turnout.adapters.nvflare import FairSelection, select_fairly
from turnout.adapters.nvflare.internals import components_of, job_of, workflows_of
from turnout.errors import SettingError

FLEET = "/srv/fleet.turnout"
PACKAGE = Path(nvflare.__file__).parent
PAGE = Path(__file__).parents[3] / "docs/nvflare.md"
FAIR, REFUSED = "fair", "refused"
#: They need components of their users, or a device runtime.
NOT_BUILT = {"DhPSIRecipe", "FedStatsRecipe", "CollabRecipe", "nvflare.recipe.cyclic.CyclicRecipe", "ETFedBuffRecipe"}


@cache
def offered() -> list[str]:
    """Returns all recipes in the source of the installed NVFlare, also those whose packages are missing."""
    recipes = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)] if "Recipe" in text else []
        for node in classes:
            is_recipe = any(ast.unparse(base).endswith("Recipe") for base in node.bases)
            if is_recipe and not node.name.startswith("Base"):
                recipes.append(f"{module}.{node.name}")
    return sorted(recipes)


def outcome_of(path: str) -> str:
    """Returns what the table says about a recipe: whether it becomes fair or is refused."""
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| `nvflare.")]
    name = f"`{path.rpartition('.')[2]}`"
    outcomes = [
        outcome
        for packages, *cells in rows
        for cell, outcome in zip(cells, (FAIR, REFUSED), strict=True)
        if name in cell and any(path.startswith(f"{package}.") for package in re.findall(r"[\w.]+", packages))
    ]
    assert len(outcomes) == 1, f"docs/nvflare.md names {path} of NVFlare {nvflare.__version__} {len(outcomes)} times"
    return outcomes[0]


class StandIn(type):
    """A class in whose place any package can be imported: each name in it is such a class."""

    def __getattr__(cls, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})


@pytest.fixture
def missing() -> Iterator[set[str]]:
    """The packages that a recipe needs and that are not installed; afterwards, what used them is removed."""
    before, packages = set(sys.modules), set[str]()
    yield packages
    if packages:
        for name in packages | {module for module in sys.modules if module.startswith("nvflare.")} - before:
            del sys.modules[name]


def built(path: str, missing: set[str]) -> Any:
    """Builds a recipe; packages that are not installed are replaced."""
    module, _, name = path.rpartition(".")
    while True:
        try:
            recipe = getattr(importlib.import_module(module), name)
            return recipe(**arguments_of(recipe))
        except ModuleNotFoundError as error:
            package = str(error.name)
        assert package not in missing, package
        missing.add(package)
        sys.modules[package] = StandIn(package, (), {})  # type: ignore[assignment]


def arguments_of(recipe: Callable[..., Any]) -> dict[str, Any]:
    """Returns arguments for the constructor of a recipe: those of the following that it has."""
    module, parameters = recipe.__module__, inspect.signature(recipe).parameters
    known: dict[str, Any] = {
        **dict.fromkeys(("name", "job_name"), "digits"),
        **dict.fromkeys(("train_script", "task_script", "eval_script"), "client.py"),
        **{"model": None, "min_clients": 2, "num_rounds": 2, "eval_ckpt": "/srv/model.pt", "n_clusters": 3},
        **{"label_owner": "site-1", "flower_content": "."},
    }
    if ".np." in module:
        known["model"] = [0.0, 0.0]
    elif ".tf." in module or module == "nvflare.recipe.fedavg":
        known["model"] = {"class_path": "digits.Net", "args": {}}
    elif ".pt." in module or ".edge." in module:
        known["model"] = importlib.import_module("torch").nn.Linear(2, 1)
    if ".edge." in module:
        configurations = sys.modules[module]
        known["model_manager_config"] = configurations.ModelManagerConfig(num_updates_for_model=2)
        known["device_manager_config"] = configurations.DeviceManagerConfig(device_selection_size=4)
    return {name: value for name, value in known.items() if name in parameters and value is not None}


def test_the_page_has_every_recipe_of_this_nvflare() -> None:
    assert {outcome_of(path) for path in offered()} == {FAIR, REFUSED}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", [path for path in offered() if not any(path.endswith(name) for name in NOT_BUILT)])
def test_recipes_become_fair_or_are_refused_as_the_page_says(
    path: str, missing: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("client.py").touch()
    pytest.importorskip("torch", reason="most recipes need PyTorch")
    recipe = built(path, missing)
    if ".edge." in path:
        with pytest.raises(SettingError, match=r"are selected by turnout\.adapters\.nvflare\.edge\.fill_fairly"):
            select_fairly(recipe, fleet=FLEET)
        edge = pytest.importorskip("turnout.adapters.nvflare.edge", reason="needs NVFlare 2.9", exc_type=ImportError)
        edge.fill_fairly(recipe, fleet=FLEET, guarantee={"guaranteed_rate": 0.01})
        assert any(isinstance(part, edge.FairDeviceManager) for part in components_of(job_of(recipe)).values())
    elif outcome_of(path) == FAIR:
        select_fairly(recipe, fleet=FLEET, reporter=None)
        assert any(isinstance(workflow.controller, FairSelection) for workflow in workflows_of(job_of(recipe)))
    else:
        with pytest.raises(SettingError, match=r"run it without|class Mine\(Fair|configure it"):
            select_fairly(recipe, fleet=FLEET)
