"""A policy of your own, in three steps: a class with `ask` and `tell`, the checks that every policy must pass, and a
comparison with others in the paper's simulated world. The policy keeps the clients that were fast so far, and explores
with one place per round. It is fast and forgets slow clients; the wrapper `WithGuarantee` promises them their share and
keeps the rest of the policy. It needs turnout and nothing else, and takes a few seconds. docs/plugins.md says how such
a policy gets a name, so that `turnout simulate` and a live fleet can use it.

    python examples/own_policy.py [--rounds 300]
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy, WithGuarantee, check_policy, make_policy
from turnout.lab import PaperWorld, play

CLIENTS, COHORT_SIZE, RATE = 40, 8, 0.15


class FastSoFar(SelectionPolicy):
    """Selects the clients with the shortest mean time so far, and in one place the client with the fewest turns."""

    name = "fast-so-far"

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients)
        self.cohort_size = cohort_size
        self.turns = np.zeros(clients, dtype=np.int64)
        self.seconds = np.zeros(clients)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects a cohort; it changes nothing, so that it can be asked again."""
        self.check_offer(offer)
        rows, places = np.flatnonzero(offer.available), self.places(offer)
        explored = rows[np.argsort(self.turns[rows], kind="stable")][: min(places, 1)]
        others = np.setdiff1d(rows, explored)
        means = np.where(self.turns > 0, self.seconds / np.maximum(self.turns, 1), np.inf)
        fast = others[np.argsort(means[others], kind="stable")][: places - len(explored)]
        return Selection(offer.round, np.sort(np.concatenate([explored, fast])))

    def tell(self, report: RoundReport) -> None:
        """Learns from the outcome of a round; a client that was late counts with its deadline."""
        self.check_report(report)
        self.turns[report.clients] += 1
        self.seconds[report.clients] += report.exchange_times

    def add(self, count: int) -> None:
        """Appends clients that join later."""
        super().add(count)
        self.turns = np.append(self.turns, np.zeros(count, dtype=np.int64))
        self.seconds = np.append(self.seconds, np.zeros(count))

    def forget(self, rows: Any) -> None:
        """Removes what was learned about these clients."""
        self.turns[rows], self.seconds[rows] = 0, 0.0

    def state(self) -> dict[str, Any]:
        """Returns everything that `tell` has changed."""
        return {"turns": self.turns.copy(), "seconds": self.seconds.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self.turns, self.seconds = np.array(state["turns"]), np.array(state["seconds"])


def measure(policy: SelectionPolicy, rounds: int) -> tuple[float, float]:
    """Plays a policy; returns the mean round in seconds, and the smallest share of the rounds that a client had."""
    records = list(play(policy, PaperWorld(seed=0), rounds))
    turns = np.bincount(np.concatenate([record.selection.clients for record in records]), minlength=CLIENTS)
    return sum(record.report.duration for record in records) / rounds, turns.min() / rounds


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    print(f"fast-so-far passes {len(check_policy(FastSoFar))} checks")
    policies = {
        "fast-so-far": FastSoFar(CLIENTS, cohort_size=COHORT_SIZE),
        "fast-so-far with a guarantee": WithGuarantee(FastSoFar(CLIENTS, cohort_size=COHORT_SIZE), RATE),
        "fair-pace": make_policy("fair-pace", CLIENTS, cohort_size=COHORT_SIZE, guaranteed_rate=RATE, accrual="always"),
        "random": make_policy("random", CLIENTS, cohort_size=COHORT_SIZE),
    }
    print("policy                        mean round  least share")
    for label, policy in policies.items():
        seconds, share = measure(policy, rounds)
        print(f"{label:<30}{seconds:8.2f} s{share:13.3f}")
