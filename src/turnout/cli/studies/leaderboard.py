"""`turnout compare --suite`: every policy on the same worlds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turnout.cli.options import print_json, progress_bar, resumable
from turnout.experiments.framework.experiment import Findings
from turnout.experiments.framework.reproduce import reproduce
from turnout.experiments.leaderboard.choosing_cost import choosing_costs
from turnout.experiments.leaderboard.leaderboard import Leaderboard, as_json, with_costs, write_leaderboard
from turnout.experiments.leaderboard.suites import Suite, find_suite
from turnout.simulator.plans import make_world
from turnout.simulator.sweep import missing_plans
from turnout.simulator.traces.world import TraceWorld
from turnout.store import RunStore

MARKS = {"front": "●", "near": "○", "behind": ""}


def show_leaderboard(
    name: str,
    *,
    traces: Sequence[Path] | None,
    seeds: int | None,
    rounds: int | None,
    out: Path | None,
    store: Path | None,
    workers: int | None,
    json: bool,
) -> None:
    """Play what is missing, print who stands where, and write it into a folder."""
    suite = find_suite(name)
    if traces:
        suite = suite.on_traces(traces)
    board, seeds, rounds = Leaderboard(suite), seeds or suite.seeds, rounds or suite.rounds
    for plans in suite.plans(1, rounds).values():
        plans[0].build()  # what cannot be played is refused before anything is
    if store is None and out is not None:
        store = out / "runs.turnout"
    findings = _found(board, seeds, rounds, store, workers)
    told = as_json(board, findings, seeds=seeds, rounds=rounds, assumed=_assumed(suite))
    written = [] if out is None else write_leaderboard(board, findings, told, out)
    if json:
        print_json(told)
        return
    _print(told, suite)
    if written:
        Console().print(f"Figures and data are in {out}/", highlight=False)


def _found(board: Leaderboard, seeds: int, rounds: int, path: Path | None, workers: int | None) -> Findings:
    plans = board.plans(seeds, rounds)
    with ExitStack() as open_until_done:
        if path is None:
            folder = Path(open_until_done.enter_context(tempfile.TemporaryDirectory()))
        else:
            open_until_done.enter_context(resumable())
            path.parent.mkdir(parents=True, exist_ok=True)
        store = open_until_done.enter_context(RunStore(path or folder / "runs.turnout"))
        progress = open_until_done.enter_context(progress_bar())
        missing = missing_plans([plan for own in plans.values() for plan in own], store)
        playing = progress.add_task(f"Playing {len(missing)} runs", total=sum(plan.rounds for plan in missing))
        (result,) = reproduce(
            [board],
            store,
            seeds=seeds,
            rounds=rounds,
            workers=workers,
            watch=lambda played: progress.advance(playing, played),
        )
        timing = progress.add_task("Measuring what choosing costs", total=None)
        return with_costs(result.findings, choosing_costs(plans, lambda done: progress.advance(timing, done)))


def _assumed(suite: Suite) -> tuple[str, ...]:
    world = make_world(suite.world, 0, **suite.world_settings)
    return world.assumptions if isinstance(world, TraceWorld) else ()


def _print(told: dict[str, Any], suite: Suite) -> None:
    console = Console()
    console.print(_standings(told, suite))
    if "forecasts" in told:
        console.print(_forecasts(told["forecasts"]))
    of = "the rounds it was available for" if suite.share_of == "available" else "all rounds"
    certified = [row["certificate"] for row in told["policies"] if row["certificate"]]
    wrong = sum(one != "holds" for one in certified)
    kept = "all certificates hold" if not wrong else f"{wrong} of {len(certified)} certificates FAIL"
    lines = [
        "● on the Pareto front, ○ off it, but nobody beats it for certain. Told the truth: it knows what no server "
        "knows, and has no place there; nor has who chooses far fewer clients than random, or never comes to the "
        "target.",
        f"Least share: of {of}, of the client chosen least. Promise: kept if nobody lacks a whole turn after the last "
        f"round of any run; {kept} (turns ≥ promised − owed).",
        "Cost: CPU of one ask and one tell on this machine, now; elsewhere it is another number.",
        *told["assumptions"],
        *(f"Left out: {policy}: {why}." for policy, why in suite.left_out.items()),
    ]
    console.print("\n".join(lines), highlight=False, style="dim")


def _standings(told: dict[str, Any], suite: Suite) -> Table:
    seeds, rounds = told["seeds"], told["rounds"]
    table = Table(title=f"{suite.title}: {rounds} rounds, {seeds} seeds, mean ± 95 % confidence")
    columns: list[tuple[str, str, int]] = [("mean round, s", "mean_round", 2)]
    if suite.trains:
        target = told["policies"][0]["target"]
        columns = [(f"min to {target:.3f}", "minutes_to_target", 1), ("final accuracy", "final_accuracy", 3), *columns]
    columns += [("least share", "least_share", 3), ("Jain", "jain", 3)]
    for heading in ("", "policy", *(heading for heading, _, _ in columns), "chosen", "arrived", "promise", "cost, µs"):
        table.add_column(heading, justify="left" if heading in ("", "policy", "promise") else "right")
    for row in told["policies"]:
        cells = [MARKS.get(row["front"], ""), f"{row['contender']}{' (told the truth)' if row['told_truth'] else ''}"]
        for _, word, digits in columns:
            never = f" ({row['never']} never)" if word == "minutes_to_target" and row["never"] else ""
            cells.append(f"{'≥ ' if never else ''}{_banded(row, word, digits)}{never}")
        cells += [f"{row['chosen']:.1f}", f"{row['arrived']:.1%}", _promise(row), _banded(row, "microseconds", 0)]
        table.add_row(*cells)
    return table


def _promise(row: dict[str, Any]) -> str:
    if row["promised"] is None:
        return ""
    missing = row["worst_missing"]
    return f"{row['promised']:g} kept" if missing < 1 else f"{row['promised']:g}, {missing:.1f} turns short"


def _forecasts(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Forecasts of exchange times: relative error over the second half of the runs of RBCS-F")
    for heading in ("forecast", "mean error, %", "median error, %", "better than plain by, points"):
        table.add_column(heading, justify="left" if heading == "forecast" else "right")
    for row in rows:
        better = "" if row["better_by"] is None else _banded(row, "better_by", 1, 100)
        table.add_row(row["forecast"], _banded(row, "mean_error", 1, 100), _banded(row, "median_error", 1, 100), better)
    return table


def _banded(row: dict[str, Any], word: str, digits: int, scale: float = 1) -> str:
    if row[word] is None:
        return "–"
    return f"{row[word] * scale:.{digits}f} ± {(row[f'{word}_band'] or 0) * scale:.{digits}f}"
