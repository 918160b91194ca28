"""Recipes and jobs that select fairly: NVFlare reads the job again; docs/nvflare.md has a table of them."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nvflare
import pytest
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.lr.fedavg import FedAvgLR
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from turnout.adapters.nvflare import (
    FairFedAvg,
    FairFedAvgLR,
    FairScaffold,
    FairScatterAndGather,
    FairSelection,
    StatusReporter,
    select_fairly,
)
from turnout.adapters.nvflare.internals import components_of, job_of, workflows_of
from turnout.errors import SettingError

FLEET = "/srv/fleet.turnout"
HAS_STOP = "stop_cond" in inspect.signature(FedAvg).parameters
STOP: dict[str, Any] = {"stop_cond": "accuracy >= 0.8", "patience": 3} if HAS_STOP else {}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A training script in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("client.py").write_text("print('training')\n")
    return "client.py"


def numpy_recipe(script: str) -> NumpyFedAvgRecipe:
    has_model = "model" in inspect.signature(NumpyFedAvgRecipe).parameters
    model = {"model": [0.0, 0.0]} if has_model else {}
    return NumpyFedAvgRecipe(name="digits", min_clients=3, num_rounds=4, train_script=script, **model)


def job_with(controller: Any, script: str) -> FedJob:
    job = FedJob(name="own")
    job.to_server(NPModelPersistor(), id="persistor")
    job.to_server(controller)
    job.to_clients(ScriptRunner(script=script, framework=FrameworkType.NUMPY))
    return job


def exported(recipe: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Returns the server's and the clients' configuration of the written job, and all file names in it."""
    job = recipe if isinstance(recipe, FedJob) else getattr(recipe, "_job", None) or recipe.job
    job.export_job(str(folder / "jobs"))
    files = sorted(path.relative_to(folder).as_posix() for path in (folder / "jobs").rglob("*") if path.is_file())
    (server,) = (folder / "jobs").rglob("config_fed_server.json")
    (client,) = (folder / "jobs").rglob("config_fed_client.json")
    return json.loads(server.read_text()), json.loads(client.read_text()), files


def rebuilt(component: dict[str, Any]) -> Any:
    """Builds a component of a job as NVFlare does on the server."""
    module, _, name = component["path"].rpartition(".")
    return getattr(importlib.import_module(module), name)(**component["args"])


def test_a_recipe_becomes_a_job_whose_controller_selects_fairly(script: str, tmp_path: Path) -> None:
    recipe = numpy_recipe(script)
    select_fairly(
        recipe, fleet=FLEET, guarantee={"guaranteed_rate": 0.1, "tolerance": 3.0}, deadline=60, overcommit=1.2
    )
    server, client, files = exported(recipe, tmp_path)
    (workflow,) = server["workflows"]
    controller = rebuilt(workflow)
    assert isinstance(controller, FairFedAvg | FairScatterAndGather)
    guarantee = {"guaranteed_rate": 0.1, "tolerance": 3.0}
    assert controller.selection == {"fleet": FLEET, "guarantee": guarantee, "deadline": 60, "overcommit": 1.2}
    assert 4 in (getattr(controller, "num_rounds", None), getattr(controller, "_num_rounds", None))
    assert "turnout.adapters.nvflare.status.StatusReporter" in [entry["path"] for entry in client["components"]]
    assert not any("turnout" in name for name in files)  # the package is installed, not copied
    assert any(name.endswith("custom/client.py") for name in files)  # the training script is unchanged
    (copied,) = [name for name in files if name.endswith("custom/client.py")]
    assert (tmp_path / copied).read_text() == Path(script).read_text()


@pytest.mark.parametrize(
    ("controller", "fair", "kept"),
    [
        (FedAvg(num_clients=3, num_rounds=4), FairFedAvg, {"num_clients": 3, "num_rounds": 4}),
        pytest.param(
            FedAvg(num_clients=3, **STOP),
            FairFedAvg,
            {"num_clients": 3, **STOP},
            marks=pytest.mark.skipif(not STOP, reason="FedAvg of NVFlare 2.7 does not stop early"),
        ),
        (
            FedAvgLR(damping_factor=0.8, n_features=5, num_clients=3),
            FairFedAvgLR,
            {"damping_factor": 0.8, "n_features": 5, "num_clients": 3},
        ),
        (Scaffold(num_clients=3, num_rounds=4), FairScaffold, {"num_clients": 3, "num_rounds": 4}),
        (ScatterAndGather(min_clients=3, num_rounds=4), FairScatterAndGather, {"_min_clients": 3, "_num_rounds": 4}),
    ],
    ids=["FedAvg", "FedAvg that stops early", "FedAvgLR", "Scaffold", "ScatterAndGather"],
)
def test_the_controllers_of_nvflare_keep_their_arguments(
    controller: Any, fair: type[FairSelection], kept: dict[str, float], script: str, tmp_path: Path
) -> None:
    job = job_with(controller, script)
    options: Any = {"fleet": FLEET, "groups": {"a": "north"}, "eligible": ("north",), "quota": {"north": 1}}
    select_fairly(job, **options, tracker="tensorboard:/srv/logs", patience=5)
    server, _, _ = exported(job, tmp_path)
    again = rebuilt(server["workflows"][0])
    assert type(again) is fair
    assert {name: getattr(again, name) for name in kept} == kept
    stored = {**options, "eligible": ["north"], "tracker": "tensorboard:/srv/logs", "patience": 5}
    assert again.selection == stored
    assert not isinstance(controller, FairSelection)  # the original is unchanged


def test_a_controller_of_ones_own_is_written_with_all_arguments(script: str, tmp_path: Path) -> None:
    options: Any = {"fleet": FLEET, "deadline": "auto", "patience": 0.5, "loss_key": ""}
    job = job_with(FairFedAvg(num_clients=5, selection=options), script)
    job.set_app_packages(["turnout"])
    server, _, _ = exported(job, tmp_path)
    again = rebuilt(server["workflows"][0])
    assert (again.num_clients, again.selection) == (5, options)


def test_the_reporter_is_optional_and_can_be_replaced(script: str, tmp_path: Path) -> None:
    silent, own = job_with(FedAvg(num_clients=2), script), job_with(FedAvg(num_clients=2), script)
    select_fairly(silent, fleet=FLEET, reporter=None)
    select_fairly(own, fleet=FLEET, reporter=StatusReporter(bandwidth=50.0))
    _, client, _ = exported(silent, tmp_path / "silent")
    assert "StatusReporter" not in json.dumps(client)
    _, client, _ = exported(own, tmp_path / "own")
    (reporter,) = [entry for entry in client["components"] if entry["path"].endswith("StatusReporter")]
    assert rebuilt(reporter).bandwidth == 50.0


def test_a_job_is_made_fair_once_and_installed_packages_stay_out_of_it(script: str) -> None:
    job = job_with(FedAvg(num_clients=2), script)
    job.set_app_packages(["digits_library"])
    select_fairly(job, fleet=FLEET)
    assert job.job.app_packages == ["digits_library", "turnout"]
    with pytest.raises(SettingError, match="but the job has FairFedAvg"):
        select_fairly(job, fleet=FLEET)


def test_a_job_with_an_app_for_each_site_reports_from_each(script: str, tmp_path: Path) -> None:
    job = FedJob(name="own")
    job.to_server(FedAvg(num_clients=2))
    for site in ("site-1", "site-2"):
        job.to(ScriptRunner(script=script, framework=FrameworkType.NUMPY), site)
    select_fairly(job, fleet=FLEET)
    job.export_job(str(tmp_path / "jobs"))
    configurations = [path.read_text() for path in (tmp_path / "jobs").rglob("config_fed_client.json")]
    assert len(configurations) == 2
    assert all(text.count("turnout.adapters.nvflare.status.StatusReporter") == 1 for text in configurations)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fleet": "fleet.turnout"}, "fleet must be an absolute path on the server, or .*, got 'fleet.turnout'"),
        ({}, "fleet must be an absolute path on the server, or .*, got None"),
        ({"fleet": FLEET, "guarantee": {"garanteed_rate": 0.1}}, "garanteed_rate"),
        ({"fleet": FLEET, "guarantee": {"guaranteed_rate": 2.0}}, "guaranteed_rate"),
        ({"fleet": FLEET, "guarantee": [0.1]}, "guarantee must be a mapping"),
        ({"fleet": FLEET, "guarantee": {"path": "x"}}, "path"),  # NVFlare would take it for a component
        ({"fleet": FLEET, "deadline": -1}, "deadline"),
        ({"fleet": FLEET, "cohort_size": 3}, "cohort_size"),
        ({"fleet": FLEET, "settings": {"cohort_size": 3}}, "pass it as guarantee="),
        ({"fleet": FLEET, "groups": {"a": "b"}, "quota": {"b": -1}}, "quota of b"),
        ({"fleet": FLEET, "patience": -1}, "patience"),
    ],
)
def test_invalid_settings_are_refused_before_a_job_is_written(
    settings: dict[str, Any], message: str, script: str
) -> None:
    job = job_with(FedAvg(num_clients=2), script)
    with pytest.raises((SettingError, TypeError), match=message):
        select_fairly(job, **settings)


@pytest.mark.parametrize(
    ("path", "arguments", "advice"),
    [
        ("workflows.cyclic_ctl.CyclicController", {}, "passes the model through every client; run it without"),
        ("workflows.cross_site_model_eval.CrossSiteModelEval", {}, "evaluation needs every client; run it without"),
        ("ccwf.swarm_server_ctl.SwarmServerController", {"num_rounds": 2}, "they choose each other; run it without"),
        (
            "workflows.statistics_controller.StatisticsController",
            {"statistic_configs": {}, "writer_id": "writer"},
            "statistics need every client; run it without",
        ),
        ("workflows.cyclic.Cyclic", {}, r"if Cyclic calls sample_clients, write class Mine\(FairSelection, Cyclic\)"),
        (
            "workflows.scatter_and_gather_scaffold.ScatterAndGatherScaffold",
            {},
            r"write class Mine\(FairScatterAndGather, ScatterAndGatherScaffold\)",
        ),
        (
            "workflows.splitnn_workflow.SplitNNController",
            {"init_model_task_name": "init"},
            "SplitNNController chooses its clients itself; run it without",
        ),
    ],
)
def test_other_controllers_are_refused_with_advice_that_applies(
    path: str, arguments: dict[str, Any], advice: str, script: str
) -> None:
    module, _, name = f"nvflare.app_common.{path}".rpartition(".")
    controller = getattr(importlib.import_module(module), name)(**arguments)
    with pytest.raises(SettingError, match=f"but the job has {name}: .*{advice}"):
        select_fairly(job_with(controller, script), fleet=FLEET)


def test_what_is_no_job_or_has_no_controller_is_refused() -> None:
    with pytest.raises(SettingError, match="job has no controller: configure it first"):
        select_fairly(FedJob(name="empty"), fleet=FLEET)
    with pytest.raises(SettingError, match="must be a recipe or a job of NVFlare, got 5"):
        select_fairly(5, fleet=FLEET)


def test_an_evaluation_beside_the_training_is_left_alone(script: str) -> None:
    job = job_with(FedAvg(num_clients=2), script)
    job.to_server(CrossSiteModelEval())
    select_fairly(job, fleet=FLEET)
    assert [type(workflow.controller) for workflow in workflows_of(job)] == [FairFedAvg, CrossSiteModelEval]


def test_a_subclass_of_a_controller_must_be_combined_by_its_author(script: str) -> None:
    class Own(FedAvg):
        pass

    with pytest.raises(SettingError, match="the job has Own"):
        select_fairly(job_with(Own(num_clients=2), script), fleet=FLEET)

    class OwnFair(FairSelection, Own):
        pass

    assert OwnFair(num_clients=2, selection={"fleet": FLEET}).num_clients == 2


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
