"""A policy around a policy: rules that hold whoever chooses.

Each takes an offer in, asks the policy inside with a narrower one or for another number of places, and lets it learn
from the report. They nest. A rule that forbids belongs outside, one that promises inside: Eligible around WithGuarantee
never chooses who is not allowed, the other way round it does when one of them is owed a turn.

By name, for plans and the command line, with plain settings only:

    make_policy("cool-down", 40, policy="quota", rounds=2, settings={
        "policy": "rbcsf", "settings": {"speed_weight": 5.0}, "groups": [...], "least": {"phones": 2}})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_mask, as_number, as_rows, load_array
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.policies.baselines.uniform import UniformRandom

NO_GROUP = -1


class Wrapper(SelectionPolicy):
    """A policy around `policy`: it asks it for cohort_size clients and tells it what it is told.

    What the one inside has besides (certificate, owed, model) is found here too. `wanted`: how many must come back;
    less than cohort_size where more are invited. `fills`: does it choose cohort_size clients whenever so many are
    available, or may its rule leave places empty?
    """

    def __init__(self, policy: SelectionPolicy) -> None:
        if not isinstance(policy, SelectionPolicy):
            raise SettingError(f"{self.name} goes around a policy, such as make_policy('rbcsf', 40), not {policy!r}")
        super().__init__(policy.clients)
        self.policy = policy
        self.cohort_size = policy.cohort_size
        self.features = policy.features
        self.requires_expected_times = policy.requires_expected_times
        self.wanted: int | None = getattr(policy, "wanted", policy.cohort_size)
        self.fills_cohort = policy.fills_cohort

    @classmethod
    def own_settings(cls) -> list[str]:
        """The names of its settings, without those of the policy inside."""
        return [name for name in inspect.signature(cls).parameters if name != "policy"]

    @classmethod
    def named(cls, clients: int, make: Callable[..., SelectionPolicy], **settings: Any) -> Self:
        """From plain settings: `policy` and `settings` are the name and the settings of the one inside.

        `make`: builds a policy from its name, a number of clients and settings, as make_policy does.
        """
        inside, known = settings.pop("policy", None), cls.own_settings()
        if not isinstance(inside, str):
            raise SettingError(
                f"{cls.name} needs policy, the name of the policy inside, such as 'rbcsf', not {inside!r}"
            )
        told = settings.pop("settings", None) or {}
        if not isinstance(told, Mapping):
            raise SettingError(f"settings of {inside} inside {cls.name} must be a table, not {told!r}")
        for setting in settings:
            if setting not in known:
                raise SettingError(
                    f"{cls.name} has no setting {setting!r}; it has policy, settings, {', '.join(known)}"
                )
        for setting, parameter in inspect.signature(cls).parameters.items():
            if setting in known and parameter.default is parameter.empty and setting not in settings:
                raise SettingError(f"{cls.name} needs the setting {setting!r}")
        build: Callable[..., Self] = cls
        return build(make(inside, clients, **told), **settings)

    def __getattr__(self, name: str) -> Any:
        """What only the policy inside has."""
        if name.startswith("_") or name == "policy":
            raise AttributeError(name)
        return getattr(self.policy, name)

    def ask(self, offer: RoundOffer) -> Selection:
        """Let the policy inside choose, for as many places as are wanted here."""
        self.check_offer(offer)
        return ask_for(self.policy, offer, self.cohort_size)

    def tell(self, report: RoundReport) -> None:
        """Pass it on."""
        self.check_report(report)
        self.policy.tell(report)

    def check_offer(self, offer: RoundOffer) -> None:
        """Refuse what the policy inside would."""
        self.policy.check_offer(offer)

    def check_report(self, report: RoundReport) -> None:
        """Refuse what the policy inside would."""
        self.policy.check_report(report)

    def add(self, count: int) -> None:
        """Append clients that have no history, unless the policy inside refuses."""
        self.policy.add(count)
        super().add(count)

    def state(self) -> dict[str, Any]:
        """That of the policy inside."""
        return prefixed("policy", self.policy.state())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.policy.restore(subset(state, "policy"))


class Overcommit(Wrapper):
    """Invites more than are wanted, so that enough come back: `factor` times as many, rounded up.

    The first `wanted` to come back count; the policy inside is told that later ones were late, with the times that were
    measured, as the scheduler tells it of its own over-selection. A world that waits for all reports the time of the
    slowest: `mark_late_after(report, wanted, cut=True)` is what a server sees that does not.

    >>> Overcommit(UniformRandom(40, cohort_size=8), 1.3).cohort_size
    11
    """

    name = "overcommit"

    def __init__(self, policy: SelectionPolicy, factor: float = 1.3) -> None:
        super().__init__(policy)
        self.factor = as_number("factor", factor, SettingError, least=1, most=10)
        self.cohort_size: int = int(np.ceil(_size_of(policy, self.name) * self.factor - 1e-9))  # 1.1 times 100 is 110

    def tell(self, report: RoundReport) -> None:
        """Only the first that came back have arrived."""
        self.check_report(report)
        self.policy.tell(report if self.wanted is None else mark_late_after(report, self.wanted))


class Eligible(Wrapper):
    """Only these clients are offered to the policy inside.

    `allowed`: a mask, rows, or a table of `groups`, one name or a list of tags a client, and `names`, those that are
    allowed. Who joins later may be named ahead; who is not named is not allowed. It keeps no state of its own: to
    change who is allowed, build it anew and restore. For the policy inside the others were not available, so that they
    earn nothing where turns are earned by being available.

    >>> cars = {"groups": ["phone", "car", "phone", "car"], "names": ["car"]}
    >>> policy = Eligible(UniformRandom(4, cohort_size=3), cars)
    >>> policy.ask(RoundOffer(1, [True] * 4, np.ones((4, 3)))).clients
    array([1, 3])
    """

    name = "eligible"

    def __init__(self, policy: SelectionPolicy, allowed: npt.ArrayLike | Mapping[str, Any]) -> None:
        super().__init__(policy)
        self.fills_cohort = False
        self._allowed = _as_allowed(allowed)

    @property
    def allowed(self) -> BoolArray:
        """One boolean a client."""
        mask: BoolArray = _of_length(self._allowed, self.clients, False)
        return mask

    def ask(self, offer: RoundOffer) -> Selection:
        """Let the policy inside choose among those who are allowed."""
        self.check_offer(offer)
        return ask_for(self.policy, restrict_offer(offer, self.allowed), self.cohort_size)

    def tell(self, report: RoundReport) -> None:
        """Pass it on, as of a fleet of those who are allowed."""
        self.check_report(report)
        self.policy.tell(restrict_report(report, self.allowed))


class ExcludeBusy(Wrapper):
    """Who still trains for an earlier round is not offered, for up to `rounds` rounds after that one.

    A client is busy from the report that it was late until the report of its late arrival, or of another outcome. One
    that came back, but after enough others had, is late and not busy: it has a longer time than the last that counted.
    For the policy inside the busy were not available.
    """

    name = "exclude-busy"

    def __init__(self, policy: SelectionPolicy, rounds: int = 10) -> None:
        super().__init__(policy)
        self.fills_cohort = False
        self.rounds = as_count("rounds", rounds, SettingError)
        self._out_since: IntArray = np.zeros(self.clients, dtype=np.int64)

    def busy(self, round: int) -> BoolArray:
        """Who is taken to be still training when this round begins."""
        still: BoolArray = (self._out_since > 0) & (self._out_since >= round - self.rounds)
        return still

    def ask(self, offer: RoundOffer) -> Selection:
        """Let the policy inside choose among those who are free."""
        self.check_offer(offer)
        return ask_for(self.policy, restrict_offer(offer, ~self.busy(offer.round)), self.cohort_size)

    def tell(self, report: RoundReport) -> None:
        """Note who is out and who is back."""
        self.check_report(report)
        self.policy.tell(restrict_report(report, ~self.busy(report.round)))
        late = report.late_arrivals
        if late is not None:
            self._out_since[late.clients[self._out_since[late.clients] == late.rounds]] = 0
        self._out_since[report.clients] = np.where(self._still_out(report), report.round, 0)

    def add(self, count: int) -> None:
        """New clients are free."""
        super().add(count)
        self._out_since = _of_length(self._out_since, self.clients, 0)

    def state(self) -> dict[str, Any]:
        """Since which round each client is out."""
        return {"out_since": self._out_since.copy(), **super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        out_since = load_array(state, "out_since", self._out_since)
        super().restore(state)
        self._out_since = out_since

    def _still_out(self, report: RoundReport) -> BoolArray:
        late, arrived = report.with_outcome("late"), report.with_outcome("arrived")
        if self.wanted is None or arrived.sum() < min(self.wanted, len(arrived)):
            return late
        outrun: BoolArray = late & (report.exchange_times <= report.exchange_times[arrived].max(initial=0.0))
        return outrun


class CoolDown(Wrapper):
    """Who was chosen in the last `rounds` rounds is not offered.

    Where fewer than cohort_size would be left, the cool-down is shortened, round by round, until there are enough (one,
    if the cohort floats); with `strict=True` never. The resting volunteer all the same: the policy inside is told that
    they were available, and so they go on earning what they are promised.
    """

    name = "cool-down"

    def __init__(self, policy: SelectionPolicy, rounds: int = 1, *, strict: bool = False) -> None:
        super().__init__(policy)
        self.rounds = as_count("rounds", rounds, SettingError)
        self.strict = _as_flag("strict", strict)
        self.fills_cohort = self.fills_cohort and not strict
        self._rests_until: IntArray = np.zeros(self.clients, dtype=np.int64)

    def ask(self, offer: RoundOffer) -> Selection:
        """Let the policy inside choose among the rested."""
        self.check_offer(offer)
        until = offer.round - 1
        if not self.strict:
            until = max(until, self._enough_by(offer.available))
        return ask_for(self.policy, restrict_offer(offer, self._rests_until <= until), self.cohort_size)

    def tell(self, report: RoundReport) -> None:
        """The chosen begin to rest."""
        super().tell(report)
        self._rests_until[report.clients] = report.round + self.rounds

    def add(self, count: int) -> None:
        """New clients are rested."""
        super().add(count)
        self._rests_until = _of_length(self._rests_until, self.clients, 0)

    def state(self) -> dict[str, Any]:
        """Until which round each client rests."""
        return {"rests_until": self._rests_until.copy(), **super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        rests_until = load_array(state, "rests_until", self._rests_until)
        super().restore(state)
        self._rests_until = rests_until

    def _enough_by(self, available: BoolArray) -> int:
        """The round by which enough of these will have rested."""
        ends = self._rests_until[available]
        enough = min(1 if self.cohort_size is None else self.cohort_size, len(ends))
        return int(np.partition(ends, enough - 1)[enough - 1]) if enough else 0


class Quota(Wrapper):
    """At least so many places for each group in each cohort, as far as its clients are available.

    `groups`: one name a client, None for no group; who joins later may be named ahead. `least`: one number for all
    groups, or a table. Where the policy inside gives every group its places, its choice stands; else it is asked for
    the places of each group among that group, and then for those that are left among all others.
    """

    name = "quota"

    def __init__(
        self, policy: SelectionPolicy, least: int | Mapping[str, int], groups: Sequence[str | None] | npt.ArrayLike
    ) -> None:
        super().__init__(policy)
        names = [None if one is None else str(one) for one in _as_list("groups", groups)]
        self.least = _as_quotas(least, names)
        size, needed = _size_of(policy, self.name), sum(self.least.values())
        if needed > size:
            raise SettingError(
                f"least needs {needed} places in all, but cohort_size is {size}: ask for fewer, or choose at least "
                f"{needed} clients a round"
            )
        places: dict[str | None, int] = {group: place for place, group in enumerate(self.least)}
        self._group_of = np.array([places.get(name, NO_GROUP) for name in names], dtype=np.int64)
        self._least = np.array(list(self.least.values()), dtype=np.int64)

    def ask(self, offer: RoundOffer) -> Selection:
        """Let the policy inside choose, and where a group falls short, choose for each group first."""
        choice = super().ask(offer)
        group_of = _of_length(self._group_of, self.clients, NO_GROUP)
        there = np.bincount(group_of[offer.available] + 1, minlength=len(self._least) + 1)[1:]
        given = np.bincount(group_of[choice.clients] + 1, minlength=len(self._least) + 1)[1:]
        if (given >= np.minimum(self._least, there)).all():
            return choice
        parts, left, places = [], offer.available.copy(), self.cohort_size or 0
        for group, least in enumerate(self._least.tolist()):
            members = left & (group_of == group)
            parts.append(ask_for_some(self.policy, restrict_offer(offer, members), min(least, places)))
            left[parts[-1].clients] = False
            places -= len(parts[-1].clients)
        parts.append(ask_for_some(self.policy, restrict_offer(offer, left), places))
        return merge_selections(parts)


class WarmUp(Wrapper):
    """The first `rounds` rounds are drawn by lot, while the policy inside learns from the reports.

    The lots are those of `random` with the same seed. `cohort_size`: how many are drawn, where the cohort of the policy
    inside floats; else as many as that one wants.
    """

    name = "warm-up"

    def __init__(
        self, policy: SelectionPolicy, rounds: int = 10, *, seed: int = 0, cohort_size: int | None = None
    ) -> None:
        super().__init__(policy)
        self.rounds = as_count("rounds", rounds, SettingError, least=0)
        if policy.cohort_size is not None and cohort_size not in (None, policy.cohort_size):
            raise SettingError(f"cohort_size is that of the policy inside, {policy.cohort_size}, not {cohort_size}")
        if policy.cohort_size is None and cohort_size is None:
            raise SettingError(f"the cohort of {policy.name} floats: give cohort_size, how many are drawn to warm up")
        self._lots = UniformRandom(self.clients, cohort_size=policy.cohort_size or cohort_size or 1, seed=seed)

    def ask(self, offer: RoundOffer) -> Selection:
        """Draw, or let the policy inside choose."""
        if offer.round > self.rounds:
            return super().ask(offer)
        self.check_offer(offer)
        return ask_for(self._lots, offer, self.cohort_size or self._lots.cohort_size)

    def add(self, count: int) -> None:
        """New clients are drawn like the others."""
        super().add(count)
        self._lots.add(count)


def ask_for(policy: SelectionPolicy, offer: RoundOffer, places: int | None) -> Selection:
    """What a policy chooses for this number of places instead of its own cohort_size; a floating cohort floats."""
    own = policy.cohort_size
    if own is None or places == own:
        return policy.ask(offer)
    try:
        policy.cohort_size = places
        return policy.ask(offer)
    finally:
        policy.cohort_size = own


def ask_for_some(policy: SelectionPolicy, offer: RoundOffer, places: int | None) -> Selection:
    """The same; nobody, without asking, where there are no places or nobody is there."""
    if places == 0 or not offer.available.any():
        return Selection.trusted(offer.round, np.empty(0, dtype=np.int64), {})
    return ask_for(policy, offer, places)


def restrict_offer(offer: RoundOffer, allowed: BoolArray) -> RoundOffer:
    """The same offer, in which only these are available."""
    return RoundOffer.trusted(offer.round, offer.available & allowed, offer.contexts, offer.expected_times)


def restrict_report(report: RoundReport, allowed: BoolArray) -> RoundReport:
    """The same report, in which only these, and whoever was chosen, were available."""
    if report.available is None:
        return report
    available = report.available & allowed
    available[report.clients] = True
    return replace(report, available=available)


def mark_late_after(report: RoundReport, wanted: int, *, cut: bool = False) -> RoundReport:
    """The same report, in which only the first `wanted` to come back arrived, of equals the lower rows.

    The others were late; with `cut` they were still out when the last of the first came back.
    """
    back = np.flatnonzero(report.with_outcome("arrived"))
    if len(back) <= wanted:
        return report
    in_order = back[np.lexsort((report.clients[back], report.exchange_times[back]))]
    outcomes = np.full(len(report.clients), "arrived") if report.outcomes is None else np.array(report.outcomes)
    outcomes[in_order[wanted:]] = "late"
    times: FloatArray = report.exchange_times
    if cut:
        times = np.minimum(times, times[in_order[:wanted]].max(initial=0.0))
    return replace(report, outcomes=outcomes, exchange_times=times)


def merge_selections(parts: Sequence[Selection]) -> Selection:
    """Choices of one round as one; a reason is NaN where a part does not give it, and one for a whole part is lost."""
    rows = np.concatenate([part.clients for part in parts])
    order = np.argsort(rows)
    words = dict.fromkeys(word for part in parts for word, why in part.reasons.items() if why.ndim == 1)
    reasons = {
        word: np.concatenate([part.reasons.get(word, np.full(len(part.clients), np.nan)) for part in parts])[order]
        for word in words
    }
    return Selection.trusted(parts[0].round, rows[order], reasons)


def with_defaults(
    name: str, settings: Mapping[str, Any], defaults: Mapping[str, Any], known: Callable[[str], Sequence[str]]
) -> dict[str, Any]:
    """Settings, and those of `defaults` that are not given and that the policy takes, or one inside it.

    `known`: the names of the settings that a policy of a name takes.
    """
    taken = known(name)
    filled = {**{word: value for word, value in defaults.items() if word in taken}, **settings}
    if "policy" in taken and isinstance(filled.get("policy"), str):
        filled["settings"] = with_defaults(filled["policy"], filled.get("settings") or {}, defaults, known)
    return filled


def _size_of(policy: SelectionPolicy, who: str) -> int:
    if policy.cohort_size is None:
        raise SettingError(f"the cohort of {policy.name} floats, and {who} needs one with a cohort_size: use another")
    return policy.cohort_size


def _as_flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"{field} must be true or false, not {value!r}")
    return value


def _as_allowed(allowed: npt.ArrayLike | Mapping[str, Any]) -> BoolArray:
    if isinstance(allowed, Mapping):
        mask = _of_tags(allowed)
    elif _is_mask(allowed):
        mask = as_mask("allowed", allowed, SettingError).copy()
    else:
        rows = as_rows("allowed", allowed, SettingError)
        mask = np.zeros(int(rows.max(initial=-1)) + 1, dtype=np.bool_)
        mask[rows] = True
    if not mask.any():
        raise SettingError("allowed names nobody: give a mask, rows, or a table of groups and names")
    return mask


def _is_mask(allowed: npt.ArrayLike) -> bool:
    if isinstance(allowed, np.ndarray):
        return bool(allowed.dtype == np.bool_)
    return isinstance(allowed, Sequence) and len(allowed) > 0 and isinstance(allowed[0], bool | np.bool_)


def _of_tags(allowed: Mapping[str, Any]) -> BoolArray:
    if set(allowed) != {"groups", "names"}:
        raise SettingError(f"allowed must be a mask, rows, or a table of groups and names, not of {', '.join(allowed)}")
    names = {str(name) for name in _as_list("names", allowed["names"])}
    tags = [_tags_of(one) for one in _as_list("groups", allowed["groups"])]
    unknown = names - set().union(*tags)
    if unknown:
        raise SettingError(f"no client is in {', '.join(map(repr, sorted(unknown)))}: names must stand in groups")
    return np.array([not one.isdisjoint(names) for one in tags], dtype=np.bool_)


def _tags_of(one: Any) -> set[str]:
    if one is None:
        return set()
    return {str(tag) for tag in one} if isinstance(one, list | tuple | set | frozenset) else {str(one)}


def _as_list(field: str, given: Any) -> list[Any]:
    if isinstance(given, str | Mapping) or not hasattr(given, "__iter__"):
        raise SettingError(f"{field} must be a list of names, not {given!r}")
    return list(given)


def _as_quotas(least: int | Mapping[str, int], names: Sequence[str | None]) -> dict[str, int]:
    known = list(dict.fromkeys(name for name in names if name is not None))
    quotas = dict(least) if isinstance(least, Mapping) else dict.fromkeys(known, least)
    if not quotas:
        raise SettingError("least is for no group: give a number for all groups, or a table of groups")
    for group, number in quotas.items():
        as_count(f"least of {group}", number, SettingError, least=0)
        if group not in known:
            raise SettingError(f"least names the group {group!r}, but groups has {', '.join(known) or 'none'}")
    return quotas


def _of_length(array: Any, clients: int, otherwise: object) -> Any:
    """As many as there are clients now; who is beyond the end has `otherwise`."""
    if len(array) >= clients:
        return array[:clients]
    return np.concatenate([array, np.full(clients - len(array), otherwise, dtype=array.dtype)])
