"""Selects the cohort of a round from the statuses of the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_rows
from turnout.kernel.feasibility import require_feasible
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.live import clock
from turnout.live.clock import boot_id, now
from turnout.live.features import ClientStatus, Features, FleetStatus
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.records import OpenRound, RecordedOffer
from turnout.live.turns.rounds.reliability import probability_at_least
from turnout.live.turns.rounds.state import Fleet

Statuses = Mapping[str, ClientStatus | Mapping[str, float]] | FleetStatus


def build_open_round(
    fleet: Fleet, features: Features, settings: SchedulerSettings, statuses: Statuses, joined: tuple[str, ...]
) -> tuple[OpenRound, RecordedOffer]:
    """Asks the policy for a cohort, without changing any state; returns the round and its offer.

    Args:
        fleet: The state of the fleet, which the new clients have joined already.
        features: The features of the fleet.
        settings: The settings of the fleet.
        statuses: The statuses of the available clients.
        joined: The ids of the clients that are new in this round.
    """
    if not fleet.ids:
        raise OfferError("the fleet has no clients: choose with the status of at least one, or register some")
    available, contexts = build_offer(fleet, features, settings, statuses)
    number = fleet.round + 1
    if number == 1 and not settings.allow_infeasible:
        _require_feasible(fleet, available)
    selection = _select(fleet, settings, RoundOffer(number, available, contexts))
    rows, target = selection.clients, fleet.policy.target_size
    cohort_contexts = np.ascontiguousarray(contexts[rows])
    opened = OpenRound(
        round=number,
        wanted=len(rows) if target is None else min(target, len(rows)),
        deadline=deadline_of(fleet, settings, rows, cohort_contexts),
        opened=now(),
        monotonic=clock.monotonic_seconds(),
        boot=boot_id(),
        joined=joined,
        rows=rows,
        contexts=cohort_contexts,
        available=available,
        reasons=selection.reasons,
    )
    record_up_to = settings.record_offers_up_to if settings.persist_statuses else 0
    return opened, _recorded_offer(opened, contexts, record_up_to)


def _recorded_offer(opened: OpenRound, contexts: FloatArray, record_up_to: int) -> RecordedOffer:
    """Returns the offer to record, without contexts in fleets of more than `record_up_to` clients."""
    if len(opened.available) <= record_up_to:
        return RecordedOffer(opened.round, opened.rows, opened.reasons, opened.available, contexts[opened.available])
    selected = np.zeros(len(opened.available), dtype=np.bool_)
    selected[opened.rows] = True
    return RecordedOffer(opened.round, opened.rows, opened.reasons, selected, None)


def build_offer(
    fleet: Fleet,
    features: Features,
    settings: SchedulerSettings,
    statuses: Statuses,
    *,
    excluded: BoolArray | None = None,
) -> tuple[BoolArray, FloatArray]:
    """Returns which clients may be selected, and the contexts of all clients, by row.

    Args:
        fleet: The state of the fleet.
        features: The features of the fleet.
        settings: The settings of the fleet.
        statuses: The statuses of the available clients.
        excluded: The clients that must not be selected; by default those that are retired or backed off.
    """
    clients = len(fleet.ids)
    excluded = fleet.unavailable if excluded is None else excluded
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
        "model_size": np.broadcast_to(np.float64(settings.model_size), clients if rows is None else len(rows)),
    }

    def name_of(index: int) -> str:
        return repr(fleet.ids[index if rows is None else int(rows[index])])

    contexts = features.contexts(columns, server, name_of, rows=rows, clients=clients)
    if rows is None:
        return ~excluded, contexts
    available = np.zeros(clients, dtype=np.bool_)
    available[rows] = True
    return available & ~excluded, contexts


def _check_columns(features: Features, columns: Mapping[str, FloatArray], clients: int) -> None:
    for feature in features.declared:
        if feature.name not in columns:
            raise OfferError(
                f"the status must have a column {feature.name!r}, got {', '.join(columns) or 'no columns'}: add it"
            )
        if columns[feature.name].shape != (clients,):
            raise OfferError(
                f"{feature.name} must have one value per client, shape ({clients},), got shape "
                f"{columns[feature.name].shape}"
            )


def _as_column(name: str, values: npt.ArrayLike) -> FloatArray:
    """Returns a column as floats; NaN and infinity are refused later, in a message that names the client."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise OfferError(f"{name} must hold numbers, not {array.dtype}")
    return array.astype(np.float64, copy=False)


def _require_feasible(fleet: Fleet, available: BoolArray) -> None:
    """Raises InfeasiblePromise if the guarantee cannot be kept for the clients that are available."""
    guarantee = fleet.policy.guarantee
    if fleet.queues is None or guarantee is None or not available.any():
        return
    rates = np.array(fleet.queues.guaranteed_rates)[available]
    size = fleet.policy.cohort_size
    places = len(rates) if size is None else size
    require_feasible(rates, np.ones(len(rates)), places, tolerance=guarantee.tolerance)


def _select(fleet: Fleet, settings: SchedulerSettings, offer: RoundOffer) -> Selection:
    """Asks the policy for a cohort: of its cohort size or, with over-selection, larger."""
    policy, cohort_size = fleet.policy, fleet.policy.cohort_size
    if cohort_size is None or settings.overcommit == 1:
        return policy.ask(offer)
    if settings.overcommit != "auto":
        return policy.ask(offer.restricted(places=_places(cohort_size, settings.overcommit)))
    reliability = fleet.history.reliability
    available = int(offer.available.sum())

    def try_size(size: int) -> tuple[Selection, bool]:
        selection = policy.ask(offer.restricted(places=size))
        probability = probability_at_least(cohort_size, reliability[selection.clients])
        return selection, probability >= settings.confidence

    return _smallest_sufficient(try_size, min(cohort_size, max(available, 1)), available)


def _places(cohort_size: int, overcommit: float) -> int:
    return int(np.ceil(cohort_size * overcommit - 1e-9))  # in floats, 1.1 · 100 exceeds 110


def places_of_selection(cohort_size: int | None, overcommit: float | Literal["auto"], selected: int) -> int | None:
    """Returns the number of places for which a policy selected so many clients; None for its cohort size."""
    if cohort_size is None or overcommit == 1:
        return None
    return max(selected, 1) if overcommit == "auto" else _places(cohort_size, overcommit)


def _smallest_sufficient(try_size: Callable[[int], tuple[Selection, bool]], smallest: int, largest: int) -> Selection:
    """Returns the smallest sufficient cohort of at least `smallest` clients, or the cohort of `largest` clients.

    An exponential search finds a sufficient size, a binary search the smallest one.
    """
    selection, sufficient = try_size(smallest)
    insufficient, extra = smallest, 1
    while not sufficient and insufficient < largest:
        size = min(smallest + extra, largest)
        selection, sufficient = try_size(size)
        if sufficient:
            while size - insufficient > 1:
                middle = (insufficient + size) // 2
                candidate, is_enough = try_size(middle)
                if is_enough:
                    selection, size = candidate, middle
                else:
                    insufficient = middle
            return selection
        insufficient, extra = size, 2 * extra
    return selection


def deadline_of(fleet: Fleet, settings: SchedulerSettings, rows: IntArray, contexts: FloatArray) -> float | None:
    """Returns the deadline of a round in seconds, or None if it has none."""
    if settings.deadline != "auto":
        return settings.deadline
    if fleet.model is None or not len(rows) or (fleet.counters.learned[rows] == 0).any():
        return settings.deadline_ceiling
    slowest = float(fleet.model.predict(contexts, rows).max())
    return float(np.clip(settings.deadline_multiple * slowest, settings.deadline_floor, settings.deadline_ceiling))
