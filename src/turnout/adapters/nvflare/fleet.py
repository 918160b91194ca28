"""Opens the fleet of a job from plain values: NVFlare stores the arguments of a component as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.live import Features, Scheduler, SchedulerSettings
from turnout.live import SchedulerOptions as SchedulerOptions
from turnout.live._internals import check_new_policy, session_of

#: Options of `Scheduler.open` that have an argument of their own.
NAMED_OPTIONS = {"settings": "guarantee", "deadline": "deadline"}


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The file of a fleet and its settings.

    Attributes:
        path: The file of the fleet: an absolute path on the server.
        guarantee: The settings of the policy, such as `guaranteed_rate`, `tolerance` and `cohort_size`.
        deadline: The deadline of a round in seconds, "auto", or None.
        options: Other options of `Scheduler.open`, such as `policy` and `overcommit`.
        tracker: Receives the metrics of the fleet, such as "tensorboard:/srv/logs"; None for none.
        quota: The number of places that are reserved for each group in each cohort.
    """

    path: str
    guarantee: Mapping[str, Any]
    deadline: float | Literal["auto"] | None
    options: Mapping[str, Any]
    tracker: str | None
    quota: Mapping[str, int] = field(default_factory=dict)

    def check(self, features: Features) -> None:
        """Raises SettingError if a value is invalid, before any job is submitted."""
        if not isinstance(self.path, str) or not Path(self.path).is_absolute():
            raise SettingError(
                f"fleet must be an absolute path on the server, got {self.path!r}: NVFlare runs the server of a job in "
                "a working directory of its own"
            )
        if self.tracker is not None and not isinstance(self.tracker, str):
            raise SettingError(
                "tracker must be a text such as 'tensorboard:/srv/logs', because NVFlare stores it, got "
                f"{self.tracker!r}"
            )
        for name, value in (("guarantee", self.guarantee), ("options", self.options), ("quota", self.quota)):
            if not isinstance(value, Mapping):
                raise SettingError(f"{name} must be a mapping, got {value!r}")
        for name, argument in NAMED_OPTIONS.items():
            if name in self.options:
                raise SettingError(f"options has {name!r}: pass it as {argument}=…")
        for group, places in self.quota.items():
            as_count(f"quota of {group}", places, SettingError, least=0)
        settings = SchedulerSettings.from_kwargs(self._options(self.guarantee, {}))
        check_new_policy(settings, features)

    def open(
        self, clients: Sequence[str], groups: Mapping[str, str], cohort_size: int | None, features: Features
    ) -> Scheduler:
        """Opens the fleet, or creates it with these clients.

        Args:
            clients: All clients of the job.
            groups: The group of each client that has one.
            cohort_size: The number of clients that the controller asks for; it applies if `guarantee` has none.
            features: The features of the clients.
        """
        guarantee = dict(self.guarantee)
        if cohort_size:
            guarantee.setdefault("cohort_size", cohort_size)
        scheduler = Scheduler.open(self.path, features=features, **self._options(guarantee, self.quota))
        if self.tracker is not None:
            session_of(scheduler).track(self.tracker)
        if scheduler.open_round is None:
            scheduler.register(clients)
            if self.quota:
                scheduler.amend(groups={client: groups.get(client) for client in clients})
        return scheduler

    def _options(self, guarantee: Mapping[str, Any], quota: Mapping[str, int]) -> SchedulerOptions:
        """Returns the options of the scheduler; groups of the policy inside a `Quota` are amended, as clients join."""
        options: Any = {**self.options, "settings": guarantee, "deadline": self.deadline}
        if quota:
            inner = {"policy": options.get("policy", SchedulerSettings().policy), "settings": guarantee}
            options |= {"policy": "quota", "settings": {**inner, "least": dict(quota), "groups": []}}
        checked: SchedulerOptions = options
        return checked


def as_stored(value: Any) -> Any:
    """Returns a mapping as a dictionary and a sequence as a list, which NVFlare can store; anything else unchanged."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
