"""`turnout compare --suite`: a leaderboard of all policies."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from turnout.cli.interruption import resumable
from turnout.cli.naming import parse_policy
from turnout.cli.options import print_json, progress_bar
from turnout.counting import counted
from turnout.lab.analysis.statistics import UNIT_RANGE, format_interval
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, missing_plans
from turnout.lab.studies.framework.experiment import Experiment, Findings
from turnout.lab.studies.framework.reproduce import reproduce
from turnout.lab.studies.leaderboard.choosing_cost import choosing_costs
from turnout.lab.studies.leaderboard.leaderboard import Leaderboard, as_json, with_costs, write_leaderboard
from turnout.lab.studies.leaderboard.suites import Suite, find_suite
from turnout.lab.training.distributed import check_device
from turnout.lab.worlds.registry import make_world
from turnout.lab.worlds.traces.world import TraceWorld

#: Sends the runs that a store holds to trackers; what it yields does the same for missing ones as they are stored.
Following = Callable[
    [Mapping[str, Sequence[RunPlan]], RunStore, Sequence[RunPlan]], AbstractContextManager[StoredWatcher | None]
]
PROMISE = "promise, tolerance"
MARKS = {"front": "●", "near": "○", "behind": ""}


def show_leaderboard(
    name: str,
    *,
    further: Sequence[str] | None = None,
    traces: Sequence[Path] | None,
    seeds: int | None,
    rounds: int | None,
    out: Path | None,
    store: Path | None,
    workers: int | None,
    device: str,
    following: Following,
    json: bool,
) -> None:
    """Runs the missing simulations of a suite, prints the leaderboard, and writes it to a folder.

    Args:
        name: Name of the suite.
        further: Policies in addition to those of the suite, as the command line names them.
        traces: Trace files that replace the generated clients of the suite `traces`.
        seeds: Number of seeds; None for the suite's own.
        rounds: Number of rounds; None for the suite's own.
        out: Folder for figures and data, or None.
        store: Store for the runs; None for one in `out`, or a temporary one.
        workers: Number of worker processes; None for one per CPU core.
        device: Device that trains the models.
        following: Follows the runs with trackers.
        json: Print JSON instead of tables.
    """
    suite = find_suite(name)
    if traces:
        suite = suite.on_traces(traces)
    suite = suite.with_policies([parse_policy(text) for text in further or []])
    board, seeds, rounds = Leaderboard(suite), seeds or suite.seeds, rounds or suite.rounds
    check_device([plan for plans in suite.plans(1, rounds).values() for plan in plans], device)
    for plans in suite.plans(1, rounds).values():
        plans[0].build()  # reports invalid settings before the first round
    if store is None and out is not None:
        store = out / "runs.turnout"
    findings = _measured_costs(
        board, play_board(board, seeds, rounds, store, workers, following, device), seeds, rounds
    )
    result = as_json(board, findings, seeds=seeds, rounds=rounds, assumed=_assumptions(suite))
    written = [] if out is None else write_leaderboard(board, findings, result, out)
    if json:
        print_json(result)
        return
    _print(result, suite)
    if written:
        Console().print(f"Figures and data are in {out}/", highlight=False)


def play_board(
    board: Experiment,
    seeds: int,
    rounds: int,
    path: Path | None,
    workers: int | None,
    following: Following,
    device: str = "cpu",
) -> Findings:
    """Plays the runs of a leaderboard that the store lacks, with a progress bar, and returns the findings.

    Args:
        board: The leaderboard.
        seeds: Number of seeds.
        rounds: Number of rounds, or of turns without rounds.
        path: Store for the runs; None for a temporary one.
        workers: Number of worker processes; None for one per CPU core.
        following: Follows the runs with trackers.
        device: Device that trains the models.
    """
    named = board.plans(seeds, rounds)
    plans = [plan for by_seed in named.values() for plan in by_seed]
    with ExitStack() as stack:
        stack.enter_context(resumable(saved=path is not None))
        if path is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "runs.turnout"
        path.parent.mkdir(parents=True, exist_ok=True)
        store = stack.enter_context(RunStore(path))
        progress = stack.enter_context(progress_bar())
        missing = missing_plans(plans, store)
        track = stack.enter_context(following(named, store, missing))
        playing = progress.add_task(
            f"Simulating {counted(len(missing), 'run')}", total=sum(plan.rounds for plan in missing)
        )
        (result,) = reproduce(
            [board],
            store,
            seeds=seeds,
            rounds=rounds,
            workers=workers,
            device=device,
            watch=lambda played: progress.advance(playing, played),
            track=track,
        )
        return result.findings


def _measured_costs(board: Leaderboard, findings: Findings, seeds: int, rounds: int) -> Findings:
    """Adds the CPU time of each policy, measured now."""
    with progress_bar() as progress:
        timing = progress.add_task("Measuring the CPU time of policies", total=None)
        costs = choosing_costs(board.plans(seeds, rounds), lambda done: progress.advance(timing, done))
    return with_costs(findings, costs)


def _assumptions(suite: Suite) -> tuple[str, ...]:
    world = make_world(suite.world, 0, **suite.world_settings)
    return world.assumptions if isinstance(world, TraceWorld) else ()


def _print(result: dict[str, Any], suite: Suite) -> None:
    console = Console()
    console.print(_policies_table(result, suite))
    if "forecasts" in result:
        console.print(_forecasts_table(result["forecasts"]))
    share_of = "the rounds in which it was available" if suite.share_of == "available" else "all rounds"
    lines = [
        "● on the Pareto front of time and shortfall; ○ not on it, but no policy is significantly better; ◇ excluded, "
        "because it knows the expected times, which no server knows. Policies that select far fewer clients than "
        "random or never reach the target accuracy are excluded too.",
        f"Later rounds: all rounds after the first {result['rounds'] // 3:,}.",
        f"Shortfall: the turns that the worst-off client is behind {result['guaranteed_rate']:g} of {share_of}, at any "
        "time and at the end of a run; the worst run is in parentheses. Negative: every client has a surplus.",
        "Promise: broken if any client of any run was ever more turns behind than the tolerance, kept if all clients "
        "were always less than one turn behind, otherwise behind. In parentheses: the policy promises nothing.",
        f"Least share: share of {share_of}, for the client that was selected least.",
        "Cost: CPU time of one ask and one tell, measured on this machine.",
        *result["assumptions"],
        *(f"Excluded: {policy}: {reason}." for policy, reason in suite.left_out.items()),
    ]
    console.print("\n".join(lines), highlight=False, style="dim")


def _policies_table(result: dict[str, Any], suite: Suite) -> Table:
    seeds, rounds = result["seeds"], result["rounds"]
    table = Table(title=f"{suite.title}: {counted(rounds, 'round')}, {counted(seeds, 'seed')}, mean ± 95 % confidence")
    columns: list[tuple[str, str, int]] = [("mean round, s", "mean_round", 2), ("later rounds, s", "later_round", 2)]
    if suite.trains:
        target = result["policies"][0]["target"]
        columns = [(f"min to {target:.3f}", "minutes_to_target", 1), ("final accuracy", "final_accuracy", 3), *columns]
    columns += [
        ("shortfall", "shortfall", 2),
        ("at the end", "shortfall_at_end", 2),
        ("least share", "least_share", 3),
        ("Jain", "jain", 3),
    ]
    for heading in ("", "policy", *(heading for heading, _, _ in columns), "cohort", "arrived", PROMISE, "cost, µs"):
        justify: Literal["left", "right"] = "left" if heading in ("", "policy", PROMISE) else "right"
        table.add_column(heading, justify=justify, no_wrap=heading == "policy")
    for row in result["policies"]:
        cells = ["◇" if row["told_truth"] else MARKS.get(row["front"], ""), row["contender"]]
        for _, name, digits in columns:
            never = f" ({row['never']} never)" if name == "minutes_to_target" and row["never"] else ""
            worst = f" ({row[f'worst_{name}']:.{digits}f})" if f"worst_{name}" in row else ""
            cells.append(f"{'≥ ' if never else ''}{_interval(row, name, digits)}{never}{worst}")
        cells += [f"{row['chosen']:.1f}", f"{row['arrived']:.1%}", _promise(row), _interval(row, "microseconds", 0)]
        table.add_row(*cells)
    return table


def _promise(row: dict[str, Any]) -> str:
    status = f"{row['status']}, {row['tolerance']:g}"
    return f"({status})" if row["promised"] is None else status


def _forecasts_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Forecasts of exchange times: relative error in the second half of the runs of RBCS-F")
    for heading in ("forecast", "mean error, %", "median error, %", "improvement, points"):
        table.add_column(heading, justify="left" if heading == "forecast" else "right")
    for row in rows:
        improvement = "" if row["better_by"] is None else _interval(row, "better_by", 1, 100)
        errors = (_interval(row, name, 1, 100) for name in ("mean_error", "median_error"))
        table.add_row(row["forecast"], *errors, improvement)
    return table


#: The columns that cannot leave the range from 0 to 1.
SHARES = ("least_share", "jain", "final_accuracy")


def _interval(row: dict[str, Any], name: str, digits: int, scale: float = 1) -> str:
    if row[name] is None:
        return "–"
    band = row[f"{name}_band"]
    limits = UNIT_RANGE if name in SHARES else (-math.inf, math.inf)
    return format_interval(row[name] * scale, math.nan if band is None else band * scale, digits, limits=limits)
