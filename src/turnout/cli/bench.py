"""`turnout bench`: what a round costs, in copies of what it must read."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from enum import StrEnum
from multiprocessing import get_context
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.bench.choosing import (
    MILLION,
    Case,
    Measured,
    Verdict,
    large_case,
    measure,
    standard_cases,
    verdicts,
)
from turnout.bench.dashboard import MOST_SECONDS as DASHBOARD_SECONDS
from turnout.bench.dashboard import measure_dashboard
from turnout.bench.live import BATCH, COMMITS, MOST, measure_live
from turnout.bench.oort import CLIENTS as OORT_CLIENTS
from turnout.bench.oort import LEAST as OORT_LEAST
from turnout.bench.oort import measure_oort
from turnout.bench.sweeping import measure_sweep
from turnout.cli.options import DeviceOption, JsonOption, print_json, progress_bar
from turnout.kernel.backend import kernel_name
from turnout.lab.learner_cache import torch_device

MOST_SECONDS = 5.0  # of the sweep


class What(StrEnum):
    """What is measured."""

    choosing = "choosing"
    sweep = "sweep"
    training = "training"
    live = "live"
    oort = "oort"
    dashboard = "dashboard"


def bench(
    what: Annotated[
        What,
        typer.Argument(
            help="A round of choosing, the paper's sweep, a round of training, one of a live fleet, or one of Oort; "
            "or the dashboard."
        ),
    ] = What.choosing,
    clients: Annotated[
        int | None,
        typer.Option(min=1000, help="Measure fleets of this size only; by default 1e6, and once 1e7."),
    ] = None,
    cohort: Annotated[int | None, typer.Option(min=1, help="Choose this many; by default 100 and 1 %.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds to take the median of.")] = 9,
    device: DeviceOption = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="The batch size of training.")] = 10,
    json: JsonOption = False,
) -> None:
    """Measure a full round (offer, choice, report, learning) beside a copy and a plain read of the same arrays.

    The ratios are taken in turns in one run and hold on any machine; the milliseconds are this machine's, now.
    Ten million clients need about 3 GB of memory.

    `turnout bench sweep`: six policies, 500 rounds, 20 seeds on two cores, beside a literal reading of one run.

    `turnout bench training`: a round of 8 clients with 500 items each, beside a plain loop over them.

    `turnout bench live`: a scheduler's round of a million clients, 100 reports and all, beside the kernel's own.

    `turnout bench oort`: a round of Oort with 100,000 clients, beside the same rules with one dictionary a client.

    `turnout bench dashboard`: how soon Chromium shows a fleet of a million clients.
    """
    if what is What.dashboard:
        _bench_dashboard(clients or MILLION, cohort or 100, repeats, json)
        return
    if what is What.oort:
        _bench_oort(clients or OORT_CLIENTS, cohort or 100, repeats, json)
        return
    if what is What.live:
        _bench_live(clients or MILLION, cohort or 100, repeats, json)
        return
    if what is What.training:
        _bench_training(device, batch, repeats, json)
        return
    if what is What.sweep:
        _bench_sweep(json)
        return
    cases = standard_cases(clients or MILLION, cohort)
    if clients is None and cohort is None:
        cases.append(large_case())
    figures = _measured(cases, repeats)
    results = verdicts(figures)
    if json:
        print_json(
            {
                "kernel": kernel_name(),
                "rounds": [figure.as_dict() for figure in figures],
                "targets": [
                    {"target": one.target, "figure": one.figure, "most": one.most, "met": one.met} for one in results
                ],
            }
        )
        return
    console = Console()
    console.print(_figures_table(figures))
    console.print(_verdicts_table(results))


def _bench_sweep(json: bool) -> None:
    figures = measure_sweep()
    met = figures.sweep_seconds <= MOST_SECONDS
    told = {**asdict(figures), "literal_ratio": figures.literal_ratio, "most_seconds": MOST_SECONDS, "met": met}
    if json:
        print_json(told)
        return
    Console().print(
        f"{figures.runs} runs of 500 rounds on {figures.workers} cores: {figures.sweep_seconds:.1f} s "
        f"(target: at most {MOST_SECONDS:g} s, {'met' if met else 'not met'}).\n"
        f"One run of RBCS-F: {figures.run_seconds * 1e3:.0f} ms; the same, "
        f"in plain Python, {figures.literal_seconds * 1e3:.0f} ms: {figures.literal_ratio:.1f} times as long.",
        highlight=False,
        soft_wrap=True,
    )


def _bench_training(device: str, batch: int, repeats: int, json: bool) -> None:
    torch_device(device)  # says what to do where torch is missing
    from turnout.bench.training import TASKS, measure_training

    figures = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(TASKS))
        for dataset in TASKS:
            progress.update(task, description=dataset)
            # In a process of its own: beside a GPU, torch forks only before the plain loop has run.
            with ProcessPoolExecutor(1, get_context("spawn")) as apart:
                measured = apart.submit(measure_training, dataset, device=device, batch=batch, repeats=repeats)
                figures.append(measured.result())
            progress.advance(task)
    if json:
        print_json([{**asdict(one), "speedup": one.speedup, "least": one.least, "met": one.met} for one in figures])
        return
    table = Table(title=f"One round, 8 clients of 500 items, batches of {batch}, {figures[0].device}")
    for heading in ("network", "plain loop", "a round", "faster", "at least", "", "a run among several"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for one in figures:
        among = (
            f"{one.stacked_seconds * 1e3:.1f} ms, {one.stacked_speedup:.0f} × (of {one.stacked_runs})"
            if one.stacked_runs > 1
            else ""
        )
        table.add_row(
            one.dataset,
            f"{one.plain_seconds * 1e3:,.0f} ms",
            f"{one.round_seconds * 1e3:,.0f} ms",
            f"{one.speedup:.1f} ×",
            f"{one.least:g} ×",
            "met" if one.met else "[red]not met[/red]",
            among,
        )
    Console().print(table)


def _bench_live(clients: int, cohort: int, repeats: int, json: bool) -> None:
    one = measure_live(clients=clients, cohort=cohort, repeats=repeats)
    if json:
        print_json({**asdict(one), "ratio": one.ratio, "most": MOST, "met": one.met})
        return
    Console().print(
        f"A live round of {clients:,} clients (choose, {cohort} reports, close): {one.live_seconds * 1e3:.1f} ms, of "
        f"which {COMMITS} fsyncs are {COMMITS * one.fsync_seconds * 1e3:.1f} ms.\n"
        f"The kernel's own round: {one.kernel_seconds * 1e3:.1f} ms; without the fsyncs the live one is "
        f"{one.ratio:.1f} of these (target: at most {MOST:g}, {'met' if one.met else 'not met'}).\n"
        f"Reports in batches of {BATCH:,}: {one.reports_a_second:,.0f} a second. Opening the file again: "
        f"{one.open_seconds:.1f} s.",
        highlight=False,
        soft_wrap=True,
    )


def _bench_oort(clients: int, cohort: int, repeats: int, json: bool) -> None:
    one = measure_oort(clients=clients, cohort=cohort, repeats=repeats)
    if json:
        print_json({**asdict(one), "speedup": one.speedup, "least": OORT_LEAST, "met": one.met})
        return
    Console().print(
        f"A round of Oort, {clients:,} clients, {cohort} chosen: {one.round_seconds * 1e3:.1f} ms.\n"
        f"The same choices with one dictionary a client: {one.literal_seconds * 1e3:.0f} ms, {one.speedup:.1f} times "
        f"as long (target: at least {OORT_LEAST:g}, {'met' if one.met else 'not met'}).",
        highlight=False,
        soft_wrap=True,
    )


def _bench_dashboard(clients: int, cohort: int, repeats: int, json: bool) -> None:
    with progress_bar() as progress:
        task = progress.add_task("", total=None)
        one = measure_dashboard(
            clients=clients,
            cohort=cohort,
            repeats=repeats,
            watch=lambda words: progress.update(task, description=words),
        )
    if json:
        print_json({**asdict(one), "most_seconds": DASHBOARD_SECONDS, "met": one.met})
        return
    pages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in one.pages.items())
    Console().print(
        f"A fleet of {clients:,} clients, {one.rounds} rounds of {cohort} ({one.file_bytes / 1e6:.0f} MB): the server "
        f"answers after {one.start:.1f} s, and has read all of it after {one.read:.1f} s.\n"
        f"The page in Chromium, the slowest of {repeats} visits: first paint {one.first_paint:.2f} s, its numbers "
        f"{one.first_numbers:.2f} s (target: both at most {DASHBOARD_SECONDS:g} s, {'met' if one.met else 'not met'}), "
        f"all charts {one.first_charts:.2f} s.\n"
        f"From one page to the next, charts and all: {pages}.\n"
        f"The server used up to {one.memory_bytes / 1e6:,.0f} MB of memory.",
        highlight=False,
        soft_wrap=True,
    )


def _measured(cases: list[Case], repeats: int) -> list[Measured]:
    figures = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.condition}, N = {case.clients:,}, m = {case.cohort:,}")
            figures.append(measure(case, repeats=repeats))
            progress.advance(task)
    return figures


def _figures_table(figures: list[Measured]) -> Table:
    table = Table(title=f"One full round, CPU time ({kernel_name()} kernel unless named)")
    for heading in ("fleet", "clients", "chosen", "round", "/ copy", "/ read", "bytes a client"):
        table.add_column(heading, justify="left" if heading == "fleet" else "right")
    for one in figures:
        case = one.case
        name = case.condition if case.kernel == kernel_name() else f"{case.condition} ({case.kernel})"
        table.add_row(
            name,
            f"{case.clients:,}",
            f"{case.cohort:,}",
            f"{one.milliseconds:.1f} ms",
            f"{one.copies:.2f}",
            f"{one.reads:.2f}",
            f"{one.bytes_per_client:.0f}",
        )
    return table


def _verdicts_table(results: list[Verdict]) -> Table:
    table = Table(title="Targets")
    for heading in ("target", "figure", "at most", ""):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for one in results:
        table.add_row(one.target, f"{one.figure:.2f}", f"{one.most:g}", "met" if one.met else "[red]not met[/red]")
    return table
