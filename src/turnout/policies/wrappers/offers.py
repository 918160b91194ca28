"""Wrappers that change what is offered: over-selection, busy clients, pauses, a random start, groups and quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, IntArray, as_count, as_mask, as_number, as_rows
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection, invited_clients
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines import UniformRandom
from turnout.policies.wrappers.base import (
    Wrapper,
    as_list,
    ask_for_some,
    merge_selections,
    require_cohort_size,
    resize,
    restrict_report,
)


class Overcommit(Wrapper):
    """Selects `factor` times as many clients as a round needs, rounded up, so that enough of them return.

    The first `target_size` clients to return count. The policy inside learns that the others were late, with their
    measured times. In a live fleet, the setting `overcommit` does the same.

    Args:
        policy: The policy inside.
        factor: How many clients are selected, as a multiple of those that a round needs.

    >>> from turnout.policies import UniformRandom
    >>> Overcommit(UniformRandom(40, cohort_size=8), 1.3).cohort_size
    11
    """

    name = "overcommit"
    works_with_slots = False

    def __init__(self, policy: SelectionPolicy, factor: float = 1.3) -> None:
        super().__init__(policy)
        self.factor = as_number("factor", factor, SettingError, least=1, most=10)
        self.cohort_size: int = invited_clients(require_cohort_size(policy, self.name), self.factor)

    def tell(self, report: RoundReport) -> None:
        """Passes the report on, with only the first clients that returned as arrived."""
        self.check_report(report)
        self.policy.tell(report if self.target_size is None else mark_late_after(report, self.target_size))


def mark_late_after(report: RoundReport, count: int) -> RoundReport:
    """Returns the report with only the first `count` arrivals as arrived, and the others as late.

    Among equal times the lower rows come first.
    """
    arrived = np.flatnonzero(report.with_outcome("arrived"))
    if len(arrived) <= count:
        return report
    order = arrived[np.lexsort((report.clients[arrived], report.exchange_times[arrived]))]
    outcomes = np.full(len(report.clients), "arrived") if report.outcomes is None else np.array(report.outcomes)
    outcomes[order[count:]] = "late"
    return replace(report, outcomes=outcomes)


class ExcludeBusy(Wrapper):
    """Does not offer clients that are still training for one of the last `rounds` rounds.

    A client is busy from the report that it was late until the report of its late arrival or of another outcome. A
    client that returned after enough others had is late but not busy: its time is longer than that of the last arrival
    that counted. To the policy inside, busy clients are not available.

    Args:
        policy: The policy inside.
        rounds: The number of rounds for which a client can be busy.
    """

    name = "exclude-busy"
    works_with_slots = False
    out_since: IntArray  # the round since which a client is busy; 0: not busy

    def __init__(self, policy: SelectionPolicy, rounds: int = 10) -> None:
        super().__init__(policy)
        self.fills_cohort = False
        self.rounds = as_count("rounds", rounds, SettingError)
        self._remember(out_since=0)

    def busy(self, round: int) -> BoolArray:
        """Returns the clients that are considered busy at the start of this round."""
        busy: BoolArray = (self.out_since > 0) & (self.out_since >= round - self.rounds)
        return busy

    def inner_offer(self, offer: RoundOffer) -> RoundOffer:
        """Returns the offer without busy clients."""
        return offer.restricted(~self.busy(offer.round), self._requested(offer))

    def tell(self, report: RoundReport) -> None:
        """Updates which clients are busy, and passes the report on without them."""
        self.check_report(report)
        self.policy.tell(restrict_report(report, ~self.busy(report.round)))
        late = report.late_arrivals
        if late is not None:
            self.out_since[late.clients[self.out_since[late.clients] == late.rounds]] = 0
        self.out_since[report.clients] = np.where(self._still_training(report), report.round, 0)

    def _still_training(self, report: RoundReport) -> BoolArray:
        late, arrived = report.with_outcome("late"), report.with_outcome("arrived")
        if self.target_size is None or arrived.sum() < min(self.target_size, len(arrived)):
            return late
        cut: BoolArray = late & (report.exchange_times <= report.exchange_times[arrived].max(initial=0.0))
        return cut


class CoolDown(Wrapper):
    """Does not offer clients that were selected in the last `rounds` rounds.

    Clients in a cool-down count as available in reports: they continue to earn the turns that they are guaranteed.

    Args:
        policy: The policy inside.
        rounds: The length of the cool-down.
        strict: False shortens the cool-down, round by round, until cohort_size clients can be offered (one, if the
            cohort has no fixed size). True never shortens it.
    """

    name = "cool-down"
    works_with_slots = False  # a fleet without rounds has `min_turn_interval`
    rests_until: IntArray  # the last round of each client's cool-down

    def __init__(self, policy: SelectionPolicy, rounds: int = 1, *, strict: bool = False) -> None:
        super().__init__(policy)
        self.rounds = as_count("rounds", rounds, SettingError)
        if not isinstance(strict, bool):
            raise SettingError(f"strict must be True or False, got {strict!r}")
        self.strict = strict
        self.fills_cohort = self.fills_cohort and not strict
        self._remember(rests_until=0)

    def inner_offer(self, offer: RoundOffer) -> RoundOffer:
        """Returns the offer without clients in a cool-down."""
        latest = offer.round - 1
        if not self.strict:
            latest = max(latest, self._shortened(offer))
        return offer.restricted(self.rests_until <= latest, self._requested(offer))

    def tell(self, report: RoundReport) -> None:
        """Starts the cool-down of the selected clients."""
        super().tell(report)
        self.rests_until[report.clients] = report.round + self.rounds

    def _shortened(self, offer: RoundOffer) -> int:
        """Returns the round by which the cool-downs of enough available clients have ended."""
        ends = self.rests_until[offer.available]
        enough = min(1 if self.cohort_size is None else self.places(offer), len(ends))
        return int(np.partition(ends, enough - 1)[enough - 1]) if enough else 0


class WarmUp(Wrapper):
    """Selects uniformly at random in the first `rounds` rounds, while the policy inside learns from the reports.

    The random selection equals that of `random` with the same seed.

    Args:
        policy: The policy inside.
        rounds: The number of rounds with random selection.
        seed: The seed of the random generator.
        cohort_size: The number of clients to select at random; only if the policy inside has no cohort_size.
    """

    name = "warm-up"

    def __init__(
        self, policy: SelectionPolicy, rounds: int = 10, *, seed: int = 0, cohort_size: int | None = None
    ) -> None:
        super().__init__(policy)
        self.rounds = as_count("rounds", rounds, SettingError, least=0)
        if policy.cohort_size is not None and cohort_size not in (None, policy.cohort_size):
            raise SettingError(
                f"cohort_size must be that of the policy inside, {policy.cohort_size}, got {cohort_size}: leave it out"
            )
        if policy.cohort_size is None and cohort_size is None:
            raise SettingError(f"{policy.name} has no fixed cohort size: pass cohort_size for the random selection")
        self._random = UniformRandom(self.clients, cohort_size=policy.cohort_size or cohort_size or 1, seed=seed)
        self._remember_part("random", self._random, None)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects at random, or lets the policy inside select."""
        if offer.round > self.rounds:
            return super().ask(offer)
        self.check_offer(offer)
        return self._random.ask(offer.restricted(places=self._requested(offer) or self._random.cohort_size))

    def selects_inside(self, offer: RoundOffer) -> bool:
        """Returns whether the selection is no longer random."""
        return offer.round > self.rounds


class Eligible(Wrapper):
    """Offers only allowed clients to the policy inside.

    To the policy inside the other clients are not available, so they earn nothing if turns are earned by availability.
    The wrapper has no state: to change the allowed clients, build a new one and restore the state of the old.

    Args:
        policy: The policy inside.
        allowed: A mask, a list of rows, or a mapping with `groups`, the name or list of tags of each client, and
            `names`, those that are allowed. Rows of clients that join later may be listed in advance; clients that are
            not listed are not allowed.

    >>> from turnout.policies import UniformRandom
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
        """One boolean per client."""
        mask: BoolArray = resize(self._allowed, self.clients, False)
        return mask

    def inner_offer(self, offer: RoundOffer) -> RoundOffer:
        """Returns the offer with only the allowed clients."""
        return offer.restricted(self.allowed, self._requested(offer))

    def tell(self, report: RoundReport) -> None:
        """Passes the report on, with only the allowed clients as available."""
        self.check_report(report)
        self.policy.tell(restrict_report(report, self.allowed))

    def tell_started(self, turn: TurnStart) -> None:
        """Passes the decision on, with only the allowed clients as present."""
        self._check_slots()
        allowed = turn.present & self.allowed
        capped = turn.capped[self.allowed[turn.capped]]
        self.policy.tell_started(TurnStart(turn.decision, turn.client, allowed, capped))


def _as_allowed(allowed: npt.ArrayLike | Mapping[str, Any]) -> BoolArray:
    if isinstance(allowed, Mapping):
        mask = _mask_of_tags(allowed)
    elif _is_mask(allowed):
        mask = as_mask("allowed", allowed, SettingError).copy()
    else:
        rows = as_rows("allowed", allowed, SettingError)
        mask = np.zeros(int(rows.max(initial=-1)) + 1, dtype=np.bool_)
        mask[rows] = True
    if not mask.any():
        raise SettingError("allowed contains no client: pass a mask, rows, or a mapping with groups and names")
    return mask


def _is_mask(allowed: npt.ArrayLike) -> bool:
    if isinstance(allowed, np.ndarray):
        return bool(allowed.dtype == np.bool_)
    return isinstance(allowed, Sequence) and len(allowed) > 0 and isinstance(allowed[0], bool | np.bool_)


def _mask_of_tags(allowed: Mapping[str, Any]) -> BoolArray:
    if set(allowed) != {"groups", "names"}:
        raise SettingError(
            f"allowed must be a mask, rows, or a mapping with groups and names, got the keys {', '.join(allowed)}"
        )
    names = {str(name) for name in as_list("names", allowed["names"])}
    tags = [_as_tags(client) for client in as_list("groups", allowed["groups"])]
    unknown = names - set().union(*tags)
    if unknown:
        raise SettingError(f"no client is in {', '.join(map(repr, sorted(unknown)))}: names must occur in groups")
    return np.array([not own.isdisjoint(names) for own in tags], dtype=np.bool_)


def _as_tags(client: Any) -> set[str]:
    if client is None:
        return set()
    return {str(tag) for tag in client} if isinstance(client, list | tuple | set | frozenset) else {str(client)}


NO_GROUP = -1


class Quota(Wrapper):
    """Reserves places for each group in each cohort, as far as its clients are available.

    If the selection of the policy inside meets every quota, it is used unchanged. Otherwise the policy inside is asked
    for the places of each group among its members, and then for the remaining places among all other clients.

    Args:
        policy: The policy inside.
        least: The number of places of each group: one number for all groups, or a mapping, which may contain groups of
            clients that join later.
        groups: The name of each client's group, None for no group. Clients that join later may be listed in advance.
    """

    name = "quota"
    works_with_slots = False

    def __init__(
        self, policy: SelectionPolicy, least: int | Mapping[str, int], groups: Sequence[str | None] | npt.ArrayLike
    ) -> None:
        super().__init__(policy)
        names = [None if name is None else str(name) for name in as_list("groups", groups)]
        self.least = _as_quotas(least, names)
        size, needed = require_cohort_size(policy, self.name), sum(self.least.values())
        if needed > size:
            raise SettingError(
                f"least reserves {needed} places, but cohort_size is {size}: reserve fewer, or select at least "
                f"{needed} clients per round"
            )
        index: dict[str | None, int] = {group: position for position, group in enumerate(self.least)}
        self._group_of = np.array([index.get(name, NO_GROUP) for name in names], dtype=np.int64)
        self._least = np.array(list(self.least.values()), dtype=np.int64)

    def ask(self, offer: RoundOffer) -> Selection:
        """Lets the policy inside select, for each group separately if a quota is not met."""
        selection = super().ask(offer)
        if self._is_met(offer, selection):
            return selection
        parts, left, places = [], offer.available.copy(), self.places(offer)
        group_of = self._groups_of_clients()
        for group, least in enumerate(self._least.tolist()):
            members = left & (group_of == group)
            parts.append(ask_for_some(self.policy, offer.restricted(members, min(least, places))))
            left[parts[-1].clients] = False
            places -= len(parts[-1].clients)
        parts.append(ask_for_some(self.policy, offer.restricted(left, places)))
        return merge_selections(parts)

    def selects_inside(self, offer: RoundOffer) -> bool:
        """Returns whether no quota changes the selection of the policy inside."""
        return self._is_met(offer, self.policy.ask(self.inner_offer(offer)))

    def _groups_of_clients(self) -> IntArray:
        group_of: IntArray = resize(self._group_of, self.clients, NO_GROUP)
        return group_of

    def _is_met(self, offer: RoundOffer, selection: Selection) -> bool:
        group_of, count = self._groups_of_clients(), len(self._least) + 1
        available = np.bincount(group_of[offer.available] + 1, minlength=count)[1:]
        selected = np.bincount(group_of[selection.clients] + 1, minlength=count)[1:]
        return bool((selected >= np.minimum(self._least, available)).all())


def _as_quotas(least: int | Mapping[str, int], names: Sequence[str | None]) -> dict[str, int]:
    known = list(dict.fromkeys(name for name in names if name is not None))
    quotas = dict(least) if isinstance(least, Mapping) else dict.fromkeys(known, least)
    if not quotas:
        raise SettingError("least has no group: pass a number for all groups, or a mapping from groups to numbers")
    for group, number in quotas.items():
        as_count(f"least of {group}", number, SettingError, least=0)
    return quotas
