"""Why a client was chosen or was not, by the arithmetic of the choice itself.

*Not chosen.* A larger debt changes nothing for cohorts without the client, and lowers the objective of those with it;
so there is a smallest debt from which on it is chosen. For a threshold that admits the client its best cohort has the
client and the most owed of the others: that is one number a threshold, and the smallest debt is found by halving, with
the same product, sum, quotient and difference that the solver makes, and its rules for ties. Whole numbers have no
limit here, so the answer is exact also where the debt would not fit into 64 bits.

*Chosen.* The margin is the objective of the best cohort without the client, less that of the cohort.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.cohort import Cohort, cohort_of_times
from turnout.kernel.fairness import OwedTurns, exact_rate
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.oracle import FairOracle
from turnout.policies.rbcsf import RBCSF

StandingWord: TypeAlias = Literal["chosen", "not chosen", "not available", "resting", "retired", "not joined"]
LONGEST_DEBT = 1000  # bits: beyond it no debt helps
NAMED = 3  # clients named in a sentence
TIES = "and of equals the faster comes first, then the lower row"


class CohortProblem(NamedTuple):
    """What a choice was made from: P4 with the debts and the weight that really counted."""

    times: FloatArray
    owed: OwedTurns
    size: int
    speed_weight: float
    available: BoolArray


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one client stood in a choice, in numbers; clients are rows.

    `rival_*`: of the best cohort without it where it was chosen, with it where it was not; None if there is no such
    cohort. `leaving` and `joining`: who goes and comes from the cohort to the rival. `missing_units`: the smallest debt
    more that would have put it in: 0 if it was chosen, None if none would.
    """

    chosen: bool
    seconds: float
    owed_units: int
    units_per_turn: float
    threshold: float
    objective: float
    rival_threshold: float | None
    rival_objective: float | None
    leaving: tuple[int, ...]
    joining: tuple[int, ...]
    missing_units: int | None

    @property
    def margin(self) -> float | None:
        """By how much the cohort is better than its rival, in turns."""
        return None if self.rival_objective is None else self.rival_objective - self.objective


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a client was chosen in a round, or was not.

    `exact`: whether the numbers are those of the choice itself; where they are not there are none, and `sentence` says
    why. `seconds`, `owed`: its time and its debt as the policy saw them. `margin`: in turns, between the cohort and the
    best one without the client (chosen) or with it (not chosen). `missing_turns`, `missing_units`: what it lacked, at
    `units_per_turn`; `rounds_until`: in how many rounds it would have earned that, if it were there in all of them and
    nothing else changed. `longer`: seconds by which the round would be longer without it (chosen) or with it (not),
    `worth` so many turns; `instead`: who would take its place, or lose theirs to it.
    """

    round: int
    client: str
    policy: str
    standing: StandingWord
    exact: bool
    sentence: str
    seconds: float | None = None
    owed: float | None = None
    threshold: float | None = None
    objective: float | None = None
    margin: float | None = None
    missing_turns: float | None = None
    missing_units: int | None = None
    units_per_turn: float | None = None
    rounds_until: int | None = None
    longer: float | None = None
    worth: float | None = None
    instead: tuple[str, ...] = ()


# The pure part: rows and numbers


def standing_of(problem: CohortProblem, row: int) -> Standing:
    """Where this client, which must be available, stood in the choice.

    >>> problem = CohortProblem(
    ...     times=np.array([1.0, 2.0, 5.0]), owed=OwedTurns(np.array([0, 0, 41]), 0, 1.0), size=1, speed_weight=20.0,
    ...     available=np.ones(3, dtype=np.bool_),
    ... )
    >>> standing_of(problem, 2).missing_units
    40
    >>> standing_of(problem, 0).margin
    20.0
    """
    if not problem.available[row]:
        raise ValueError(f"client {row} was not available")
    problem = problem._replace(size=min(problem.size, int(np.count_nonzero(problem.available))))
    cohort = cohort_of_times(*problem)
    chosen = row in cohort.rows.tolist()
    rival, missing = (_without(problem, row), 0) if chosen else _with(problem, cohort, row)
    before, after = set(cohort.rows.tolist()), set(cohort.rows.tolist() if rival is None else rival.rows)
    return Standing(
        chosen=chosen,
        seconds=float(problem.times[row]),
        owed_units=int(problem.owed.units[row]) + problem.owed.credit,
        units_per_turn=float(problem.owed.units_per_turn),
        threshold=cohort.threshold,
        objective=cohort.objective,
        rival_threshold=None if rival is None else rival.threshold,
        rival_objective=None if rival is None else rival.objective,
        leaving=tuple(sorted(before - after)),
        joining=tuple(sorted(after - before)),
        missing_units=missing,
    )


class _Rival(NamedTuple):
    rows: tuple[int, ...]
    threshold: float
    objective: float


def _without(problem: CohortProblem, row: int) -> _Rival | None:
    """The best cohort of the same size without this client."""
    others = problem.available.copy()
    others[row] = False
    if np.count_nonzero(others) < problem.size:
        return None
    best = cohort_of_times(*problem._replace(available=others))
    return _Rival(tuple(best.rows.tolist()), best.threshold, best.objective)


def _with(problem: CohortProblem, cohort: Cohort, row: int) -> tuple[_Rival | None, int | None]:
    """The best cohort with this client, which was not chosen, and the smallest debt more that puts it in."""
    if problem.size == 0:
        return None, None
    weight, per_turn = float(problem.speed_weight), float(problem.owed.units_per_turn)
    own = int(problem.owed.units[row]) + problem.size * problem.owed.credit
    admitted = list(_companions(problem, row))

    def objective(threshold: float, companions: int, more: int = 0) -> float:
        return weight * threshold - float(companions + own + more) / per_turn

    last = max(_rank(problem, member) for member in cohort.rows.tolist())

    def is_in(more: int) -> bool:
        for threshold, companions in admitted:
            value = objective(threshold, companions, more)
            if value < cohort.objective or (value == cohort.objective and threshold < cohort.threshold):
                return True
            if value == cohort.objective and threshold == cohort.threshold and _rank(problem, row, more) < last:
                return True
        return False

    value, threshold = min((objective(*one), one[0]) for one in admitted)
    best = _Rival((*_most_owed(problem, row, threshold), row), threshold, value)
    return best, _smallest(is_in)


def _companions(problem: CohortProblem, row: int) -> Iterator[tuple[float, int]]:
    """Thresholds that admit this client, and the units owed to the best that fill the other places.

    Only those where a slower threshold gains something.
    """
    others = np.flatnonzero(problem.available)
    others = others[others != row]
    others = others[np.argsort(problem.times[others], kind="stable")]
    times, units = problem.times[others].tolist(), problem.owed.units[others].tolist()
    places, own_time = problem.size - 1, float(problem.times[row])
    if places == 0:
        yield own_time, 0
        return
    best: list[int] = []
    total, told = 0, None
    for count, (time, debt) in enumerate(zip(times, units, strict=True), start=1):
        if len(best) < places:
            heapq.heappush(best, debt)
            total += debt
        elif debt > best[0]:
            total += debt - heapq.heapreplace(best, debt)
        is_last_of_equals = count == len(times) or times[count] > time
        admits_more_yet = time < own_time and count < len(times) and times[count] <= own_time
        if is_last_of_equals and not admits_more_yet and len(best) == places and (told is None or total > told):
            yield max(time, own_time), total
            told = total


def _most_owed(problem: CohortProblem, row: int, threshold: float) -> tuple[int, ...]:
    """Who fills the other places at this threshold."""
    fast = np.flatnonzero(problem.available & (problem.times <= threshold))
    fast = fast[fast != row]
    order = np.lexsort((fast, problem.times[fast], -problem.owed.units[fast]))
    return tuple(fast[order[: problem.size - 1]].tolist())


def _rank(problem: CohortProblem, row: int, more: int = 0) -> tuple[int, float, int]:
    """The solver's order: the more owed, of equals the faster, then the lower row."""
    return -(int(problem.owed.units[row]) + more), float(problem.times[row]), row


def _smallest(is_in: Callable[[int], bool]) -> int | None:
    """The smallest whole number that is in, where all larger ones are; None if none of a thousand bits is."""
    high = 1
    while not is_in(high):
        high *= 2
        if high.bit_length() > LONGEST_DEBT:
            return None
    low = high // 2  # not in, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_in(middle) else (middle, high)
    return high


# What a policy made of an offer


def problem_of(policy: SelectionPolicy, offer: RoundOffer, size: int) -> CohortProblem | None:
    """The problem that this policy solves for an offer and `size` places; None of one that solves another."""
    times = _TIMES.get(type(policy))
    if times is None:
        return None
    owed, weight = _weighed(policy, offer.round, size)
    return CohortProblem(np.ascontiguousarray(times(policy, offer)), owed, size, weight, offer.available)


def _optimistic(policy: Any, offer: RoundOffer) -> FloatArray:
    times: FloatArray = policy.model.optimistic(offer.contexts, policy.exploration(offer.round))
    return times


def _true(policy: Any, offer: RoundOffer) -> FloatArray:
    times: FloatArray = policy.true_times(offer)
    return times


#: Whose choices are the fastest fair cohort, and on which times.
_TIMES: dict[type[SelectionPolicy], Callable[[Any, RoundOffer], FloatArray]] = {RBCSF: _optimistic, FairOracle: _true}


def _weighed(policy: Any, round_: int, size: int) -> tuple[OwedTurns, float]:
    """What the clients weigh in the policy's choice, and what a second does."""
    debts, weight = policy.weighed(policy.queues.owed_exactly(), round_, size)
    return debts, float(weight)


# In words


def explain_choice(
    policy: SelectionPolicy, offer: RoundOffer, selection: Selection, row: int, name: Callable[[int], str] = str
) -> Explanation:
    """Why this client was chosen from the offer or was not, by a policy in the state in which it chose.

    The choice is made again; where that does not give the recorded one no exact answer is possible, and it says so.
    """
    if not offer.available[row]:
        return untold(policy, selection, row, name, "", standing="not available")
    problem = problem_of(policy, offer, max(len(selection.clients), policy.cohort_size or 0))
    if problem is None:
        return untold(policy, selection, row, name, f"{policy.name} does not weigh seconds against turns owed")
    if not _is_same(cohort_of_times(*problem), selection):
        return untold(policy, selection, row, name, "the choice, made again, is not the one on record")
    return _told(policy, offer, standing_of(problem, row), problem, row, name)


def untold(
    policy: SelectionPolicy,
    selection: Selection,
    row: int,
    name: Callable[[int], str],
    why: str,
    *,
    standing: StandingWord | None = None,
) -> Explanation:
    """What can be said where no exact answer is possible: `why`, and the reasons on record if it was chosen.

    With a `standing` that explains itself there is nothing to be exact about.
    """
    place = np.flatnonzero(selection.clients == row)
    word: StandingWord = standing or ("chosen" if len(place) else "not chosen")
    client = name(row)
    facts: dict[str, float] = {}
    if len(place):
        facts = {word: float(value[place[0]]) for word, value in selection.reasons.items() if np.ndim(value) == 1}
    sentence = f"{client} was {word} in round {selection.round}"
    if facts:
        sentence += f" ({', '.join(f'{word} {value:.4g}' for word, value in facts.items())})"
    if why:
        sentence += f"; an exact answer is not possible: {why}"
    return Explanation(
        round=selection.round,
        client=client,
        policy=policy.name,
        standing=word,
        exact=not why,
        sentence=f"{sentence}.",
        seconds=facts.get("optimistic"),
        owed=facts.get("owed"),
        threshold=_one_number(selection, "threshold"),
        objective=_one_number(selection, "objective"),
    )


def _told(
    policy: Any, offer: RoundOffer, found: Standing, problem: CohortProblem, row: int, name: Callable[[int], str]
) -> Explanation:
    longer = None if found.rival_threshold is None else found.rival_threshold - found.threshold
    rounds, never = _rounds_until(policy, found, row)
    missing = None if found.missing_units is None else found.missing_units / found.units_per_turn
    client = name(row)
    words = _Words(row, found, problem, name, "weighs" if _is_indirect(policy) else "is owed")
    sentence = words.chosen() if found.chosen else f"{words.not_chosen()}. {_when(client, rounds, never)}"
    return Explanation(
        round=offer.round,
        client=client,
        policy=policy.name,
        standing="chosen" if found.chosen else "not chosen",
        exact=True,
        sentence=f"{sentence}.",
        seconds=found.seconds,
        owed=found.owed_units / found.units_per_turn,
        threshold=found.threshold,
        objective=found.objective,
        margin=found.margin,
        missing_turns=missing,
        missing_units=found.missing_units,
        units_per_turn=found.units_per_turn,
        rounds_until=None if found.chosen else rounds,
        longer=longer,
        worth=None if longer is None else problem.speed_weight * longer,
        instead=tuple(name(one) for one in (found.joining if found.chosen else found.leaving)),
    )


class _Words(NamedTuple):
    """Sentences about one standing."""

    row: int
    found: Standing
    problem: CohortProblem
    name: Callable[[int], str]
    owes: str

    @property
    def client(self) -> str:
        return self.name(self.row)

    def chosen(self) -> str:
        found = self.found
        if found.rival_threshold is None or found.margin is None:
            return f"{self.client} was chosen, as everyone who was there was"
        change = found.rival_threshold - found.threshold
        paid = self._owed(found.leaving) - self._owed(found.joining)
        if change == 0 and paid == 0:
            return f"{self.client} is in by a tie: the best cohort without it is as good, {TIES}"
        length = (
            f"last {_number(abs(change))} s {'less' if change < 0 else 'longer'}, worth {self._worth(change)}, and "
        )
        less = "fewer" if paid >= 0 else "more"
        return (
            f"{self.client} is in by {_turns(found.margin)}: without it the best cohort would "
            f"{length if change else ''}pay {_turns(abs(paid))} {less} of those owed"
        )

    def not_chosen(self) -> str:
        found, client = self.found, self.client
        if found.missing_units is None or found.rival_threshold is None:
            return f"no number of turns owed would have put {client} in"
        change, own = found.rival_threshold - found.threshold, found.owed_units / found.units_per_turn
        place, along = _turns(own), tuple(one for one in found.joining if one != self.row)
        if along:
            place += f", would bring {self._names(along)} along, {self._weighing(self._owed(along))},"
        place += (
            f" and would take the place of {self._names(found.leaving)}, {self._weighing(self._owed(found.leaving))}"
        )
        if change == 0:
            begins = f"{client} is fast enough, but it {self.owes} {place}"
        else:
            way = "lengthen" if change > 0 else "shorten"
            but = "it" if change > 0 else "but it"
            begins = (
                f"choosing {client} would {way} the round by {_number(abs(change))} s, worth {self._worth(change)}; "
                f"{but} {self.owes} {place}"
            )
        return f"{begins}: {_turns(found.missing_units / found.units_per_turn)} more would have put it in"

    def _owed(self, rows: tuple[int, ...]) -> float:
        owed = self.problem.owed
        return (sum(owed.units[list(rows)].tolist()) + owed.credit * len(rows)) / owed.units_per_turn if rows else 0.0

    def _worth(self, seconds: float) -> str:
        return _turns(abs(self.problem.speed_weight * seconds))

    def _weighing(self, turns: float) -> str:
        return f"owed {_number(turns)}" if self.owes == "is owed" else f"which weighs {_number(turns)}"

    def _names(self, rows: tuple[int, ...]) -> str:
        named = [self.name(row) for row in rows[:NAMED]]
        more = len(rows) - len(named)
        return f"{', '.join(named)} and {more} more" if more else " and ".join(_pairwise(named))


def _rounds_until(policy: Any, found: Standing, row: int) -> tuple[int | None, str]:
    """Rounds at its own rate until the debt is there; None with a reason if never, or if that cannot be said."""
    if found.missing_units is None:
        return None, "it would not be reached"
    if getattr(policy, "horizon", None) is not None:
        return None, "with a horizon, what a client weighs does not grow by a fixed amount a round"
    missing = Fraction(found.missing_units) / Fraction(found.units_per_turn)
    queues = policy.queues
    if queues.max_owed is not None:
        cap = Fraction(math.floor(Fraction(queues.max_owed) * queues.units_per_turn), queues.units_per_turn)
        owed = queues.owed_exactly()
        if Fraction(int(owed.units[row]) + owed.credit, queues.units_per_turn) + missing > cap:
            return None, f"its debt is capped at {_turns(float(cap))}: raise max_owed"
    rate = exact_rate(float(queues.guaranteed_rates[row]))
    if rate == 0:
        return None, "it is promised nothing, so its debt does not grow"
    return math.ceil(missing / rate), ""


def _when(client: str, rounds: int | None, never: str) -> str:
    if rounds is None:
        return f"No number of rounds can be told: {never}"
    counted = "1 round" if rounds == 1 else f"{rounds:,} rounds"
    return f"At its own rate {client} earns that in {counted}, if it is there in each and nothing else changes"


def _is_same(cohort: Cohort, selection: Selection) -> bool:
    """The same clients, for the same reasons as far as those are on record."""
    again: dict[str, Any] = {
        "optimistic": cohort.times,
        "threshold": cohort.threshold,
        "objective": cohort.objective,
    }
    return np.array_equal(cohort.rows, np.sort(selection.clients)) and all(
        np.array_equal(value, selection.reasons[word], equal_nan=True)
        for word, value in again.items()
        if word in selection.reasons
    )


def _is_indirect(policy: Any) -> bool:
    """Does a client weigh something else than it is owed?"""
    return getattr(policy, "horizon", None) is not None or getattr(policy, "groups", None) is not None


def _one_number(selection: Selection, word: str) -> float | None:
    value = selection.reasons.get(word)
    return None if value is None or np.ndim(value) or math.isnan(float(value)) else float(value)


def _pairwise(names: Iterable[str]) -> list[str]:
    *first, last = names
    return [", ".join(first), last] if first else [last]


def _turns(turns: float) -> str:
    return f"{_number(turns)} {'turn' if _number(turns) == '1' else 'turns'}"


def _number(value: float) -> str:
    """Two decimals, more where it is small, and no idle zeros."""
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")
