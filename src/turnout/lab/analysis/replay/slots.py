"""A world that replays the recorded decisions of a fleet or a run without rounds."""

from __future__ import annotations

from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.slots import SlotRun
from turnout.lab.worlds.recorded import RecordedHistory, RecordedWorld
from turnout.policies.base import SelectionPolicy


class RecordedTurnWorld(RecordedWorld):
    """Replays the recorded decisions: each meets the clients that were present at the recorded one.

    Recorded are the clients that were present, the contexts of those that were not training, and the time of the client
    that was given this turn in the record too, if its context is the same. Everything else is resampled.
    """

    def __init__(self, history: RecordedHistory, seed: int = 0) -> None:
        super().__init__(history, seed)
        self._decisions = 0

    def offer(self, round: int) -> RoundOffer:  # noqa: ARG002
        """Returns the offer of the next decision, also if turns end and it is offered again."""
        return super().offer(self._decisions + 1)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Reports the recorded or resampled result of the selected client."""
        self._decisions += 1
        return super().play(offer, selection)


def play_turns(policy: SelectionPolicy, world: RecordedWorld, slots: int) -> RoundColumns:
    """Replays all recorded decisions with another policy."""
    turns = SlotRun(policy, world, slots).play(len(world.history.columns))
    return RoundColumns.from_records(turns, clients=world.clients)
