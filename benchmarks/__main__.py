"""Compares turnout with reference implementations: `python -m benchmarks` in a checkout."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.check_ins import check_in_fleet
from benchmarks.dashboard import MAX_SECONDS, measure_browser
from benchmarks.fair_pace import (
    MAX_BEHIND,
    MAX_MEAN_ROUND,
    ROUNDS,
    SEEDS,
    TOLERANCE,
    play_papers_world,
    summarize,
)
from benchmarks.oort import MIN_SPEEDUP, compare_oort
from benchmarks.rbcsf import measure_run
from turnout.bench.oort import CLIENTS, COHORT
from turnout.cli.options import JsonOption, print_json

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compare turnout with reference implementations; both are measured in turns in one run.",
)
Repeats = Annotated[int, typer.Option(min=1, help="Measurements per task; the median counts.")]


@app.command()
def rbcsf(repeats: Repeats = 3, json: JsonOption = False) -> None:
    """Measure one run of RBCS-F (500 rounds, 40 clients) against the paper's algorithms in plain Python."""
    figures = measure_run(repeats=repeats)
    if json:
        print_json({**asdict(figures), "literal_ratio": figures.literal_ratio})
        return
    typer.echo(
        f"RBCS-F, {figures.rounds} rounds: {figures.run_seconds * 1e3:.0f} ms. "
        f"Plain Python: {figures.literal_seconds * 1e3:.0f} ms, {figures.literal_ratio:.1f} times as long."
    )


@app.command("check-ins")
def check_ins(
    devices: Annotated[int, typer.Option(min=1, help="Number of devices.")] = 200,
    slots: Annotated[int, typer.Option(min=1, help="Number of slots.")] = 8,
    turns: Annotated[int, typer.Option(min=10, help="Number of turns.")] = 1800,
    ttl: Annotated[float, typer.Option(help="Seconds for which a check-in is kept.")] = 5.0,
    connected: Annotated[bool, typer.Option(help="Whether devices stay connected for that time.")] = False,
    json: JsonOption = False,
) -> None:
    """Simulate devices that check in by themselves, against a server that serves those that come first (minutes)."""
    with TemporaryDirectory() as folder:
        own, first = check_in_fleet(
            Path(folder), devices=devices, slots=slots, turns=turns, ttl=ttl, connected=connected
        )
    if json:
        print_json({"turnout": asdict(own), "first_come": asdict(first)})
        return
    for name, figures in (("turnout", own), ("first come", first)):
        typer.echo(
            f"{name}: {figures.updates_per_second:.2f} updates per second, {figures.calls_per_turn:.1f} calls per "
            f"turn, fewest turns of a device {figures.fewest_turns:.2f} of the mean."
        )
    typer.echo(f"No device was ever more than {own.largest_shortfall:.2f} turns behind its promise.")


@app.command("fair-pace")
def fair_pace(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = SEEDS,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per seed.")] = ROUNDS,
    skip: Annotated[int, typer.Option(min=0, help="Rounds at the beginning that the mean leaves out.")] = 0,
    tolerance: Annotated[float, typer.Option(help="Turns that a client may be behind.")] = TOLERANCE,
    json: JsonOption = False,
) -> None:
    """Play FairPace in the paper's world: the mean round, and how far any client is ever behind."""
    runs = [play_papers_world(seed, rounds=rounds, skip=skip, tolerance=tolerance) for seed in range(seeds)]
    figures = summarize(runs)
    if json:
        print_json({**asdict(figures), "seeds": [asdict(run) for run in runs], "met": figures.met})
        return
    typer.echo(
        f"FairPace in the paper's world, {seeds} seeds, {rounds:,} rounds, tolerance {tolerance:g}: mean round "
        f"{figures.mean_round:.2f} s; at most {figures.largest_behind:.2f} turns behind at any time, "
        f"{figures.behind_at_end:.2f} at the end (target in 500 rounds: at most {MAX_MEAN_ROUND:g} s and "
        f"{MAX_BEHIND:g} turns, {_met(figures.met)})."
    )


@app.command()
def oort(
    clients: Annotated[int, typer.Option(min=1000, help="Size of the fleet.")] = CLIENTS,
    cohort: Annotated[int, typer.Option(min=1, help="Clients per round.")] = COHORT,
    repeats: Repeats = 9,
    json: JsonOption = False,
) -> None:
    """Measure a round of Oort against the same rules with one dict per client."""
    figures = compare_oort(clients=clients, cohort=cohort, repeats=repeats)
    if json:
        print_json({**asdict(figures), "speedup": figures.speedup, "least": MIN_SPEEDUP, "met": figures.met})
        return
    typer.echo(
        f"Oort, {clients:,} clients, {cohort} per round: {figures.round_seconds * 1e3:.1f} ms. One dict per client: "
        f"{figures.literal_seconds * 1e3:.0f} ms, {figures.speedup:.1f} times as long "
        f"(target: at least {MIN_SPEEDUP:g}, {_met(figures.met)})."
    )


@app.command()
def training(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 10,
    repeats: Repeats = 5,
    json: JsonOption = False,
) -> None:
    """Measure a round of training (8 clients, 500 items each) against a plain loop over the clients."""
    from benchmarks.training import compare_training  # needs torch, which the other commands do not
    from turnout.bench.training import TASKS

    comparisons = []
    for dataset in TASKS:
        # A new process for each dataset: the learner must fork before the plain loop has used torch.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            measured = pool.submit(compare_training, dataset, device=device, batch=batch, repeats=repeats)
            comparisons.append(measured.result())
    if json:
        print_json(
            [
                {
                    **asdict(figures),
                    "speedup": figures.speedup,
                    "stacked_speedup": figures.stacked_speedup,
                    "met": figures.met,
                }
                for figures in comparisons
            ]
        )
        return
    for figures in comparisons:
        typer.echo(
            f"{figures.dataset}, batch size {batch}, {figures.device}: {figures.round_seconds * 1e3:,.0f} ms. Plain "
            f"loop: {figures.plain_seconds * 1e3:,.0f} ms, {figures.speedup:.1f} times as long "
            f"(target: at least {figures.min_speedup:g}, {_met(figures.met)})."
        )
        if figures.stacked_runs > 1:
            typer.echo(
                f"  per run with {figures.stacked_runs} runs at once: {figures.stacked_seconds * 1e3:.1f} ms; the "
                f"plain loop takes {figures.stacked_speedup:.0f} times as long."
            )


@app.command()
def dashboard(
    clients: Annotated[int, typer.Option(min=1000, help="Size of the fleet.")] = 1_000_000,
    cohort: Annotated[int, typer.Option(min=1, help="Clients per round.")] = 100,
    repeats: Repeats = 3,
    json: JsonOption = False,
) -> None:
    """Measure how soon Chromium shows the dashboard of a large fleet."""
    figures = measure_browser(
        clients=clients, cohort=cohort, repeats=repeats, watch=lambda step: typer.echo(step, err=True)
    )
    if json:
        print_json({**asdict(figures), "most_seconds": MAX_SECONDS, "met": figures.met})
        return
    pages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in figures.pages.items())
    typer.echo(
        f"{clients:,} clients, {figures.rounds} rounds of {cohort} ({figures.file_bytes / 1e6:.0f} MB), slowest of "
        f"{repeats} visits: first paint {figures.first_paint:.2f} s, numbers {figures.first_numbers:.2f} s "
        f"(target: at most {MAX_SECONDS:g} s each, {_met(figures.met)}), all charts {figures.first_charts:.2f} s.\n"
        f"From page to page, until all charts are drawn: {pages}."
    )


def _met(met: bool) -> str:
    return "met" if met else "not met"


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
