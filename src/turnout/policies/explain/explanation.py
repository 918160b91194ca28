"""Explains why a client was selected or not, with the arithmetic of the selection itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

from turnout.kernel.certificate import TimeUnit
from turnout.kernel.cohort import SolvedCohort
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.margin import SelectionMargin, selection_margin
from turnout.policies.explain.sentences import (
    MarginSentences,
    PriceSentences,
    format_number,
    format_turns,
    inexact_sentence,
)

SelectionOutcome: TypeAlias = Literal[
    "chosen", "not chosen", "not available", "excluded", "resting", "retired", "not joined", "training"
]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a client was selected in a round, or was not.

    Attributes:
        round: The number of the round.
        client: The id or row of the client.
        policy: The name of the policy.
        outcome: What happened to the client.
        exact: Whether the numbers are those of the selection itself. If not, they are None and `sentence` says why.
        sentence: The explanation as text.
        seconds: The client's time, as the policy estimated it.
        owed: What a turn of the client was worth to the policy, in `unit`; usually the turns it was owed.
        threshold: The time of the slowest selected client, as the policy estimated it.
        objective: The value of the objective, in `unit`; smaller is better.
        margin: The difference in the objective to the best cohort without the client (if it was selected) or with it
            (if not), in `unit`.
        missing_turns: The additional debt with which it would have been selected, in `unit`.
        missing_units: The same in units of 1 / `units_per_turn`, exactly.
        units_per_turn: The number of units in a turn, or in a second.
        rounds_until: The number of rounds after which it would be selected, if it is available in each of them and
            nothing else changes.
        longer: By how many seconds the round would be longer without the client (if it was selected) or with it.
        worth: What these seconds are worth, in `unit`.
        instead: The clients that would replace it, or that it would replace.
        unit: The unit of values: "turns", or "seconds" if the policy gives turns a price.
        usual: The usual time of the client in seconds, if the policy gives turns a price.
        behind: How many turns the client was behind, this round included, if the policy gives turns a price.
        allowed: How many turns it may be behind, if the policy gives turns a price.
        urgent: Whether it was as far behind as it may be, so that it came before all others.
        time_unit: What `round` and `rounds_until` count: rounds, or decisions.
    """

    round: int
    client: str
    policy: str
    outcome: SelectionOutcome
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
    unit: Literal["turns", "seconds"] = "turns"
    usual: float | None = None
    behind: float | None = None
    allowed: float | None = None
    urgent: bool = False
    time_unit: TimeUnit = TimeUnit.ROUND

    @property
    def verdict(self) -> str:
        """What happened in short: whether the client was selected, by what margin, or what it lacked."""
        selected = {"chosen": "selected", "not chosen": "not selected"}.get(self.outcome, self.outcome)
        text = f"{self.time_unit.capitalize()} {self.round:,}: {self.client} was {selected}"
        amount = format_turns if self.unit == "turns" else lambda value: f"{format_number(value)} s"
        if self.urgent:
            text += ", because it is urgent" if self.outcome == "chosen" else " although it is urgent"
        elif self.outcome == "chosen":
            return f"{text}{'' if self.margin is None else f', by a margin of {amount(self.margin)}'}."
        missing = "" if self.missing_turns is None else f" It lacks {amount(self.missing_turns)}."
        if self.rounds_until is not None:
            wait = self.time_unit.pluralize(self.rounds_until)
            missing += f" If nothing else changes, it is selected in at most {wait}."
        return f"{text}.{missing}"


def explain_choice(
    policy: SelectionPolicy,
    offer: RoundOffer,
    selection: Selection,
    row: int,
    name: Callable[[int], str] = str,
    unit: TimeUnit = TimeUnit.ROUND,
) -> Explanation:
    """Explains why a client was selected from an offer or was not.

    The selection is computed again. If the result is not the recorded selection, no exact explanation is possible, and
    the sentence says so.

    Args:
        policy: The policy in the state in which it selected.
        offer: The offer of the round. Without `places`, they are cohort_size, or more if more clients were selected.
        selection: The recorded selection.
        row: The row of the client.
        name: Returns the name of a client from its row.
        unit: What is counted: rounds, or decisions.
    """
    if not offer.available[row]:
        return inexact_explanation(policy, selection, row, name, "", outcome="not available", unit=unit)
    if offer.places is None:
        # Over-selection may have asked for more places than cohort_size.
        offer = offer.restricted(places=max(len(selection.clients), policy.cohort_size or 0))
    problem = policy.cohort_problem(offer)
    if problem is None:
        why = f"{policy.name} did not weigh seconds against turns owed in this {unit}"
        return inexact_explanation(policy, selection, row, name, why, unit=unit)
    cohort = problem.solve()
    if not _is_same(cohort, selection):
        why = "computing it again gives another selection"
        return inexact_explanation(policy, selection, row, name, why, unit=unit)
    if not problem.available[row]:
        return inexact_explanation(policy, selection, row, name, "", outcome="excluded", unit=unit)
    return _exact_explanation(policy, offer, problem, cohort, row, name, unit)


def inexact_explanation(
    policy: SelectionPolicy,
    selection: Selection,
    row: int,
    name: Callable[[int], str],
    why: str,
    *,
    outcome: SelectionOutcome | None = None,
    unit: TimeUnit = TimeUnit.ROUND,
) -> Explanation:
    """Returns an explanation without the numbers of the selection, with the recorded reasons of a selected client.

    Args:
        policy: The policy.
        selection: The recorded selection.
        row: The row of the client.
        name: Returns the name of a client from its row.
        why: Why no exact explanation is possible; empty if the outcome explains itself.
        outcome: What happened to the client; None for "chosen" or "not chosen".
        unit: What is counted: rounds, or decisions.
    """
    position = np.flatnonzero(selection.clients == row)
    status: SelectionOutcome = outcome or ("chosen" if len(position) else "not chosen")
    client = name(row)
    reasons: dict[str, float] = {}
    if len(position):
        reasons = {key: float(value[position[0]]) for key, value in selection.reasons.items() if np.ndim(value) == 1}
    return Explanation(
        round=selection.round,
        client=client,
        policy=policy.name,
        outcome=status,
        exact=not why,
        sentence=inexact_sentence(client, status, selection.round, reasons, why, unit),
        seconds=reasons.get("optimistic"),
        owed=reasons.get("owed"),
        threshold=_cohort_reason(selection, "threshold"),
        objective=_cohort_reason(selection, "objective"),
        unit="seconds" if "price" in selection.reasons else "turns",
        time_unit=unit,
    )


def _exact_explanation(
    policy: SelectionPolicy,
    offer: RoundOffer,
    problem: CohortProblem,
    cohort: SolvedCohort,
    row: int,
    name: Callable[[int], str],
    unit: TimeUnit,
) -> Explanation:
    """Explains a selection with the problem that the policy solved.

    Args:
        policy: The policy.
        offer: The offer of the round.
        problem: The problem that the policy solved.
        cohort: The solution of the problem.
        row: The row of the client.
        name: Returns the name of a client from its row.
        unit: What is counted: rounds, or decisions.
    """
    known = Explanation(
        round=offer.round,
        client=name(row),
        policy=policy.name,
        outcome="chosen" if row in cohort.rows.tolist() else "not chosen",
        exact=True,
        sentence="",
        seconds=float(problem.times[row]),
        threshold=cohort.threshold,
        objective=cohort.objective,
        time_unit=unit,
    )
    sentences = MarginSentences(row, problem, name, unit)
    if problem.prices is not None:
        sentences = priced = PriceSentences(row, problem, name, unit)
        known = replace(
            known,
            unit="seconds",
            usual=float(problem.prices.usual[row]),
            behind=float(problem.prices.behind[row]),
            allowed=float(problem.prices.allowed[row]),
            urgent=row in problem.urgent.tolist(),
        )
        if known.urgent or not problem.contested().size:
            return _without_margin(known, priced)
    margin = selection_margin(problem, row)
    rounds = None
    if margin.chosen:
        sentence = sentences.chosen(margin)
    else:
        rounds, never = rounds_until(problem, margin, row)
        sentence = f"{sentences.not_chosen(margin)}. {sentences.waiting(rounds, never)}"
    return replace(
        known,
        sentence=f"{sentence}.",
        owed=margin.owed,
        margin=margin.margin,
        missing_turns=margin.missing,
        missing_units=margin.missing_units,
        units_per_turn=margin.units_per_turn,
        rounds_until=rounds,
        longer=margin.longer,
        worth=None if margin.longer is None else problem.speed_weight * margin.longer,
        instead=tuple(name(other) for other in (margin.joining if margin.chosen else margin.leaving)),
    )


def _without_margin(known: Explanation, sentences: PriceSentences) -> Explanation:
    """Completes the explanation of a client that is urgent, or of a round whose places all went to urgent clients."""
    sentence = f"{sentences.urgent() if known.urgent else sentences.no_places()}."
    if known.outcome == "chosen":
        return replace(known, sentence=sentence)
    rounds, never = sentences.problem.rounds_until(sentences.row, None)
    waiting = sentences.waiting(rounds, never, f"Without a turn {known.client} is one of the most urgent")
    return replace(known, rounds_until=rounds, sentence=f"{sentence} {waiting}.")


def rounds_until(problem: CohortProblem, margin: SelectionMargin, row: int) -> tuple[int | None, str]:
    """Returns in how many rounds the client would be selected, or None and the reason why that is unknown."""
    if margin.missing_units is None:
        return problem.rounds_until(row, None)
    value = Fraction(margin.owed_units + margin.missing_units) / Fraction(margin.units_per_turn)
    return problem.rounds_until(row, value)


def _is_same(cohort: SolvedCohort, selection: Selection) -> bool:
    """Returns whether the cohort is the recorded one, with the recorded reasons as far as there are any."""
    known: dict[str, Any] = {"optimistic": cohort.times, "threshold": cohort.threshold, "objective": cohort.objective}
    return np.array_equal(cohort.rows, np.sort(selection.clients)) and all(
        np.array_equal(value, selection.reasons[key], equal_nan=True)
        for key, value in known.items()
        if key in selection.reasons
    )


def _cohort_reason(selection: Selection, key: str) -> float | None:
    value = selection.reasons.get(key)
    return None if value is None or np.ndim(value) or math.isnan(float(value)) else float(value)
