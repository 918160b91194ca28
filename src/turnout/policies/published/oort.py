"""Oort: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection",
OSDI 2021.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, smallest
from turnout.kernel.rounds import TIMED_OUTCOMES, RoundOffer, RoundReport, Selection
from turnout.policies.common import (
    LastSignal,
    SizedPolicy,
    as_share,
    exponential_keys,
    part_of,
    per_client_setting,
    weighted_sample_linear,
)


class Oort(SizedPolicy):
    """Samples clients by statistical utility and speed, and always explores some new ones.

    The utility in round R of a client that had its last turn in round L and took t seconds is

        (U − min U) / (max U − min U) + sqrt(`staleness` · ln R / L), times (T / t)^`penalty` if t > T,
        U = |B| · sqrt(mean of its squared losses), clipped at its quantile `clip` among the available clients.

    *Exploitation.* (1 − e) · cohort_size clients that had a turn: among those with at least `cutoff` times the utility
    of the last one needed, sampled in proportion to utility. *Exploration.* The other places go to clients without a
    turn, sampled in proportion to `speeds`. e = max(`exploration` · `exploration_decay`^(R − 1),
    `least_exploration`). If there are too few clients of one kind, the other kind fills up.

    *Pacer.* T starts at `pacer_start`. After every `pacer_window` rounds it is relaxed by `pacer_step` if the utility
    of these rounds is below that of the window before.

    *Blacklist.* Clients with more than `max_turns` turns, those with the most turns first and at most
    `blacklist_share` of all, are selected only if no other client is left.

    A report has one loss per client, its mean; it is used in place of the root mean square unless clients report that.
    A client that reported no loss counts with the mean of the others, so that without any losses the utility is the
    data size. A client that failed at its last turn has U = 0. The duration of a late client is the deadline until its
    true time is known.

    Published implementations keep the explored clients of earlier rounds (cohorts of the wrong size, duplicates,
    unavailable clients), cut the blacklist at a fraction of a client, stop when all utilities are 0 or too few clients
    are available, reseed the global generator, and ignore failures. Here every cohort has
    min(cohort_size, available) clients.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        sizes: The data size |B| of each client; None for equal sizes.
        speeds: The speed of each client in any unit, for exploration; None for equal speeds.
        exploration: The share of explored clients in the first round.
        exploration_decay: The factor by which that share falls per round.
        least_exploration: The smallest share of explored clients.
        staleness: The weight of the time since the last turn.
        clip: The quantile at which U is clipped.
        cutoff: The share of the last needed utility that a candidate must have.
        penalty: The exponent of the penalty for slow clients.
        pacer_unit: "share": T is that quantile of the known durations; "seconds": T itself.
        pacer_start: The initial T.
        pacer_step: How much T is relaxed.
        pacer_window: The number of rounds between decisions of the pacer.
        max_turns: The turns after which a client is blacklisted; None never blacklists.
        blacklist_share: The largest share of blacklisted clients.
        seed: The seed of the random generator.
    """

    name = "oort"
    fills_slots = True
    last_rounds: IntArray  # 0: no turn yet
    durations: FloatArray  # 0: unknown
    turns: IntArray
    failed: BoolArray
    gathered: FloatArray  # the utility of each of the last rounds, the newest last
    rounds: int
    relaxed: int

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        sizes: npt.ArrayLike | None = None,
        speeds: npt.ArrayLike | None = None,
        exploration: float = 0.9,
        exploration_decay: float = 0.98,
        least_exploration: float = 0.2,
        staleness: float = 0.1,
        clip: float = 0.95,
        cutoff: float = 0.95,
        penalty: float = 2.0,
        pacer_unit: Literal["share", "seconds"] = "share",
        pacer_start: float = 0.3,
        pacer_step: float = 0.05,
        pacer_window: int = 20,
        max_turns: int | None = None,
        blacklist_share: float = 0.3,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        self._speeds_given = speeds is not None
        self.speeds = per_client_setting("speeds", speeds, self.clients)
        self.exploration = as_share("exploration", exploration)
        self.exploration_decay = as_share("exploration_decay", exploration_decay)
        self.least_exploration = as_share("least_exploration", least_exploration)
        self.staleness = as_number("staleness", staleness, SettingError, least=0)
        self.clip, self.cutoff = as_share("clip", clip), as_share("cutoff", cutoff)
        self.penalty = as_number("penalty", penalty, SettingError, least=0)
        if pacer_unit not in ("share", "seconds"):
            raise SettingError(f"pacer_unit must be 'share' or 'seconds', got {pacer_unit!r}")
        self.pacer_unit = pacer_unit
        self.pacer_start = as_number("pacer_start", pacer_start, SettingError, above=0)
        self.pacer_step = as_number("pacer_step", pacer_step, SettingError, least=0)
        self.pacer_window = as_count("pacer_window", pacer_window, SettingError)
        self.max_turns = None if max_turns is None else as_count("max_turns", max_turns, SettingError)
        self.blacklist_share = as_share("blacklist_share", blacklist_share)
        self.losses = LastSignal(self.clients)
        self._remember_part("losses", self.losses, self.losses.forget)
        self._remember(last_rounds=0, durations=0.0, turns=0, failed=False)
        self._remember_shared(gathered=np.zeros(2 * self.pacer_window), rounds=0, relaxed=0)

    @property
    def preferred_duration(self) -> float:
        """T, the duration in seconds above which a client is penalised; infinite before any duration is known."""
        pace = self.pacer_start + self.relaxed * self.pacer_step
        if self.pacer_unit == "seconds":
            return pace
        known = self.durations[np.flatnonzero(self.durations > 0)]
        return _quantile(known, pace) if len(known) else math.inf

    @property
    def blacklisted(self) -> BoolArray:
        """The clients with too many turns."""
        out = np.zeros(self.clients, dtype=np.bool_)
        if self.max_turns is not None:
            busy = np.flatnonzero(self.turns > self.max_turns)
            out[busy[smallest(-self.turns[busy], part_of(self.blacklist_share, self.clients))]] = True
        return out

    def utilities(self, rows: IntArray, round: int) -> FloatArray:
        """Returns the utility of clients that had a turn."""
        gains = self._gains(rows)
        if not len(gains):
            return gains
        top, bottom = _quantile(gains, self.clip), gains.min()
        spread = top - bottom
        utilities = (np.minimum(gains, top) - bottom) / spread if spread > 0 else np.ones(len(rows))
        utilities = utilities + np.sqrt(self.staleness * math.log(round) / self.last_rounds[rows])
        durations, preferred = self.durations[rows], self.preferred_duration
        slow = np.flatnonzero(durations > preferred)
        utilities[slow] *= (preferred / durations[slow]) ** self.penalty
        return utilities

    def ask(self, offer: RoundOffer) -> Selection:
        """Divides the places between exploitation and exploration, then samples."""
        self.check_offer(offer)
        had_turn, out = self.last_rounds > 0, self.blacklisted
        known = np.flatnonzero(offer.available & had_turn & ~out)
        new = np.flatnonzero(offer.available & ~had_turn)
        rest = np.flatnonzero(offer.available & out)
        size = min(self.places(offer), len(known) + len(new) + len(rest))
        exploration = max(self.exploration * self.exploration_decay ** (offer.round - 1), self.least_exploration)
        explored = min(size - min(part_of(1 - exploration, size), len(known)), len(new))
        exploited = min(size - explored, len(known))
        utilities = self.utilities(known, offer.round)
        positions = self._by_utility(known, utilities, exploited, offer.round)
        more = rest[smallest(self.turns[rest], size - explored - exploited)]
        chosen = np.concatenate([known[positions], self._by_speed(new, explored, offer.round), more])
        order = np.argsort(chosen)
        utility = np.zeros(size)
        utility[: len(positions)] = utilities[positions]
        chosen = chosen[order]
        explored_mask = (self.last_rounds[chosen] == 0).astype(np.float64)
        return Selection.trusted(offer.round, chosen, {"utility": utility[order], "explored": explored_mask})

    def tell(self, report: RoundReport) -> None:
        """Stores losses, durations and turns, and lets the pacer decide."""
        super().tell(report)
        late = report.late_arrivals
        if late is not None:
            latest = late.rounds == self.last_rounds[late.clients]
            self.durations[late.clients[latest]] = late.exchange_times[latest]
        self.losses.learn_from(report)
        timed = report.with_outcome(*TIMED_OUTCOMES)
        self.durations[report.clients[timed]] = report.exchange_times[timed]
        self.failed[report.clients] = ~timed
        self.last_rounds[report.clients] = report.round
        self.turns[report.clients] += 1
        arrived = np.sort(report.clients[report.with_outcome("arrived")])
        self._update_pacer(float(self._gains(arrived).sum()))

    def add(self, count: int) -> None:
        """Appends clients that have had no turn."""
        if self._speeds_given and as_count("count", count, SettingError, least=0):
            raise SettingError(
                f"oort has the speeds of {self.clients} clients, so {count} more cannot join: build a new policy with "
                "the speeds of all clients, or with speeds=None"
            )
        super().add(count)
        self.speeds = np.append(self.speeds, np.ones(count))

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes the losses, durations and turns of these clients.

        If they had turns, the pacer's window starts again: the utility of a round is a sum that includes theirs.
        """
        known = self._rows(rows)
        if self.turns[known].any():
            self.gathered[:] = 0.0
        super().forget(known)

    def _gains(self, rows: IntArray) -> FloatArray:
        """Returns U, the statistical utility, of clients that had a turn."""
        losses = self.losses.values[rows]
        missing = np.flatnonzero(losses == -np.inf)
        if len(missing):
            losses[missing] = self.losses.guessed()[rows[missing]]
        losses[np.flatnonzero(self.failed[rows])] = 0.0
        gains: FloatArray = self.sizes[rows] * np.abs(losses)
        return gains

    def _by_utility(self, rows: IntArray, utilities: FloatArray, count: int, round: int) -> IntArray:
        """Returns positions in `rows`."""
        if count == 0:
            return rows[:0]
        needed = np.partition(utilities, len(rows) - count)[len(rows) - count]
        candidates = np.flatnonzero(utilities >= self.cutoff * needed)
        keys = exponential_keys(self.seed, "oort known", round, self.clients)[rows[candidates]]
        return candidates[weighted_sample_linear(utilities[candidates], keys, count)]

    def _by_speed(self, rows: IntArray, count: int, round: int) -> IntArray:
        if count == 0:
            return rows[:0]
        keys = exponential_keys(self.seed, "oort new", round, self.clients)[rows]
        return rows[weighted_sample_linear(self.speeds[rows], keys, count)]

    def _update_pacer(self, gathered: float) -> None:
        window = self.pacer_window
        self.gathered = np.append(self.gathered[1:], gathered)
        self.rounds += 1
        if self.rounds >= 2 * window and self.rounds % window == 0:
            self.relaxed += bool(self.gathered[:window].sum() > self.gathered[window:].sum())


def _quantile(values: FloatArray, share: float) -> float:
    """Returns the quantile of this share, the largest value for shares of 1 and more."""
    index = min(part_of(share, len(values)), len(values) - 1)
    return float(np.partition(values, index)[index])
