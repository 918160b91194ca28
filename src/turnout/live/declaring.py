"""Declarations of settings: the metadata of their fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from turnout.errors import SettingError
from turnout.kernel.arrays import LARGEST_TIME, as_count, as_number
from turnout.live.retention import Retention

#: The key of a declaration in the metadata of a field.
DECLARATION = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting.

    Attributes:
        kind: What its value is. One without a kind is checked where it is used.
        unit: Its unit, if it has one.
        help: Its meaning, without a full stop.
        auto: The meaning of "auto"; None if that is not allowed.
        none: The meaning of None; None if that is not allowed.
        amendable: Whether `Scheduler.amend` can change it.
        needs_slots: Whether it needs a `concurrency`.
        least: The smallest number, which is above 0 by default, or the smallest count.
        most: The largest number or count.
    """

    kind: Literal["number", "count", "flag", "period"] | None
    unit: str | None
    help: str
    auto: str | None = None
    none: str | None = None
    amendable: bool = True
    needs_slots: bool = False
    least: int | None = None
    most: int = int(LARGEST_TIME)

    @property
    def none_text(self) -> str:
        """What stands for None in sentences and on the command line."""
        return "all" if self.kind == "period" else "none"

    def sentence(self, auto: str = '`"auto"`', none: str = "`None`") -> str:
        """Returns the meaning of the setting and of its special values, which are written like this."""
        special = ((auto, self.auto), (none, self.none))
        return "; ".join([self.help, *(f"{text}: {meaning}" for text, meaning in special if meaning is not None)])

    def check(self, name: str, value: Any) -> Any:
        """Returns the value as it is stored; raises SettingError if it is invalid."""
        if (value is None and self.none is not None) or (isinstance(value, str) and value == "auto" and self.auto):
            return value
        match self.kind:
            case "number" if self.auto is not None and isinstance(value, str):
                raise SettingError(f"{name} must be a number or 'auto', got {value!r}")
            case "number":
                least = {"above": 0.0} if self.least is None else {"least": self.least}
                return as_number(name, value, SettingError, **least, most=self.most)
            case "count":
                return as_count(name, value, SettingError)
            case "period":
                return Retention.parse(name, value).stored
            case "flag" if not isinstance(value, bool):
                raise SettingError(f"{name} must be True or False, got {value!r}")
        return value


def declare(default: Any, *declared: Any, **further: Any) -> Any:
    """Returns the field of a setting: its default, and the arguments of its `Setting`."""
    return field(default=default, metadata={DECLARATION: Setting(*declared, **further)})
