"""The sentences of an explanation, also for policies that give turns a price in seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from turnout.kernel.certificate import TimeUnit
from turnout.kernel.cohort_problem import CohortProblem, PriceTerms
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
            more = f"{format_number(abs(margin.longer))} s{self.worth(margin.longer)}"
            start = f"choosing {self.client} would {verb} the {self.unit.turn} by {more}{self.joint()}"
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


class PriceSentences(MarginSentences):
    """Sentences about the price of one client's turn, in seconds."""

    __slots__ = ()

    @property
    def prices(self) -> PriceTerms:
        """The terms of the prices."""
        if self.problem.prices is None:
            raise ValueError("the problem has no prices")
        return self.problem.prices

    def urgent(self) -> str:
        """States that the client is urgent, and whether it got one of the places."""
        first = self.problem.first.tolist()
        if self.row in first:
            rank = first.index(self.row)
            order = "" if rank == 0 else f"; {rank} urgent {'client comes' if rank == 1 else 'clients come'} before it"
            return f"{self.client} was chosen first because it is urgent: {self._behind()}{order}"
        return (
            f"{self.client} is urgent ({self._behind()}), but all {self.problem.size} places went to urgent clients "
            "that are further behind their limits"
        )

    def no_places(self) -> str:
        """States that urgent clients took all places."""
        return f"{self.client} was not chosen because all places went to urgent clients; {self.price()}"

    def price(self) -> str:
        """States the price with the numbers from which it is computed."""
        usual, priced = float(self.prices.usual[self.row]), float(self.prices.priced[self.row])
        sharers, number = self.prices.sharers, format_number
        allowed, behind = float(self.prices.allowed[self.row]), float(self.prices.behind[self.row])
        factor = max(allowed, self.prices.least_allowed)
        share, room = priced / sharers, float(self.prices.rooms[self.row])
        slack = room + self.prices.head_start
        part = f", and its share of such a round is {number(priced)}/{number(sharers)} = {number(share)} s"
        now = ""
        if priced != usual:
            saved = usual - float(self.problem.times[self.row])
            sign, than = ("+", "less") if saved > 0 else ("−", "more")
            terms = f"{number(usual)} {sign} {number(self.prices.advantage)} · {number(abs(saved))} = "
            now = f", now {number(abs(saved))} s {than}, which counts as {terms if priced else ''}{number(priced)} s"
        head = f", with a head start of {format_turns(self.prices.head_start)}" if self.prices.head_start else ""
        if not math.isclose(room, allowed - behind, rel_tol=1e-9, abs_tol=1e-9):
            head = f", counted as {format_turns(room - allowed)}{head}"
        value = 0.0 if self.prices.values is None else float(self.prices.values[self.row])
        plus = f" + {number(value)} s for its {self.prices.signal}" if value else ""
        price = share * factor / slack + value
        return (
            f"it usually takes {number(usual)} s{now}{part if sharers > 1 else ''}; {self._behind()}{head}, "
            f"so a turn is worth {number(share)} · {number(factor)}/{number(slack)}{plus} = {number(price)} s"
        )

    def amount(self, value: float) -> str:
        """Formats a price."""
        return f"{format_number(value)} s"

    def worth(self, seconds: float) -> str:  # noqa: ARG002
        """Returns nothing: prices are in seconds."""
        return ""

    def payment(self, value: float, compared: str) -> str:
        """States how much of the prices another cohort would pay."""
        return f"pay prices of {self.amount(value)} {compared}"

    def terms(self) -> str:
        """States the price."""
        return f"{self.price()}; "

    def hopeless(self) -> str:
        """States that no price would have been enough."""
        return f"no price would have changed that; {self.price()}"

    def joint(self) -> str:
        """Joins what happens to the round with what happens to the cohort."""
        return ", and it "

    def exchange(self, margin: SelectionMargin, along: tuple[int, ...]) -> str:
        """States which clients it would replace, which it would bring along, and its price."""
        text = f"would replace {self._valued(margin.leaving)}"
        return f"{text} together with {self._valued(along)}; {self.price()}" if along else f"{text}; {self.price()}"

    def event(self) -> str:
        """States how the client gets what it lacked."""
        return f"Without a turn {self.client} reaches that price, or becomes urgent,"

    def _behind(self) -> str:
        allowed, behind = float(self.prices.allowed[self.row]), float(self.prices.behind[self.row])
        state = f"{format_turns(behind)} behind" if behind >= 0 else f"{format_turns(-behind)} ahead"
        if allowed < 0:
            return f"it is {state}, but should be {format_turns(-allowed)} ahead, because it is often absent"
        return f"it is {state} and may be {format_number(allowed)} behind"

    def _valued(self, rows: tuple[int, ...]) -> str:
        return f"{join_names(self.name, rows)} (worth {self.amount(self.problem.total_value(rows))})"
