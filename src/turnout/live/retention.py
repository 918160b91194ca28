"""How much of its past a fleet keeps: a number of rounds, or of days."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, as_number

_DAYS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:d|days?)\s*", re.IGNORECASE)
#: The longest period, in days: dates before the year 1 cannot be computed.
MAX_DAYS = 36_500
#: A period in days keeps at least this many rounds, so that a wrong clock does not delete everything.
MIN_ROUNDS = 100
#: The number of rounds for which the actual time of a late client is still learned.
LATE_ROUNDS = 10


def late_turns(concurrency: int | None) -> int:
    """Returns the number of rounds, or of decisions, for which the actual time of a late client is still learned."""
    return LATE_ROUNDS * (concurrency or 1)


@dataclass(frozen=True, slots=True)
class Retention:
    """The period of a fleet's past that is kept: rounds or days.

    Attributes:
        rounds: The number of rounds; None if the period is given in days.
        days: The number of days; None if the period is given in rounds.

    >>> Retention.parse("keep_rounds", "30 days")
    Retention(rounds=None, days=30.0)
    >>> Retention.parse("keep_rounds", 5000).stored
    5000
    """

    rounds: int | None = None
    days: float | None = None

    @classmethod
    def parse(cls, name: str, value: object) -> Retention:
        """Returns the period that a setting states: 5000, "30 days" or "30d".

        Args:
            name: The name of the setting, for messages.
            value: Its value.
        """
        if isinstance(value, str):
            match = _DAYS.fullmatch(value)
            if match is None:
                raise SettingError(f"{name} must be a number of rounds, or of days such as '30 days', got {value!r}")
            return cls(days=float(as_number(name, float(match[1]), SettingError, above=0, most=MAX_DAYS)))
        return cls(rounds=as_count(name, value, SettingError))

    @property
    def stored(self) -> int | str:
        """The period as the settings of a fleet store it."""
        if self.rounds is not None:
            return self.rounds
        return f"{self.days:g} days"

    def has_quarter_passed(self, round: int, at: str | None, later_round: int, later: str | None) -> bool:
        """Returns whether a quarter of the period lies between two rounds; True if their times are unknown.

        Args:
            round: The number of the first round.
            at: When it was recorded, in ISO format.
            later_round: The number of the second round.
            later: When that was recorded.
        """
        if self.rounds is not None:
            return later_round - round >= self.rounds / 4
        if at is None or later is None:
            return True
        return at <= Retention(days=(self.days or 0.0) / 4).cutoff(later)

    def is_over(self, round: int, at: str | None, newest_round: int, now: str) -> bool:
        """Returns whether a round has been followed by the whole period.

        Args:
            round: The number of the round.
            at: When it was recorded, in ISO format; None if that is unknown, which is never over.
            newest_round: The number of the newest round.
            now: The present time, in ISO format.
        """
        if self.rounds is not None:
            return round <= newest_round - self.rounds
        return at is not None and at <= self.cutoff(now) and round <= newest_round - MIN_ROUNDS

    def cutoff(self, now: str) -> str:
        """Returns the time, in ISO format, at which a period of days began that ends now."""
        began = datetime.fromisoformat(now) - timedelta(days=self.days or 0.0)
        return began.isoformat(timespec="milliseconds")
