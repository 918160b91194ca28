"""The options of a fair job, which NVFlare stores as JSON, and the fleet that is opened with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Required

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.live import Features, Scheduler, SchedulerOptions, SchedulerSettings
from turnout.live._internals import check_new_policy, session_of


class FleetOptions(SchedulerOptions, total=False):
    """The options of `fill_fairly`: those of `Scheduler.open`, such as `deadline` and `policy`, and these.

    Attributes:
        fleet: The file of the fleet, an absolute path on the server.
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
        if not isinstance(self._path, str) or not Path(self._path).is_absolute():
            raise SettingError(
                f"fleet must be an absolute path on the server, got {self._path!r}: NVFlare runs the server of a job "
                "in a working directory of its own"
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
    ) -> Scheduler:
        """Opens the fleet, or creates it with these clients.

        Args:
            clients: All clients of the job.
            groups: The group of each client that has one.
            cohort_size: The number of clients that the controller asks for; it applies if `guarantee` has none.
        """
        default = {"cohort_size": cohort_size} if cohort_size else {}
        options: Any = {**self._options, "settings": {**default, **self._guarantee}}
        if self._quota:  # the groups of the policy are amended, as clients join
            inner = {"policy": options.get("policy", SchedulerSettings().policy), "settings": options["settings"]}
            options |= {"policy": "quota", "settings": {**inner, "least": dict(self._quota), "groups": []}}
        scheduler = Scheduler.open(self._path, features=self._features, **options)
        if self._tracker is not None:
            session_of(scheduler).track(self._tracker)
        if scheduler.open_round is None:
            scheduler.register(clients)
            if self._quota:
                scheduler.amend(groups={client: (groups or {}).get(client) for client in clients})
        return scheduler


def as_stored(value: Any) -> Any:
    """Returns mappings as dictionaries and sequences as lists, which NVFlare can store; anything else unchanged."""
    if isinstance(value, Mapping):
        return {name: as_stored(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
