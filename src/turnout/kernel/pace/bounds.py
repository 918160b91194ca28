"""How far FairPace is proved to keep every client from its promise, under which conditions, or why nothing is proved.

D_i: turns that client i is behind at the end of a round; x_i = D_i − tolerance + 2 · r_i, so that i is urgent in the
next round if x_i ≥ 0, the largest x_i first; y_i = x_i − r_i, its *overshoot* beyond tolerance − r_i. Left out are
clients whose rate is 0: they are never urgent. Of the others, f may be *outsiders*, about whom nothing is assumed: a
round has at most one place for each of them. N others remain, with rates of at most r. Each round selects at least m
clients, but d fewer in some rounds, D fewer in all rounds together. At most F turns of a round fail, and at most e of
one client without one that counts in between; e_i: how many of i just did. A client in back-off is absent. Let μ = m −
f − F > 0, ρ = r · (1 + e) ≤ 1, and q the places that were missing so far (q = D in the end).

In the account z_i = x_i − r_i · e_i a failed turn changes nothing, a round without a turn adds r_i, a turn that counts
changes z_i by r_i · (1 + e_i) − 1 ≤ ρ − 1 at most. If an urgent i is available and not selected, all places are taken
by clients p with x_p ≥ x_i, hence z_p ≥ z_i − r_p · e; all but f of them are not outsiders. The proofs use nothing
else: neither which of the clients that are not urgent are selected, nor the times, nor that nobody joins or leaves.

*Levels.* If N · ρ ≤ μ, every overshoot is below ρ · (max(N − 1 − F, 0) + D)/μ + e · (r + r_i). Fewer than j clients
have z ≥ B(j, q) = ρ · (1 + (N + q − j)/μ) at the end of any round. Suppose that a round with d missing places is the
first to end with a set S of j such clients, at B(j, q + d). One of them, i, was available and not selected, else the
same had held before; it had z_i ≥ B(j, q + d) − r before, so it was urgent, and the selected p had z_p ≥ B(j, q + d) −
ρ. If the turn of no client of S counted, at least μ − d of these p are not in S: before, j + μ − d clients were at B(j
+ μ − d, q). If it did for s > 0 of them, these were at B(j, q + d) + 1 − ρ ≥ B(s, q) before, because j + μ − d − s ≤ N
and N · ρ ≤ μ. Both contradict what held before. Now if i is left over with overshoot y, then y < 0, or m − d − f + 1
clients were at z ≥ y − r · e, so y < B(m − d − f + 1, q) + r · e; failures of its own add r_i · e.

*Sums.* If instead (1 + e) · Σ rates ≤ μ, every overshoot is below δ · (N − 1 + D) + e · (r + r_i), with δ = 2ρ/μ if ρ
≤ 1/2, else 1. With w_i = z_i − r_i, every set S of k clients has Σ w < Q(k, q) = δ · Σ_{l=1..k} (N + q − l) at the end
of any round. In the next one, a clients A of S are left over, the turns of c of S count, and o clients P are selected
outside S. If nobody in A was urgent, w < 0 for all of A afterwards, and Q(k − a, q) bounds the others. Otherwise o + c
≥ μ − d, and Σ_A z ≤ a/(a + o) · (Σ_{A ∪ P} z + e · Σ_P r) before. So the sum after the round is below a/(a + o) · Q(k
+ o, q) + o/(a + o) · Q(k − a, q) + g with g = a/(a + o) · (1 + e) · R(A ∪ P) − Σ_c (1 − (1 + e) · rate). This is at
most Q(k, q + d) if g ≤ δ · a · (d + o/2). Let d = 0. As all rates are ≤ r, g ≤ a · ρ − (μ − o)(1 − ρ), which settles a
≤ μ(1 − ρ)/ρ; as their sum is at most μ/(1 + e), g ≤ o · (a − (μ − o)(1 − ρ))/(a + o), which settles larger a, and ρ >
1/2. Missing places add at most d to g, and at most a · ρ − … in the first case: less than the right side gains. Q(1,
D) is the bound; outsiders stay below it too.

*Slots.* Decisions take the place of rounds, m = 1. A client that is training earns, at most one turn while its turn
lasts. If no more than L decisions are made meanwhile, count the r · L in advance, when the turn is given: then a
client that trains is as if absent, and a turn subtracts 1 − r · (1 + L) in all. Both proofs hold if r · (N + L) ≤ 1,
or Σ rates + r · L ≤ 1. A turn that counts only when the client comes back adds r · (1 + L) to the overshoot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray, Rate, as_count, exact_rates
from turnout.kernel.certificate import Accrual, Tolerance, exact_tolerance

ABSENT = "a client that is never available again falls behind in every round, whatever is selected"
OVERLOAD = "all clients are available in every round, and together are promised more turns than can count"
FAILING = "a client whose turns all fail never gets one that counts"
TRAINING = (
    "a client that earns a whole turn while its turn lasts is as far behind afterwards as before, and a client that "
    "waited for it is further behind"
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known about a fleet beside its promise.

    Attributes:
        missing_places: How many places are missing in all rounds together.
        failures: How many turns of a round fail at most; None: any number. Only counts="completed" depends on it.
        in_a_row: How many turns of one client fail at most without one that counts in between; None: any number, but
            only as many clients as `failures` says have turns that fail, and the bound is for the others.
        slots: Whether clients are given turns one at a time, without rounds.
        longest_turn: Without rounds, how many further decisions are made at most while a turn lasts; None: any number.
    """

    missing_places: int = 0
    failures: int | None = None
    in_a_row: int | None = None
    slots: bool = False
    longest_turn: int | None = None

    def __post_init__(self) -> None:
        for name in ("missing_places", "failures", "in_a_row", "longest_turn"):
            if (value := getattr(self, name)) is not None:
                as_count(name, value, SettingError, least=0)


@dataclass(frozen=True, slots=True)
class Bound:
    """What is proved about a promise.

    Attributes:
        turns: Every client is always less than this number of turns behind; infinite if nothing is proved.
        conditions: What the proof assumes; empty if nothing is proved.
        reason: Why nothing is proved; "" if a bound is.
        counterexample: A fleet in which no bound holds; "" if none is known.
    """

    turns: float
    conditions: tuple[str, ...] = ()
    reason: str = ""
    counterexample: str = ""


def proved_bound(
    rate: Rate | npt.ArrayLike,
    clients: int,
    places: int,
    *,
    tolerance: Tolerance,
    accrual: Accrual = "available",
    counts: str = "selected",
    known: Circumstances = Circumstances(),  # noqa: B008  it is frozen
) -> Bound:
    """Returns how far FairPace is proved to keep every client from its promise; the module docstring has the proofs.

    Args:
        rate: The guaranteed rate: one for all clients, or one for each.
        clients: The largest number of clients at a time.
        places: The number of clients that are selected in a round at least; 1 without rounds.
        tolerance: The tolerance.
        accrual: In which rounds a client earns, as in `Guarantee`.
        counts: When a turn counts, as in `Guarantee`.
        known: What is known about failed turns, missing places and turns without rounds.

    >>> proved_bound("1/4", 9, 4, tolerance=2).turns
    2.25
    >>> proved_bound([0.4, 0.3, 0.3], 3, 1, tolerance=2).turns
    3.3
    >>> proved_bound("1/4", 17, 4, tolerance=2).counterexample == OVERLOAD
    True
    """
    units, unit = exact_rates(rate, clients)
    rates = np.sort(units[units > 0])[::-1] if not isinstance(units, int) else np.full(clients if units else 0, units)
    allowed = exact_tolerance(tolerance)
    if not len(rates):
        return Bound(float(allowed), _conditions(counts, clients, places, known))
    fleet = _Fleet(rates, unit, places, known, fails=counts == "completed" and known.failures != 0)
    if refuted := fleet.refuted(accrual):
        return Bound(math.inf, (), *refuted)
    if allowed <= fleet.rate(0):
        return Bound(math.inf, (), "the tolerance does not exceed the rates, so FairPace refuses it")
    least = min(fleet.shortfalls(counts), default=None)
    if least is None:
        return Bound(math.inf, (), "no proof covers so many failed turns, or such long turns, with these rates")
    return Bound(float(allowed + least), _conditions(counts, clients, places, known))


class _Fleet:
    """The clients with a rate above 0, the highest first, and the terms of the proofs.

    Args:
        units: The rates, in units of a turn.
        unit: The number of units per turn.
        places: The number of places.
        fails: Whether turns may fail, and count only if they do not.
        known: What else is known about the fleet.
    """

    def __init__(self, units: IntArray, unit: int, places: int, known: Circumstances, *, fails: bool) -> None:
        self.units, self.unit, self.places, self.known, self.fails = units, unit, places, known, fails
        self.sums = np.concatenate([[0], np.cumsum(units)])
        failing = known.failures or 0 if fails else 0
        #: The clients for which no bound holds, because all their turns may fail.
        self.faulty = failing if known.in_a_row is None else 0
        self.failures = failing - self.faulty
        self.in_a_row = known.in_a_row or 0 if self.failures else 0
        #: The decisions that are made while a client trains.
        self.meanwhile = 0
        if known.slots and len(units) > 1:
            self.meanwhile = unit if known.longest_turn is None else known.longest_turn

    def rate(self, row: int) -> Fraction:
        return Fraction(int(self.units[row]), self.unit)

    def total(self, start: int, stop: int) -> Fraction:
        return Fraction(int(self.sums[stop] - self.sums[start]), self.unit)

    def shortfalls(self, counts: str) -> Iterator[Fraction]:
        """Yields what each way to prove a bound gives, in turns beyond the tolerance.

        The ways differ in how many of the clients with the highest rates are outsiders: none if all rates are equal,
        or if places are missing.
        """
        count, useful = len(self.units) - self.faulty, self.places - self.faulty - self.failures
        single = self.known.missing_places or self.units[0] == self.units[-1]
        for outsiders in range(min(useful, count, 1) if single else min(useful, count)):
            highest = self.rate(outsiders)
            over = self._overshoot(highest, count - outsiders, self.total(outsiders, count), useful - outsiders)
            if over is not None:
                # The largest of in_a_row · (highest + rate) − rate over all clients.
                over += self.in_a_row * highest + (self.in_a_row - 1) * self.rate(0 if self.in_a_row else -1)
                waiting = self.known.slots and counts == "completed"
                yield over + self.rate(0) * (1 + self.meanwhile) if waiting else over

    def _overshoot(self, highest: Fraction, clients: int, total: Fraction, useful: int) -> Fraction | None:
        """Returns the bound of the overshoot without failures of the client itself; None if neither proof holds."""
        stretch, missing, training = 1 + self.in_a_row, self.known.missing_places, highest * self.meanwhile
        if self.rate(0) * stretch > 1:
            return None
        if stretch * highest * clients + training <= useful:
            return stretch * highest * (max(clients - 1 - self.failures, 0) + missing) / useful
        if stretch * total + training <= useful:
            step = 2 * stretch * highest / useful if 2 * stretch * highest <= 1 else Fraction(1)
            return step * (clients - 1 + missing)
        return None

    def refuted(self, accrual: Accrual) -> tuple[str, str] | None:
        """Returns why no bound can hold, and the counterexample; None if one may."""
        clients, known = len(self.units), self.known
        if accrual != "available":
            return "clients also earn while they are absent (accrual is always)", ABSENT
        if self.fails and known.failures is None:
            return "a turn counts when it is completed, and any number of turns may fail", FAILING
        if self.faulty >= min(clients, self.places):
            return "every turn of a round may fail", FAILING
        if self.total(0, clients - self.faulty) > self.places - self.faulty:
            return "more turns are promised than there are places", OVERLOAD
        if clients > 2 and known.slots and self.rate(1) * (1 + self.meanwhile) >= 1:
            return "clients earn while they are training, and turns may last long", TRAINING
        return None


def _conditions(counts: str, clients: int, places: int, known: Circumstances) -> tuple[str, ...]:
    """Returns the conditions of the proof, as clauses."""
    completed = counts == "completed"
    clauses = [
        "the policy is fair-pace",
        "turns are earned by being available (accrual is available)",
        f"a turn counts when {'it is' if completed else 'its client is'} {counts} (counts is {counts})",
        f"there are never more than {pluralize(clients, 'client')}, at no other rates",
    ]
    if known.slots:
        further = pluralize(known.longest_turn or 0, "further decision")
        clauses += ["clients are given turns one at a time", f"no turn lasts longer than {further}"]
    elif known.missing_places:
        clauses.append(f"all rounds together have {pluralize(known.missing_places, 'place')} fewer than {places} each")
    else:
        clauses.append(f"no round has fewer places than {places}")
    if completed and known.failures == 0:
        clauses.append("no turn fails")
    elif completed and known.in_a_row is None:
        only = pluralize(known.failures or 0, "client")
        clauses.append(f"only {only} can have failed turns (the bound is for the others)")
    elif completed:
        most = pluralize(known.failures or 0, "failed turn")
        clauses.append(f"no round has more than {most} and no client has more than {known.in_a_row} in a row")
    return (*clauses, "rates, tolerance and cohort size are never amended")
