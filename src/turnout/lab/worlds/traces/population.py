"""The clients of a world with traces: recorded parts, joined by id or at random, and generated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import MAX_CLIENTS, as_count
from turnout.kernel.randomness import round_rng
from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.generator import Generator
from turnout.lab.worlds.traces.summary import covers_ids


def make_generator(settings: Mapping[str, Any] | None) -> Generator:
    """Returns a generator of the parts that were not recorded, with these settings."""
    known = [setting.name for setting in fields(Generator)]
    if not isinstance(settings or {}, Mapping):
        raise SettingError(f"generator must be a mapping from settings to values, not {settings!r}")
    for name in settings or {}:
        if name not in known:
            raise SettingError(
                f"the generator has no setting {name!r}{suggestion(name, known)}; its settings are {', '.join(known)}"
            )
    return Generator(**(settings or {}))


def build_population(
    recorded: Traces, seed: int, clients: int | None, least: float, generator: Generator
) -> tuple[Traces, dict[str, str]]:
    """Returns one row of each part per client, and how each part was assigned to the clients.

    Args:
        recorded: The recorded parts.
        seed: The seed of the samples and of the generated parts.
        clients: The number of clients, or None for all.
        least: The smallest availability of a client.
        generator: The generator of missing parts.
    """
    requested = None if clients is None else as_count("clients", clients, SettingError, most=MAX_CLIENTS)
    trace = recorded.availability
    if trace is None:
        trace = generator.availability_trace(requested or 40, seed)
    rows = np.flatnonzero(trace.shares >= least)
    if not len(rows):
        raise SettingError(f"no client is available for a share of {least:g} of the time: lower least_availability")
    if recorded.availability is not None and requested is not None:
        if requested > len(rows):
            raise SettingError(
                f"clients must be at most {len(rows)}, the number of recorded clients that qualify, not {requested}"
            )
        rows = np.sort(round_rng(seed, "recorded clients", 0).choice(rows, requested, replace=False))
    trace = trace.take(rows)
    devices, device_method = _join_part("devices", recorded.devices, trace.ids, seed)
    links, link_method = _join_part("links", recorded.links, trace.ids, seed)
    count = len(trace.ids)
    traces = Traces(
        trace,
        generator.device_trace(count, seed) if devices is None else devices,
        generator.link_trace(count, seed) if links is None else links,
    )
    availability_method = "generated" if recorded.availability is None else "recorded"
    return traces, {"availability": availability_method, "devices": device_method, "links": link_method}


def _join_part(name: str, part: Any, clients: Sequence[str], seed: int) -> tuple[Any, str]:
    """Returns one row of the part per client, by id if all have one, else sampled with replacement, and the method."""
    if part is None:
        return None, "generated"
    if covers_ids(clients, part.ids):
        row_of = {client: row for row, client in enumerate(part.ids)}
        return part.take(np.array([row_of[client] for client in clients])), "by id"
    rows = round_rng(seed, f"recorded {name}", 0).integers(0, len(part.ids), len(clients))
    return part.take(rows), f"drawn from {len(part.ids)}"
