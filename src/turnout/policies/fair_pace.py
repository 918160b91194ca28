"""FairPace: short rounds in which no client falls further behind than a stated tolerance.

The rule, in each round (b_i: turns that client i is behind, this round's accrual included; a_i: turns that it may be
behind; s_i: its usual time; m: the number of places):

1. Clients with b_i ≥ a_i are urgent. They are selected first, the largest b_i − a_i before the others; among equals the
   faster, then the lower row.
2. The places that are left minimise max(time over the whole cohort) − Σ price, exactly, where

       price_i = p_i / max(0.7 · m, 1) · max(a_i, tolerance/2) / (r_i + h_t)     seconds that a turn is worth,
       p_i = max(s_i + (1 − 1/m) · (s_i − t_i), 0)     with its time t_i in this round.

   r_i is a_i − b_i up to the limit max(a_i, tolerance/2) + tolerance. What exceeds it counts (25 + n)/(25 + n_i)
   times, where n is the number of earlier rounds and n_i that of the rounds in which the client accrued: a client that
   joins late need not catch up with the surplus that others gathered in thousands of rounds. h_t = h · max(0, 1 −
   (round − 1)/100) is the head start, by default h = tolerance: slow clients can wait longer in the first rounds. With
   value="loss", a turn is worth value_weight · s / max(0.7 · m, 1) · l_i in addition, where s is the median usual time
   and l_i the last loss of the client, relative to the mean of all last losses: clients from which more can be learned
   are selected more often. Another signal can take the place of the loss. Neither changes who is urgent.

A slow client makes the round longer, but several slow clients can share one slow round; hence the share. Most members
of a cohort do not make the round longer: one that is faster now than usual had better take its turn now than in another
round. The second factor is a barrier: it grows without limit as the client approaches the tolerance, and falls for a
client with a surplus. There is no weight of seconds against turns, so the choice is the same in milliseconds and in
hours. While no time is known although turns have ended, every usual time is 1.

With accrual="available", a_i = tolerance − rate_i. With accrual="always" a client also falls behind while it is
absent, so a_i = tolerance − rate_i · (1 + g_i) with g_i = ln 0.001 / ln(1 − p_i), the longest absence to expect if the
client is available with probability p_i = (rounds available + 1) / (rounds + 2), this round included.

*Bound.* With N clients of one rate, cohorts of m, N · rate ≤ m, accrual="available" and counts="selected", every
client is at the end of every round less than tolerance − rate + rate · (N − 1)/m turns behind, for any availability,
any exchange times and any estimates of them: fewer than j clients are tolerance − 2 · rate + rate · (1 + (N − j)/m) or
more turns behind, because j of them would have waited for m others that were no less behind. The proof is in
`turnout.kernel.pace.bounds`, also for different rates, failed turns, missing places and slots.

*Slots.* If clients are given turns one at a time, whenever a slot is free, the rule is the same with m = 1: decisions
take the place of rounds. A client that is training earns as well, but at most one turn while its turn lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from fractions import Fraction
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_number
from turnout.kernel.certificate import exact_tolerance
from turnout.kernel.cohort_problem import CohortProblem, PriceTerms
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.pace.prices import (
    HEAD_ROUNDS,
    ClientPrices,
    Pace,
    PaceOutlook,
    advantage_weight,
    exact_prices,
    fading,
    most_urgent,
    price_order,
    priced_times,
    sharers,
)
from turnout.kernel.pace.usual import Presence, UsualContexts
from turnout.kernel.rounds import LOSS, RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import replaced
from turnout.policies.common import RelativeSignal, as_turn_values
from turnout.policies.guaranteed import GuaranteedPolicy
from turnout.policies.pace_times import ExpectedTimes, LearnedTimes, PaceTimes


class FairPace(GuaranteedPolicy):
    """Selects short rounds and keeps every client within a tolerance of its guaranteed share, at any time.

    The policy learns how long each client takes and gives a turn of each client a price in seconds, which grows as the
    client approaches the tolerance. It selects the cohort that minimises the slowest time minus the prices. There is
    no weight to choose. The module docstring states the rule and what is proved about it.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        times: "learned": the policy learns exchange times. "expected": it uses the true expected times of simulated
            worlds, to find out what learning costs.
        exploration: The width of the confidence bound of learned times; above 0, the choice depends on the unit of
            time.
        ridge: The ridge parameter of the regressions: the number of typical times that the fleet-wide estimate of a
            coefficient counts for in that of a client. For the client's speed in all, it counts for one.
        forgetting: A discount below 1 reduces the influence of old times.
        features: The number of features of a context.
        value: "loss", or the name of another signal in reports: a turn of a client is worth more if the last value
            that it reported is large; None: all turns are worth the same, unless a subclass overrides `turn_values`.
        value_weight: What a turn with the usual value is worth, as a share of the cost of a usual round.
        head_start: The turns by which clients may be further behind at first before they get dear; it fades over 100
            rounds. By default as many as the tolerance, which holds all the same.
        settings: The settings of the guarantee; `Guarantee` documents them. By default `guaranteed_rate` is 0.15,
            `tolerance` 2, `accrual` "available" and `counts` "selected".

    >>> import numpy as np
    >>> policy = FairPace(4, cohort_size=2, guaranteed_rate=0.25)
    >>> offer = RoundOffer(1, available=[True, True, True, False], contexts=np.ones((4, 3)))
    >>> chosen = policy.ask(offer).clients
    >>> chosen
    array([0, 1])
    >>> policy.tell(RoundReport(1, chosen, offer.contexts[chosen], [2.0, 9.0], available=offer.available))
    >>> policy.certificate().behind
    array([-0.75, -0.75,  0.25,  0.  ])
    >>> policy.bound
    2.125
    """

    name = "fair-pace"
    fills_slots = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        times: Literal["learned", "expected"] = "learned",
        exploration: float = 0.0,
        ridge: float = 8.0,
        forgetting: float = 1.0,
        features: int = 3,
        value: str | None = None,
        value_weight: float = 1.0,
        head_start: float | None = None,
        **settings: Unpack[GuaranteeSettings],
    ) -> None:
        own: GuaranteeSettings = {"accrual": "available", **settings}
        super().__init__(clients, cohort_size=cohort_size, **own)
        self.tolerance = exact_tolerance(self.guarantee.tolerance)
        largest = Fraction(int(np.max(self.debts.accounts().rates)), self.debts.units_per_turn)
        if self.tolerance <= largest:
            raise SettingError(
                f"tolerance must exceed the guaranteed rate, got tolerance {float(self.tolerance):g} for a rate of "
                f"{float(largest):g}: a client is that much behind after one round without a turn"
            )
        if times not in ("learned", "expected"):
            raise SettingError(f"times must be 'learned' or 'expected', got {times!r}")
        self.exploration = as_number("exploration", exploration, SettingError, least=0)
        self.requires_expected_times = times == "expected"
        self._times: PaceTimes = ExpectedTimes(clients)
        if times == "learned":
            self.time_model = ExchangeTimeModel(
                clients, features=features, ridge=ridge, forgetting=forgetting, prior="fleet", relative_ridge=True
            )
            self.features = self.time_model.features
            self._times = LearnedTimes(self.time_model, self.exploration)
        if value is not None and not (isinstance(value, str) and value):
            raise SettingError(f"value must be 'loss', the name of another signal or None, got {value!r}")
        self.value, self.signals = value, () if value in (LOSS, None) else (value,)
        self.value_weight = as_number("value_weight", value_weight, SettingError, least=0)
        head_start = float(self.tolerance) if head_start is None else head_start
        self.head_start = as_number("head_start", head_start, SettingError, least=0)
        self._signal = None if value is None else RelativeSignal(clients, value)
        if self._signal is not None:
            self._remember_part("signal", self._signal, self._signal.forget)
        # How often each client was available; only accrual="always" needs it.
        self._presence = Presence(clients) if self.guarantee.accrual == "always" else None
        if self._presence is not None:
            self._remember_part("presence", self._presence, None)
        self._remember_part("", self._times, self._times.forget)

    @property
    def bound(self) -> float:
        """The proved upper bound on how far a client falls behind; infinite if there is none for these settings."""
        return self.guarantee.proved_bound(self.clients, self.cohort_size).turns

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects urgent clients first, then the cohort that minimises the slowest time minus the prices."""
        self.check_offer(offer)
        places = self.places(offer)
        pace = self._pace_of(offer, places)
        cohort, urgent = self._times.cohort(offer, pace, places)
        rows = cohort.rows
        weighted, weights = self._times.usual_terms(offer, rows)
        is_urgent = np.isin(rows, urgent)
        values = {} if pace.losses is None else {"value": pace.losses[rows] * pace.loss_price}
        reasons = {
            "optimistic": cohort.times,
            "usual": weighted / weights,
            "behind": pace.behind(rows) / pace.units_per_turn,
            "price": np.where(is_urgent, 0.0, pace.prices(rows, cohort.times, weighted, weights, places)),
            **values,
            "urgent": is_urgent.astype(np.float64),
            "threshold": np.array(cohort.threshold),
            "objective": np.array(cohort.objective),
        }
        return Selection.trusted(offer.round, rows, reasons)

    def tell(self, report: RoundReport) -> None:
        """Updates turns and debts, and learns the exchange times."""
        super().tell(report)
        if self._presence is not None:
            self._presence.count(report.available)
        self._learn_from(report)

    def tell_started(self, turn: TurnStart) -> None:
        """Updates turns and debts."""
        super().tell_started(turn)
        if self._presence is not None:
            self._presence.count(turn.earning())  # the same decisions as in the debts

    def tell_finished(self, report: RoundReport) -> None:
        """Learns the exchange time."""
        super().tell_finished(report)
        self._learn_from(report)

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes what was learned about these clients, from the fleet-wide regression too."""
        super().forget(rows)
        if self._presence is not None:
            self._presence.forget(self._rows(rows), self.debts.accounts().rounds)

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Converts the debts; with other features, usual times and the model are those of a new policy."""
        amended = super().amended_state(state, keep_times=keep_times)
        return amended if keep_times else replaced(amended, self._times.state(), "usual", "model")

    def pace(self) -> Pace:
        """Returns how far each client is behind in the next round, and how far it may be."""
        rates, rounds, base = self.debts.accounts()
        tolerance = float(self.tolerance * self.debts.units_per_turn)
        margin: Any = rates if self._presence is None else rates * (1 + self._presence.longest_absence(rounds))
        return Pace(
            rates=rates,
            rounds=rounds,
            turns=self.turns,
            units_per_turn=self.debts.units_per_turn,
            allowed=tolerance - margin,
            least_allowed=tolerance / 2,
            base=base,
        )

    def _learn_from(self, report: RoundReport) -> None:
        self._times.learn_from(report)
        if self._signal is not None:
            self._signal.learn_from(report)

    def _pace_of(self, offer: RoundOffer, places: int) -> Pace:
        """Returns the pace with the head start of this round, and the values of turns."""
        pace = self.pace()._replace(age=offer.round - 1)
        if self.head_start:
            pace = pace._replace(head_start=fading(self._head_units, offer.round))
        values = self.turn_values(offer)
        if values is None:
            return pace
        if self._signal is None or values is not self._signal.relative:
            values = as_turn_values(values, self.clients)
        price = self.value_weight * self._times.typical_seconds(offer) / sharers(places)
        return pace._replace(losses=values, loss_price=price)

    def turn_values(self, offer: RoundOffer) -> FloatArray | None:  # noqa: ARG002
        """Returns what a turn of each client is worth, relative to a usual turn; None if all are worth the same.

        By default it is the last value of the signal `value`. A subclass that overrides this method computes something
        else, from what its own `tell` has stored.
        """
        return self._signal.relative if self._signal is not None and self._signal.usual else None

    @property
    def _head_units(self) -> float:
        return self.head_start * self.debts.units_per_turn

    def cohort_problem(self, offer: RoundOffer) -> CohortProblem:
        """Returns the problem that `ask` solves, with prices in seconds."""
        places, rows = self.places(offer), np.arange(self.clients)
        pace = self._pace_of(offer, places)
        times = np.ascontiguousarray(self._times.times(offer))
        weighted, weights = self._times.usual_terms(offer, rows)
        prices = pace.prices(rows, times, weighted, weights, places)
        urgent = np.flatnonzero(offer.available & (prices < 0))
        competing = np.where(offer.available & (prices > 0), prices, 0.0)
        return CohortProblem(
            times,
            exact_prices(competing, min(places, int(offer.available.sum()))),
            places,
            1.0,
            offer.available,
            self.debts,
            values_are_debts=False,
            order=price_order(competing),
            urgent=most_urgent(urgent, pace.slack(urgent), times[urgent], len(urgent)),
            prices=PriceTerms(
                usual=weighted / weights,
                priced=priced_times(times, weighted, weights, places) / weights,
                advantage=advantage_weight(places),
                behind=pace.behind(rows) / pace.units_per_turn,
                allowed=np.array(np.broadcast_to(pace.allowed, self.clients)) / pace.units_per_turn,
                least_allowed=pace.least_allowed / pace.units_per_turn,
                sharers=sharers(places),
                rooms=pace.room(rows) / pace.units_per_turn,
                head_start=float(pace.head_start) / pace.units_per_turn,
                values=None if pace.losses is None else pace.losses * pace.loss_price,
                signal=self.value or "value",
                outlook=PaceOutlook(
                    deepcopy(pace),
                    times,
                    weighted,
                    weights,
                    places,
                    deepcopy(self._presence),
                    offer.round,
                    self._head_units,
                ),
            ),
        )

    def client_prices(self, offer: RoundOffer) -> ClientPrices:
        """Returns the terms of the price of each client, which are computed when they are asked for."""
        rates, rounds, base = self.debts.accounts()
        pace = Pace(rates, rounds, self.turns, self.debts.units_per_turn, 0.0, 0.0, base)
        head_start = float(fading(self.head_start, offer.round))
        usual = partial(self._times.usual_seconds, offer)
        return ClientPrices(pace, usual, head_start, self.head_start / HEAD_ROUNDS)

    def exploration_at(self, round: int) -> float | None:  # noqa: ARG002
        """Returns the width of the confidence bound of learned times."""
        return None if self.time_model is None else self.exploration

    def learned(self) -> tuple[ExchangeTimeModel, UsualContexts]:
        """Returns the model of exchange times and the usual contexts, which `tell` changes.

        Raises:
            SettingError: If the policy was built with times="expected".
        """
        if not isinstance(self._times, LearnedTimes):
            raise SettingError("times='expected' learns no exchange times: use times='learned'")
        return self._times.model, self._times.usual
