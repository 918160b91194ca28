"""Where the clients of a fleet without rounds stand: who is behind, and whose updates would be too old."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.cohort_problem import PriceTerms
from turnout.kernel.rounds import RoundOffer
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.slots.state import SlotFleet


def price_terms(fleet: SlotFleet) -> PriceTerms | None:
    """Returns what the prices of all clients consist of at the next decision; None if the policy has no prices."""
    policy, clients = fleet.policy, len(fleet.ids)
    everyone = np.ones(clients, dtype=np.bool_)
    offer = RoundOffer(fleet.round + 1, everyone, np.zeros((clients, policy.features or 0)), places=1)
    problem = policy.cohort_problem(offer)
    return None if problem is None else problem.prices


def pressing_clients(fleet: SlotFleet) -> BoolArray:
    """Returns which clients are at least half as far behind as they may be.

    If nobody were given a turn before it is urgent, a turn that takes long would break the tolerance.
    """
    terms, certificate = price_terms(fleet), fleet.policy.certificate()
    if terms is not None:
        pressing: BoolArray = terms.behind >= terms.allowed / 2
        return pressing
    if certificate is None or fleet.queues is None or fleet.policy.guarantee is None:
        return np.zeros(len(fleet.ids), dtype=np.bool_)
    behind: FloatArray = certificate.behind + fleet.queues.guaranteed_rates
    return behind >= float(fleet.policy.guarantee.tolerance) / 2


def expected_staleness(fleet: SlotFleet, buffer: int) -> FloatArray:
    """Returns how many versions of the model the server is expected to make during a turn of each client.

    While a client trains for its usual time, each of the other slots ends one turn per mean turn, and `buffer` updates
    make a version. It is 0 for a client whose time is not known.

    Args:
        fleet: The state of the fleet.
        buffer: The number of updates that make a version.
    """
    arrived, seconds = fleet.history.arrived, fleet.history.typical_seconds
    total = float((arrived * seconds).sum())
    if not total:
        return np.zeros(len(fleet.ids))
    mean_turn = total / float(arrived.sum())
    staleness: FloatArray = np.where(arrived > 0, seconds, 0.0) * (fleet.slots - 1) / (mean_turn * buffer)
    return staleness


def too_stale(fleet: SlotFleet, settings: SchedulerSettings) -> BoolArray:
    """Returns which clients are not given a turn because of `max_staleness`; pressing clients are given theirs."""
    if settings.max_staleness is None or settings.buffer is None:
        return np.zeros(len(fleet.ids), dtype=np.bool_)
    stale: BoolArray = expected_staleness(fleet, settings.buffer) > settings.max_staleness
    return stale & ~pressing_clients(fleet) if stale.any() else stale
