"""Measures what fair selection adds to a round of plain FedAvg."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.harness import Cohort, Result, Target, announce, silenced
from turnout.errors import SettingError

#: Targets: a round, and the first round, in units of a round of plain FedAvg with its default settings.
MAX_ROUND, MAX_FIRST = 1.5, 5.0


def flower(
    nodes: Annotated[int, typer.Option(min=2, help="Number of virtual nodes.")] = 2000,
    cohort: Cohort = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of each kind; the shortest round counts.")] = 5,
) -> Result:
    """Measure a Flower round with fair selection against one of plain FedAvg, with virtual nodes in this process.

    The client only adds 1 to a small model. The targets are for rounds in which all nodes evaluate the model, which is
    Flower's default; rounds without evaluation are measured, too. In the last column, each node must be queried for
    its client id, because the grid does not name its nodes.

    Example: python -m benchmarks flower --nodes 500
    """
    if cohort > nodes:
        raise SettingError(f"cohort must be at most the number of nodes, {nodes}, got {cohort}")
    from benchmarks.virtual_nodes import measure_rounds

    rows: list[dict[str, Any]] = []
    with silenced("flwr"):  # it would cost both kinds of rounds the same
        for name, evaluated in (("all nodes evaluate", 1.0), ("without evaluation", 0.0)):
            announce(name)
            times = measure_rounds(nodes, cohort, repeats, evaluated)
            milliseconds = {f"{kind}, ms": seconds * 1e3 for kind, seconds in times.items()}
            ratios = {f"{kind} / plain": times[kind] / times["plain"] for kind in ("later", "first")}
            rows.append({"round": name, **milliseconds, **ratios})
    targets = [
        Target("later round / round of plain FedAvg", rows[0]["later / plain"], MAX_ROUND),
        Target("first round / round of plain FedAvg", rows[0]["first / plain"], MAX_FIRST),
    ]
    title = f"A Flower round, {nodes:,} virtual nodes, {cohort} selected, shortest CPU time"
    return Result(title, rows, targets=targets)
