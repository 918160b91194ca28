"""The sentences of an explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from turnout.policies.explain.margin import CohortProblem, SelectionMargin

NAMED = 3  # clients named in a sentence
TIES = "and of equals the faster comes first, then the lower row"


class MarginSentences(NamedTuple):
    """Sentences about one standing."""

    row: int
    found: SelectionMargin
    problem: CohortProblem
    name: Callable[[int], str]
    owes: str

    @property
    def client(self) -> str:
        """Its name."""
        return self.name(self.row)

    def chosen(self) -> str:
        """What the best cohort without it would be like."""
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
            f"{self.client} is in by {in_turns(found.margin)}: without it the best cohort would "
            f"{length if change else ''}pay {in_turns(abs(paid))} {less} of those owed"
        )

    def not_chosen(self) -> str:
        """What choosing it would cost, and whom; and what it lacked."""
        found, client = self.found, self.client
        if found.missing_units is None or found.rival_threshold is None:
            return f"no number of turns owed would have put {client} in"
        change, own = found.rival_threshold - found.threshold, found.owed_units / found.units_per_turn
        place, along = in_turns(own), tuple(one for one in found.joining if one != self.row)
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
        return f"{begins}: {in_turns(found.missing_units / found.units_per_turn)} more would have put it in"

    def _owed(self, rows: tuple[int, ...]) -> float:
        owed = self.problem.owed
        return (sum(owed.units[list(rows)].tolist()) + owed.credit * len(rows)) / owed.units_per_turn if rows else 0.0

    def _worth(self, seconds: float) -> str:
        return in_turns(abs(self.problem.speed_weight * seconds))

    def _weighing(self, turns: float) -> str:
        return f"owed {_number(turns)}" if self.owes == "is owed" else f"which weighs {_number(turns)}"

    def _names(self, rows: tuple[int, ...]) -> str:
        named = [self.name(row) for row in rows[:NAMED]]
        more = len(rows) - len(named)
        return f"{', '.join(named)} and {more} more" if more else " and ".join(_pairwise(named))


def inexact_sentence(client: str, standing: str, round_: int, facts: Mapping[str, float], why: str) -> str:
    """What is known where no exact answer is possible, and why it is not."""
    sentence = f"{client} was {standing} in round {round_}"
    if facts:
        sentence += f" ({', '.join(f'{word} {value:.4g}' for word, value in facts.items())})"
    if why:
        sentence += f"; an exact answer is not possible: {why}"
    return f"{sentence}."


def when_words(client: str, rounds: int | None, never: str) -> str:
    """In how many rounds it earns what it lacked, or why that cannot be told."""
    if rounds is None:
        return f"No number of rounds can be told: {never}"
    counted = "1 round" if rounds == 1 else f"{rounds:,} rounds"
    return f"At its own rate {client} earns that in {counted}, if it is there in each and nothing else changes"


def in_turns(turns: float) -> str:
    """A number of turns."""
    return f"{_number(turns)} {'turn' if _number(turns) == '1' else 'turns'}"


def _pairwise(names: Iterable[str]) -> list[str]:
    *first, last = names
    return [", ".join(first), last] if first else [last]


def _number(value: float) -> str:
    """Two decimals, more where it is small, and no idle zeros."""
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")
