"""`turnout study reproduce` and `leaderboard`: the paper's figures and claims, and all policies in a suite."""

from __future__ import annotations

import math
from collections.abc import Set
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from turnout.cli.lab.playing import Machines, TrackOption, Tracks, played
from turnout.cli.naming import parse_policy
from turnout.cli.options import DeviceOption, JsonOption, StoreOption, WorkersOption, print_json, progress_bar, say
from turnout.cli.tables import Cell, print_table
from turnout.counting import pluralize
from turnout.lab.analysis.statistics import UNIT_RANGE, format_interval
from turnout.lab.studies.catalogue import EXPERIMENTS, GROUPS, find_experiments
from turnout.lab.studies.framework.experiment import (
    Result,
    claims_of,
    compute_results,
    plans_of,
    verdict_summary,
    write_results,
)
from turnout.lab.studies.leaderboard.contenders import FED_BUFF
from turnout.lab.studies.leaderboard.leaderboard import (
    Leaderboard,
    as_json,
    choosing_costs,
    with_costs,
    write_leaderboard,
)
from turnout.lab.studies.leaderboard.suites import SUITES, Suite, find_suite
from turnout.lab.studies.paper.accuracy import TASKS

COLOURS = {"holds": "green", "does not hold": "red", "not decided": "yellow"}


def reproduce(
    name: Annotated[
        str, typer.Argument(help=f"Experiment: {', '.join(EXPERIMENTS)}; or a group: {', '.join(GROUPS)}.")
    ],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of seeds: 0, 1, 2, …; by default that of each experiment: 20, or 3 to 5 with training."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=10, help="Number of rounds; by default that of each experiment.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures, data and claims.")] = Path("results"),
    store: Annotated[
        Path | None, typer.Option(help="Store for the runs; by default runs.turnout in the folder.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help=f"Dataset for training: {', '.join(TASKS)}; by default digits. Repeatable.")
    ] = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Reproduce the paper's experiments: figures, data, and a verdict on each claim.

    Runs that the store holds are not repeated, so the same command continues an interrupted one.

    Example: turnout study reproduce queues --seeds 5 --out results
    """
    experiments = find_experiments(name, dataset or ())
    plans = plans_of(experiments, seeds, rounds)
    with played({name: plans}, store, Machines(workers, device), out=out) as opened:
        results = compute_results(experiments, opened, seeds=seeds, rounds=rounds)
    written = write_results(results, out)
    if json:
        print_json({"claims": claims_of(results), "files": [str(path) for path in written]})
        return
    _print_claims(results)
    say(f"Claims: {verdict_summary(results)}. Figures, data and claims are in {out}/")


def _print_claims(results: list[Result]) -> None:
    """Prints a table of all claims with their verdicts and numbers."""
    rows = []
    for result in results:
        for claim in result.findings.claims:
            numbers = Text(" · ".join(f"{name}: {value}" for name, value in claim.numbers.items()), style="dim")
            verdict = Text(claim.verdict, style=COLOURS[claim.verdict])
            rows.append((result.experiment.name, verdict, Text(f"{claim.statement}\n").append_text(numbers)))
    print_table(("experiment", "verdict", "claim and its numbers"), rows, show_lines=True)


MARKS = {"front": "●", "near": "○", "behind": " "}
#: The columns that a narrow terminal leaves out, the first one first.
EXTRAS = ("cost, µs>", "arrived>", "cohort>", "Jain>", "at the end>", "later rounds, s>", "staleness>", "by completed>")
#: The columns that cannot leave the range from 0 to 1. Without rounds, a share is divided by an equal share.
SHARES = ("least_share", "jain", "final_accuracy")
#: The columns of measures, each with its heading and its number of decimals.
ROUND_COLUMNS = {
    "minutes_to_target": ("min to {target:.3f}", 1),
    "final_accuracy": ("final accuracy", 3),
    "mean_round": ("mean round, s", 2),
    "later_round": ("later rounds, s", 2),
    "shortfall": ("shortfall", 2),
    "shortfall_at_end": ("at the end", 2),
    "shortfall_completed": ("by completed", 2),
    "least_share": ("least share", 3),
    "jain": ("Jain", 3),
}
SLOT_COLUMNS = {
    "updates_per_second": ("updates/s", 3),
    "speedup": (f"× {FED_BUFF}", 2),
    "minutes_to_target": ("min to {target:.3f}", 2),
    "final_accuracy": ("final accuracy", 3),
    "mean_staleness": ("staleness", 1),
    "least_share": ("least share", 2),
    "shortfall": ("shortfall", 2),
}


def leaderboard(
    suite: Annotated[
        str, typer.Argument(help=f"Suite: {', '.join(SUITES)}; those that begin with async have no rounds.")
    ],
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POLICY]...",
            help="Policies in addition to those of the suite: NAME, NAME:SETTING=VALUE or my.module:MyPolicy.",
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
    chosen = find_suite(suite)
    if traces:
        chosen = chosen.on_traces(traces)
    chosen = chosen.with_policies([parse_policy(text) for text in policies or []])
    board, seeds, rounds = Leaderboard(chosen), seeds or chosen.seeds, rounds or chosen.rounds
    for plans in chosen.plans(1, rounds).values():
        plans[0].start()  # reports invalid settings before the first round
    with played(board.plans(seeds, rounds), store, Machines(workers, device), Tracks(track), out=out) as opened:
        findings = compute_results([board], opened, seeds=seeds, rounds=rounds)[0].findings
    if chosen.slots is None:
        with progress_bar() as progress:
            timing = progress.add_task("Measuring the CPU time of policies", total=None)
            costs = choosing_costs(board.plans(seeds, rounds), lambda done: progress.advance(timing, done))
        findings = with_costs(board, findings, costs)
    result = as_json(board, findings, seeds=seeds, rounds=rounds)
    if out is not None:
        write_leaderboard(board, findings, result, out)
    if json:
        print_json(result)
        return
    console = Console()
    known = {contender.label for contender in find_suite(suite).contenders}
    _print_table(result, chosen, {contender.label for contender in chosen.contenders} - known)
    notes = _round_notes(result, chosen) if chosen.slots is None else _slot_notes(chosen)
    console.print("\n".join(notes), highlight=False, style="dim")
    if out is not None:
        console.print(f"Figures and data are in {out}/", highlight=False)


def _print_table(result: dict[str, Any], suite: Suite, own: Set[str]) -> None:
    """Prints the table of the policies; the user's own are in a colour of their own."""
    columns, has_rounds = dict(ROUND_COLUMNS if suite.slots is None else SLOT_COLUMNS), suite.slots is None
    for name in () if suite.trains else ("minutes_to_target", "final_accuracy"):
        del columns[name]
    if has_rounds and not suite.misses:
        del columns["shortfall_completed"]
    if has_rounds:
        size = pluralize(result["rounds"], "round")
    else:
        size = f"{pluralize(result['turns'], 'turn')}, {pluralize(result['concurrency'], 'slot')}"
    target = result["policies"][0].get("target") or 0.0
    headings = ["policy", *(f"{heading.format(target=target)}>" for heading, _ in columns.values())]
    headings += ["cohort>", "arrived>", "promise, tolerance", "cost, µs>"] if has_rounds else ["promise, tolerance"]
    rows: list[list[Cell]] = []
    for row in result["policies"]:
        mark = ("◇" if row["told_truth"] else MARKS.get(row["front"], " ")) + " " if has_rounds else ""
        label = Text(mark).append(row["contender"], style="bold magenta" if row["contender"] in own else "")
        cells: list[Cell] = [label, *(_cell(row, name, digits, has_rounds) for name, (_, digits) in columns.items())]
        if has_rounds:
            cells += [f"{row['chosen']:.1f}", f"{row['arrived']:.1%}", _promise(row, "promised")]
            cells.append(_interval(row, "microseconds", 0))
        else:
            cells.append(_promise(row, "promised_share"))
        rows.append(cells)
    seeds = pluralize(result["seeds"], "seed")
    title = f"{suite.title}: {size}, {seeds}, mean ± 95 % confidence"
    print_table(headings, rows, title=title, optional=[name for name in EXTRAS if name in headings])


def _cell(row: dict[str, Any], name: str, digits: int, has_rounds: bool) -> str:
    never = f" ({row['never']} never)" if name == "minutes_to_target" and row["never"] else ""
    worst = f" ({row[f'worst_{name}']:.{digits}f})" if f"worst_{name}" in row else ""
    interval = _interval(row, name, digits, is_share=has_rounds and name in SHARES)
    return f"{'≥ ' if never else ''}{interval}{never}{worst}"


def _promise(row: dict[str, Any], promised: str) -> str:
    status = f"{row['status']}, {row['tolerance']:g}"
    return f"({status})" if row[promised] is None else status


def _interval(row: dict[str, Any], name: str, digits: int, *, is_share: bool = False) -> str:
    if row[name] is None:
        return "–"
    band = row[f"{name}_band"]
    limits = UNIT_RANGE if is_share else (-math.inf, math.inf)
    return format_interval(row[name], math.nan if band is None else band, digits, limits=limits)


def _round_notes(result: dict[str, Any], suite: Suite) -> list[str]:
    share_of = "the rounds in which it was available" if suite.share_of == "available" else "all rounds"
    return [
        "● on the Pareto front of time and shortfall; ○ not on it, but no policy is significantly better; ◇ excluded, "
        "because it knows the expected times, which no server knows. Policies that select far fewer clients than "
        "random or never reach the target accuracy are excluded too.",
        f"Later rounds: all rounds after the first {result['rounds'] // 3:,}.",
        f"Shortfall: the turns that the worst-off client is behind {result['guaranteed_rate']:g} of {share_of}, at any "
        "time and at the end of a run; the worst run is in parentheses. Negative: every client has a surplus.",
        *(["By completed: the same at any time, if only turns count whose update arrived."] if suite.misses else []),
        "Promise: broken if any client of any run was ever more turns behind than the tolerance, kept if all clients "
        "were always less than one turn behind, otherwise behind. In parentheses: the policy promises nothing.",
        f"Least share: share of {share_of}, for the client that was selected least.",
        "Cost: CPU time of one ask and one tell, measured on this machine.",
        *result["assumptions"],
        *(f"Excluded: {policy}: {reason}." for policy, reason in suite.left_out.items()),
    ]


def _slot_notes(suite: Suite) -> list[str]:
    return [
        f"The share in a name is what the policy guarantees to each client, of an equal share of the turns "
        f"({suite.rate}). In rounds: synchronous rounds with {suite.slots} clients.",
        "Least share: the smallest share of any client in the decisions at which it was available or training, divided "
        "by an equal share.",
        "Shortfall: promised turns minus turns, the largest of any client at any time; the worst run is in "
        "parentheses. Policies that promise nothing are judged by 75 %; their status is in parentheses.",
        "Staleness: versions of the model that the server made during a turn.",
    ]
