"""The sentences of an explanation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from turnout.kernel.certificate import TimeUnit
from turnout.kernel.cohort_problem import CohortProblem
from turnout.policies.explain.margin import SelectionMargin

NAMED = 3  # clients named in a sentence
TIES = "among equals the faster client comes first, then the lower row"


class MarginSentences(NamedTuple):
    """Sentences about the margin of one client."""

    row: int
    margin: SelectionMargin
    problem: CohortProblem
    name: Callable[[int], str]
    unit: TimeUnit = TimeUnit.ROUND

    @property
    def client(self) -> str:
        """The name of the client."""
        return self.name(self.row)

    def chosen(self) -> str:
        """Compares the cohort with the best one without the client."""
        margin = self.margin
        if margin.rival_threshold is None or margin.margin is None:
            return f"{self.client} was chosen because all available clients were"
        change = margin.rival_threshold - margin.threshold
        lost = self.problem.total_value(margin.leaving) - self.problem.total_value(margin.joining)
        if change == 0 and lost == 0:
            best = f"the best {self.unit.selection} without it"
            return f"{self.client} was chosen by a tie: {best} is equally good; {TIES}"
        parts = []
        if change:
            parts.append(
                f"last {format_number(abs(change))} s {'less' if change < 0 else 'longer'} ({self._worth(change)})"
            )
        parts.append(f"pay {format_turns(abs(lost))} {'less' if lost >= 0 else 'more'} of the debts")
        return (
            f"{self.client} was chosen with a margin of {format_turns(margin.margin)}: the best "
            f"{self.unit.selection} without it would {' and '.join(parts)}"
        )

    def not_chosen(self) -> str:
        """States what selecting the client would cost, which clients it would replace, and what it lacked."""
        margin, client = self.margin, self.client
        if margin.missing_units is None or margin.rival_threshold is None:
            return f"{client} was not chosen, and no debt would have changed that"
        change, own = margin.rival_threshold - margin.threshold, margin.owed_units / margin.units_per_turn
        along = tuple(other for other in margin.joining if other != self.row)
        debt = f"{self._has(format_turns(own))}"
        if along:
            debt += f", would bring {self._names(along)} along ({self._short(self.problem.total_value(along))})"
        replaced = self._short(self.problem.total_value(margin.leaving))
        debt += f" and would replace {self._names(margin.leaving)} ({replaced})"
        if change == 0:
            start = f"{client} is fast enough, but it {debt}"
        else:
            verb = "lengthen" if change > 0 else "shorten"
            start = (
                f"choosing {client} would {verb} the {self.unit.turn} by {format_number(abs(change))} s "
                f"({self._worth(change)}); it {debt}"
            )
        missing = format_turns(margin.missing_units / margin.units_per_turn)
        return f"{start}: with {missing} more it would have been chosen"

    def _has(self, turns: str) -> str:
        return f"is owed {turns}" if self.problem.values_are_debts else f"counts for {turns}"

    def _short(self, turns: float) -> str:
        return f"{'owed' if self.problem.values_are_debts else 'counting for'} {format_number(turns)}"

    def _worth(self, seconds: float) -> str:
        return f"worth {format_turns(abs(self.problem.speed_weight * seconds))}"

    def _names(self, rows: tuple[int, ...]) -> str:
        return join_names(self.name, rows)


def join_names(name: Callable[[int], str], rows: tuple[int, ...]) -> str:
    """Returns the names of up to three clients, and how many more there are."""
    named = [name(row) for row in rows[:NAMED]]
    more = len(rows) - len(named)
    if more:
        return f"{', '.join(named)} and {more} more"
    *first, last = named
    return f"{', '.join(first)} and {last}" if first else last


def inexact_sentence(
    client: str, outcome: str, round: int, reasons: Mapping[str, float], why: str, unit: TimeUnit = TimeUnit.ROUND
) -> str:
    """States what is known if no exact explanation is possible.

    Args:
        client: The name of the client.
        outcome: What happened to it.
        round: The number of the round.
        reasons: The recorded reasons of its selection.
        why: Why no exact explanation is possible; empty if none is needed.
        unit: What is counted: rounds, or decisions.
    """
    sentence = f"{client} was {outcome} in {unit} {round}"
    if reasons:
        sentence += f" ({', '.join(f'{key} {value:.4g}' for key, value in reasons.items())})"
    if outcome == "excluded":
        sentence += " by a wrapper around the policy"
    if why:
        sentence += f"; an exact explanation is not possible: {why}"
    return f"{sentence}."


def waiting_sentence(client: str, rounds: int | None, never: str, unit: TimeUnit = TimeUnit.ROUND) -> str:
    """States in how many rounds the client earns what it lacked, or why that is unknown."""
    if rounds is None:
        return f"How long it has to wait is unknown: {never}"
    return (
        f"At its guaranteed rate {client} earns that in {unit.pluralize(rounds)}, if it is available in each and "
        "nothing else changes"
    )


def format_turns(turns: float) -> str:
    """Formats a number of turns.

    >>> format_turns(1.0), format_turns(2.5)
    ('1 turn', '2.5 turns')
    """
    return f"{format_number(turns)} {'turn' if format_number(turns) == '1' else 'turns'}"


def format_number(value: float) -> str:
    """Formats a number with two decimals, or two significant digits if it is small, without trailing zeros."""
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")
