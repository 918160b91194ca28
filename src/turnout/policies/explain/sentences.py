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
    """Sentences about the margin of one client, in turns."""

    row: int
    problem: CohortProblem
    name: Callable[[int], str]
    unit: TimeUnit = TimeUnit.ROUND

    @property
    def client(self) -> str:
        """The name of the client."""
        return self.name(self.row)

    def chosen(self, margin: SelectionMargin) -> str:
        """Compares the cohort with the best one without the client."""
        if margin.longer is None or margin.margin is None:
            return f"{self.client} was chosen because all available clients were"
        lost = self.problem.total_value(margin.leaving) - self.problem.total_value(margin.joining)
        best = f"the best {self.unit.selection} without it"
        if margin.longer == 0 and lost == 0:
            return f"{self.client} was chosen by a tie: {best} is equally good; {TIES}"
        parts = []
        if margin.longer:
            length = "less" if margin.longer < 0 else "longer"
            parts.append(f"last {format_number(abs(margin.longer))} s {length}{self.worth(margin.longer)}")
        parts.append(self.payment(abs(lost), "less" if lost >= 0 else "more"))
        return (
            f"{self.client} was chosen with a margin of {self.amount(margin.margin)}: {self.terms()}{best} would "
            f"{' and '.join(parts)}"
        )

    def not_chosen(self, margin: SelectionMargin) -> str:
        """States what selecting the client would cost, which clients it would replace, and what it lacked."""
        if margin.missing is None or margin.longer is None:
            return f"{self.client} was not chosen, and {self.hopeless()}"
        along = tuple(other for other in margin.joining if other != self.row)
        if margin.longer == 0:
            start = f"{self.client} is fast enough, but it "
        else:
            verb = "lengthen" if margin.longer > 0 else "shorten"
            seconds = format_number(abs(margin.longer))
            start = (
                f"choosing {self.client} would {verb} the {self.unit.turn} by {seconds} s{self.worth(margin.longer)}"
            )
            start += self.joint()
        exchange = self.exchange(margin, along)
        return f"{start}{exchange}: with {self.amount(margin.missing)} more it would have been chosen"

    def waiting(self, rounds: int | None, never: str, event: str = "") -> str:
        """States in how many rounds the client gets a place, or why that is unknown.

        Args:
            rounds: The number of rounds; None if it is unknown.
            never: Why it is unknown.
            event: What happens then; by default the client has what it lacked.
        """
        if rounds is None:
            return f"How long it has to wait is unknown: {never}"
        count = self.unit.pluralize(rounds)
        return f"{event or self.event()} in {count}, if it is available in each and nothing else changes"

    # What depends on the unit of values

    def amount(self, value: float) -> str:
        """Formats a value."""
        return format_turns(value)

    def worth(self, seconds: float) -> str:
        """States what seconds of round time are worth, unless values are seconds themselves."""
        return f" (worth {format_turns(abs(self.problem.speed_weight * seconds))})"

    def payment(self, value: float, compared: str) -> str:
        """States how much of the values another cohort would pay."""
        return f"pay {format_turns(value)} {compared} of the debts"

    def terms(self) -> str:
        """States what the value of the client consists of, if it is more than a debt."""
        return ""

    def hopeless(self) -> str:
        """States that no value would have been enough."""
        return "no debt would have changed that"

    def joint(self) -> str:
        """Joins what happens to the round with what happens to the cohort."""
        return "; it "

    def exchange(self, margin: SelectionMargin, along: tuple[int, ...]) -> str:
        """States the client's value, which clients it would bring along, and which it would replace."""
        verb, state = ("is owed", "owed") if self.problem.values_are_debts else ("counts for", "counting for")

        def valued(rows: tuple[int, ...]) -> str:
            return f"({state} {format_number(self.problem.total_value(rows))})"

        text = f"{verb} {format_turns(margin.owed)}"
        if along:
            text += f", would bring {join_names(self.name, along)} along {valued(along)}"
        return f"{text} and would replace {join_names(self.name, margin.leaving)} {valued(margin.leaving)}"

    def event(self) -> str:
        """States how the client gets what it lacked."""
        return f"At its guaranteed rate {self.client} earns that"


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
