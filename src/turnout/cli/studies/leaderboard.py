"""`turnout study leaderboard`: all policies in a suite, with rounds or without."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.completion import complete_policies, complete_suites
from turnout.cli.lab.playing import Machines, played
from turnout.cli.lab.tracking import TrackOption, Tracks
from turnout.cli.naming import parse_policy
from turnout.cli.options import (
    DeviceOption,
    JsonOption,
    StoreOption,
    WorkersOption,
    make_table,
    print_json,
    progress_bar,
)
from turnout.counting import pluralize
from turnout.errors import SettingError, suggestion
from turnout.lab.analysis.statistics import UNIT_RANGE, format_interval
from turnout.lab.drawing.style import as_svg
from turnout.lab.studies.framework.experiment import Findings
from turnout.lab.studies.framework.reproduce import reproduce
from turnout.lab.studies.leaderboard.choosing_cost import choosing_costs
from turnout.lab.studies.leaderboard.leaderboard import Leaderboard, as_json, rows_of, with_costs, write_leaderboard
from turnout.lab.studies.leaderboard.slots import REFERENCE, SLOT_SUITES, TABLE, SlotBoard, SlotSuite
from turnout.lab.studies.leaderboard.suites import SUITES, Suite
from turnout.lab.tables import as_csv, write_text
from turnout.lab.worlds.registry import make_world
from turnout.lab.worlds.traces.world import TraceWorld

MARKS = {"front": "●", "near": "○", "behind": ""}
#: The columns that cannot leave the range from 0 to 1. Without rounds, a share is divided by an equal share.
SHARES = ("least_share", "jain", "final_accuracy")
#: Heading, name in the result, and number of decimals.
Column = tuple[str, str, int]


def leaderboard(
    suite: Annotated[
        str,
        typer.Argument(
            help=f"Suite with rounds: {', '.join(SUITES)}; without: {', '.join(SLOT_SUITES)}.",
            autocompletion=complete_suites,
        ),
    ],
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POLICY]...",
            help="Policies in addition to those of the suite: NAME, NAME:SETTING=VALUE or my.module:MyPolicy.",
            autocompletion=complete_policies,
        ),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="Trace file for the suites with traces; by default clients are generated. Repeatable."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Number of rounds, or of turns; by default that of the suite.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=2, help="Number of seeds; by default that of the suite.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figures and data, and for the store of the runs unless --store is given."),
    ] = None,
    store: StoreOption = None,
    track: TrackOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Rank all policies in a suite, with the Pareto front of time and fairness, and policies of your own beside them.

    Example: turnout study leaderboard numerical oort:cohort_size=6 --rounds 100 --seeds 2
    """
    if suite not in {*SUITES, *SLOT_SUITES}:
        known = [*SUITES, *SLOT_SUITES]
        raise SettingError(f"unknown suite {suite!r}{suggestion(suite, known)}; there are {', '.join(known)}")
    found: Suite | SlotSuite = SUITES[suite] if suite in SUITES else SLOT_SUITES[suite]
    if traces:
        found = found.on_traces(traces)
    found = found.with_policies([parse_policy(text) for text in policies or []])
    board = Leaderboard(found) if isinstance(found, Suite) else SlotBoard(found)
    seeds = seeds or found.seeds
    rounds = rounds or (found.rounds if isinstance(found, Suite) else found.turns)
    for plans in found.plans(1, rounds).values():
        plans[0].start()  # reports invalid settings before the first round
    with played(board.plans(seeds, rounds), store, Machines(workers, device), Tracks(track), out=out) as opened:
        findings = reproduce([board], opened, seeds=seeds, rounds=rounds)[0].findings
    if isinstance(board, Leaderboard):
        findings = _with_costs(board, findings, seeds, rounds)
        result = as_json(board, findings, seeds=seeds, rounds=rounds, assumed=_assumptions(board.suite))
        if out is not None:
            write_leaderboard(board, findings, result, out)
    else:
        result = _slot_result(board.suite, findings, seeds, rounds)
        if out is not None:
            _write_slots(board, findings, result, out)
    if json:
        print_json(result)
        return
    console = Console()
    for table in _tables(result, board.suite):
        console.print(table)
    notes = _round_notes(result, board.suite) if isinstance(board, Leaderboard) else _slot_notes(board.suite)
    console.print("\n".join(notes), highlight=False, style="dim")
    if out is not None:
        console.print(f"Figures and data are in {out}/", highlight=False)


def _with_costs(board: Leaderboard, findings: Findings, seeds: int, rounds: int) -> Findings:
    """Adds the CPU time of each policy, measured now."""
    with progress_bar() as progress:
        timing = progress.add_task("Measuring the CPU time of policies", total=None)
        costs = choosing_costs(board.plans(seeds, rounds), lambda done: progress.advance(timing, done))
    return with_costs(findings, costs)


def _assumptions(suite: Suite) -> tuple[str, ...]:
    world = make_world(suite.world, 0, **suite.world_settings)
    return world.assumptions if isinstance(world, TraceWorld) else ()


def _slot_result(suite: SlotSuite, findings: Findings, seeds: int, turns: int) -> dict[str, Any]:
    return {
        "suite": suite.name,
        "title": suite.title,
        "turns": turns,
        "seeds": seeds,
        "concurrency": suite.slots,
        "clients": suite.clients,
        "present": suite.present,
        "world": {"name": suite.world, **suite.world_settings},
        "baseline": REFERENCE,
        "policies": rows_of(findings.tables[TABLE]),
    }


def _write_slots(board: SlotBoard, findings: Findings, result: dict[str, Any], out: Path) -> None:
    write_text(out / f"{TABLE}.csv", as_csv(findings.tables[TABLE]))
    write_text(out / f"{TABLE}.json", json_module.dumps(result, indent=2, ensure_ascii=False) + "\n")
    write_text(out / f"{TABLE}.svg", as_svg(board.draw(findings)))


def _tables(result: dict[str, Any], suite: Suite | SlotSuite) -> list[Table]:
    """Returns the table of the policies, and that of the forecasts if there are any."""
    has_rounds = isinstance(suite, Suite)
    training: list[Column] = []
    if suite.trains:
        target = result["policies"][0]["target"]
        digits = 1 if has_rounds else 2
        training = [(f"min to {target:.3f}", "minutes_to_target", digits), ("final accuracy", "final_accuracy", 3)]
    columns: list[Column]
    if has_rounds:
        size = pluralize(result["rounds"], "round")
        columns = [*training, ("mean round, s", "mean_round", 2), ("later rounds, s", "later_round", 2)]
        columns += [("shortfall", "shortfall", 2), ("at the end", "shortfall_at_end", 2)]
        columns += [("least share", "least_share", 3), ("Jain", "jain", 3)]
    else:
        size = f"{pluralize(result['turns'], 'turn')}, {pluralize(result['concurrency'], 'slot')}"
        columns = [("updates/s", "updates_per_second", 3), (f"× {REFERENCE}", "speedup", 2), *training]
        columns += [
            ("staleness", "mean_staleness", 1),
            ("least share", "least_share", 2),
            ("shortfall", "shortfall", 2),
        ]
    headings = ["policy", *(f"{heading}>" for heading, _, _ in columns)]
    headings = ["", *headings, "cohort>", "arrived>"] if has_rounds else headings
    headings += ["promise, tolerance", "cost, µs>"] if has_rounds else ["promise, tolerance"]
    title = f"{suite.title}: {size}, {pluralize(result['seeds'], 'seed')}, mean ± 95 % confidence"
    table = make_table(*headings, title=title)
    for row in result["policies"]:
        cells = [row["contender"], *(_cell(row, column, has_rounds) for column in columns)]
        if has_rounds:
            cells = [_mark(row), *cells, f"{row['chosen']:.1f}", f"{row['arrived']:.1%}", _promise(row, "promised")]
            cells.append(_interval(row, "microseconds", 0))
        else:
            cells.append(_promise(row, "promised_share"))
        table.add_row(*cells)
    return [table, *([_forecasts_table(result["forecasts"])] if "forecasts" in result else [])]


def _mark(row: dict[str, Any]) -> str:
    return "◇" if row["told_truth"] else MARKS.get(row["front"], "")


def _cell(row: dict[str, Any], column: Column, has_rounds: bool) -> str:
    _, name, digits = column
    never = f" ({row['never']} never)" if name == "minutes_to_target" and row["never"] else ""
    worst = f" ({row[f'worst_{name}']:.{digits}f})" if f"worst_{name}" in row else ""
    interval = _interval(row, name, digits, is_share=has_rounds and name in SHARES)
    return f"{'≥ ' if never else ''}{interval}{never}{worst}"


def _promise(row: dict[str, Any], promised: str) -> str:
    status = f"{row['status']}, {row['tolerance']:g}"
    return f"({status})" if row[promised] is None else status


def _forecasts_table(rows: Sequence[dict[str, Any]]) -> Table:
    title = "Forecasts of exchange times: relative error in the second half of the runs of RBCS-F"
    table = make_table("forecast", "mean error, %>", "median error, %>", "improvement, points>", title=title)
    for row in rows:
        improvement = "" if row["better_by"] is None else _interval(row, "better_by", 1, 100)
        errors = (_interval(row, name, 1, 100) for name in ("mean_error", "median_error"))
        table.add_row(row["forecast"], *errors, improvement)
    return table


def _interval(row: dict[str, Any], name: str, digits: int, scale: float = 1, *, is_share: bool = False) -> str:
    if row[name] is None:
        return "–"
    band = row[f"{name}_band"]
    limits = UNIT_RANGE if is_share else (-math.inf, math.inf)
    return format_interval(row[name] * scale, math.nan if band is None else band * scale, digits, limits=limits)


def _round_notes(result: dict[str, Any], suite: Suite) -> list[str]:
    share_of = "the rounds in which it was available" if suite.share_of == "available" else "all rounds"
    return [
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


def _slot_notes(suite: SlotSuite) -> list[str]:
    return [
        f"The share in a name is what the policy guarantees to each client, of an equal share of the turns (1/"
        f"{suite.present}). In rounds: synchronous rounds with {suite.slots} clients.",
        "Least share: the smallest share of any client in the decisions at which it was available or training, divided "
        "by an equal share.",
        "Shortfall: promised turns minus turns, the largest of any client at any time; the worst run is in "
        "parentheses. Policies that promise nothing are judged by 75 %; their status is in parentheses.",
        "Staleness: versions of the model that the server made during a turn.",
    ]
