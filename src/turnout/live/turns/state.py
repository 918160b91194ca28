"""The state of a fleet in memory: what its turns, and clients that joined and left, amount to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from turnout.counting import pluralize
from turnout.errors import StateError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, saved_value
from turnout.kernel.certificate import Certificate, TimeUnit, exact_tolerance
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import FairnessQueues
from turnout.live.identifiers import digest_ids, unknown_client
from turnout.live.turns.clients import JUDGED_AFTER, ClientCounters, ClientHistory, PendingArrivals, backoff_rounds
from turnout.live.turns.records import CUT_OFF, FAILED, LATE, REDUNDANT, LateTimes, has_context
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.storage.store import Location

if TYPE_CHECKING:
    from turnout.policies.explain.explanation import SelectionOutcome

#: The number of rounds after which a client may be called rarely available.
ENOUGH_ROUNDS = 20
#: In cohorts of up to this many clients, one that missed its turn steps aside at once, if others can fill its place.
SMALL_COHORT = 10
#: The number of ids that are put into a dictionary at once; other threads can work between two such parts.
ROWS_AT_ONCE = 50_000


class Fleet(ABC):
    """The clients by row, and what is known about each: what fleets with rounds and with slots have in common.

    Back-off and the time for which late clients may report are counted in rounds in the settings; with slots, a round
    is as many decisions as there are slots.

    Args:
        build: Builds the policy for a number of clients.
        backoff_after: The number of consecutive misses after which a client is backed off; "auto" is 3, and in small
            cohorts 1 as long as others fill them.
        late_window: The number of rounds, or of decisions, in which the true time of a late client is still learned.

    `unit` is what `round` counts, `slots` the number of slots; None with rounds.
    """

    unit: ClassVar[TimeUnit]
    slots: int | None = None
    min_turn_interval: float | None = None

    def __init__(
        self, build: Callable[[int], SelectionPolicy], *, backoff_after: int | Literal["auto"], late_window: int
    ) -> None:
        self._build = build
        self._may_step_aside = backoff_after == "auto"
        self._backoff_after, self._late_window = 3 if backoff_after == "auto" else backoff_after, late_window
        self.ids: list[str] = []
        self._rows: dict[str, int] | None = None  # None until a row is looked up
        self._ids_digest = ""  # "" until it is asked for
        self._policy: SelectionPolicy | None = None
        self.round = 0
        # These spare tests of all clients in every round: no promise can be broken up to the first round (0 if that is
        # not known), and no client is backed off after the second.
        self._unbroken_until = self._last_backoff = 0
        self._has_retired = False
        self.counters = ClientCounters()
        self.history = ClientHistory()
        self.pending = PendingArrivals()

    @property
    def rows(self) -> dict[str, int]:
        """The row of each client, by id; do not change it."""
        if self._rows is None:
            rows = dict[str, int]()
            for start in range(0, len(self.ids), ROWS_AT_ONCE):
                rows.update(zip(self.ids[start : start + ROWS_AT_ONCE], count(start), strict=False))
            if len(rows) < len(self.ids):
                repeated = pluralize(len(self.ids) - len(rows), "client", "have")
                raise StateError(f"{repeated} the id of another one: restore a backup")
            self._rows = rows
        return self._rows

    @property
    def ids_digest(self) -> str:
        """A digest of all ids, for snapshots; it is computed again only if they have changed."""
        self._ids_digest = self._ids_digest or digest_ids(self.ids)
        return self._ids_digest

    @property
    def policy(self) -> SelectionPolicy:
        """The policy that selects; it exists from the first client on."""
        if self._policy is None:
            raise StateError("the fleet has no clients yet: choose with the status of at least one, or register some")
        return self._policy

    @property
    def model(self) -> ExchangeTimeModel | None:
        """The policy's model of exchange times, if it has one."""
        return None if self._policy is None else self._policy.time_model

    @property
    def queues(self) -> FairnessQueues | None:
        """The turns that the policy owes, if it guarantees any."""
        return None if self._policy is None else self._policy.debts

    @property
    def unavailable(self) -> BoolArray:
        """Whether each client must not be selected in the next round, because it is retired or backed off."""
        unavailable = np.zeros(len(self.ids), dtype=np.bool_)
        if self._last_backoff > self.round:
            unavailable |= self.counters.backing_off(self.round)
        if self._has_retired:
            unavailable |= self.counters.retired > 0
        return unavailable

    @property
    def steps_aside(self) -> BoolArray:
        """Whether each client is backed off only as long as others fill the cohort, because that is small."""
        return self.counters.stepping_aside(self.round, self._backoff_after) & self._may_step_aside

    @property
    def is_broken(self) -> bool:
        """Whether a client that has not retired is beyond the tolerance of its promise."""
        if 0 < self.round <= self._unbroken_until:
            return False
        broken = self.counters.broken_since > 0
        return bool(broken.any()) and bool((broken & (self.counters.retired == 0)).any())

    def certificate(self) -> Certificate | None:
        """Returns what every client was promised and got, since when promises are broken, and who has retired.

        None if the policy guarantees nothing.
        """
        certificate = self.policy.certificate()
        if certificate is None:
            return None
        return replace(
            certificate,
            broken_since=self.counters.broken_since.copy(),
            retired=self.counters.retired.astype(np.bool_),
            backed_off=self.counters.rounds_backed_off(self.round),
            has_queue=self.policy.selects_by_queue,
            unit=self.unit,
        )

    @abstractmethod
    def apply(self, kind: str, data: bytes, availability: bytes | None) -> None:
        """Applies a stored event in which turns ended or were given.

        Raises:
            StoreError: If the event does not follow the last one, or is not one of such a fleet.
        """

    @abstractmethod
    def apply_before(self, number: int, kind: str, data: bytes, availability: bytes | None) -> bool:
        """Applies what an event changed before the turns of a round or decision were given, if it gave or ended these.

        Returns:
            Whether it did: then this is the state in which they were given. Otherwise nothing is applied.
        """

    def training(self) -> dict[int, int]:
        """Returns the rows of the clients that train in slots, by the decisions that gave them their turns."""
        return {}

    def exclusion(self, row: int, number: int, *, was_available: bool) -> tuple[SelectionOutcome, str] | None:
        """Returns why a client could not be selected next: its outcome, and what happened; None if it could.

        Args:
            row: The client.
            number: The number of the selection, for the sentence.
            was_available: Whether it could be, although a rule would have excluded it if others had been there.
        """
        if self.counters.retired[row]:
            return "retired", f"was retired before {self.unit} {number}"
        if was_available or not self.counters.backing_off(self.round)[row]:
            return None
        misses, last = int(self.counters.misses[row]), int(self.counters.backoff_until[row])
        after = "a miss" if misses == 1 else f"{misses} consecutive misses"
        why = f"was backed off in {self.unit} {number} after {after}, up to and including {self.unit} {last}"
        return "resting", why

    def rarely_available(self) -> BoolArray:
        """Returns which clients were available in fewer rounds than their guaranteed rate requires."""
        if self.queues is None or self.queues.accrual == "available":
            return np.zeros(len(self.ids), dtype=np.bool_)
        rounds = self.round - self.counters.joined
        is_rare = self.counters.offered < self.queues.guaranteed_rates * rounds
        rare: BoolArray = is_rare & (rounds >= ENOUGH_ROUNDS) & (self.counters.retired == 0)
        return rare

    def needs_cold_start(self, rows: IntArray | None = None) -> BoolArray:
        """Returns which clients did not train in the last closed round; with `rows`, only of these it is known."""
        given: IntArray | slice = slice(None) if rows is None else rows
        cold = np.zeros(len(self.ids), dtype=np.bool_)
        cold[given] = self.counters.last_trained[given] != self.round
        return cold

    def expected_seconds(self, rows: IntArray, contexts: FloatArray) -> FloatArray:
        """Returns the predicted times, not below 0; NaN for a client of which no time or no context is known."""
        expected, known = np.full(len(rows), np.nan), (self.counters.learned[rows] > 0) & has_context(contexts)
        if self.model is not None and known.any():
            expected[known] = self.model.optimistic(contexts[known], 0.0, rows[known])
        return expected

    def join(self, ids: Sequence[str]) -> None:
        """Adds new clients, in this order."""
        if not ids:
            return
        self._unbroken_until = 0
        if self._rows is not None:
            self._rows.update(zip(ids, range(len(self.ids), len(self.ids) + len(ids)), strict=True))
        self.ids.extend(ids)
        self._ids_digest = ""
        if self._policy is None:
            self._policy = self._build(len(ids))
        else:
            self._policy.add(len(ids))
        self.counters.add(len(ids))
        self.counters.joined[-len(ids) :] = self.round
        self.history.add(len(ids))

    def retire(self, row: int) -> None:
        """Retires a client: it accrues no more turns, and the turns it is owed remain recorded."""
        self._unbroken_until = 0
        self.counters.retired[row] = 1
        self._has_retired = True
        if self.queues is not None:
            self.queues.retire([row])

    def forget(self, row: int, name: str) -> None:
        """Retires a client and forgets what it reported; only the turns and debts that the certificate needs remain."""
        self.retire(row)
        self.erase(row, name)

    def erase(self, row: int, name: str) -> None:
        """Forgets the id and everything that a client reported, without retiring it."""
        del self.rows[self.ids[row]]
        self.ids[row] = name
        self._ids_digest = ""
        self.rows[name] = row
        self.policy.forget([row])
        self.counters.forget(row)
        self.history.forget(row)
        self.pending.forget(row)

    def amend(
        self,
        build: Callable[[int], SelectionPolicy],
        *,
        new_features: int | None,
        min_turn_interval: float | None = None,
    ) -> None:
        """Replaces the policy by one with other settings, which continues with the same turns, debts and times.

        A promise that the new tolerance does not break is no longer recorded as broken; one that it breaks is recorded
        as broken from the next closed round on.

        Args:
            build: Builds the policy with the new settings for a number of clients.
            new_features: The number of features of a context if the features are new, otherwise None. With new features
                the times of all clients are learned again.
            min_turn_interval: With slots, the seconds in which a client is given at most one turn; None for no limit.
        """
        if self._policy is not None:
            self._policy.settle()
            amended = build(len(self.ids))
            amended.restore(amended.amended_state(self._policy.state(), keep_times=new_features is None))
            self._policy = amended
            certificate = amended.certificate()
            if certificate is not None:
                self.counters.broken_since *= certificate.broken
        self._build, self._unbroken_until, self.min_turn_interval = build, 0, min_turn_interval
        if new_features is not None:
            self._restart_learning(new_features)

    def state(self) -> dict[str, Any]:
        """Returns everything except the ids, as plain arrays and numbers."""
        return {
            "clients": len(self.ids),
            "round": self.round,
            **self.counters.stored(),
            **self.history.stored(),
            **self.pending.state(),
            **({} if self._policy is None else prefixed("policy", self._policy.state())),
        }

    def restore(self, state: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Restores what `state` returned, for the clients with these ids."""
        if int(saved_value(state, "clients")) != len(ids):
            raise StateError(f"the saved state has {state['clients']} clients, but {len(ids)} ids were given")
        self.ids = list(ids)
        self._rows, self._ids_digest = None, ""
        self.round = as_count("round", saved_value(state, "round"), StateError, least=0)
        self._unbroken_until = 0
        self.counters = ClientCounters.restored(state, len(ids))
        self._last_backoff = int(self.counters.backoff_until.max(initial=0))
        self._has_retired = bool(self.counters.retired.any())
        self.history = ClientHistory.restored(state, len(ids))
        self.pending = PendingArrivals.restored(state)
        self._policy = None
        if ids:
            self._policy = self._build(len(ids))
            self._policy.restore(subset(state, "policy"))

    def _restart_learning(self, features: int) -> None:
        """Resets what was learned from contexts: they have other features now, `features` of them."""
        self.counters.learned[:] = 0
        self.history.context_errors[:] = self.history.typical_errors[:] = 0
        self.pending.forget_contexts(features)

    def _predict(self, rows: IntArray, kinds: IntArray, contexts: FloatArray) -> FloatArray:
        """Returns the predicted time of each client that returned, before the policy learns from it; otherwise NaN."""
        predicted = self.expected_seconds(rows, contexts)
        # Only after an amendment of the features, or cold starts, can a client have more times than were learned.
        predicted[(kinds > REDUNDANT) | (self.counters.learned[rows] < JUDGED_AFTER)] = np.nan
        return predicted

    def _count_ended(
        self, number: int, rows: IntArray, kinds: IntArray, contexts: FloatArray, seconds: FloatArray
    ) -> None:
        """Counts the outcomes of turns that the policy has learned from.

        Args:
            number: The round or decision that gave them.
            rows: The clients.
            kinds: The outcomes, as indices into KINDS.
            contexts: The contexts of the clients.
            seconds: The exchange times.
        """
        counters, returned, is_taught = self.counters, rows[kinds <= REDUNDANT], kinds != FAILED
        counters.last_trained[returned] = self.round
        counters.learned[rows[is_taught if self.model is None else is_taught & has_context(contexts)]] += 1
        counters.misses[returned] = 0
        if self.slots is None:  # a client that stepped aside was selected, because nobody else was there
            counters.backed_off[rows] -= counters.backoff_until[rows] >= self.round
        counters.back_off(returned, self.round, 0)
        is_small = self.slots is None and (self.policy.cohort_size or math.inf) <= SMALL_COHORT
        for row in rows[kinds >= LATE].tolist():
            counters.misses[row] += 1
            after = 1 if self._may_step_aside and is_small else self._backoff_after
            backoff = (self.slots or 1) * backoff_rounds(int(counters.misses[row]), after)
            counters.back_off(row, self.round, self.round + backoff if backoff else 0)
            self._last_backoff = max(self._last_backoff, self.round + backoff)
        for index in np.flatnonzero((kinds == CUT_OFF) | (kinds == LATE)).tolist():
            row = int(rows[index])
            self.pending.add(number, row, contexts[index], float(seconds[index]), int(counters.learned[row]))

    def _settle_late(self, late: LateTimes) -> None:
        """Ends the wait for late clients whose actual times were learned; their misses are forgiven."""
        self.counters.misses[late.rows] = 0
        self.counters.back_off(np.unique(late.rows), self.round, 0)
        self.pending.settle(late)

    def _end_round(self) -> None:
        """Ends the wait for clients that were late long ago, and records since when each promise is broken."""
        self.pending.drop_until(self.round - self._late_window)
        if self.round <= self._unbroken_until or not self._may_be_broken():
            return
        certificate = self.policy.certificate()
        if certificate is not None:
            self.counters.judge(certificate.broken, self.round)

    def _may_be_broken(self) -> bool:
        """Returns whether a promise was broken before or may be now; this is faster than a certificate.

        No client is further behind than the turns that it is owed and those that it has forfeited, and in a round it
        falls behind by its rate at most: if nobody can be beyond the tolerance, that holds for some rounds more.
        """
        queues, guarantee = self.queues, self.policy.guarantee
        if queues is None or guarantee is None:
            return False
        if self.counters.broken_since.any() or (queues.max_owed is not None and queues.forfeited.any()):
            return True
        owed = queues.owed_exactly()
        slack = exact_tolerance(guarantee.tolerance) * queues.units_per_turn - (int(owed.units.max()) + owed.credit)
        if slack < 0:
            return True
        rate = int(np.max(queues.accounts().rates))
        self._unbroken_until = self.round + (math.floor(slack / rate) if rate else 0)
        return False


def row_of(fleet: Fleet, client: object, path: Location) -> int:
    """Returns the row of a client of the fleet at `path`; raises ReportError if there is none."""
    row = fleet.rows.get(client) if isinstance(client, str) else None
    if row is None:
        raise unknown_client(client, path)
    return row
