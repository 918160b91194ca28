"""A minimum number of places for groups of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray, as_count
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import (
    Wrapper,
    as_list,
    ask_for_some,
    merge_selections,
    require_cohort_size,
    resize,
)

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
