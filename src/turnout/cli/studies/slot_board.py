"""`turnout compare --suite async`: a leaderboard without rounds."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turnout.cli.naming import parse_policy
from turnout.cli.options import print_json
from turnout.cli.studies.leaderboard import Following, play_board
from turnout.lab.analysis.statistics import format_interval
from turnout.lab.drawing import style as drawing
from turnout.lab.studies.leaderboard.leaderboard import rows_of
from turnout.lab.studies.leaderboard.slots import REFERENCE, SLOT_SUITES, TABLE, SlotBoard, SlotSuite
from turnout.lab.tables import as_csv, write_text
from turnout.lab.training.distributed import check_device


def show_slot_board(
    name: str,
    *,
    further: Sequence[str] | None = None,
    traces: Sequence[Path] | None,
    seeds: int | None,
    turns: int | None,
    out: Path | None,
    store: Path | None,
    workers: int | None,
    device: str,
    following: Following,
    json: bool,
) -> None:
    """Runs the missing simulations of a suite without rounds, prints its table, and writes it to a folder.

    Args:
        name: Name of the suite.
        further: Policies in addition to those of the suite, as the command line names them.
        traces: Trace files that replace the generated clients of the suite `async-traces`.
        seeds: Number of seeds; None for the suite's own.
        turns: Number of turns; None for the suite's own.
        out: Folder for figure and data, or None.
        store: Store for the runs; None for one in `out`, or a temporary one.
        workers: Number of worker processes; None for one per CPU core.
        device: Device that trains the models.
        following: Follows the runs with trackers.
        json: Print JSON instead of a table.
    """
    suite = SLOT_SUITES[name]
    if traces:
        suite = suite.on_traces(traces)
    suite = suite.with_policies([parse_policy(text) for text in further or []])
    seeds, turns = seeds or suite.seeds, turns or suite.turns
    check_device([plan for plans in suite.plans(1, turns).values() for plan in plans], device)
    for plans in suite.plans(1, turns).values():
        plans[0].start()  # reports invalid settings before the first turn
    if store is None and out is not None:
        store = out / "runs.turnout"
    board = SlotBoard(suite)
    findings = play_board(board, seeds, turns, store, workers, following, device)
    result = {
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
    if out is not None:
        write_text(out / f"{TABLE}.csv", as_csv(findings.tables[TABLE]))
        write_text(out / f"{TABLE}.json", json_format.dumps(result, indent=2, ensure_ascii=False) + "\n")
        write_text(out / f"{TABLE}.svg", drawing.as_svg(board.draw(findings)))
    if json:
        print_json(result)
        return
    _print(result, suite)
    if out is not None:
        Console().print(f"Figure and data are in {out}/", highlight=False)


def _print(result: dict[str, Any], suite: SlotSuite) -> None:
    table = Table(
        title=f"{suite.title}: {result['turns']:,} turns, {suite.slots} slots, {result['seeds']} seeds, mean ± 95 % "
        "confidence"
    )
    columns = [("updates/s", "updates_per_second", 3), (f"× {REFERENCE}", "speedup", 2)]
    if suite.trains:
        target = result["policies"][0]["target"]
        columns += [(f"min to {target:.3f}", "minutes_to_target", 2), ("final accuracy", "final_accuracy", 3)]
    columns += [("staleness", "mean_staleness", 1), ("least share", "least_share", 2), ("shortfall", "shortfall", 2)]
    for heading in ("policy", *(heading for heading, _, _ in columns), "promise, tolerance"):
        table.add_column(heading, justify="left" if heading in ("policy", "promise, tolerance") else "right")
    for row in result["policies"]:
        cells = [row["contender"]]
        for _, name, digits in columns:
            band = row[f"{name}_band"]
            never = f" ({row['never']} never)" if name == "minutes_to_target" and row["never"] else ""
            worst = f" ({row['worst_shortfall']:.2f})" if name == "shortfall" else ""
            shown = format_interval(row[name], math.nan if band is None else band, digits)
            cells.append(f"{'≥ ' if never else ''}{shown}{never}{worst}")
        status = f"{row['status']}, {row['tolerance']:g}"
        table.add_row(*cells, f"({status})" if row["promised_share"] is None else status)
    Console().print(table)
    lines = (
        f"The share in a name is what the policy guarantees to each client, of an equal share of the turns (1/"
        f"{suite.present}). In rounds: synchronous rounds with {suite.slots} clients.",
        "Least share: the smallest share of any client in the decisions at which it was available or training, divided "
        "by an equal share.",
        "Shortfall: promised turns minus turns, the largest of any client at any time; the worst run is in "
        "parentheses. Policies that promise nothing are judged by 75 %; their status is in parentheses.",
        "Staleness: versions of the model that the server made during a turn.",
    )
    Console().print("\n".join(lines), highlight=False, style="dim")
