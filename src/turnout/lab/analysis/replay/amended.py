"""Replays a policy whose settings were amended between recorded rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnout.kernel.rounds import RoundReport
from turnout.kernel.slots.turns import StartedTurn
from turnout.live import SchedulerSettings
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper


class Stage(NamedTuple):
    """The settings of a fleet from one amendment to the next.

    Attributes:
        after: The number of recorded rounds before this stage.
        settings: The settings.
    """

    after: int
    settings: SchedulerSettings


class StagedPolicy(Wrapper):
    """A policy that continues with other settings after given rounds, as an amended fleet does.

    Args:
        policy: The policy of the first stage.
        later: The number of rounds before each later stage, and what builds its policy.
    """

    name = "staged"
    works_with_slots = True

    def __init__(self, policy: SelectionPolicy, later: Sequence[tuple[int, Callable[[], SelectionPolicy]]]) -> None:
        super().__init__(policy)
        self._later = list(later)

    def tell(self, report: RoundReport) -> None:
        """Passes the report on, and changes the settings if the next stage begins."""
        super().tell(report)
        self._advance(report.round)

    def tell_started(self, turn: StartedTurn) -> None:
        """Passes the decision on, and changes the settings if the next stage begins."""
        super().tell_started(turn)
        self._advance(turn.decision)

    def _advance(self, done: int) -> None:
        while self._later and done >= self._later[0][0]:
            _, build = self._later.pop(0)
            amended = build()
            self.policy.settle()
            amended.restore(amended.amended_state(self.policy.state(), keep_times=True))
            super().__init__(amended)
