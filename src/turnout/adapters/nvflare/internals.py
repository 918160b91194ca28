"""Everything that relies on names that NVFlare does not document: with a new version, look here first.

A test names the version of NVFlare in which one of them is missing.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe
from nvflare.widgets.widget import Widget

from turnout.errors import SettingError
from turnout.log import get_log

if TYPE_CHECKING:
    from nvflare.app_common.workflows.fedavg import FedAvg as _Base
else:
    _Base = object

log = get_log("turnout.nvflare")
PACKAGE = "turnout"


def job_of(recipe: Recipe | FedJob) -> FedJob:
    """Returns the job of a recipe, or the job itself; raises SettingError if it is neither."""
    job = recipe if isinstance(recipe, FedJob) else getattr(recipe, "_job", None)
    job = job or getattr(recipe, "job", None)  # until NVFlare 2.7
    if not isinstance(job, FedJob):
        raise SettingError(f"recipe must be a recipe or a job of NVFlare, got {recipe!r}")
    return job


def workflows_of(job: FedJob) -> list[Any]:
    """Returns the workflows of the server, each with its `controller`, in their order."""
    server = job._deploy_map.get("server")
    return [] if server is None else server.app_config.workflows


def components_of(job: FedJob) -> dict[str, Any]:
    """Returns the components of the server by their ids; what is replaced there is replaced in the job."""
    server = job._deploy_map.get("server")
    return {} if server is None else server.app_config.components


def expect_package(job: FedJob) -> None:
    """Lets NVFlare expect turnout where it is needed: otherwise it copies parts of the package into the job."""
    job.set_app_packages([*job.job.app_packages, PACKAGE])


def add_to_clients(recipe: Recipe | FedJob, widget: Widget) -> None:
    """Adds a widget to every client app of the job."""
    add = getattr(recipe, "_add_to_client_apps", None)  # since NVFlare 2.8: client apps are built when first needed
    if add is not None:
        add(widget)
        return
    job = job_of(recipe)
    sites = [target for target in job.clients if target not in ("@ALL", "server")]
    for site in sites:
        job.to(widget, site)
    if not sites:
        job.to_clients(widget)


def converted(controller: Any, into: type[Any]) -> Any:
    """Returns a copy of a controller as an instance of a subclass of its class.

    A new one cannot be built from arguments: NVFlare keeps only what differs from them.
    """
    copied = copy.copy(controller)
    copied.__class__ = into
    return copied


class EmptyRounds(_Base):
    """Keeps the model of a FedAvg or Scaffold controller in a round in which nobody has contributed."""

    @property
    def _is_empty(self) -> bool:
        """Whether nobody has contributed to the round."""
        raise NotImplementedError

    def aggregate(self, results: list[FLModel], aggregate_fn: Any = None) -> FLModel:
        """Aggregates the results; without any result, returns an empty one that `update_model` ignores."""
        return super().aggregate(results, aggregate_fn) if results else self._empty_result()

    def update_model(self, model: FLModel, aggr_result: FLModel, *args: Any, **kwargs: Any) -> FLModel:
        """Updates the model; keeps it unchanged if nobody has contributed to the round."""
        if aggr_result.params or not self._is_empty:
            return super().update_model(model, aggr_result, *args, **kwargs)
        log.warning("turnout: nobody contributed to this round: the model is unchanged")
        return model

    def _get_aggregated_result(self) -> FLModel:
        """Returns the result of FedAvg's aggregation of results as they arrive (NVFlare 2.8 and later)."""
        return self._empty_result() if self._is_empty else super()._get_aggregated_result()

    def _empty_result(self) -> FLModel:
        return FLModel(params={}, meta={"nr_aggregated": 0, AlgorithmConstants.SCAFFOLD_CTRL_DIFF: {}})
