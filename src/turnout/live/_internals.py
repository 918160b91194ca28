"""What the neighbours of this package use beyond its public face: the faces of a live fleet and the command line."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from turnout.live.audit import verify as verify
from turnout.live.audit.doctor import Finding as Finding
from turnout.live.audit.doctor import examine as examine
from turnout.live.clock import moment_after as moment_after
from turnout.live.features import Status, Statuses
from turnout.live.identifiers import LAST_ROUND as LAST_ROUND
from turnout.live.identifiers import check_client_id as check_client_id
from turnout.live.identifiers import check_client_ids as check_client_ids
from turnout.live.journal.answers import TOKENS as TOKENS
from turnout.live.journal.answers import TOKENS_BY_CLIENT as TOKENS_BY_CLIENT
from turnout.live.journal.answers import StoredAnswer as StoredAnswer
from turnout.live.journal.answers import has_tokens as has_tokens
from turnout.live.journal.answers import note_tokens_changed as note_tokens_changed
from turnout.live.journal.answers import tokens_version as tokens_version
from turnout.live.journal.events import RecordedRound as RecordedRound
from turnout.live.journal.events import RecordedTurn as RecordedTurn
from turnout.live.journal.files import copy_fleet as copy_fleet
from turnout.live.journal.files import is_fleet as is_fleet
from turnout.live.journal.files import restore_fleet as restore_fleet
from turnout.live.journal.replay import check_new_policy as check_new_policy
from turnout.live.journal.replay import live_policy as live_policy
from turnout.live.journal.schema import FLEET as FLEET
from turnout.live.journal.summary import FleetTotals as FleetTotals
from turnout.live.journal.summary import read_totals as read_totals
from turnout.live.operation.amending import POLICY_SETTINGS as POLICY_SETTINGS
from turnout.live.operation.amending import amended_settings as amended_settings
from turnout.live.operation.monitoring import WriterMetrics as WriterMetrics
from turnout.live.operation.monitoring import seconds_since_report as seconds_since_report
from turnout.live.reader import StaleError as StaleError
from turnout.live.reader import explain_closed_round as explain_closed_round
from turnout.live.reader import journal_of as journal_of
from turnout.live.scheduler import Scheduler
from turnout.live.serving.session import FleetSession as FleetSession
from turnout.live.settings import SETTINGS as SETTINGS
from turnout.live.settings import Setting as Setting
from turnout.live.turns.clients import JUDGED_AFTER as JUDGED_AFTER
from turnout.live.turns.records import ARRIVED as ARRIVED
from turnout.live.turns.records import CUT_OFF as CUT_OFF
from turnout.live.turns.records import FAILED as FAILED
from turnout.live.turns.records import KINDS as KINDS
from turnout.live.turns.records import LATE as LATE
from turnout.live.turns.records import MISSED as MISSED
from turnout.live.turns.records import OUTCOME_OF_KIND as OUTCOME_OF_KIND
from turnout.live.turns.records import REDUNDANT as REDUNDANT
from turnout.live.turns.records import RETURNED as RETURNED
from turnout.live.turns.rounds.records import OpenRound as OpenRound
from turnout.live.turns.slots.records import FilledSlots as FilledSlots
from turnout.live.turns.slots.records import RunningTurnRecord as RunningTurnRecord
from turnout.live.turns.slots.state import SlotFleet as SlotFleet
from turnout.live.turns.slots.turns import RunningTurn, SlotNews, Wait


def forget_in_steps(scheduler: Scheduler, client: str, answer: StoredAnswer | None = None) -> Iterator[None]:
    """Forgets a client as `Scheduler.forget` does, and yields after each transaction.

    With the first of them, the answer of a service is stored.
    """
    return scheduler._forget_in_steps(client, answer)


def fill_some(scheduler: Scheduler, statuses: Statuses, cold: Collection[str], most: int) -> list[RunningTurn]:
    """Does the same as `Scheduler.fill`, but gives so many turns at most."""
    with scheduler._lock:
        return scheduler._server.fill(statuses, cold, most)


def listen(scheduler: Scheduler, client: str, status: Status) -> RunningTurn | Wait:
    """Does the same as `Scheduler.check_in` for a device that is told when it is given a turn: it need not ask."""
    with scheduler._lock:
        return scheduler._server.check_in(client, status, listens=True)


def news_since(scheduler: Scheduler, decision: int) -> SlotNews:
    """Returns what devices that listen must know: what has changed since a decision."""
    with scheduler._lock:
        return scheduler._server.news_since(decision)


def target_size(session: FleetSession) -> int | None:
    """Returns the number of updates that a round needs, also in a fleet without clients; None if it has no size."""
    with session.lock:
        return live_policy(session.settings, session.features.outputs, 1).target_size


def session_of(scheduler: Scheduler) -> FleetSession:
    """Returns the open fleet behind a scheduler."""
    return scheduler._session


@dataclass(frozen=True, slots=True)
class SelectedClient:
    """A client of the open round.

    Attributes:
        client: Its id.
        expected_seconds: Its predicted exchange time; None if it was never timed, or has just started.
        timed: Whether a time of it was learned before.
        behind: How many turns it is behind its promise; None if the policy guarantees nothing.
    """

    client: str
    expected_seconds: float | None
    timed: bool
    behind: float | None


def selected_clients(session: FleetSession) -> list[SelectedClient]:
    """Returns the clients of the open round, in its order; none if no round is open."""
    with session.lock:
        opened, fleet = session.memory.opened, session.fleet
        if opened is None:
            return []
        rows, certificate = opened.rows, session.certificate()
        times = fleet.expected_seconds(rows, opened.contexts).tolist()
        behind = [None] * len(rows) if certificate is None else certificate.behind[rows].tolist()
        timed = (fleet.counters.learned[rows] > 0).tolist()
        return [
            SelectedClient(fleet.ids[row], None if math.isnan(seconds) else seconds, known, turns)
            for row, seconds, known, turns in zip(rows.tolist(), times, timed, behind, strict=True)
        ]
