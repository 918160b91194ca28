"""Makes the controller of a recipe or of a job select fairly."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe
from nvflare.widgets.widget import Widget

from turnout.adapters.nvflare import internals
from turnout.adapters.nvflare.controllers import FAIR
from turnout.adapters.nvflare.fleet import SelectionOptions
from turnout.adapters.nvflare.selection import FairSelection
from turnout.adapters.nvflare.status import StatusReporter
from turnout.errors import SettingError

#: Why nobody can be selected, by the name of a controller: to import these classes would cost seconds.
NO_SELECTION = {
    "CyclicController": "cyclic training passes the model through every client",
    "ServerSideController": "in swarm learning, as in all workflows that run in the clients, they choose each other",
    "CrossSiteModelEval": "a cross-site evaluation needs every client",
    "CrossSiteEval": "a cross-site evaluation needs every client",
    "EvalController": "an evaluation needs every client",
    "StatisticsController": "statistics need every client",
    "XGBController": "each tree of XGBoost needs every client",
    "TieController": "the framework that it integrates chooses the clients",
    "CollabController": "the code of the job calls the clients",
}


def select_fairly(
    recipe: Recipe | FedJob,
    *,
    reporter: Widget | Literal["default"] | None = "default",
    **options: Unpack[SelectionOptions],
) -> None:
    """Replaces the controller of a recipe or job by one that selects fairly, and lets the clients report their status.

    Call it after everything else that configures the recipe. turnout must be installed on the server and, unless
    `reporter` is None, on the clients.

    Args:
        recipe: The recipe, or a job whose controller was added.
        reporter: The widget that reports the status of a client; None if nothing is reported, and only times are
            learned.
        options: `fleet`, the file of the fleet (an absolute path on the server), its address in a database, or that of
            a service; `guarantee`, the settings of the policy; the `deadline` of a round (without one, a client that
            hangs stops the training); `groups`, `eligible`, `quota`, `patience`, `loss_key` and `tracker`; and other
            options of `Scheduler.open`, such as `policy`, `overcommit` and `backoff_after`. Without a `cohort_size` in
            the guarantee, a round has as many clients as the controller asks for: `min_clients` of a recipe.

    Raises:
        SettingError: If an argument is invalid, or the job has no controller that selects clients.
    """
    job = internals.job_of(recipe)
    workflow = _workflow_to_replace(job)
    selecting = internals.converted(workflow.controller, FAIR[type(workflow.controller)])
    selecting.prepare_selection(options)
    workflow.controller = selecting
    internals.expect_package(job)
    if reporter is not None:
        internals.add_to_clients(recipe, StatusReporter() if reporter == "default" else reporter)


def _workflow_to_replace(job: FedJob) -> Any:
    """Returns the workflow whose controller selects clients."""
    workflows = internals.workflows_of(job)
    if "XGBBaggingAggregator" in [type(part).__name__ for part in internals.components_of(job).values()]:
        raise SettingError(
            "the clients of XGBoost's bagging keep the model and are sent only the new trees, so each must take part "
            "in every round; run it without select_fairly"
        )
    for workflow in workflows:
        if type(workflow.controller) in FAIR:
            return workflow
    controllers = [workflow.controller for workflow in workflows]
    names = ", ".join(type(controller).__name__ for controller in controllers) or "no controller"
    known = ", ".join(controller.__name__ for controller in FAIR)
    advice = "; ".join(dict.fromkeys(map(_advice, controllers))) or "configure it first"
    raise SettingError(f"select_fairly replaces {known}, but the job has {names}: {advice}")


def _advice(controller: Any) -> str:
    """Returns what the author of a job can do if its controller is not replaced."""
    name, bases = type(controller).__name__, [base.__name__ for base in type(controller).__mro__]
    for base, reason in NO_SELECTION.items():
        if base in bases:
            return f"{reason}; run it without select_fairly"
    if isinstance(controller, FairSelection):
        return f"{name} selects fairly already"
    if "ScatterAndGatherForEdge" in bases:
        return "the devices of an edge job are selected by turnout.adapters.nvflare.edge.fill_fairly"
    if isinstance(controller, ScatterAndGather):
        return f"write class Mine(FairScatterAndGather, {name}) and add it to a job"
    if isinstance(controller, ModelController):
        return f"if {name} calls sample_clients, write class Mine(FairSelection, {name}) and add it to a job"
    return f"{name} chooses its clients itself; run it without select_fairly"
