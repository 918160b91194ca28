"""Runs, Training and Compare: the runs of one store; Baseline: what random selection takes, in runs or in a replay."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.sources.recording import read_recording
from turnout.dashboard.sources.run import describe_run, given_true_times, name_of
from turnout.dashboard.views.common import Text, bin_series, mean_by_round, mean_of
from turnout.dashboard.views.overview import rate_of
from turnout.dashboard.watch import LISTED_RUNS, Watch
from turnout.errors import SettingError, TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.lab.analysis.judging import JudgedPromise, Judgement, promise_of_runs, worst_of
from turnout.lab.analysis.promise import share_of
from turnout.lab.analysis.replay.replay import replay
from turnout.lab.analysis.statistics import mean_confidence_interval
from turnout.lab.runs.info import RunInfo

#: How long one request may compute figures of runs; the next request continues.
FIGURES_SECONDS = 0.5
MAX_RUNS = 400
MAX_GROUPS = 24
MAX_DIGITS = 15  # of the id of a run
#: Metrics that are shares; their confidence intervals stay between 0 and 1.
SHARES = ("accuracy", "precision", "recall", "f1", "auc")


def runs(watch: Watch) -> dict[str, Any]:
    """Returns the newest runs with their settings and figures; `pending` counts runs without figures so far."""
    listed = watch.runs()
    end = time.monotonic() + FIGURES_SECONDS
    rows: list[dict[str, Any]] = []
    pending = 0
    for info in listed[:LISTED_RUNS] if watch.kind == "runs" else []:
        figures = status = None
        if info.rounds and (watch.has_digest(info) or time.monotonic() < end):
            digest = watch.digest(info)
            figures, status = digest.figures, None if digest.judgement is None else digest.judgement.status
        elif info.rounds:
            pending += 1
        rows.append({**_row(info), "figures": figures, "status": status})
    return {"rows": rows, "total": len(listed), "pending": pending, **_judged_by(watch.promise if rows else None)}


def training(watch: Watch, source: Source, *, metric: Text | None = None, runs: Text = "") -> dict[str, Any]:
    """Returns the curves of a metric over rounds and over time, for this source and for comparable runs.

    Args:
        watch: Follows the store.
        source: The run or fleet of the page.
        metric: The metric; by default the accuracy, or else the first one.
        runs: The ids of the runs to compare, separated by commas; by default all runs in the same world.
    """
    data: dict[str, Any] = {"metrics": [], "metric": None, "groups": [], "losses": _losses(source)}
    metrics = {name: columns for name, columns in source.training_metrics().items() if len(columns[0])}
    if not metrics:
        return data
    names = sorted(metrics, key=lambda name: (name != "accuracy", name))
    selected = names[0] if metric is None else metric
    if selected not in metrics:
        raise SettingError(f"metric must be one of {', '.join(names)}, got {selected!r}")
    if source.run is None:
        rounds, values = metrics[selected]
        fleet = rounds, values, _elapsed(source.ledger)[rounds]
        group = {"name": source.name, "runs": 1, "is_current": True, **_curve(selected, [fleet])}
        return {**data, "metrics": names, "metric": selected, "groups": [group]}
    groups = []
    for name, infos in _comparable_runs(watch, source, picked_runs(runs)).items():
        digests = [watch.digest(info) for info in infos if info.rounds]
        measured = [(*digest.metrics[selected], digest.clock) for digest in digests if selected in digest.metrics]
        if measured:
            is_current = any(info.id == source.run for info in infos)
            curves = [(rounds, values, clock[rounds - 1]) for rounds, values, clock in measured]
            groups.append({"name": name, "runs": len(curves), "is_current": is_current, **_curve(selected, curves)})
    return {**data, "metrics": names, "metric": selected, "groups": groups}


def compare(watch: Watch, source: Source, *, runs: Text = "") -> dict[str, Any]:
    """Returns the figures of all runs in the same world; runs that differ only in their seed form a group.

    `runs` are the ids of the runs to compare, separated by commas; by default all runs in the world of this run.
    """
    data: dict[str, Any] = {**_judged_by(None), "groups": []}
    if watch.kind == "fleet":
        what = "rounds" if source.ledger.slots is None else "turns"
        fleet = f"A live fleet has only one run. A replay can show its {what} with other policies."
        return {**data, "empty_reason": fleet}
    if source.run is None:
        return {**data, "empty_reason": None}
    picks = picked_runs(runs)
    compared = _comparable_runs(watch, source, picks)
    promise = promise_of_runs(infos[0] for infos in compared.values())
    groups: list[dict[str, Any]] = []
    for name, group_infos in compared.items():
        infos = [info for info in group_infos if info.rounds]
        if not infos:
            continue
        digests = [watch.digest(info, promise) for info in infos]
        rounds = min(digest.rounds for digest in digests)
        seconds = np.mean([np.cumsum(digest.seconds[:rounds]) for digest in digests], axis=0)
        x, (_, _, high) = bin_series(np.arange(1, rounds + 1), seconds)
        groups.append(
            {
                "name": name,
                "policy": str(infos[0].plan.get("policy", "")),
                "runs": [info.id for info in infos],
                "rounds": rounds,
                "curve": {"x": x, "seconds": high},
                "true_times": given_true_times(infos[0]),
                "is_current": any(info.id == source.run for info in infos),
                **{figure: _interval([digest.figures[figure] for digest in digests]) for figure in digests[0].figures},
                **_worst_judgement([digest.judgement for digest in digests]),
            }
        )
    groups.sort(key=lambda group: group["mean_round"]["mean"])
    reason = "This store has runs of only one policy in this world." if len(groups) < 2 else None
    return {
        **data,
        **_judged_by(promise, source.ledger.slots),
        "empty_reason": reason,
        "groups": groups,
        "left_out": len(picks) - sum(len(picks.intersection(group["runs"])) for group in groups),
    }


def _judged_by(promise: JudgedPromise | None, slots: int | None = None) -> dict[str, Any]:
    """Returns the promise by which runs are judged; nothing is judged without one."""
    if promise is None:
        return {"reference_rate": None, "share_of": None}
    return {"reference_rate": promise.number, "share_of": share_of(promise.accrual, slots)}


def _worst_judgement(judgements: Sequence[Judgement | None]) -> dict[str, Any]:
    """Returns the worst status and the largest shortfall of the runs of a group, as `turnout simulate` prints them."""
    known = [judgement for judgement in judgements if judgement is not None]
    if len(known) < len(judgements):
        return {"status": None, "tolerance": None, "worst_shortfall": None}
    shortfall = max(0.0, *(judgement.summary.largest_shortfall for judgement in known))
    status = worst_of([judgement.status for judgement in known])
    return {"status": status, "tolerance": known[0].tolerance, "worst_shortfall": {"mean": shortfall, "half": None}}


def picked_runs(text: str) -> set[int]:
    """Returns the ids of picked runs.

    >>> picked_runs("3,1"), picked_runs("")
    ({1, 3}, set())
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < MAX_DIGITS for part in parts):
        raise SettingError(f"runs must be numbers separated by commas, got {text!r}")
    return set(map(int, parts))


def _comparable_runs(watch: Watch, source: Source, picked: set[int]) -> dict[str, list[RunInfo]]:
    """Returns the runs in the same world by group name; the group of the current run is always included.

    With picked runs, it returns only those, in the world of the first one.
    """
    infos = {info.id: info for info in watch.runs()}
    if source.run is None:
        return {}
    current = infos[source.run]
    if picks := sorted(picked.intersection(infos)):
        infos = {run: infos[run] for run in picks}
        current = infos.get(source.run, infos[picks[0]])
    world = _world_key(current)
    same_world = [info for info in infos.values() if _world_key(info) == world][:MAX_RUNS]
    if current not in same_world:
        same_world.append(current)
    groups: dict[str, list[RunInfo]] = {}
    for info in sorted(same_world, key=lambda info: info.id):
        groups.setdefault(_group_name(info), []).append(info)
    names = list(groups)[:MAX_GROUPS]
    if _group_name(current) not in names:
        names[-1] = _group_name(current)
    return {name: groups[name] for name in names}


def _group_name(info: RunInfo) -> str:
    """Returns the name of the run; unfinished runs form their own group, because they have fewer rounds."""
    return name_of(info) if info.finished else f"{name_of(info)}, in progress"


def _world_key(info: RunInfo) -> str:
    world = {key: info.plan.get(key) for key in ("world", "world_settings", "concurrency")}
    return json.dumps([world, info.clients], sort_keys=True)


def _curve(metric: str, runs: Sequence[tuple[IntArray, FloatArray, FloatArray]]) -> dict[str, Any]:
    """Returns the mean curve of a metric over the rounds in which all runs measured it.

    Args:
        metric: The metric.
        runs: The rounds in which each run measured it, the values, and the seconds until then.
    """
    rounds = np.array(sorted(set.intersection(*(set(rounds.tolist()) for rounds, _, _ in runs))), dtype=np.int64)
    values = np.array([values[np.isin(measured, rounds)] for measured, values, _ in runs])
    seconds = np.mean([seconds[np.isin(measured, rounds)] for measured, _, seconds in runs], axis=0)
    mean, half = mean_confidence_interval(values)
    x, (y, _, _) = bin_series(rounds, mean)
    return {
        "rounds": x,
        "seconds": bin_series(rounds, seconds)[1][2],
        "mean": y,
        **_bounds(metric, rounds, values, half),
    }


def _bounds(metric: str, rounds: IntArray, values: FloatArray, half: FloatArray) -> dict[str, Any]:
    """Returns the ends of the confidence intervals, within the possible values; None for a single run.

    Shares are between 0 and 1. A metric that was never negative is not below 0.
    """
    if len(values) == 1:
        return {"low": None, "high": None}
    is_share = any(name in metric.lower() for name in SHARES) and bool(((values >= 0) & (values <= 1)).all())
    least, most = (0.0 if bool((values >= 0).all()) else -math.inf), (1.0 if is_share else math.inf)
    mean = values.mean(axis=0)
    low, high = np.maximum(mean - half, least), np.minimum(mean + half, most)
    return {name: bin_series(rounds, ends)[1][0] for name, ends in (("low", low), ("high", high))}


def _elapsed(ledger: Ledger) -> FloatArray:
    """Returns the seconds until the end of each round from round 0; without rounds, until each turn was given."""
    if ledger.slots is not None:
        started = ledger.round_column("started")
        return np.concatenate([[0.0], started - started[:1]])
    return np.concatenate([[0.0], np.cumsum(ledger.round_column("seconds"))])


def _interval(values: list[float | None]) -> dict[str, Any] | None:
    """Returns the mean and the half-width of its confidence interval; None if a run lacks the value."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    mean, half = mean_confidence_interval(known)
    return {"mean": float(mean), "half": float(half)}


def _losses(source: Source) -> dict[str, Any] | None:
    """Returns the mean of the losses that the clients of each round reported; None if no client reported any."""
    ledger = source.ledger
    losses = ledger.turn_column("losses")
    reported = np.isfinite(losses)
    if not reported.any():
        return None
    x, mean = mean_by_round(ledger.round_of_each_turn[reported], losses[reported])
    return {"x": x, "mean": mean}


def _row(info: RunInfo) -> dict[str, Any]:
    plan = info.plan
    settings = {**_texts(plan.get("world_settings")), **_texts(plan.get("settings"))}
    if plan.get("concurrency") is not None:
        settings["concurrency"] = str(plan["concurrency"])
    return {**describe_run(info), "settings": settings, "true_times": given_true_times(info)}


def _texts(settings: Any) -> dict[str, str]:
    """Returns settings as text; plans of other programs may contain anything."""
    if not isinstance(settings, dict):
        return {}
    return {str(name): f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()}


#: The largest records that are replayed for a page: rounds or turns, and these times the clients.
MAX_ROUNDS, MAX_CELLS = 3000, 500_000
#: A replay is repeated when the record is this much longer.
GROWTH = 1.2
TOO_LONG = "This record is too long to be compared with random selection here: replay it on the command line."


class Baselines:
    """Comparisons with random selection; replays run one at a time, and are kept until the record has grown."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._lock = watch, threading.Lock()
        self._replays: dict[int | None, tuple[int, dict[str, Any]]] = {}

    def get(self, run: int | None) -> dict[str, Any]:
        """Returns the comparison with random selection, or the reason why there is none.

        Releases the lock of the watch first, because a replay takes seconds and reads the file itself.
        """
        with self._watch.locked_source(run) as source:
            if source.policy == "random" or not len(source.ledger):
                return {"random": None, "reason": None}
            if (measured := self._watch.random_rounds(source)) is not None and measured[0] > 0:
                return {"random": _compare_runs(source, *measured), "reason": None}
            rounds, clients, number = len(source.ledger), source.ledger.clients, source.run
        if rounds > MAX_ROUNDS or rounds * clients > MAX_CELLS:
            return {"random": None, "reason": TOO_LONG}
        with self._lock:
            if number not in self._replays or rounds >= GROWTH * self._replays[number][0]:
                self._replays[number] = rounds, self._replay(number)
            return self._replays[number][1]

    def _replay(self, run: int | None) -> dict[str, Any]:
        try:
            result = replay(read_recording(self._watch.path, run), "random", {})
        except TurnoutError as error:
            return {"random": None, "reason": f"There is no comparison with random selection: {error}"}
        unit = "round" if result.slots is None else "turn"
        figure = result["mean_round" if result.slots is None else "updates_per_second"]
        how = f"a replay of {pluralize(result.rounds, unit)}"
        return {"random": _comparison(figure.recorded, figure.replayed, how, figure.half_width), "reason": None}


def _compare_runs(source: Source, between: float, how: str) -> dict[str, Any]:
    """Compares a run with the mean time of a round, or from one decision to the next, of random selection."""
    ledger = source.ledger
    if ledger.slots is None:
        return _comparison(float(mean_of(ledger.round_column("seconds")) or 0.0), between, how)
    started, rate = ledger.round_column("started"), rate_of(ledger)
    return _comparison(rate, rate * float(started[-1]) / (between * len(started)), how)


def _comparison(own: float, random: float, how: str, half: float = 0.0) -> dict[str, Any]:
    """Returns the seconds of a round, or the updates per second, of random selection, and those of the run by these."""
    return {"value": random, "half": half, "ratio": own / random if random else None, "how": how}
