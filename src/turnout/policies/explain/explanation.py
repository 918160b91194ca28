"""Why a client was chosen or was not, by the arithmetic of the choice itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.cohort import Cohort, cohort_of_times
from turnout.kernel.fairness import OwedTurns, exact_rate
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.oracle import FairOracle
from turnout.policies.explain.margin import CohortProblem, SelectionMargin, selection_margin
from turnout.policies.explain.sentences import MarginSentences, in_turns, inexact_sentence, when_words
from turnout.policies.rbcsf.policy import RBCSF

__all__ = [
    "CohortProblem",
    "Explanation",
    "SelectionMargin",
    "Standing",
    "explain_choice",
    "inexact_explanation",
    "problem_of",
    "selection_margin",
]

Standing: TypeAlias = Literal["chosen", "not chosen", "not available", "resting", "retired", "not joined"]


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
    standing: Standing
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


def explain_choice(
    policy: SelectionPolicy, offer: RoundOffer, selection: Selection, row: int, name: Callable[[int], str] = str
) -> Explanation:
    """Why this client was chosen from the offer or was not, by a policy in the state in which it chose.

    The choice is made again; where that does not give the recorded one no exact answer is possible, and it says so.
    """
    if not offer.available[row]:
        return inexact_explanation(policy, selection, row, name, "", standing="not available")
    problem = problem_of(policy, offer, max(len(selection.clients), policy.cohort_size or 0))
    if problem is None:
        return inexact_explanation(
            policy, selection, row, name, f"{policy.name} does not weigh seconds against turns owed"
        )
    if not _is_same(cohort_of_times(*problem), selection):
        return inexact_explanation(policy, selection, row, name, "the choice, made again, is not the one on record")
    return _told(policy, offer, selection_margin(problem, row), problem, row, name)


def inexact_explanation(
    policy: SelectionPolicy,
    selection: Selection,
    row: int,
    name: Callable[[int], str],
    why: str,
    *,
    standing: Standing | None = None,
) -> Explanation:
    """What can be said where no exact answer is possible: `why`, and the reasons on record if it was chosen.

    With a `standing` that explains itself there is nothing to be exact about.
    """
    place = np.flatnonzero(selection.clients == row)
    word: Standing = standing or ("chosen" if len(place) else "not chosen")
    client = name(row)
    facts: dict[str, float] = {}
    if len(place):
        facts = {word: float(value[place[0]]) for word, value in selection.reasons.items() if np.ndim(value) == 1}
    return Explanation(
        round=selection.round,
        client=client,
        policy=policy.name,
        standing=word,
        exact=not why,
        sentence=inexact_sentence(client, word, selection.round, facts, why),
        seconds=facts.get("optimistic"),
        owed=facts.get("owed"),
        threshold=_one_number(selection, "threshold"),
        objective=_one_number(selection, "objective"),
    )


def _told(
    policy: Any, offer: RoundOffer, found: SelectionMargin, problem: CohortProblem, row: int, name: Callable[[int], str]
) -> Explanation:
    longer = None if found.rival_threshold is None else found.rival_threshold - found.threshold
    rounds, never = _rounds_until(policy, found, row)
    missing = None if found.missing_units is None else found.missing_units / found.units_per_turn
    client = name(row)
    words = MarginSentences(row, found, problem, name, "weighs" if _is_indirect(policy) else "is owed")
    sentence = words.chosen() if found.chosen else f"{words.not_chosen()}. {when_words(client, rounds, never)}"
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
    debts, weight = policy.objective_terms(policy.queues.owed_exactly(), round_, size)
    return debts, float(weight)


def _rounds_until(policy: Any, found: SelectionMargin, row: int) -> tuple[int | None, str]:
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
            return None, f"its debt is capped at {in_turns(float(cap))}: raise max_owed"
    rate = exact_rate(float(queues.guaranteed_rates[row]))
    if rate == 0:
        return None, "it is promised nothing, so its debt does not grow"
    return math.ceil(missing / rate), ""


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
