"""What a fleet is begun with, and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import LARGEST_TIME, as_count, as_number


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Written into the file when it is begun.

    `policy`, `settings`: who chooses, and its settings; a guarantee is for the rounds a client volunteers for, a
    debt does not grow beyond `max_owed` (10 turns more than outweigh the deadline, or a minute without one), and a turn
    is paid when it contributed, unless `settings` say otherwise.

    `model_size`: in the unit of the clients' bandwidth times seconds. `deadline`: seconds; "auto" for
    `deadline_multiple` times the predicted slowest of the cohort, from `deadline_floor` to `deadline_ceiling`, and the
    latter as long as one of them was never timed; or None. `late_window`: for so many rounds the true time of
    a late client is still learned. `rest_after`: after so many misses in a row a client rests 1, 2, 4, … rounds.

    `overcommit`: invite so many times more than are wanted and keep the first, or "auto": as many as bring the wanted
    number back with probability `confidence`. `allow_infeasible`: begin even if the promise cannot be kept.

    `record_offers_up_to`: fleets of up to so many clients keep what every volunteer told before each choice, so that
    the choice can be explained; larger ones keep what was told by the chosen.
    """

    policy: str = "rbcsf"
    settings: Mapping[str, Any] = field(default_factory=dict)
    model_size: float = 20.0
    deadline: float | Literal["auto"] | None = None
    deadline_multiple: float = 3.0
    deadline_floor: float = 1.0
    deadline_ceiling: float = 3600.0
    late_window: int = 10
    rest_after: int = 3
    overcommit: float | Literal["auto"] = 1.0
    confidence: float = 0.9
    allow_infeasible: bool = False
    record_offers_up_to: int = 10_000

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise SettingError(f"settings must be a table, not {self.settings!r}")
        object.__setattr__(self, "settings", dict(self.settings))
        as_number("model_size", self.model_size, SettingError, above=0)
        if self.deadline is not None and self.deadline != "auto":
            as_number("deadline", self.deadline, SettingError, above=0, most=LARGEST_TIME)
        as_number("deadline_multiple", self.deadline_multiple, SettingError, least=1)
        as_number("deadline_floor", self.deadline_floor, SettingError, above=0)
        as_number("deadline_ceiling", self.deadline_ceiling, SettingError, least=self.deadline_floor, most=LARGEST_TIME)
        as_count("late_window", self.late_window, SettingError, least=0)
        as_count("rest_after", self.rest_after, SettingError)
        if self.overcommit != "auto":
            as_number("overcommit", self.overcommit, SettingError, least=1, most=10)
        as_number("confidence", self.confidence, SettingError, above=0, most=0.9999)
        as_count("record_offers_up_to", self.record_offers_up_to, SettingError, least=0)
        try:
            json.dumps(asdict(self), allow_nan=False)
        except (TypeError, ValueError) as odd:
            raise SettingError(f"settings are kept in the file and must be numbers, words, lists: {odd}") from odd

    def told(self) -> dict[str, Any]:
        """Plain, for the file."""
        return asdict(self)

    @classmethod
    def from_given(cls, given: Mapping[str, Any]) -> SchedulerSettings:
        """What somebody asks for."""
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise SettingError(
                    f"there is no setting {name!r}{suggestion(name, known)}; there are {', '.join(known)}"
                )
        return cls(**given)

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> SchedulerSettings:
        """What stands in a file; what a later version added has its default."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in told.items() if name in known})

    def check_same(self, given: Mapping[str, Any], path: Path) -> None:
        """Refuse settings other than those that stand in the file."""
        mine = self.told()
        for name, value in given.items():
            if name not in mine:
                raise SettingError(f"there is no setting {name!r}{suggestion(name, mine)}; there are {', '.join(mine)}")
            if mine[name] != _as_kept(value):
                raise SettingError(
                    f"{path} was begun with {name}={mine[name]!r}, not {value!r}: open it without {name}, or begin a "
                    "new file"
                )


def _as_kept(value: Any) -> Any:
    """As it would come back from the file: a tuple is a list there."""
    if isinstance(value, Mapping):
        return {name: _as_kept(one) for name, one in value.items()}
    return [_as_kept(one) for one in value] if isinstance(value, list | tuple) else value
