"""A fleet that a service has, with the methods of a scheduler that adapters call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.client import FleetClient, RefusedError
from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import IntArray
from turnout.live import Feature, Features, FleetStatus, RunningTurn, SchedulerSettings, Statuses, Turn
from turnout.live._internals import SelectedClient

#: Longer reasons of failures are cut off here; the service stores less of them.
MAX_WHY = 10_000


@dataclass(frozen=True, slots=True)
class RemoteRound:
    """The open round of a service; see `OpenRound`."""

    round: int
    target_size: int
    deadline: float | None


class RemoteFleet:
    """A fleet that a service has. The service decides and records; a call that it does not answer is sent again.

    The methods are those of `Scheduler` and of `SchedulerFacts`.

    Args:
        client: The client of the service.

    Attributes:
        location: The address.
        settings: The settings of the fleet, as they were at the last selection of a cohort.
        features: The features of a status, without the functions that compute contexts from them.
        target_size: The number of updates that a round needs.
        round: The newest round or, without rounds, the newest decision at the last `fill`.
        tracker: None: the service has the metrics.
    """

    tracker = None

    def __init__(self, client: FleetClient) -> None:
        self._client, self.location = client, client.address
        self._rows: dict[str, int] = {}  # of the clients that were registered here; the service has others
        self._returned: frozenset[str] | None = None  # the clients that have returned before this server was started
        self._selected = list[SelectedClient]()
        self._read_settings()
        self.round = int(client.status()["round"])

    def _read_settings(self) -> None:
        data = self._client.settings()
        self.settings = SchedulerSettings.from_dict(data["settings"])
        self.target_size: int | None = data["target_size"]
        self.features = Features.of(
            *(Feature(each["name"], each["low"], each["high"], each["unit"]) for each in data["features"])
        )

    # Clients

    @property
    def clients(self) -> list[str]:
        """The ids of the clients that were registered here."""
        return list(self._rows)

    def register(self, ids: Sequence[str]) -> int:
        """Adds clients; returns how many of them are new."""
        new = self._client.register(ids) if ids else 0
        for client in ids:
            self._rows.setdefault(client, len(self._rows))
        return new

    def amend(self, *, groups: Mapping[str, str | None]) -> list[str]:
        """Changes the groups of clients, for which the token needs the role operator."""
        return self._client.amend(groups=dict(groups))

    # Rounds

    @property
    def open_round(self) -> RemoteRound | None:
        """The open round; None if no round is open."""
        opened = self._client.round_state()["open"]
        if opened is None:
            return None
        self.round = int(opened["round"])
        return RemoteRound(self.round, opened["target_size"], opened["deadline"])

    def choose(self, statuses: Statuses, *, cold: Collection[str] = ()) -> list[str]:
        """Selects the cohort of the next round; while a round is open, returns its cohort again."""
        self._read_settings()
        opened = self._client.choose(self._by_id(statuses), cold=cold)
        self.round, self._selected = opened.round, [SelectedClient(**client) for client in opened.clients]
        return opened.cohort

    def close_round(self, after: float | None = None) -> list[Turn]:
        """Closes the newest round, and no later one; returns its turns."""
        self._client.close_round(after, round=self.round)
        return self.history()

    def abandon_round(self) -> None:
        """Cancels the newest round, and no later one."""
        self._client.abandon_round(round=self.round)
        self.round -= 1

    def history(self, *, round: int | None = None) -> list[Turn]:
        """Returns the turns of a round, by default of the newest."""
        turns = self._client.round(self.round if round is None else round)["turns"]
        return [_turn(turn) for turn in turns]

    # Turns without rounds

    def fill(self, statuses: Statuses, *, cold: Collection[str] = ()) -> list[RunningTurn]:
        """Gives a turn for every free slot; returns the new turns."""
        turns = self._client.fill(self._by_id(statuses), cold=cold)
        self.round = int(self._client.status()["round"])
        return turns

    def running(self) -> list[RunningTurn]:
        """Returns the turns whose results are not known yet."""
        return self._client.running()

    # Outcomes

    def report(self, client: str | int, seconds: float, **details: Any) -> bool:
        """Records that an update arrived; raises ReportError if it cannot be recorded."""
        with _report_errors():
            return self._client.report(client, seconds, **details)

    def report_many(self, seconds: Mapping[str, float], **details: Any) -> int:
        """Records arrivals; raises ReportError if one of them cannot be recorded."""
        new, refused = self._client.report_many(seconds, **details)
        if refused:
            raise ReportError("; ".join(refused.values()))
        return new

    def report_failure(self, client: str | int, why: str, *, round: int | None = None) -> bool:
        """Records that a client failed; raises ReportError if that cannot be recorded."""
        with _report_errors():
            return self._client.report_failure(client, why.encode(errors="replace").decode()[:MAX_WHY], round=round)

    # Facts

    def track(self, tracker: object) -> None:
        """Raises SettingError if there is a tracker."""
        if tracker is not None:
            raise SettingError(
                f"tracker needs a fleet that this process opens: leave it out, and read the metrics of {self.location} "
                "from the service (GET /metrics)"
            )

    def rows(self, clients: Iterable[str]) -> IntArray:
        """Returns the rows of registered clients for a FleetStatus; they count from 0 here."""
        return np.array([self._rows[client] for client in clients], dtype=np.int64)

    def have_returned(self, clients: Sequence[str]) -> list[bool]:
        """Returns whether each client had returned from a turn when that was first asked."""
        if self._returned is None:
            known = self._client.clients()
            self._returned = frozenset(entry["client"] for entry in known if entry["last_round"] is not None)
        return [client in self._returned for client in clients]

    def selected(self) -> list[SelectedClient]:
        """Returns the clients of the cohort that `choose` returned last."""
        return self._selected

    def promise(self) -> tuple[str, dict[str, float]] | None:
        """Returns a sentence about the promise, and its status as numbers by name; None if there is none."""
        promise = self._client.status()["promise"]
        if promise is None:
            return None
        numbers = {"most-behind-turns": promise["worst_behind"], "broken-promises": float(promise["broken"])}
        return promise["sentence"], numbers

    def close(self) -> None:
        """Closes the connections; the service keeps the fleet."""
        self._client.close()

    def _by_id(self, statuses: Statuses) -> Any:
        """Returns the statuses as a service takes them; the rows of a FleetStatus are those of `rows`."""
        if not isinstance(statuses, FleetStatus):
            return statuses
        ids, names = self.clients, list(statuses.columns)
        values = zip(*(np.asarray(statuses.columns[name]).tolist() for name in names), strict=True)
        clients = [ids[row] for row in np.asarray(statuses.rows).tolist()]
        return {client: dict(zip(names, own, strict=True)) for client, own in zip(clients, values, strict=True)}


@contextmanager
def _report_errors() -> Iterator[None]:
    """Raises the error of a scheduler if the state of the fleet does not allow a report."""
    try:
        yield
    except RefusedError as error:
        if error.status == 409:
            raise ReportError(str(error)) from error
        raise


def _turn(data: Mapping[str, Any]) -> Turn:
    """Returns a turn with what adapters read; its row is not known here."""
    kind = None if data["outcome"] == "out" else data["outcome"]
    return Turn(data["round"], -1, data["client"], kind, data["seconds"], data["why"])
