"""Makes the controller of a recipe or of a job select fairly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Literal, Unpack

from nvflare.apis.impl.controller import Controller
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.lr.fedavg import FedAvgLR
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe
from nvflare.widgets.widget import Widget

from turnout.adapters.nvflare.controllers import FairFedAvg, FairFedAvgLR, FairScaffold, FairScatterAndGather
from turnout.adapters.nvflare.fleet import SchedulerOptions
from turnout.adapters.nvflare.selection import FairSelection
from turnout.adapters.nvflare.status import StatusReporter
from turnout.errors import SettingError

FAIR: Mapping[type[Controller], type[FairSelection]] = {
    FedAvg: FairFedAvg,
    FedAvgLR: FairFedAvgLR,
    Scaffold: FairScaffold,
    ScatterAndGather: FairScatterAndGather,
}
PACKAGE = "turnout"


class SelectionOptions(SchedulerOptions, total=False):
    """The options of `select_fairly`: those of `FairSelection` and, without a mapping, those of the scheduler."""

    guarantee: Mapping[str, Any] | None
    groups: Mapping[str, str] | str | None
    eligible: Sequence[str] | None
    quota: Mapping[str, int] | None
    patience: float
    loss_key: str
    tracker: str | None


def select_fairly(
    recipe: Recipe | FedJob,
    *,
    fleet: str,
    reporter: Widget | Literal["default"] | None = "default",
    **options: Unpack[SelectionOptions],
) -> None:
    """Replaces the controller of a recipe or job by one that selects fairly, and lets the clients report their status.

    Call it after everything else that configures the recipe. turnout must be installed on the server and, unless
    `reporter` is None, on the clients.

    Args:
        recipe: The recipe, or a job whose controller was added.
        fleet: The file of the fleet, an absolute path on the server.
        reporter: The widget that reports the status of a client; None if nothing is reported, and only times are
            learned.
        options: The other arguments of `FairSelection`: `guarantee`, `groups`, `eligible`, `quota`, `patience`,
            `loss_key`, `tracker`, and the `deadline` of a round (without one, a client that hangs stops the training);
            and options of `Scheduler.open`, such as `policy`, `overcommit` and `backoff_after`. Without a
            `cohort_size`, a round has as many clients as the controller asks for: `min_clients` of a recipe.

    Raises:
        SettingError: If an argument is invalid, or the job has no controller that selects clients.
    """
    job = recipe if isinstance(recipe, FedJob) else job_of(recipe)
    workflow = _workflow_to_replace(job)
    controller, fair = workflow.controller, FAIR[type(workflow.controller)]
    selecting = fair.__new__(fair)
    selecting.__dict__.update(controller.__dict__)
    arguments = {
        name: parameter.default
        for name, parameter in signature(FairSelection.__init__).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    of_scheduler = {name: value for name, value in options.items() if name not in arguments}
    own = {name: value for name, value in options.items() if name in arguments}
    selecting.__dict__.update({**arguments, **own, "fleet": fleet, "options": of_scheduler or None})
    selecting.prepare_selection()
    workflow.controller = selecting
    # The package is installed where it is needed: without this, NVFlare copies parts of it into the job.
    job.set_app_packages([*job.job.app_packages, PACKAGE])
    if reporter is not None:
        _add_to_clients(recipe, job, StatusReporter() if reporter == "default" else reporter)


def job_of(recipe: Recipe) -> FedJob:
    """Returns the job of a recipe; raises SettingError if it is none."""
    job = getattr(recipe, "_job", None) or getattr(recipe, "job", None)  # the latter until NVFlare 2.7
    if not isinstance(job, FedJob):
        raise SettingError(f"recipe must be a recipe or a job of NVFlare, got {recipe!r}")
    return job


def _workflow_to_replace(job: FedJob) -> Any:
    """Returns the workflow whose controller selects clients."""
    server = job._deploy_map.get("server")
    workflows = [] if server is None else server.app_config.workflows
    replaceable = [workflow for workflow in workflows if type(workflow.controller) in FAIR]
    if not replaceable:
        controllers = ", ".join(type(workflow.controller).__name__ for workflow in workflows) or "no controller"
        known = ", ".join(controller.__name__ for controller in FAIR)
        raise SettingError(
            f"select_fairly replaces {known}, but the job has {controllers}: for a controller that calls "
            "sample_clients, write class Mine(FairSelection, …) and add it to a job"
        )
    return replaceable[0]


def _add_to_clients(recipe: Recipe | FedJob, job: FedJob, widget: Widget) -> None:
    """Adds a widget to every client app of the job."""
    add = getattr(recipe, "_add_to_client_apps", None)  # since NVFlare 2.8: client apps are built when first needed
    if add is not None:
        add(widget)
        return
    sites = [target for target in job.clients if target not in ("@ALL", "server")]
    for site in sites:
        job.to(widget, site)
    if not sites:
        job.to_clients(widget)
