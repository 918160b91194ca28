"""Restriction to an allowed set of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, as_mask, as_rows
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper, as_list, resize, restrict_report


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
