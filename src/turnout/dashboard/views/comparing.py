"""Training and Compare: runs of one store beside each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.analysis.statistics import mean_confidence_interval
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.digests import Digest
from turnout.dashboard.sources.run import name_of
from turnout.dashboard.views.common import about, binned, number, numbers
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.store import RunInfo

MOST_RUNS = 400
MOST_GROUPS = 24
FIGURES = ("mean_round", "p95_round", "total_time", "least_share", "jain", "worst_debt", "accuracy")


def training(watch: Watch, source: Source | None, *, metric: str | None) -> dict[str, Any]:
    """What was measured after rounds, against rounds and against time; runs of other policies beside it."""
    told: dict[str, Any] = {"about": about(watch, source), "metrics": [], "metric": None, "groups": [], "losses": None}
    if source is None:
        return told
    told["losses"] = _losses(source)
    own = {name: columns for name, columns in source.measured().items() if len(columns[0])}
    if not own:
        return told
    names = sorted(own, key=lambda name: (name != "accuracy", name))
    chosen = names[0] if metric is None else metric
    if chosen not in own:
        raise SettingError(f"nothing called {chosen!r} was measured in this run; there are {', '.join(names)}")
    if source.run is None:
        alone = {"name": source.name, "runs": 1, "is_current": True, **_one_curve(source, *own[chosen])}
        return {**told, "metrics": names, "metric": chosen, "groups": [alone]}
    groups = []
    for name, infos in _alike(watch, source).items():
        digests = [watch.digest(info) for info in infos if info.rounds]
        digests = [one for one in digests if chosen in one.metrics]
        if digests:
            is_current = any(info.id == source.run for info in infos)
            groups.append({"name": name, "runs": len(digests), "is_current": is_current, **_curve(digests, chosen)})
    return {**told, "metrics": names, "metric": chosen, "groups": groups}


def compare(watch: Watch, source: Source | None) -> dict[str, Any]:
    """The runs that met the same world as this one, those that differ in the seed only taken together."""
    told: dict[str, Any] = {"about": about(watch, source), "yardstick": None, "groups": [], "curves": [], "front": []}
    if watch.kind == "fleet":
        why = "This is a live fleet, so there is only one run. Replay its rounds under other policies to compare them."
        return {**told, "why_not": why}
    if source is None:
        return {**told, "why_not": None}
    groups: list[dict[str, Any]] = []
    curves = []
    for name, alike in _alike(watch, source).items():
        infos = [info for info in alike if info.rounds]
        if not infos:
            continue
        digests = [watch.digest(info) for info in infos]
        rounds = min(one.rounds for one in digests)
        seconds = np.mean([np.cumsum(one.seconds[:rounds]) for one in digests], axis=0)
        x, (_, _, high) = binned(np.arange(1, rounds + 1), seconds)
        curves.append({"name": name, "x": x, "seconds": numbers(high)})
        told_figures = {word: _figure([one.figures[word] for one in digests]) for word in FIGURES}
        groups.append(
            {
                "name": name,
                "policy": str(infos[0].plan.get("policy", "")),
                "runs": [info.id for info in infos],
                "rounds": rounds,
                "is_current": any(info.id == source.run for info in infos),
                **told_figures,
            }
        )
    groups.sort(key=lambda one: one["mean_round"]["mean"])
    front = [
        {"name": one["name"], "mean_round": one["mean_round"]["mean"], "least_share": one["least_share"]["mean"]}
        for one in groups
    ]
    why_not = "There is but one policy in this store yet: nothing to hold it against." if len(groups) < 2 else None
    reference_rate = watch.reference_rate
    return {**told, "yardstick": reference_rate, "why_not": why_not, "groups": groups, "curves": curves, "front": front}


def _alike(watch: Watch, source: Source) -> dict[str, list[RunInfo]]:
    """Runs of the same world, by what they are called; the run that is looked at is among them."""
    infos = {one.id: one for one in watch.runs()}
    if source.run is None:
        return {}
    own = infos[source.run]
    world = _world(own)
    same = [one for one in infos.values() if _world(one) == world][:MOST_RUNS]
    if own not in same:
        same.append(own)
    groups: dict[str, list[RunInfo]] = {}
    for one in sorted(same, key=lambda info: info.id):
        groups.setdefault(_group_of(one), []).append(one)
    kept = list(groups)[:MOST_GROUPS]
    if _group_of(own) not in kept:
        kept[-1] = _group_of(own)
    return {name: groups[name] for name in kept}


def _group_of(info: RunInfo) -> str:
    """Runs that are not over yet stand apart: they have fewer rounds."""
    return name_of(info) if info.finished else f"{name_of(info)}, in progress"


def _world(info: RunInfo) -> str:
    told = {word: info.plan.get(word) for word in ("world", "world_settings")}
    return json.dumps([told, info.clients], sort_keys=True)


def _curve(digests: Sequence[Digest], metric: str) -> dict[str, Any]:
    """Over the rounds that all of them have measured."""
    common = set.intersection(*(set(one.metrics[metric][0].tolist()) for one in digests))
    rounds = np.array(sorted(common), dtype=np.int64)
    values, seconds = [], []
    for one in digests:
        where, what = one.metrics[metric]
        values.append(what[np.isin(where, rounds)])
        seconds.append(np.cumsum(one.seconds)[rounds - 1])
    mean, half = mean_confidence_interval(np.array(values))
    at = np.mean(seconds, axis=0)
    x, (y, _, _) = binned(rounds, mean)
    return {
        "rounds": x,
        "seconds": numbers(binned(rounds, at)[1][2]),
        "mean": numbers(y),
        "half_width": None if len(digests) == 1 else numbers(binned(rounds, half)[1][0]),
    }


def _one_curve(source: Source, rounds: IntArray, values: FloatArray) -> dict[str, Any]:
    """Of a fleet; before its first round no time has passed."""
    passed = np.concatenate([[0.0], np.cumsum(source.ledger.round_column("seconds"))])
    x, (mean, _, _) = binned(rounds, values)
    seconds = binned(rounds, passed[rounds])[1][2]
    return {"rounds": x, "seconds": numbers(seconds), "mean": numbers(mean), "half_width": None}


def _figure(values: list[float | None]) -> dict[str, Any] | None:
    known = [one for one in values if one is not None]
    if len(known) < len(values) or not known:
        return None
    mean, half = mean_confidence_interval(known)
    return {"mean": number(float(mean)), "half": number(float(half))}


def _losses(source: Source) -> dict[str, Any] | None:
    """The mean of what the clients of each round told."""
    ledger = source.ledger
    losses = ledger.turn_column("losses")
    told = np.isfinite(losses)
    if not told.any():
        return None
    rounds, places = np.unique(ledger.round_of_each_turn[told], return_inverse=True)
    x, (mean, _, _) = binned(rounds, np.bincount(places, losses[told]) / np.bincount(places))
    return {"x": x, "mean": numbers(mean)}
