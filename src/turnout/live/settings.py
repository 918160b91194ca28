"""Settings of a fleet: given when the fleet is created, and stored in its file; `Scheduler.amend` changes some."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypedDict

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import MAX_TIME, as_count, as_number, exact_rate
from turnout.kernel.certificate import TimeUnit
from turnout.live.retention import Retention
from turnout.plugins import packages_of
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import (
    REGISTRY,
    PolicyBuilder,
    as_named,
    load_policies,
    nested_settings,
    refuse_functions,
    setting_names,
)

#: The policy of new fleets. A file stores the policy of its fleet, also if it was the default: it keeps that policy.
DEFAULT_POLICY = "fair-pace"

#: The settings that need a concurrency.
OF_SLOTS = (
    "status_ttl",
    "max_staleness",
    "updates_per_version",
    "window_goal",
    "window_seconds",
    "min_present",
    "min_turn_interval",
)


class SchedulerOptions(TypedDict, total=False):
    """The keyword options of `Scheduler.open`; `SchedulerSettings` documents them and has their defaults."""

    policy: str | PolicyBuilder
    settings: Mapping[str, Any]
    model_size: float
    deadline: float | Literal["auto"] | None
    deadline_multiple: float
    deadline_floor: float
    deadline_ceiling: float
    late_window: int
    backoff_after: int
    overcommit: float | Literal["auto"]
    confidence: float
    allow_infeasible: bool
    record_offers_up_to: int
    keep_rounds: int | str | timedelta | None
    keep_offers: int | str | timedelta | None
    persist_statuses: bool
    concurrency: int | None
    status_ttl: float
    max_staleness: float | None
    updates_per_version: int | None
    window_goal: int | None
    window_seconds: float | None
    min_present: int
    min_turn_interval: float | None


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings of a fleet.

    Attributes:
        policy: The name of the policy that selects the cohorts. `Scheduler.open` also accepts `package.module:Name`,
            which imports that module, and a class or a function that builds a policy. A name in the file of a fleet
            imports nothing: pass the policy whenever you open the fleet, or import its module before, unless it is an
            entry point of an installed package.
        settings: The settings of the policy. For a live fleet, a guarantee covers the rounds for which a client is
            available, and a turn is paid when the client contributed. The debts of policies other than fair-pace are
            limited to 10 turns more than outweigh the deadline (or one minute without a deadline). `accrual`, `counts`
            and `max_owed` change this.
        model_size: The size of the model, in any unit; `ClientStatus.bandwidth` is in this unit per second.
        deadline: The seconds after which a client that has not reported is late. "auto" means `deadline_multiple` times
            the predicted time of the slowest client in the cohort, between `deadline_floor` and `deadline_ceiling`; it
            is the ceiling while the time of one of them was never measured. None: a round ends when it is closed.
        deadline_multiple: The factor for "auto".
        deadline_floor: The shortest deadline for "auto", in seconds.
        deadline_ceiling: The longest deadline for "auto", in seconds.
        late_window: The number of rounds for which the actual time of a late client is still learned.
        backoff_after: The number of consecutive misses after which a client is backed off for 1, 2, 4, … rounds.
        overcommit: The number of invited clients as a multiple of the cohort size; the first to report are kept. "auto"
            invites as many as give enough reports with probability `confidence`.
        confidence: The probability for "auto".
        allow_infeasible: Whether the fleet starts even if the guarantee cannot be kept.
        record_offers_up_to: Fleets of up to this many clients record the status of every available client before each
            selection, so that selections can be explained; larger fleets record only those of the selected clients.
        keep_rounds: For how many rounds, or for how long ("30 days"), closed rounds and their turns are kept, at least;
            None keeps all of them. Older ones are replaced by a summary, with which certificates, debts, totals and
            what was learned stay exact.
        keep_offers: The same for the offers from which cohorts were selected, which take most of the space. The
            selection of a round without its offer can only be explained in part.
        persist_statuses: Whether the statuses of clients, and the contexts computed from them, are written to the file.
            If not, selections are the same, but they can only be explained in part, and the file has no replay. The
            learned times are written after every round instead. After a crash, nothing is learned from the round that
            was open, from turns that were running, and from clients that were late.
        concurrency: The number of slots of a fleet without rounds: whenever one is free, `fill` gives one client a turn
            (docs/asynchronous.md). None for a fleet with rounds.
        status_ttl: The seconds for which a device that has checked in (`check_in`) can be given a turn; about as long
            as a turn takes. Only with a `concurrency`.
        max_staleness: Clients during whose turns the server is expected to make more versions of the model than this
            are given no turn, unless they are half as far behind their guarantee as they may be, or nobody else is
            there. None: no limit. Only with a `concurrency` and a `updates_per_version`.
        updates_per_version: The number of updates of a version of the model, for `max_staleness`.
        window_goal: With `window_seconds`: the number of waiting devices from which `check_in` gives turns at once.
            None: it gives none before the time is over.
        window_seconds: How long `check_in` gathers devices, from the first that waits, before it fills slots from
            them; at most `status_ttl`. None: it fills a free slot at once. Only with a `concurrency`.
        min_present: The number of clients that must be available, wait as they were asked, or train, for any turn to
            be given. Only with a `concurrency`.
        min_turn_interval: A client is given at most one turn in this time, measured from the start of its last turn. It
            earns nothing while it rests, except while it trains. None: no rest. Only with a `concurrency`.
        packages: The package and version that each policy came from, if it is not built in; not an option.
    """

    policy: str = DEFAULT_POLICY
    settings: Mapping[str, Any] = field(default_factory=dict)
    model_size: float = 20.0
    deadline: float | Literal["auto"] | None = None
    deadline_multiple: float = 3.0
    deadline_floor: float = 1.0
    deadline_ceiling: float = 3600.0
    late_window: int = 10
    backoff_after: int = 3
    overcommit: float | Literal["auto"] = 1.0
    confidence: float = 0.9
    allow_infeasible: bool = False
    record_offers_up_to: int = 10_000
    keep_rounds: int | str | timedelta | None = None
    keep_offers: int | str | timedelta | None = None
    persist_statuses: bool = True
    concurrency: int | None = None
    status_ttl: float = 60.0
    max_staleness: float | None = None
    updates_per_version: int | None = None
    window_goal: int | None = None
    window_seconds: float | None = None
    min_present: int = 1
    min_turn_interval: float | None = None
    packages: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise SettingError(f"settings must be a mapping of the policy's settings, got {self.settings!r}")
        object.__setattr__(self, "settings", dict(self.settings))
        as_number("model_size", self.model_size, SettingError, above=0)
        if self.deadline is not None and self.deadline != "auto":
            as_number("deadline", self.deadline, SettingError, above=0, most=MAX_TIME)
        as_number("deadline_multiple", self.deadline_multiple, SettingError, least=1)
        as_number("deadline_floor", self.deadline_floor, SettingError, above=0)
        as_number("deadline_ceiling", self.deadline_ceiling, SettingError, least=self.deadline_floor, most=MAX_TIME)
        as_count("late_window", self.late_window, SettingError, least=0)
        as_count("backoff_after", self.backoff_after, SettingError)
        if self.overcommit != "auto":
            as_number("overcommit", self.overcommit, SettingError, least=1, most=10)
        as_number("confidence", self.confidence, SettingError, above=0, most=0.9999)
        as_count("record_offers_up_to", self.record_offers_up_to, SettingError, least=0)
        for name in ("keep_rounds", "keep_offers"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, Retention.parse(name, value).stored)
        if not isinstance(self.persist_statuses, bool):
            raise SettingError(f"persist_statuses must be True or False, got {self.persist_statuses!r}")
        if isinstance(self.keep_rounds, int) and self.keep_rounds < self.late_window:
            raise SettingError(
                f"keep_rounds must be at least late_window, {self.late_window}, got {self.keep_rounds}: late clients "
                "of these rounds may still report"
            )
        as_number("status_ttl", self.status_ttl, SettingError, above=0, most=MAX_TIME)
        if self.has_rounds:
            for name, default in _slot_defaults().items():
                if getattr(self, name) != default:
                    raise SettingError(f"{name} needs a concurrency: leave it out in a fleet with rounds")
        else:
            object.__setattr__(self, "concurrency", as_count("concurrency", self.concurrency, SettingError))
            if self.updates_per_version is not None:
                object.__setattr__(
                    self, "updates_per_version", as_count("updates_per_version", self.updates_per_version, SettingError)
                )
            if self.max_staleness is not None:
                as_number("max_staleness", self.max_staleness, SettingError, above=0)
                if self.updates_per_version is None:
                    raise SettingError(
                        "max_staleness needs updates_per_version: the number of updates that make a version"
                    )
            self._check_rules()
            if self.overcommit != 1:
                raise SettingError("overcommit needs rounds: leave it out if the fleet has a concurrency")
        refuse_functions(self.settings)
        try:
            json.dumps(asdict(self), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"settings are stored as JSON and must be finite numbers, strings, lists or mappings: {error}"
            ) from error

    def _check_rules(self) -> None:
        """Checks the rules by which turns are held back in a fleet with a concurrency."""
        object.__setattr__(self, "min_present", as_count("min_present", self.min_present, SettingError))
        if self.min_turn_interval is not None:
            as_number("min_turn_interval", self.min_turn_interval, SettingError, above=0, most=MAX_TIME)
        if self.window_seconds is not None:
            as_number("window_seconds", self.window_seconds, SettingError, above=0)
            if self.window_seconds > self.status_ttl:
                raise SettingError(
                    f"window_seconds must be at most status_ttl, {self.status_ttl:g}, got {self.window_seconds:g}: a "
                    "check-in is kept for no longer"
                )
        if self.window_goal is not None:
            object.__setattr__(self, "window_goal", as_count("window_goal", self.window_goal, SettingError))
            if self.window_seconds is None:
                raise SettingError(
                    "window_goal needs window_seconds: otherwise, devices would wait for as long as too few come"
                )

    @property
    def round_retention(self) -> Retention | None:
        """For how long closed rounds are kept; None for ever."""
        return None if self.keep_rounds is None else Retention.parse("keep_rounds", self.keep_rounds)

    @property
    def offer_retention(self) -> Retention | None:
        """For how long offers are kept; None for ever."""
        return None if self.keep_offers is None else Retention.parse("keep_offers", self.keep_offers)

    @property
    def has_rounds(self) -> bool:
        """Whether turns are given in rounds; otherwise slots are filled one at a time (`concurrency`)."""
        return self.concurrency is None

    @property
    def unit(self) -> TimeUnit:
        """What the numbers of turns count."""
        return TimeUnit.of(self.concurrency)

    @property
    def late_turns(self) -> int:
        """The number of rounds, or of decisions, for which the actual time of a late client is still learned."""
        return self.late_window * (self.concurrency or 1)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as they are stored in the file."""
        stored = asdict(self)
        if self.has_rounds:  # as in files of earlier versions
            for name in ("concurrency", *_slot_defaults()):
                del stored[name]
        if not self.packages:
            del stored["packages"]
        return stored

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SchedulerSettings:
        """Builds the settings from those of a file; settings that a later version added have their defaults."""
        known = [*_names(), "packages"]
        return cls(**{name: value for name, value in data.items() if name in known})

    @classmethod
    def from_kwargs(cls, options: Mapping[str, Any]) -> SchedulerSettings:
        """Builds the settings from the keyword options of `Scheduler.open`.

        Raises:
            SettingError: If an option is unknown, belongs into `settings`, or has an invalid value.
        """
        named = _named(options)
        policy, settings = named.get("policy", DEFAULT_POLICY), named.get("settings", {})
        created = cls(**_checked_names(named, policy, settings))
        parts = nested_settings(created.policy, created.settings)
        return replace(created, packages=packages_of((REGISTRY, name) for name, _ in parts))

    def check_same(self, options: Mapping[str, Any], path: Path, amended: Mapping[str, int]) -> None:
        """Raises SettingError if an option differs from the setting of the fleet.

        Args:
            options: The options.
            path: The file of the fleet, for messages.
            amended: The round after which each setting was last amended.
        """
        stored = asdict(self)
        for name, value in _checked_names(_named(options), self.policy, self.settings).items():
            # Groups that were amended are facts about clients, which a server need not know when it opens the fleet.
            ignored = ("groups",) if name == "settings" and "groups" in amended else ()
            if _comparable(name, stored[name], ignored) == _comparable(name, value, ignored):
                continue
            if name in amended:
                raise SettingError(
                    f"{path} was amended in round {amended[name]} and has {name}={stored[name]!r} since, got "
                    f"{value!r}: open it without {name}, or amend it again"
                )
            raise SettingError(
                f"{path} was created with {name}={stored[name]!r}, got {value!r}: open it without {name}, or "
                "create a new file; `amend` changes some settings of a fleet"
            )


def _slot_defaults() -> dict[str, Any]:
    """Returns the settings that only fleets with a concurrency have, with their defaults."""
    return {setting.name: setting.default for setting in fields(SchedulerSettings) if setting.name in OF_SLOTS}


def _names() -> list[str]:
    return [setting.name for setting in fields(SchedulerSettings) if setting.name != "packages"]


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with names in place of classes; imports the modules that the options name."""
    named = dict(options)
    policy, settings = named.get("policy", DEFAULT_POLICY), named.get("settings", {})
    is_policy = isinstance(policy, str | SelectionPolicy) or callable(policy)
    if is_policy and isinstance(settings, Mapping):  # anything else is refused later
        policy, own = as_named(policy, settings)
        load_policies(policy, own)
        named |= {name: value for name, value in (("policy", policy), ("settings", own)) if name in options}
    return named


def _checked_names(options: Mapping[str, Any], policy: Any, settings: Any) -> Mapping[str, Any]:
    """Returns the options, after checking that each is a setting of the scheduler."""
    for name, value in options.items():
        if name not in _names():
            raise _unknown_option(name, value, policy, settings)
    return options


def _unknown_option(name: str, value: Any, policy: Any, settings: Any) -> SettingError:
    """Returns the error for an option that is not a setting of the scheduler, with advice where it belongs."""
    policies = _policies(policy, settings)
    for depth, inner in enumerate(policies):
        if name in setting_names(inner):
            advice = f'{{"{name}": {value!r}}}'
            for _ in range(depth):
                advice = f'{{"settings": {advice}}}'
            return SettingError(f"{name} is a setting of the policy {inner}: pass it as settings={advice}")
    own = [setting for inner in policies for setting in setting_names(inner)]
    return SettingError(
        f"there is no setting {name!r}{suggestion(name, [*_names(), *own])}; the settings are {', '.join(_names())}. "
        "Pass settings of the policy as settings={…}"
    )


def _policies(policy: Any, settings: Any) -> Iterable[str]:
    """Returns the name of the policy and those of the policies inside it, outermost first."""
    if not isinstance(policy, str) or not isinstance(settings, Mapping):
        return []
    return [name for name, _ in nested_settings(policy, settings)]


def _comparable(name: str, value: Any, ignored: Sequence[str] = ()) -> Any:
    """Returns the value of a setting in a form in which equal settings are equal: a file stores a tuple as a list.

    Args:
        name: The name of the setting.
        value: Its value.
        ignored: The keys that are left out of mappings.
    """
    if name in ("keep_rounds", "keep_offers") and value is not None:
        return Retention.parse(name, value).stored
    if isinstance(value, Mapping):
        return {key: _comparable(key, entry, ignored) for key, entry in value.items() if key not in ignored}
    if isinstance(value, list | tuple):
        return [_comparable(name, entry) for entry in value]
    return exact_rate(value) if name == "guaranteed_rate" else value
