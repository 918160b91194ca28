"""Declarations of settings: the metadata of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, as_number
from turnout.live.retention import Retention

Kind = Literal["number", "count", "flag", "period"]
#: The key of a declaration in the metadata of a field.
DECLARATION = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting.

    Attributes:
        help: Its meaning, without a full stop.
        unit: Its unit, if it has one.
        kind: What its value is. One that is None is checked where it is used.
        bounds: The bounds of a number or a count, as `as_number` and `as_count` take them.
        auto: The meaning of "auto"; None if that is not allowed.
        none: The meaning of None; None if that is not allowed.
        amendable: Whether `Scheduler.amend` can change it.
        needs_slots: Whether it needs a `concurrency`.
    """

    help: str
    unit: str | None = None
    kind: Kind | None = None
    bounds: Mapping[str, Any] = field(default_factory=dict)
    auto: str | None = None
    none: str | None = None
    amendable: bool = False
    needs_slots: bool = False

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
        if self.kind == "period":
            return Retention.parse(name, value).stored
        if self.kind == "flag" and not isinstance(value, bool):
            raise SettingError(f"{name} must be True or False, got {value!r}")
        if self.kind == "number" and self.auto is not None and isinstance(value, str):
            raise SettingError(f"{name} must be a number or 'auto', got {value!r}")
        if self.kind in ("number", "count"):
            convert = as_number if self.kind == "number" else as_count
            return convert(name, value, SettingError, **self.bounds)
        return value


def declare(
    default: Any,
    kind: Kind | None,
    unit: str | None,
    help: str,
    *,
    auto: str | None = None,
    none: str | None = None,
    amendable: bool = False,
    needs_slots: bool = False,
    **bounds: float,
) -> Any:
    """Returns the field of a setting with its declaration."""
    declared = {DECLARATION: Setting(help, unit, kind, bounds, auto, none, amendable, needs_slots)}
    return field(default=default, metadata=declared)
