"""The names of NVFlare that the adapter uses although they are private: a version without them is named here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nvflare
import pytest
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.lr.fedavg import FedAvgLR
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from turnout.adapters.nvflare import internals
from turnout.adapters.nvflare.controllers import FAIR
from turnout.adapters.nvflare.requirement import OLDEST

VERSION = tuple(int(part) for part in nvflare.__version__.split(".")[:2])
PRIVATE = re.compile("_[^_]")
OWN = Path(internals.__file__).parent


def is_missing(name: str) -> str:
    return f"NVFlare {nvflare.__version__} has no {name}: adapt turnout/adapters/nvflare/internals.py"


def test_the_private_names_exist_in_this_version() -> None:
    job = FedJob(name="own")
    job.to_server(FedAvg(num_clients=2), id="controller")
    (workflow,) = internals.workflows_of(job)
    assert isinstance(workflow.controller, FedAvg), is_missing("list of workflows")
    assert internals.components_of(job) is job._deploy_map["server"].app_config.components, is_missing("components")
    assert internals.job_of(Recipe(job)) is job, is_missing("job of a recipe")
    assert hasattr(ScatterAndGather(min_clients=3), "_min_clients"), is_missing("ScatterAndGather._min_clients")
    if VERSION > OLDEST:
        assert hasattr(FedAvg, "_get_aggregated_result"), is_missing("FedAvg._get_aggregated_result")
        assert hasattr(Recipe, "_add_to_client_apps"), is_missing("Recipe._add_to_client_apps")


@pytest.mark.parametrize(
    "controller",
    [
        FedAvg(num_clients=3),
        FedAvgLR(damping_factor=0.8, n_features=5, num_clients=3),
        Scaffold(num_clients=3),
        ScatterAndGather(min_clients=3),
    ],
    ids=lambda controller: type(controller).__name__,
)
def test_the_selection_replaces_no_attribute_of_a_controller(controller: Any) -> None:
    fair = internals.converted(controller, FAIR[type(controller)])
    fair.prepare_selection({"fleet": "/srv/fleet.turnout", "patience": 5})
    assert {name: getattr(fair, name) for name in vars(controller)} == vars(controller)


def test_private_names_of_nvflare_are_used_in_one_module_only() -> None:
    """A private attribute of something else than `self`, and one of `self` that the adapter never assigns."""
    uses = set()
    for path in set(OWN.glob("*.py")) - {Path(str(internals.__file__))}:
        tree = ast.parse(path.read_text())
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and PRIVATE.match(node.attr)]
        methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assigned = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        uses |= {
            f"{path.name}: {ast.unparse(node)}"
            for node in attributes
            if ast.unparse(node.value) != "self" or node.attr not in methods | assigned
        }
    assert uses == {"controllers.py: self._min_clients"}  # of a base class
