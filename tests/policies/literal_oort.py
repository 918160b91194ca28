"""Oort in plain Python with one dict per client: a reference for results.

The rules and the random numbers are those of turnout's Oort: each client has an exponential key, divided by its
weight, and the clients with the smallest keys are sampled.
"""

from __future__ import annotations

import math
from inspect import signature
from typing import Any

from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundReport
from turnout.policies.published.oort import Oort

DEFAULTS = {name: parameter.default for name, parameter in signature(Oort).parameters.items()}


class LiteralOort:
    """Selects with `choose`, then learns the outcome of each selected client with `learn`."""

    def __init__(self, clients: int, **settings: Any) -> None:
        self.settings = {**DEFAULTS, **settings}
        sizes, speeds = self.settings["sizes"], self.settings["speeds"]
        self.clients: dict[int, dict[str, Any]] = {
            row: {
                "size": 1.0 if sizes is None else sizes[row],
                "speed": 1.0 if speeds is None else speeds[row],
                "loss": None,
                "last_round": None,
                "duration": None,
                "turns": 0,
                "failed": False,
            }
            for row in range(clients)
        }
        self.history: list[float] = []
        self.pace: float = self.settings["pacer_start"]

    def choose(self, available: list[int], round_: int) -> list[int]:
        """Selects known clients by utility, new clients by speed, and blacklisted clients for the remaining places."""
        settings = self.settings
        size = min(settings["cohort_size"], len(available))
        blacklist = self.blacklist()
        known = [row for row in available if self.clients[row]["last_round"] is not None and row not in blacklist]
        new = [row for row in available if self.clients[row]["last_round"] is None]
        explore = max(
            settings["exploration"] * settings["exploration_decay"] ** (round_ - 1), settings["least_exploration"]
        )
        exploited = min(math.floor((1 - explore) * size + 1e-9), len(known))
        explored = min(size - exploited, len(new))
        exploited = min(size - explored, len(known))
        chosen = self.exploit(known, exploited, round_)
        chosen += self.draw({row: self.clients[row]["speed"] for row in new}, explored, "oort new", round_)
        spare = sorted((row for row in available if row in blacklist), key=lambda row: self.clients[row]["turns"])
        return sorted(chosen + spare[: size - len(chosen)])

    def exploit(self, known: list[int], count: int, round_: int) -> list[int]:
        """Samples by utility among the clients above the cut-off."""
        if count == 0:
            return []
        utility = self.utility(known, round_)
        needed = sorted(utility.values(), reverse=True)[count - 1]
        good = {row: value for row, value in utility.items() if value >= self.settings["cutoff"] * needed}
        return self.draw(good, count, "oort known", round_)

    def utility(self, known: list[int], round_: int) -> dict[int, float]:
        """Returns the clipped and normalised gain, plus the staleness term, times the penalty of slow clients."""
        settings = self.settings
        typical = self.typical_loss()
        gains = {row: self.gain(row, typical) for row in known}
        top = _quantile(list(gains.values()), settings["clip"])
        bottom = min(gains.values())
        preferred = self.preferred_duration()
        utility = {}
        for row, gain in gains.items():
            client = self.clients[row]
            value = (min(gain, top) - bottom) / (top - bottom) if top > bottom else 1.0
            value += math.sqrt(settings["staleness"] * math.log(round_) / client["last_round"])
            if client["duration"] is not None and client["duration"] > preferred:
                value *= (preferred / client["duration"]) ** settings["penalty"]
            utility[row] = value
        return utility

    def gain(self, row: int, typical: float) -> float:
        """Returns the statistical utility: data size times loss; 0 after a failure."""
        client = self.clients[row]
        if client["failed"]:
            return 0.0
        return float(client["size"] * abs(typical if client["loss"] is None else client["loss"]))

    def typical_loss(self) -> float:
        """Returns the mean reported loss, which replaces the loss of clients that reported none."""
        losses = [client["loss"] for client in self.clients.values() if client["loss"] is not None]
        return sum(losses) / len(losses) if losses else 1.0

    def preferred_duration(self) -> float:
        """Returns T of the paper: the pacer's duration in seconds, or its quantile of the known durations."""
        if self.settings["pacer_unit"] == "seconds":
            return self.pace
        known = [client["duration"] for client in self.clients.values() if client["duration"] is not None]
        return _quantile(known, self.pace) if known else math.inf

    def blacklist(self) -> set[int]:
        """Returns the clients with more than `max_turns`, at most `blacklist_share` of the fleet, most turns first."""
        max_turns = self.settings["max_turns"]
        if max_turns is None:
            return set()
        busy = [row for row in self.clients if self.clients[row]["turns"] > max_turns]
        busy.sort(key=lambda row: -self.clients[row]["turns"])
        return set(busy[: math.floor(self.settings["blacklist_share"] * len(self.clients) + 1e-9)])

    def draw(self, weights: dict[int, float], count: int, purpose: str, round_: int) -> list[int]:
        """Returns the clients with the smallest keys; clients of weight 0 come after all others."""
        keys = round_rng(self.settings["seed"], purpose, round_).standard_exponential(len(self.clients)).tolist()

        def key(row: int) -> tuple[bool, float]:
            return (weights[row] == 0, keys[row] / weights[row] if weights[row] else keys[row])

        return sorted(weights, key=key)[:count]

    def learn(self, round_: int, outcomes: dict[int, dict[str, Any]], late: dict[tuple[int, int], float]) -> None:
        """Learns `outcomes` (outcome, time and loss of each client) and `late` (times by selected round and client)."""
        for (selected_round, row), time in late.items():
            if self.clients[row]["last_round"] == selected_round:
                self.clients[row]["duration"] = time
        for row, outcome in outcomes.items():
            client = self.clients[row]
            if outcome["loss"] is not None:
                client["loss"] = outcome["loss"]
            if outcome["outcome"] != "failed":
                client["duration"] = outcome["time"]
            client["failed"] = outcome["outcome"] == "failed"
            client["last_round"] = round_
            client["turns"] += 1
        typical = self.typical_loss()
        arrived = [row for row, outcome in sorted(outcomes.items()) if outcome["outcome"] == "arrived"]
        self.history.append(sum(self.gain(row, typical) for row in arrived))
        window = self.settings["pacer_window"]
        rounds = len(self.history)
        due = rounds >= 2 * window and rounds % window == 0
        if due and sum(self.history[-2 * window : -window]) > sum(self.history[-window:]):
            self.pace += self.settings["pacer_step"]


def outcomes_of(report: RoundReport) -> dict[int, dict[str, Any]]:
    """Returns the outcomes of a report as `learn` expects them."""
    times, losses = report.exchange_times.tolist(), [math.nan] * len(report.clients)
    if report.losses is not None:
        losses = report.losses.tolist()
    outcomes = ["arrived"] * len(times) if report.outcomes is None else [str(outcome) for outcome in report.outcomes]
    return {
        row: {"outcome": outcome, "time": time, "loss": None if math.isnan(loss) else loss}
        for row, outcome, time, loss in zip(report.clients.tolist(), outcomes, times, losses, strict=True)
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(math.floor(share * len(values) + 1e-9), len(values) - 1)]
