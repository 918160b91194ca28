"""From statuses to a round that can be handed out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_rows
from turnout.kernel.feasibility import require_feasible
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.scheduler.clock import boot_id, now
from turnout.scheduler.features import ClientStatus, Features, FleetStatus
from turnout.scheduler.records import OpenRound, RecordedOffer
from turnout.scheduler.rounds.reliability import probability_at_least
from turnout.scheduler.rounds.state import Fleet
from turnout.scheduler.settings import SchedulerSettings

Statuses = Mapping[str, ClientStatus | Mapping[str, float]] | FleetStatus


def chosen_round(
    fleet: Fleet, features: Features, settings: SchedulerSettings, statuses: Statuses, joined: tuple[str, ...]
) -> tuple[OpenRound, RecordedOffer]:
    """Ask the policy for a cohort, without changing any state; returns the round and the offer it was chosen from."""
    if not fleet.ids:
        raise OfferError("nobody is there: choose with the status of at least one client, or register some")
    available, contexts = offer_of(fleet, features, settings, statuses)
    number = fleet.round + 1
    if number == 1 and not settings.allow_infeasible:
        _require_feasible(fleet, available)
    selection = _invited(fleet, settings, RoundOffer(number, available, contexts))
    rows, wanted = selection.clients, fleet.policy.target_size
    own = np.ascontiguousarray(contexts[rows])
    opened = OpenRound(
        round=number,
        wanted=len(rows) if wanted is None else min(wanted, len(rows)),
        deadline=_deadline(fleet, settings, rows, own),
        opened=now(),
        monotonic=time.monotonic(),
        boot=boot_id(),
        joined=joined,
        rows=rows,
        contexts=own,
        available=available,
        reasons=selection.reasons,
    )
    return opened, _recorded_offer(opened, contexts, settings.record_offers_up_to)


def _recorded_offer(opened: OpenRound, contexts: FloatArray, record_up_to: int) -> RecordedOffer:
    """Keep the contexts of all volunteers, or only who was chosen in fleets of more than `record_up_to` clients."""
    if len(opened.available) <= record_up_to:
        own = contexts[opened.available]
        return RecordedOffer(opened.round, opened.rows, opened.reasons, opened.available, own)
    chosen = np.zeros(len(opened.available), dtype=np.bool_)
    chosen[opened.rows] = True
    return RecordedOffer(opened.round, opened.rows, opened.reasons, chosen, None)


def offer_of(
    fleet: Fleet, features: Features, settings: SchedulerSettings, statuses: Statuses
) -> tuple[BoolArray, FloatArray]:
    """Who may be chosen, and the contexts of all."""
    clients = len(fleet.ids)
    rows: IntArray | None
    if isinstance(statuses, FleetStatus):
        rows = None if statuses.rows is None else as_rows("rows", statuses.rows, OfferError, clients=clients)
        columns = {name: _as_column(name, values) for name, values in statuses.columns.items()}
        _check_columns(features, columns, clients if rows is None else len(rows))
    else:
        rows = np.array([fleet.rows[client] for client in statuses], dtype=np.int64)
        columns = features.columns(list(statuses.items()))
    cold = fleet.needs_cold_start()
    server = {
        "needs_cold_start": cold if rows is None else cold[rows],
        "model_size": np.full(clients if rows is None else len(rows), settings.model_size),
    }
    known = features.contexts(
        columns, server, lambda place: repr(fleet.ids[place if rows is None else int(rows[place])])
    )
    if rows is None:
        return ~fleet.away, known
    available = np.zeros(clients, dtype=np.bool_)
    available[rows] = True
    contexts = np.zeros((clients, features.outputs), order="F")
    contexts[rows] = known
    return available & ~fleet.away, contexts


def _check_columns(features: Features, columns: Mapping[str, FloatArray], clients: int) -> None:
    for feature in features.declared:
        if feature.name not in columns:
            raise OfferError(f"the status has no column {feature.name!r}; it has {', '.join(columns) or 'none'}")
        if columns[feature.name].shape != (clients,):
            raise OfferError(f"{feature.name} has shape {columns[feature.name].shape}, expected is ({clients},)")


def _as_column(name: str, values: npt.ArrayLike) -> FloatArray:
    """NaN and infinity pass here: where they stand is told by the id of their client."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise OfferError(f"{name} must hold numbers, not {array.dtype}")
    return array.astype(np.float64, copy=False)


def _require_feasible(fleet: Fleet, available: BoolArray) -> None:
    """Before the first round: could the promise be kept to those who are there?"""
    if fleet.queues is None or not available.any():
        return
    rates = np.array(fleet.queues.guaranteed_rates)[available]
    size = fleet.policy.cohort_size
    require_feasible(rates, np.ones(len(rates)), len(rates) if size is None else size)


def _invited(fleet: Fleet, settings: SchedulerSettings, offer: RoundOffer) -> Selection:
    """As many as are wanted and, with over-selection, more."""
    policy, wanted = fleet.policy, fleet.policy.cohort_size
    if wanted is None or settings.overcommit == 1:
        return policy.ask(offer)
    if settings.overcommit != "auto":
        places = int(np.ceil(wanted * settings.overcommit - 1e-9))  # 1.1 · 100 is 110
        return policy.ask(offer.restricted(places=places))
    chances = fleet.history.reliability
    most = int(offer.available.sum())

    def asked(size: int) -> tuple[Selection, bool]:
        selection = policy.ask(offer.restricted(places=size))
        return selection, probability_at_least(wanted, chances[selection.clients]) >= settings.confidence

    return _fewest(asked, min(wanted, max(most, 1)), most)


def _fewest(asked: Callable[[int], tuple[Selection, bool]], least: int, most: int) -> Selection:
    """The smallest cohort that is enough, from `least` on, or that of `most`; found by doubling and halving."""
    selection, enough = asked(least)
    short, extra = least, 1
    while not enough and short < most:
        size = min(least + extra, most)
        selection, enough = asked(size)
        if enough:
            while size - short > 1:
                middle = (short + size) // 2
                tried, suffices = asked(middle)
                if suffices:
                    selection, size = tried, middle
                else:
                    short = middle
            return selection
        short, extra = size, 2 * extra
    return selection


def _deadline(fleet: Fleet, settings: SchedulerSettings, rows: IntArray, contexts: FloatArray) -> float | None:
    if settings.deadline != "auto":
        return settings.deadline
    if fleet.model is None or not len(rows) or (fleet.numbers["learned"][rows] == 0).any():
        return settings.deadline_ceiling
    slowest = float(fleet.model.predict(contexts, rows).max())
    return float(np.clip(settings.deadline_multiple * slowest, settings.deadline_floor, settings.deadline_ceiling))
