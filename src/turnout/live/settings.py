"""Settings of a fleet: given when the fleet is created, and stored in its file; `Scheduler.amend` changes some.

A setting is declared once, by its field in `SchedulerSettings`. Checks, amendments, the options of the command line and
docs/settings.md follow from the field; the typed options below repeat only its name and its type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypedDict

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import MAX_TIME, as_count, as_number, exact_rate
from turnout.kernel.certificate import TimeUnit
from turnout.live.features import as_signals
from turnout.live.retention import Retention, late_turns
from turnout.plugins import packages_of
from turnout.policies import registry
from turnout.policies.base import SelectionPolicy
from turnout.storage.store import Location

#: The policy of new fleets. A file stores the policy of its fleet, also if it was the default: it keeps that policy.
DEFAULT_POLICY = "fair-pace"
#: An automatic deadline is this multiple of the predicted time of the slowest client in the cohort.
DEADLINE_MULTIPLE = 3.0
#: The shortest automatic deadline, in seconds.
MIN_AUTO_DEADLINE = 1.0
#: The smallest number of a setting whose numbers are above 0: a microsecond, if it is a time.
MIN_NUMBER = 1e-6
#: The unit of periods.
PERIOD = 'rounds, or text such as "30 days"'
#: The probability with which automatic over-selection gives enough reports.
REPORT_CONFIDENCE = 0.9
#: The key of a declaration in the metadata of a field.
DECLARATION = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting.

    Attributes:
        kind: What its value is. One without a kind is checked where it is used.
        unit: Its unit, if it has one.
        help: Its meaning, without a full stop.
        auto: The meaning of "auto"; None if that is not allowed.
        none: The meaning of None; None if that is not allowed.
        amendable: Whether `Scheduler.amend` can change it.
        needs_slots: Whether it needs a `concurrency`.
        least: The smallest number, which is a millionth by default, or the smallest count.
        most: The largest number or count.
    """

    kind: Literal["number", "count", "flag", "period", "signals"] | None
    unit: str | None
    help: str
    auto: str | None = None
    none: str | None = None
    amendable: bool = True
    needs_slots: bool = False
    least: int | None = None
    most: int = int(MAX_TIME)

    @property
    def none_text(self) -> str:
        """What stands for None in sentences and on the command line."""
        return "all" if self.kind == "period" else "none"

    def sentence(self, auto: str = '`"auto"`', none: str = "`None`") -> str:
        """Returns the meaning of the setting and of its special values, which are written like this."""
        special = ((auto, self.auto), (none, self.none))
        return "; ".join([self.help, *(f"{text}: {meaning}" for text, meaning in special if meaning is not None)])

    def check(self, name: str, value: Any) -> Any:
        """Returns the value as it is stored; raises SettingError if it is invalid."""
        if (value is None and self.none is not None) or (isinstance(value, str) and value == "auto" and self.auto):
            return value
        match self.kind:
            case "number" | "count" if self.auto is not None and isinstance(value, str):
                raise SettingError(f"{name} must be a number or 'auto', got {value!r}")
            case "number":
                least, above = (MIN_NUMBER, 0.0) if self.least is None else (self.least, -math.inf)
                number = as_number(name, value, SettingError, above=above, most=self.most)
                return as_number(name, number, SettingError, least=least)
            case "count":
                return as_count(name, value, SettingError)
            case "period":
                return Retention.parse(name, value).stored
            case "signals":
                return as_signals(name, value)
            case "flag" if not isinstance(value, bool):
                raise SettingError(f"{name} must be True or False, got {value!r}")
        return value


def declare(default: Any, *declared: Any, **further: Any) -> Any:
    """Returns the field of a setting: its default, and the arguments of its `Setting`."""
    value: Any = {"default_factory": dict} if default == {} else {"default": default}
    return field(**value, metadata={DECLARATION: Setting(*declared, **further)})


class AmendableOptions(TypedDict, total=False):
    """The settings of a fleet that can be amended; `SchedulerSettings` documents them and has their defaults."""

    deadline: float | Literal["auto"] | None
    overcommit: float | Literal["auto"]
    allow_infeasible: bool
    keep_rounds: int | str | None
    keep_offers: int | str | None
    persist_statuses: bool
    signals: Mapping[str, Sequence[float]]
    status_ttl: float
    window_seconds: float | None
    min_present: int
    min_turn_interval: float | None


class SchedulerOptions(AmendableOptions, total=False):
    """The keyword options of `Scheduler.open`; `SchedulerSettings` documents them and has their defaults."""

    policy: str | registry.PolicyBuilder
    settings: Mapping[str, Any]
    model_size: float
    deadline_ceiling: float
    backoff_after: int | Literal["auto"]
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings of a fleet.

    The name of a policy in the file of a fleet imports nothing: pass the policy whenever you open the fleet, or import
    its module before, unless it is an entry point of an installed package.

    In a live fleet, a guarantee covers the rounds for which a client is available, and a turn is paid when the client
    contributed. The debts of policies other than fair-pace are limited to 10 turns more than outweigh the deadline (or
    one minute without a deadline). `accrual`, `counts` and `max_owed` in `settings` change this.
    """

    policy: str = declare(
        DEFAULT_POLICY, None, None, 'the selection policy: a name, `"package.module:Name"`, or a class', amendable=False
    )
    settings: Mapping[str, Any] = declare(
        {}, None, None, "the settings of the policy and of its guarantee", amendable=False
    )
    model_size: float = declare(
        20.0,
        "number",
        "any unit",
        "the size of the model; `bandwidth` is in this unit per second",
        amendable=False,
        most=10**18,  # bits of a very large model
    )
    deadline: float | Literal["auto"] | None = declare(
        None,
        "number",
        "seconds",
        "the time after which a client that has not reported is late",
        auto=f"{DEADLINE_MULTIPLE:g} times the predicted time of the slowest client in the cohort",
        none="a round ends when it is closed",
    )
    deadline_ceiling: float = declare(
        3600.0, "number", "seconds", "the longest automatic deadline; used while a time is unknown", amendable=False
    )
    backoff_after: int | Literal["auto"] = declare(
        "auto",
        "count",
        "misses",
        "how many misses in a row back a client off for 1, 2, 4, … rounds",
        auto="3, and in a cohort of up to 10 clients 1 as long as others fill the place",
        amendable=False,
    )
    overcommit: float | Literal["auto"] = declare(
        1.0,
        "number",
        None,
        "the number of invited clients as a multiple of the cohort size; the first to report are kept",
        auto=f"as many as give enough reports with probability {REPORT_CONFIDENCE:g}",
        least=1,
        most=10,
    )
    allow_infeasible: bool = declare(False, "flag", None, "whether a guarantee is accepted that no policy could keep")
    keep_rounds: int | str | None = declare(
        None, "period", PERIOD, "for how long closed rounds and their turns are kept", none="for ever"
    )
    keep_offers: int | str | None = declare(
        None, "period", PERIOD, "the same for offers, which take most of the space", none="as long as the rounds"
    )
    persist_statuses: bool = declare(True, "flag", None, "whether statuses and contexts are written to the file")
    signals: Mapping[str, Sequence[float]] = declare(
        {}, "signals", None, "numbers that clients report, with their ranges, such as `{utility = [0, 100]}`"
    )
    concurrency: int | None = declare(
        None, "count", "slots", "how many clients train at any time", none="a fleet with rounds", amendable=False
    )
    status_ttl: float = declare(
        60.0, "number", "seconds", "how long a device that has checked in can be given a turn", needs_slots=True
    )
    window_seconds: float | None = declare(
        None, "number", "seconds", "the time to gather check-ins, up to `status_ttl`", none="no time", needs_slots=True
    )
    min_present: int = declare(
        1, "count", "clients", "how many clients must be there for any turn to be given", needs_slots=True
    )
    min_turn_interval: float | None = declare(
        None, "number", "seconds", "a client is given at most one turn in this time", none="no rest", needs_slots=True
    )
    #: The package and version that each policy came from, if it is not built in; not an option.
    packages: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise SettingError(f"settings must be a mapping of the policy's settings, got {self.settings!r}")
        object.__setattr__(self, "settings", dict(self.settings))
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.check(name, getattr(self, name)))
        if isinstance(self.keep_rounds, int) and self.keep_rounds < (least := late_turns(None)):
            raise SettingError(
                f"keep_rounds must be at least {least}, got {self.keep_rounds}: late clients may still report"
            )
        if self.has_rounds:
            defaults = {own.name: own.default for own in fields(self)}
            for name, setting in SETTINGS.items():
                if setting.needs_slots and getattr(self, name) != defaults[name]:
                    raise SettingError(f"{name} needs a concurrency: leave it out in a fleet with rounds")
        elif self.overcommit != 1:
            raise SettingError("overcommit needs rounds: leave it out if the fleet has a concurrency")
        if self.window_seconds is not None and self.window_seconds > self.status_ttl:
            raise SettingError(
                f"window_seconds must be at most status_ttl, {self.status_ttl:g}, got {self.window_seconds:g}: a "
                "check-in is kept for no longer"
            )
        try:
            json.dumps(asdict(self), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"settings are stored as JSON and must be finite numbers, strings, lists or mappings: {error}"
            ) from error

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
        return late_turns(self.concurrency)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as they are stored in the file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SchedulerSettings:
        """Builds the settings from those of a file; settings that a later version added have their defaults."""
        known = [setting.name for setting in fields(cls)]
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
        policies = _policies(created.policy, created.settings)
        if "overcommit" in policies:
            raise SettingError("the policy overcommit is for simulations: a fleet has the setting overcommit instead")
        return replace(created, packages=packages_of((registry.REGISTRY, name) for name in policies))

    def check_same(
        self, options: Mapping[str, Any], path: Location, amended: Mapping[str, int], *, keep_amended: bool = False
    ) -> None:
        """Raises SettingError if options differ from the settings of the fleet; the error names all that do.

        Args:
            options: The options. `settings` may leave out what was amended.
            path: The file of the fleet, for messages.
            amended: The round after which each setting was last amended.
            keep_amended: Whether options may differ from settings that were amended.
        """
        stored, differences = asdict(self), dict[str, str]()
        for name, option in _checked_names(_named(options), self.policy, self.settings).items():
            value = SETTINGS[name].check(name, option)
            # Groups that were amended are facts about clients, which a server need not know when it opens the fleet.
            known = amended if name == "settings" else ()
            ignored = [key for key in known if keep_amended or key == "groups" or not _has_key(value, key)]
            is_kept = keep_amended and name in amended and name != "settings"
            if is_kept or _comparable(name, stored[name], ignored) == _comparable(name, value, ignored):
                continue
            was, since = "was created with", ""
            if name in amended:
                was, since = f"was amended in round {amended[name]} and has", " since"
            differences[name] = f"{was} {name}={stored[name]!r}{since}, got {value!r}"
        if differences:
            texts, names = "; it ".join(differences.values()), " and ".join(differences)
            again = "create a new file; `amend` changes some settings of a fleet"
            if amended.keys() & differences:
                again = "pass amended='keep' to keep what was amended, or amend it again"
            raise SettingError(f"{path} {texts}: open it without {names}, or {again}")


#: The declarations of all settings that `Scheduler.open` takes, by name.
SETTINGS: Mapping[str, Setting] = {
    own.name: own.metadata[DECLARATION] for own in fields(SchedulerSettings) if DECLARATION in own.metadata
}
_ATTRIBUTES = [f"        {name}: {setting.sentence()}." for name, setting in SETTINGS.items()]
SchedulerSettings.__doc__ = "\n".join([SchedulerSettings.__doc__ or "", "    Attributes:", *_ATTRIBUTES])


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with names in place of classes; imports the modules that the options name."""
    named = dict(options)
    policy, settings = named.get("policy", DEFAULT_POLICY), named.get("settings", {})
    is_policy = isinstance(policy, str | SelectionPolicy) or callable(policy)
    if is_policy and isinstance(settings, Mapping):  # anything else is refused later
        policy, own = registry.as_named(policy, settings)
        registry.load_policies(policy, own)
        named |= {name: value for name, value in (("policy", policy), ("settings", own)) if name in options}
    return named


def _checked_names(options: Mapping[str, Any], policy: Any, settings: Any) -> Mapping[str, Any]:
    """Returns the options, after checking that each is a setting of the scheduler."""
    for name, value in options.items():
        if name not in SETTINGS:
            raise _unknown_option(name, value, policy, settings)
    return options


def _unknown_option(name: str, value: Any, policy: Any, settings: Any) -> SettingError:
    """Returns the error for an option that is not a setting of the scheduler, with advice where it belongs."""
    policies = _policies(policy, settings)
    for depth, inner in enumerate(policies):
        if name in registry.setting_names(inner):
            advice = f'{{"{name}": {value!r}}}'
            for _ in range(depth):
                advice = f'{{"settings": {advice}}}'
            return SettingError(f"{name} is a setting of the policy {inner}: pass it as settings={advice}")
    own = [setting for inner in policies for setting in registry.setting_names(inner)]
    return SettingError(
        f"there is no setting {name!r}{suggestion(name, [*SETTINGS, *own])}; the settings are {', '.join(SETTINGS)}. "
        "Pass settings of the policy as settings={…}"
    )


def _policies(policy: Any, settings: Any) -> list[str]:
    """Returns the name of the policy and those of the policies inside it, outermost first."""
    if not isinstance(policy, str) or not isinstance(settings, Mapping):
        return []
    return [name for name, _ in registry.nested_settings(policy, settings)]


def _has_key(value: Any, key: str) -> bool:
    """Returns whether a mapping, or one inside it, has this key."""
    return isinstance(value, Mapping) and (key in value or any(_has_key(inner, key) for inner in value.values()))


def _comparable(name: str, value: Any, ignored: Sequence[str] = ()) -> Any:
    """Returns the value of a setting in a form in which equal settings are equal: a file stores a tuple as a list.

    The `ignored` keys are left out of mappings.
    """
    if isinstance(value, Mapping):
        return {key: _comparable(key, entry, ignored) for key, entry in value.items() if key not in ignored}
    if isinstance(value, list | tuple):
        return [_comparable(name, entry) for entry in value]
    return exact_rate(value) if name == "guaranteed_rate" else value
