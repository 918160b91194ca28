"""The sentences of an explanation for policies that give turns a price in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from turnout.kernel.certificate import TimeUnit
from turnout.kernel.cohort_problem import CohortProblem, PriceTerms
from turnout.policies.explain.margin import SelectionMargin
from turnout.policies.explain.sentences import TIES, format_number, format_turns, join_names


class PriceSentences(NamedTuple):
    """Sentences about the price of one client's turn."""

    row: int
    problem: CohortProblem
    terms: PriceTerms
    name: Callable[[int], str]
    unit: TimeUnit = TimeUnit.ROUND

    @property
    def client(self) -> str:
        """The name of the client."""
        return self.name(self.row)

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
        usual, sharers = float(self.terms.usual[self.row]), self.terms.sharers
        allowed, behind = float(self.terms.allowed[self.row]), float(self.terms.behind[self.row])
        factor = max(allowed, self.terms.least_allowed)
        share, slack = usual / sharers, allowed - behind
        number = format_number
        part = f", and its share of such a round is {number(usual)}/{number(sharers)} = {number(share)} s"
        return (
            f"it usually takes {number(usual)} s{part if sharers > 1 else ''}; {self._behind()}, so a turn is worth "
            f"{number(share)} · {number(factor)}/{number(slack)} = {number(share * factor / slack)} s"
        )

    def chosen(self, margin: SelectionMargin) -> str:
        """Compares the cohort with the best one without the client."""
        if margin.rival_threshold is None or margin.margin is None:
            return f"{self.client} was chosen because all available clients were"
        change = margin.rival_threshold - margin.threshold
        lost = self.problem.total_value(margin.leaving) - self.problem.total_value(margin.joining)
        if change == 0 and lost == 0:
            best = f"the best {self.unit.selection} without it"
            return f"{self.client} was chosen by a tie: {best} is equally good; {TIES}"
        parts = []
        if change:
            parts.append(f"last {format_number(abs(change))} s {'less' if change < 0 else 'longer'}")
        parts.append(f"pay prices of {format_number(abs(lost))} s {'less' if lost >= 0 else 'more'}")
        return (
            f"{self.client} was chosen with a margin of {format_number(margin.margin)} s: {self.price()}; the best "
            f"{self.unit.selection} without it would {' and '.join(parts)}"
        )

    def not_chosen(self, margin: SelectionMargin) -> str:
        """States what selecting the client would cost, which clients it would replace, and what it lacked."""
        if margin.missing_units is None or margin.rival_threshold is None:
            return f"{self.client} was not chosen, and no price would have changed that; {self.price()}"
        change = margin.rival_threshold - margin.threshold
        along = tuple(other for other in margin.joining if other != self.row)
        if change == 0:
            effect = f"{self.client} is fast enough, but it would replace"
        else:
            verb = "lengthen" if change > 0 else "shorten"
            effect = (
                f"choosing {self.client} would {verb} the {self.unit.turn} by {format_number(abs(change))} s, "
                "and it would replace"
            )
        effect += f" {self._valued(margin.leaving)}"
        if along:
            effect += f" together with {self._valued(along)}"
        missing = format_number(margin.missing_units / margin.units_per_turn)
        return f"{effect}; {self.price()}: with {missing} s more it would have been chosen"

    def waiting(self, rounds: int | None, never: str) -> str:
        """States in how many rounds the price is high enough, or the client is urgent."""
        return self._waiting("reaches that price, or becomes urgent,", rounds, never)

    def waiting_for_place(self, rounds: int | None, never: str) -> str:
        """States in how many rounds the client is one of the most urgent ones."""
        return self._waiting("is one of the most urgent", rounds, never)

    def _waiting(self, event: str, rounds: int | None, never: str) -> str:
        if rounds is None:
            return f"How long it has to wait is unknown: {never}"
        count = self.unit.pluralize(rounds)
        return f"Without a turn {self.client} {event} in {count}, if it is available in each and nothing else changes"

    def _behind(self) -> str:
        allowed, behind = float(self.terms.allowed[self.row]), float(self.terms.behind[self.row])
        state = f"{format_turns(behind)} behind" if behind >= 0 else f"{format_turns(-behind)} ahead"
        if allowed < 0:
            return f"it is {state}, but should be {format_turns(-allowed)} ahead, because it is often absent"
        return f"it is {state} and may be {format_number(allowed)} behind"

    def _valued(self, rows: tuple[int, ...]) -> str:
        return f"{join_names(self.name, rows)} (worth {format_number(self.problem.total_value(rows))} s)"
