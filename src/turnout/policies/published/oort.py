"""Oort: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection",
OSDI 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, load_array, smallest
from turnout.kernel.rounds import TIMED_OUTCOMES, RoundOffer, RoundReport, Selection
from turnout.policies.observations import LastLosses, append_rows, as_share, load_number, part_of
from turnout.policies.sampling import exponential_keys, weighted_sample_linear
from turnout.policies.sized import SizedPolicy, per_client_setting


class Oort(SizedPolicy):
    """Clients that teach the model much and do not keep it waiting, by lot; and always some new ones.

    The utility of a client that had its last turn in round L and took t seconds, in round R:

        (U − min U) / (max U − min U) + sqrt(`staleness` · ln R / L), times (T / t)^`penalty` if t > T
        U = |B| · sqrt(mean of its squared losses), clipped at its quantile `clip` among the available

    *Exploitation.* (1 − e) · cohort_size clients that had a turn: those with at least `cutoff` times the utility of
    the last one needed, drawn in proportion to utility. *Exploration.* The other places go to clients without a
    turn, drawn by `speeds` (any unit; None: evenly). e = max(`exploration` · `exploration_decay`^(R − 1),
    `least_exploration`). If one kind runs short, the other fills up.

    *Pacer.* T starts at `pacer_start`. After every `pacer_window` rounds it is relaxed by `pacer_step` if the
    utility gathered in these rounds is below that of as many rounds before. `pacer_unit="share"`: T is that quantile
    of the known durations, which suits any fleet; "seconds": T itself.

    *Blacklist.* Who had more than `max_turns` turns is out (None: nobody), the busiest first and no more than
    `blacklist_share` of all; they only fill places that nobody else can.

    `sizes` are |B|, None where all have the same. Reports hold one loss a client, its mean: it stands for the root
    of the mean square, unless the clients report that. A client that told none counts with the mean of the others,
    so that without any losses utility is data size. Who failed at its last turn brought nothing: its U is 0. Of a
    late client the duration is the deadline, until the truth is known.

    Published programs keep the explorers of earlier rounds (cohorts of the wrong size, repeats, absent clients),
    cut the blacklist at a fraction of a place, stop when all utilities are 0 or fewer clients than wanted can be
    had, reseed the global generator, and pass over failures. Here every cohort has min(cohort_size, available).
    """

    name = "oort"

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
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes)
        self._speeds_given = speeds is not None
        self.speeds = per_client_setting("speeds", speeds, self.clients)
        self.exploration = as_share("exploration", exploration)
        self.exploration_decay = as_share("exploration_decay", exploration_decay)
        self.least_exploration = as_share("least_exploration", least_exploration)
        self.staleness = as_number("staleness", staleness, SettingError, least=0)
        self.clip, self.cutoff = as_share("clip", clip), as_share("cutoff", cutoff)
        self.penalty = as_number("penalty", penalty, SettingError, least=0)
        if pacer_unit not in ("share", "seconds"):
            raise SettingError(f"pacer_unit must be 'share' or 'seconds', not {pacer_unit!r}")
        self.pacer_unit = pacer_unit
        self.pacer_start = as_number("pacer_start", pacer_start, SettingError, above=0)
        self.pacer_step = as_number("pacer_step", pacer_step, SettingError, least=0)
        self.pacer_window = as_count("pacer_window", pacer_window, SettingError)
        self.max_turns = None if max_turns is None else as_count("max_turns", max_turns, SettingError)
        self.blacklist_share = as_share("blacklist_share", blacklist_share)
        self.seed = as_count("seed", seed, SettingError, least=0)
        self.losses = LastLosses(self.clients)
        self.last_rounds = np.zeros(self.clients, dtype=np.int64)  # 0: not yet
        self.durations: FloatArray = np.zeros(self.clients)  # 0: not known
        self.turns = np.zeros(self.clients, dtype=np.int64)
        self.failed: BoolArray = np.zeros(self.clients, dtype=np.bool_)
        self.gathered: FloatArray = np.zeros(2 * self.pacer_window)  # utility of the last rounds, the newest last
        self.rounds = 0
        self.relaxed = 0

    @property
    def preferred_duration(self) -> float:
        """T: who takes longer, in seconds, is worth less; infinite before any duration is known."""
        pace = self.pacer_start + self.relaxed * self.pacer_step
        if self.pacer_unit == "seconds":
            return pace
        known = self.durations[np.flatnonzero(self.durations > 0)]
        return _quantile(known, pace) if len(known) else math.inf

    @property
    def blacklisted(self) -> BoolArray:
        """Who had too many turns."""
        out = np.zeros(self.clients, dtype=np.bool_)
        if self.max_turns is not None:
            busy = np.flatnonzero(self.turns > self.max_turns)
            out[busy[smallest(-self.turns[busy], part_of(self.blacklist_share, self.clients))]] = True
        return out

    def utilities(self, rows: IntArray, round: int) -> FloatArray:
        """The utility of clients that had a turn."""
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
        """Share the places out between the known and the new, then draw."""
        self.check_offer(offer)
        had_turn, out = self.last_rounds > 0, self.blacklisted
        known = np.flatnonzero(offer.available & had_turn & ~out)
        new = np.flatnonzero(offer.available & ~had_turn)
        rest = np.flatnonzero(offer.available & out)
        size = min(self.cohort_size, len(known) + len(new) + len(rest))
        explored = min(size - min(part_of(1 - self._exploration(offer.round), size), len(known)), len(new))
        exploited = min(size - explored, len(known))
        utilities = self.utilities(known, offer.round)
        places = self._by_utility(known, utilities, exploited, offer.round)
        chosen = np.concatenate(
            [
                known[places],
                self._by_speed(new, explored, offer.round),
                rest[smallest(self.turns[rest], size - explored - exploited)],
            ]
        )
        in_order = np.argsort(chosen)
        why = np.zeros(size)
        why[: len(places)] = utilities[places]
        chosen = chosen[in_order]
        new_ones = (self.last_rounds[chosen] == 0).astype(np.float64)
        return Selection.trusted(offer.round, chosen, {"utility": why[in_order], "explored": new_ones})

    def tell(self, report: RoundReport) -> None:
        """Remember losses, durations and turns; now and then relax the pace."""
        self.check_report(report)
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
        self._keep_pace(float(self._gains(arrived).sum()))

    def add(self, count: int) -> None:
        """New clients have had no turn."""
        if self._speeds_given and as_count("count", count, SettingError, least=0):
            raise SettingError(
                f"oort was given the speeds of {self.clients} clients, so {count} more cannot join: build it anew with "
                "the speeds of all, or with speeds=None"
            )
        super().add(count)
        self.losses.add(count)
        self.speeds = append_rows(self.speeds, count, 1.0)
        for name in ("last_rounds", "durations", "turns", "failed"):
            setattr(self, name, append_rows(getattr(self, name), count, 0))

    def state(self) -> dict[str, Any]:
        """All that is known of the clients, and how far the pace was relaxed."""
        return {
            **self.losses.state(),
            "last_rounds": self.last_rounds.copy(),
            "durations": self.durations.copy(),
            "turns": self.turns.copy(),
            "failed": self.failed.copy(),
            "gathered": self.gathered.copy(),
            "rounds": self.rounds,
            "relaxed": self.relaxed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        names = ("last_rounds", "durations", "turns", "failed", "gathered")
        arrays = {name: load_array(state, name, getattr(self, name)) for name in names}
        rounds, relaxed = int(load_number(state, "rounds")), int(load_number(state, "relaxed"))
        self.losses.restore(state)
        for name, array in arrays.items():
            setattr(self, name, array)
        self.rounds, self.relaxed = rounds, relaxed

    def _gains(self, rows: IntArray) -> FloatArray:
        """U: what the data of clients that had a turn would teach."""
        losses = self.losses.values[rows]
        silent = np.flatnonzero(losses == -np.inf)
        if len(silent):
            losses[silent] = self.losses.guessed()[rows[silent]]
        losses[np.flatnonzero(self.failed[rows])] = 0.0
        gains: FloatArray = self.sizes[rows] * np.abs(losses)
        return gains

    def _exploration(self, round_: int) -> float:
        return max(self.exploration * self.exploration_decay ** (round_ - 1), self.least_exploration)

    def _by_utility(self, rows: IntArray, utilities: FloatArray, count: int, round_: int) -> IntArray:
        """Places in `rows`."""
        if count == 0:
            return rows[:0]
        needed = np.partition(utilities, len(rows) - count)[len(rows) - count]
        good = np.flatnonzero(utilities >= self.cutoff * needed)
        waits = exponential_keys(self.seed, "oort known", round_, self.clients)[rows[good]]
        return good[weighted_sample_linear(utilities[good], waits, count)]

    def _by_speed(self, rows: IntArray, count: int, round_: int) -> IntArray:
        if count == 0:
            return rows[:0]
        waits = exponential_keys(self.seed, "oort new", round_, self.clients)[rows]
        return rows[weighted_sample_linear(self.speeds[rows], waits, count)]

    def _keep_pace(self, gathered: float) -> None:
        window = self.pacer_window
        self.gathered = np.append(self.gathered[1:], gathered)
        self.rounds += 1
        if self.rounds >= 2 * window and self.rounds % window == 0:
            self.relaxed += bool(self.gathered[:window].sum() > self.gathered[window:].sum())


def _quantile(values: FloatArray, share: float) -> float:
    """The value that this share of the values lies below; the largest for a share of 1 and more."""
    place = min(part_of(share, len(values)), len(values) - 1)
    return float(np.partition(values, place)[place])
