"""Measures what fair selection adds to a round of plain FedAvg."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.harness import Cohort, Result, Target, announce, silenced
from turnout.errors import SettingError

#: Targets, in units of the same round of plain FedAvg: a round in which all nodes evaluate the model, and one without
#: evaluation; the first round, without evaluation, in which nodes are queried for the ids of their clients.
MAX_EVALUATED, MAX_ROUND, MAX_QUERIED = 1.15, 1.4, 3.0
#: What cold starts of twenty clients leave of the turns of the fastest five, and how long rounds 5 to 60 take, in units
#: of a fleet whose clients start warm.
MIN_COLD_TURNS, MAX_COLD_SECONDS = 0.9, 1.05


def flower(
    nodes: Annotated[int, typer.Option(min=2, help="Number of virtual nodes.")] = 2000,
    cohort: Cohort = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of each kind; the shortest round counts.")] = 5,
    weights: Annotated[int, typer.Option(min=1, help="Number of weights of the model, of 4 bytes.")] = 1000,
) -> Result:
    """Measure a Flower round with fair selection against one of plain FedAvg, with virtual nodes in this process.

    The client only adds 1 to a small model, and the fleet file is on a disk. Rounds in which all nodes evaluate the
    model, which is Flower's default, and rounds without evaluation are measured, by the CPU time and by the clock. In
    the rows "first, queried", the grid does not name its nodes, and they are queried for the ids of their clients. "The
    fleet alone" is the part of a later round that does not depend on Flower: selecting, reporting, closing.
    The last two targets are those of a fleet in which the first turn of every client takes 16 s longer (simulated).

    Example: python -m benchmarks flower --nodes 500
    """
    if cohort > nodes:
        raise SettingError(f"cohort must be at most the number of nodes, {nodes}, got {cohort}")
    from benchmarks.cold_starts import measure_cold_starts
    from benchmarks.virtual_nodes import measure_rounds

    rows: list[dict[str, Any]] = []
    with silenced("flwr"):  # it would cost both kinds of rounds the same
        for name, evaluated in (("evaluated", 1.0), ("not evaluated", 0.0)):
            announce(name)
            times = measure_rounds(nodes, cohort, repeats, evaluated, weights)
            plain_cpu, plain_wall = times["plain"]
            for kind, (cpu, wall) in times.items():
                ratios = {"CPU / plain": cpu / plain_cpu, "wall / plain": wall / plain_wall}
                rows.append({"round": f"{kind}, {name}", "CPU, ms": cpu * 1e3, "wall, ms": wall * 1e3, **ratios})
    bounds = {"later, evaluated": MAX_EVALUATED, "later, not evaluated": MAX_ROUND}
    bounds["first, queried, not evaluated"] = MAX_QUERIED
    targets = [
        Target(f"{row['round']}: {ratio}", row[ratio], bounds[row["round"]])
        for row in rows
        if row["round"] in bounds
        for ratio in ("CPU / plain", "wall / plain")
    ]
    announce("cold starts")
    turns, seconds = measure_cold_starts()
    targets += [
        Target("cold starts: turns of the fastest five of twenty / warm", turns, MIN_COLD_TURNS, is_minimum=True),
        Target("cold starts: seconds of rounds 5 to 60 / warm", seconds, MAX_COLD_SECONDS),
    ]
    title = f"A Flower round, {nodes:,} virtual nodes, {cohort} selected, {weights:,} weights, shortest time"
    return Result(title, rows, targets=targets)
