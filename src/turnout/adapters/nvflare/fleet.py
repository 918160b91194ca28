"""The options of a fair job, which NVFlare stores as JSON, and the fleet that is opened with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required

from turnout.adapters.common.fleet import TOKEN, Fleet, facts_of, is_address, open_fleet
from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.live import Features, Scheduler, SchedulerOptions, SchedulerSettings
from turnout.live._internals import check_new_policy
from turnout.storage.address import DatabaseAddress, as_location


class FleetOptions(SchedulerOptions, total=False):
    """The options of `fill_fairly`: those of `Scheduler.open`, such as `deadline` and `policy`, and these.

    Attributes:
        fleet: The file of the fleet, an absolute path on the server; or its address in a database; or the address of a
            service (several, separated by commas, if services take over from each other), which has the settings of the
            fleet. The token of the service is the value of TURNOUT_TOKEN on the server.
        guarantee: The settings of the policy, such as `guaranteed_rate`, `tolerance` and `cohort_size`.
        tracker: Receives the metrics of the fleet, such as "tensorboard:/srv/logs" on the server; see
            `Scheduler.track`.
    """

    fleet: Required[str]
    guarantee: Mapping[str, Any] | None
    tracker: str | None


class SelectionOptions(FleetOptions, total=False):
    """The options of `select_fairly` and of `FairSelection`: those of `fill_fairly`, and these.

    Attributes:
        groups: The group of each client: a mapping, or the name of a value in the site configuration (NVFlare 2.9).
        eligible: The groups that may be selected; all clients by default.
        quota: The number of places that are reserved for each group in each cohort.
        patience: The seconds to wait before the first round until every client has asked for work; 30 by default.
        loss_key: The metric of a result that holds the client's training loss, for policies such as Oort; "" for none,
            "train_loss" by default.
    """

    groups: Mapping[str, str] | str | None
    eligible: Sequence[str] | None
    quota: Mapping[str, int] | None
    patience: float
    loss_key: str


class FleetPlan:
    """Opens the fleet of a job.

    Args:
        options: The options of the fleet, as in `FleetOptions`.
        features: The features of the clients.
        quota: The number of places that are reserved for each group in each cohort.

    Raises:
        SettingError: If a value is invalid, before any job is submitted.
    """

    def __init__(self, options: Mapping[str, Any], features: Features, quota: Mapping[str, int] | None = None) -> None:
        of_scheduler = dict(options)
        self._path, self._tracker = of_scheduler.pop("fleet", None), of_scheduler.pop("tracker", None)
        self._guarantee, self._quota = of_scheduler.pop("guarantee", None) or {}, quota or {}
        self._options, self._features = of_scheduler, features
        if "token" in of_scheduler:
            raise SettingError(f"token would be stored in the job: set {TOKEN} in the environment of the server")
        self._is_remote = isinstance(self._path, str) and is_address(self._path)
        if self._is_remote:
            given = {**of_scheduler, "guarantee": self._guarantee, "quota": self._quota, "tracker": self._tracker}
            if others := sorted(name for name, value in given.items() if value and name != "concurrency"):
                raise SettingError(
                    f"the service at {self._path} has the settings of the fleet and its metrics: leave out "
                    f"{', '.join(others)}"
                )
            return
        if not isinstance(self._path, str) or not _is_absolute(self._path):
            raise SettingError(
                "fleet must be an absolute path on the server, or the address of a fleet in a database or of a service "
                f"(postgresql://…, https://…), got {self._path!r}: NVFlare runs the server of a job in a working "
                "directory of its own"
            )
        if self._tracker is not None and not isinstance(self._tracker, str):
            raise SettingError(
                "tracker must be a text such as 'tensorboard:/srv/logs', because NVFlare stores it, got "
                f"{self._tracker!r}"
            )
        for name, value in (("guarantee", self._guarantee), ("quota", self._quota)):
            if not isinstance(value, Mapping):
                raise SettingError(f"{name} must be a mapping, got {value!r}")
        if "settings" in of_scheduler:
            raise SettingError("settings is not an option here: pass it as guarantee=…")
        for group, places in self._quota.items():
            as_count(f"quota of {group}", places, SettingError, least=0)
        check_new_policy(SchedulerSettings.from_kwargs({**of_scheduler, "settings": self._guarantee}), features)

    def open(
        self, clients: Sequence[str] = (), groups: Mapping[str, str] | None = None, cohort_size: int | None = None
    ) -> Fleet:
        """Opens the fleet, or creates it with these clients.

        Args:
            clients: All clients of the job.
            groups: The group of each client that has one.
            cohort_size: The number of clients that the controller asks for; it applies if `guarantee` has none.
        """
        scheduler = self._open_remote() if self._is_remote else self._open_here(cohort_size)
        if scheduler.open_round is None:
            scheduler.register(clients)
            if self._quota:
                scheduler.amend(groups={client: (groups or {}).get(client) for client in clients})
        return scheduler

    def _open_remote(self) -> Fleet:
        fleet = open_fleet(self._path)
        slots, features = self._options.get("concurrency"), facts_of(fleet).features
        if fleet.settings.concurrency != slots:
            raise SettingError(
                f"the fleet at {self._path} has concurrency={fleet.settings.concurrency}, and this job needs {slots}"
            )
        if features.declared != self._features.declared:
            raise SettingError(
                f"the fleet at {self._path} has the features {features.declared}, and this job has "
                f"{self._features.declared}"
            )
        return fleet

    def _open_here(self, cohort_size: int | None) -> Fleet:
        default = {"cohort_size": cohort_size} if cohort_size else {}
        options: Any = {**self._options, "settings": {**default, **self._guarantee}}
        if self._quota:  # the groups of the policy are amended, as clients join
            inner = {"policy": options.get("policy", SchedulerSettings().policy), "settings": options["settings"]}
            options |= {"policy": "quota", "settings": {**inner, "least": dict(self._quota), "groups": []}}
        scheduler = Scheduler.open(self._path, features=self._features, **options)
        if self._tracker is not None:
            facts_of(scheduler).track(self._tracker)
        return scheduler


def _is_absolute(path: str) -> bool:
    """Returns whether a fleet is found from any working directory."""
    location = as_location(path)
    return isinstance(location, DatabaseAddress) or location.is_absolute()


def as_stored(value: Any) -> Any:
    """Returns mappings as dictionaries and sequences as lists, which NVFlare can store; anything else unchanged."""
    if isinstance(value, Mapping):
        return {name: as_stored(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
