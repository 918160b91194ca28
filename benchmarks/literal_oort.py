"""Oort as one would write it down first: one dictionary a client, one client at a time.

Something to be measured against. The rules are those of turnout's Oort, and what is drawn by lot is the same: a waiting
time for each client, to be divided by its weight; the shortest are drawn.
"""

from __future__ import annotations

import math
from typing import Any

from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundReport

DEFAULTS: dict[str, Any] = {
    "cohort_size": 8,
    "sizes": None,
    "speeds": None,
    "exploration": 0.9,
    "exploration_decay": 0.98,
    "least_exploration": 0.2,
    "staleness": 0.1,
    "clip": 0.95,
    "cutoff": 0.95,
    "penalty": 2.0,
    "pacer_unit": "share",
    "pacer_start": 0.3,
    "pacer_step": 0.05,
    "pacer_window": 20,
    "max_turns": None,
    "blacklist_share": 0.3,
    "seed": 0,
}


class LiteralOort:
    """Choose with `choose`, then tell each client's fate with `learn`."""

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
        """Exploit, explore, and fill up with the blacklisted."""
        of = self.settings
        size = min(of["cohort_size"], len(available))
        blacklist = self.blacklist()
        known = [row for row in available if self.clients[row]["last_round"] is not None and row not in blacklist]
        new = [row for row in available if self.clients[row]["last_round"] is None]
        explore = max(of["exploration"] * of["exploration_decay"] ** (round_ - 1), of["least_exploration"])
        exploited = min(math.floor((1 - explore) * size + 1e-9), len(known))
        explored = min(size - exploited, len(new))
        exploited = min(size - explored, len(known))
        chosen = self.exploit(known, exploited, round_)
        chosen += self.draw({row: self.clients[row]["speed"] for row in new}, explored, "oort new", round_)
        spare = sorted((row for row in available if row in blacklist), key=lambda row: self.clients[row]["turns"])
        return sorted(chosen + spare[: size - len(chosen)])

    def exploit(self, known: list[int], count: int, round_: int) -> list[int]:
        """Those above the cut-off, by utility."""
        if count == 0:
            return []
        utility = self.utility(known, round_)
        needed = sorted(utility.values(), reverse=True)[count - 1]
        good = {row: value for row, value in utility.items() if value >= self.settings["cutoff"] * needed}
        return self.draw(good, count, "oort known", round_)

    def utility(self, known: list[int], round_: int) -> dict[int, float]:
        """Clipped, normalised, fresher for the long unseen, less for the slow."""
        of = self.settings
        typical = self.typical_loss()
        gains = {row: self.gain(row, typical) for row in known}
        top = _quantile(list(gains.values()), of["clip"])
        bottom = min(gains.values())
        preferred = self.preferred_duration()
        utility = {}
        for row, gain in gains.items():
            client = self.clients[row]
            value = (min(gain, top) - bottom) / (top - bottom) if top > bottom else 1.0
            value += math.sqrt(of["staleness"] * math.log(round_) / client["last_round"])
            if client["duration"] is not None and client["duration"] > preferred:
                value *= (preferred / client["duration"]) ** of["penalty"]
            utility[row] = value
        return utility

    def gain(self, row: int, typical: float) -> float:
        """|B| times the loss."""
        client = self.clients[row]
        if client["failed"]:
            return 0.0
        return float(client["size"] * abs(typical if client["loss"] is None else client["loss"]))

    def typical_loss(self) -> float:
        """What counts for whoever told none."""
        told = [client["loss"] for client in self.clients.values() if client["loss"] is not None]
        return sum(told) / len(told) if told else 1.0

    def preferred_duration(self) -> float:
        """T."""
        if self.settings["pacer_unit"] == "seconds":
            return self.pace
        known = [client["duration"] for client in self.clients.values() if client["duration"] is not None]
        return _quantile(known, self.pace) if known else math.inf

    def blacklist(self) -> set[int]:
        """Too many turns, the busiest first, and not too many of them."""
        most = self.settings["max_turns"]
        if most is None:
            return set()
        busy = [row for row in self.clients if self.clients[row]["turns"] > most]
        busy.sort(key=lambda row: -self.clients[row]["turns"])
        return set(busy[: math.floor(self.settings["blacklist_share"] * len(self.clients) + 1e-9)])

    def draw(self, weights: dict[int, float], count: int, purpose: str, round_: int) -> list[int]:
        """The shortest waits, where nobody with weight 0 comes before one with more."""
        waits = round_rng(self.settings["seed"], purpose, round_).standard_exponential(len(self.clients)).tolist()

        def arrival(row: int) -> tuple[bool, float]:
            return (weights[row] == 0, waits[row] / weights[row] if weights[row] else waits[row])

        return sorted(weights, key=arrival)[:count]

    def learn(self, round_: int, fates: dict[int, dict[str, Any]], truths: dict[tuple[int, int], float]) -> None:
        """`fates`: outcome, time and perhaps loss of each chosen client; `truths`: late times by round and client."""
        for (handed_out, row), time in truths.items():
            if self.clients[row]["last_round"] == handed_out:
                self.clients[row]["duration"] = time
        for row, fate in fates.items():
            client = self.clients[row]
            if fate["loss"] is not None:
                client["loss"] = fate["loss"]
            if fate["outcome"] != "failed":
                client["duration"] = fate["time"]
            client["failed"] = fate["outcome"] == "failed"
            client["last_round"] = round_
            client["turns"] += 1
        typical = self.typical_loss()
        arrived = [row for row, fate in sorted(fates.items()) if fate["outcome"] == "arrived"]
        self.history.append(sum(self.gain(row, typical) for row in arrived))
        window = self.settings["pacer_window"]
        rounds = len(self.history)
        due = rounds >= 2 * window and rounds % window == 0
        if due and sum(self.history[-2 * window : -window]) > sum(self.history[-window:]):
            self.pace += self.settings["pacer_step"]


def outcomes_of(report: RoundReport) -> dict[int, dict[str, Any]]:
    """What `learn` wants to know, from a report."""
    times, losses = report.exchange_times.tolist(), [math.nan] * len(report.clients)
    if report.losses is not None:
        losses = report.losses.tolist()
    outcomes = ["arrived"] * len(times) if report.outcomes is None else [str(word) for word in report.outcomes]
    return {
        row: {"outcome": outcome, "time": time, "loss": None if math.isnan(loss) else loss}
        for row, outcome, time, loss in zip(report.clients.tolist(), outcomes, times, losses, strict=True)
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(math.floor(share * len(values) + 1e-9), len(values) - 1)]
