"""The sentences of an explanation for policies that give turns a price in seconds."""

from __future__ import annotations

import math

from turnout.kernel.cohort_problem import PriceTerms
from turnout.policies.explain.margin import SelectionMargin
from turnout.policies.explain.sentences import MarginSentences, format_number, format_turns, join_names


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
        usual, sharers = float(self.prices.usual[self.row]), self.prices.sharers
        allowed, behind = float(self.prices.allowed[self.row]), float(self.prices.behind[self.row])
        factor = max(allowed, self.prices.least_allowed)
        share, room = usual / sharers, float(self.prices.rooms[self.row])
        slack = room + self.prices.head_start
        number = format_number
        part = f", and its share of such a round is {number(usual)}/{number(sharers)} = {number(share)} s"
        head = f", with a head start of {format_turns(self.prices.head_start)}" if self.prices.head_start else ""
        if not math.isclose(room, allowed - behind, rel_tol=1e-9, abs_tol=1e-9):
            head = f", counted as {format_turns(room - allowed)}{head}"
        value = 0.0 if self.prices.values is None else float(self.prices.values[self.row])
        plus, price = (
            f" + {number(value)} s for its {self.prices.signal}" if value else "",
            share * factor / slack + value,
        )
        return (
            f"it usually takes {number(usual)} s{part if sharers > 1 else ''}; {self._behind()}{head}, so a turn is "
            f"worth {number(share)} · {number(factor)}/{number(slack)}{plus} = {number(price)} s"
        )

    def waiting_for_place(self, rounds: int | None, never: str) -> str:
        """States in how many rounds the client is one of the most urgent ones."""
        return self.waiting(rounds, never, f"Without a turn {self.client} is one of the most urgent")

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
