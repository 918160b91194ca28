"""`turnout bench`: benchmarks of this installation, as ratios of times measured in one run."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
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
from turnout.bench.dashboard import measure_dashboard
from turnout.bench.live import AVAILABLE, BATCH, MOST_ROUND, LiveFigures, measure_live
from turnout.bench.oort import CLIENTS as OORT_CLIENTS
from turnout.bench.oort import COHORT as OORT_COHORT
from turnout.bench.oort import measure_oort
from turnout.bench.paced_fleets import PACED_CONDITIONS
from turnout.bench.service import CONNECTIONS, LEAST_RATIO, LOADS, PERCENTILES, measure_service
from turnout.bench.slots import MOST_READS, measure_decision, measure_server
from turnout.bench.sweeping import MAX_SECONDS, ROUNDS, measure_sweep
from turnout.bench.year import YEAR, measure_year
from turnout.cli.options import DeviceOption, JsonOption, as_period, print_json, progress_bar
from turnout.errors import SettingError, StoreError
from turnout.kernel.backend import kernel_name
from turnout.lab.training.learner_cache import torch_device

REPEATS = 9

ClientsOption = Annotated[int, typer.Option(min=1000, help="Number of clients in the fleet.")]
CohortOption = Annotated[int, typer.Option(min=1, help="Number of clients per round.")]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Number of measurements; the median is shown.")]
ChooseClientsOption = Annotated[
    int | None, typer.Option(min=1000, help="Number of clients; by default 1,000,000 and, once, 10,000,000.")
]
ChooseCohortOption = Annotated[
    int | None, typer.Option(min=1, help="Number of clients per round; by default 100 and 1 % of the fleet.")
]

bench = typer.Typer(invoke_without_command=True)


@bench.callback()
def choose_by_default(
    context: typer.Context,
    clients: ChooseClientsOption = None,
    cohort: ChooseCohortOption = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help=f"Number of measurements; the median is shown. By default {REPEATS}.")
    ] = None,
    json: JsonOption = False,
    device: Annotated[str | None, typer.Option(hidden=True)] = None,
    batch: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure how long turnout takes on this machine; without a sub-command, the same as `turnout bench choose`.

    Each benchmark measures its tasks in turns in one run and reports ratios, which hold on any machine; the
    milliseconds hold for this machine only.

    Example: turnout bench live --clients 100000
    """
    values = {"--clients": clients, "--cohort": cohort, "--repeats": repeats, "--device": device, "--batch": batch}
    given = [option for option, value in values.items() if value is not None] + ["--json"] * json
    if context.invoked_subcommand is not None:
        if given:
            command = f"turnout bench {context.invoked_subcommand}"
            raise SettingError(
                f"{', '.join(given)} must follow the sub-command: {command} {given[0]} … ({command} --help lists its "
                "options)"
            )
        return
    for option in ("--device", "--batch"):
        if option in given:
            raise SettingError(f"{option} is an option of turnout bench training: turnout bench training {option} …")
    choose(clients, cohort, REPEATS if repeats is None else repeats, json)


@bench.command()
def choose(
    clients: ChooseClientsOption = None,
    cohort: ChooseCohortOption = None,
    repeats: RepeatsOption = REPEATS,
    json: JsonOption = False,
) -> None:
    """Measure full rounds of RBCS-F and FairPace (offer, selection, report, learning) against a copy of their arrays.

    Needs about 3 GB of memory for the fleet of 10,000,000 clients, which --clients and --cohort leave out.

    Example: turnout bench choose --clients 100000 --repeats 3
    """
    cases = standard_cases(clients or MILLION, cohort)
    if clients is None and cohort is None:
        cases.append(large_case())
    figures = _measure_cases(cases, repeats)
    results = verdicts(figures, import_repeats=repeats)
    if json:
        print_json(
            {
                "kernel": kernel_name(),
                "rounds": [figure.as_dict() for figure in figures],
                "targets": [
                    {"target": verdict.target, "figure": verdict.figure, "most": verdict.most, "met": verdict.met}
                    for verdict in results
                ],
            }
        )
        return
    console = Console()
    console.print(_figures_table(figures))
    console.print(_verdicts_table(results))


# The name of this benchmark before it was a sub-command.
bench.command("choosing", hidden=True)(choose)


@bench.command()
def year(
    clients: Annotated[int, typer.Option(min=10, help="Number of clients in the fleet.")] = 2000,
    cohort: CohortOption = 50,
    rounds: Annotated[int, typer.Option(min=20, help="Number of rounds to play.")] = 500,
    keep_rounds: Annotated[
        str | None, typer.Option(metavar="PERIOD", help="For how long rounds are kept, such as 5000; by default all.")
    ] = None,
    keep_offers: Annotated[
        str | None, typer.Option(metavar="PERIOD", help="For how long offers are kept, such as 1000; by default all.")
    ] = None,
    persist_statuses: Annotated[bool, typer.Option(help="Whether statuses are written to the file.")] = True,
    json: JsonOption = False,
) -> None:
    """Measure how the file of a live fleet grows, and what a year with a round every ten minutes takes.

    With --keep-rounds, play at least twice as many rounds: the file grows until then, and no more.

    Example: turnout bench year --rounds 600 --keep-rounds 200 --keep-offers 50
    """
    with progress_bar() as progress:
        task = progress.add_task("rounds", total=rounds)
        figures = measure_year(
            clients=clients,
            cohort=cohort,
            rounds=rounds,
            keep_rounds=as_period(keep_rounds),
            keep_offers=as_period(keep_offers),
            persist_statuses=persist_statuses,
            progress=lambda number: progress.update(task, completed=number),
        )
    if json:
        print_json({**asdict(figures), "bytes_a_round": figures.bytes_a_round, "year_bytes": figures.year_bytes})
        return
    table = Table("rounds", "size of the file", box=None)
    for count, size in zip(figures.rounds, figures.sizes, strict=True):
        table.add_row(f"{count:,}", f"{size / 1e6:,.2f} MB")
    Console().print(table)
    kept = f"rounds after {figures.summary_round:,} are kept" if figures.summary_round else "all rounds are kept"
    _print(
        f"{clients:,} clients, {cohort} in a round; {kept}. In the second half the file grew by "
        f"{figures.bytes_a_round / 1e3:,.2f} kB a round. After a year with a round every ten minutes ({YEAR:,} rounds) "
        f"it would have {figures.year_bytes / 1e6:,.0f} MB."
    )


@bench.command()
def live(
    clients: ClientsOption = MILLION,
    cohort: CohortOption = 100,
    repeats: RepeatsOption = REPEATS,
    json: JsonOption = False,
) -> None:
    """Measure a live fleet: registering, opening, rounds, snapshots and forgetting a client, with their targets.

    The fleet is kept in memory, and CPU times are compared with the targets, which are for a million clients: fsyncs
    and other programs do not count. A live round (choose, report, close) is compared with the same round in memory.

    Example: turnout bench live --clients 100000
    """
    with progress_bar() as progress:
        task = progress.add_task("", total=None)
        figures = measure_live(
            clients=clients,
            cohort=cohort,
            repeats=repeats,
            watch=lambda step: progress.update(task, description=step),
        )
    results = figures.verdicts()
    if json:
        targets = [{**asdict(verdict), "met": verdict.met} for verdict in results]
        round_ = {
            "ratio": figures.ratio,
            "partial_ratio": figures.partial_ratio,
            "most": MOST_ROUND,
            "met": figures.ratio <= MOST_ROUND,
        }
        print_json({**asdict(figures), "open_seconds": figures.open.wall, **round_, "targets": targets})
        return
    console = Console()
    console.print(_live_table(figures))
    console.print(_verdicts_table(results))
    _print(
        f"A live round (choose, {cohort} reports, close) takes {figures.live_seconds * 1e3:.1f} ms, the same round in "
        f"memory {figures.kernel_seconds * 1e3:.1f} ms; if only {AVAILABLE:.0%} of the clients are available, "
        f"{figures.partial_live_seconds * 1e3:.1f} and {figures.partial_kernel_seconds * 1e3:.1f} ms.\n"
        f"Reports in batches of {BATCH:,}: {figures.reports_a_second:,.0f} per second. "
        f"The file has {figures.file_bytes / 1e6:,.0f} MB."
    )


@bench.command()
def sweep(
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per policy.")] = 20,
    json: JsonOption = False,
) -> None:
    """Measure the paper's comparison (6 policies, 500 rounds, 20 seeds) against the same runs one after the other.

    Example: turnout bench sweep --workers 4
    """
    figures = measure_sweep(seeds=seeds, workers=workers)
    if json:
        print_json(
            {
                **asdict(figures),
                "runs_per_second": figures.runs_per_second,
                "speedup": figures.speedup,
                "most_seconds": MAX_SECONDS,
                "met": figures.met,
            }
        )
        return
    _print(
        f"{figures.runs} runs of {ROUNDS} rounds with {figures.workers} worker processes: "
        f"{figures.sweep_seconds:.1f} s (target: at most {MAX_SECONDS:g} s, {_met(figures.met)}), "
        f"{figures.runs_per_second:.1f} runs per second.\n"
        f"The same runs one after the other, without a store: {figures.single_seconds:.1f} s, "
        f"{figures.speedup:.1f} times as long. One run of RBCS-F: {figures.run_seconds * 1e3:.0f} ms."
    )


@bench.command()
def slots(
    clients: ClientsOption = MILLION,
    slots: Annotated[
        int, typer.Option(min=1, help="Number of slots of the live fleet, which has 5 times as many clients.")
    ] = 1000,
    turns: Annotated[int, typer.Option(min=1, help="Number of turns of the live fleet.")] = 100_000,
    repeats: RepeatsOption = REPEATS,
    json: JsonOption = False,
) -> None:
    """Measure a decision among many idle clients in reads of memory, and turns of a live fleet without rounds.

    Example: turnout bench slots --turns 10000
    """
    decisions = []
    with progress_bar() as progress:
        task = progress.add_task("decisions", total=len(PACED_CONDITIONS))
        for condition in PACED_CONDITIONS:
            decisions.append(measure_decision(clients, condition, repeats=repeats))
            progress.advance(task)
        task = progress.add_task("turns", total=turns)
        server = measure_server(5 * slots, slots, turns, watch=lambda given: progress.advance(task, given))
    results = [
        Verdict(f"decision, {figures.clients:,} idle clients, {figures.condition}: reads", figures.reads, MOST_READS)
        for figures in decisions
    ]
    if json:
        targets = [{**asdict(verdict), "met": verdict.met} for verdict in results]
        print_json({"decisions": list(map(asdict, decisions)), "server": asdict(server), "targets": targets})
    else:
        Console().print(_verdicts_table(results))
        _print(
            f"A live fleet, {server.clients:,} clients, {server.slots:,} slots, {server.turns:,} turns: "
            f"{server.turn_milliseconds:.2f} ms of CPU time per turn, {server.file_bytes / 1e6:.0f} MB, opened "
            f"again in {server.open_seconds:.1f} s. No client was ever more than {server.most_behind:.2f} turns behind."
        )
    if not server.restored or server.problems:
        raise StoreError("the file was not read as it was written: examine the disk and the memory of this machine")


@bench.command()
def training(
    device: DeviceOption = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 10,
    repeats: RepeatsOption = REPEATS,
    json: JsonOption = False,
) -> None:
    """Measure a round of training (8 clients, 500 items each) and, on a GPU, the gain of 16 runs at once.

    Example: turnout bench training --device cuda
    """
    torch_device(device)  # raises an error with advice if torch or the device is missing
    from turnout.bench.training import TASKS, measure_training

    figures = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(TASKS))
        for dataset in TASKS:
            progress.update(task, description=dataset)
            # A new process for each dataset: torch must not have run in a process that the learner forks.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                measured = pool.submit(measure_training, dataset, device=device, batch=batch, repeats=repeats)
                figures.append(measured.result())
            progress.advance(task)
    if json:
        print_json(
            [
                {
                    **asdict(figure),
                    "items_per_second": figure.items_per_second,
                    "stacked_speedup": figure.stacked_speedup,
                }
                for figure in figures
            ]
        )
        return
    table = Table(title=f"One round of 8 clients with 500 items each, batch size {batch}, {figures[0].device}")
    for heading in ("dataset", "round", "items per second", "per run, several at once"):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for figure in figures:
        stacked = (
            f"{figure.stacked_seconds * 1e3:.1f} ms, {figure.stacked_speedup:.1f} × faster ({figure.stacked_runs} runs)"
            if figure.stacked_runs > 1
            else "GPU only"
        )
        table.add_row(
            figure.dataset, f"{figure.round_seconds * 1e3:,.0f} ms", f"{figure.items_per_second:,.0f}", stacked
        )
    Console().print(table)


@bench.command()
def oort(
    clients: ClientsOption = OORT_CLIENTS,
    cohort: CohortOption = OORT_COHORT,
    repeats: RepeatsOption = REPEATS,
    json: JsonOption = False,
) -> None:
    """Measure a round of Oort against a round of random selection in the same fleet.

    Example: turnout bench oort --clients 10000
    """
    figures = measure_oort(clients=clients, cohort=cohort, repeats=repeats)
    if json:
        print_json({**asdict(figures), "ratio": figures.ratio})
        return
    _print(
        f"A round of Oort, {clients:,} clients, {cohort} per round: {figures.round_seconds * 1e3:.1f} ms.\n"
        f"A round of random selection: {figures.random_seconds * 1e3:.1f} ms. Oort takes {figures.ratio:.1f} times as "
        "long."
    )


@bench.command()
def dashboard(
    clients: ClientsOption = MILLION,
    cohort: CohortOption = 100,
    repeats: RepeatsOption = REPEATS,
    json: JsonOption = False,
) -> None:
    """Measure how soon the dashboard's server answers for a fleet of a million clients.

    Example: turnout bench dashboard --clients 100000
    """
    with progress_bar() as progress:
        task = progress.add_task("", total=None)
        figures = measure_dashboard(
            clients=clients,
            cohort=cohort,
            repeats=repeats,
            watch=lambda step: progress.update(task, description=step),
        )
    if json:
        print_json(asdict(figures))
        return
    answers = ", ".join(f"{route} {seconds:.2f} s" for route, seconds in figures.answers.items())
    slowest = figures.slowest
    _print(
        f"A fleet of {clients:,} clients and {figures.rounds} rounds of {cohort} ({figures.file_bytes / 1e6:.0f} MB): "
        f"the server starts in {figures.start:.1f} s and has read the whole file after {figures.read:.1f} s.\n"
        f"First answers: {answers}.\n"
        f"The slowest is {slowest}; later answers come from the cache, {slowest} after "
        f"{figures.cached_answers[slowest]:.3f} s."
    )
    if figures.memory_bytes is not None:  # not known on Windows
        _print(f"The server uses {figures.memory_bytes / 1e6:,.0f} MB of memory.")


@bench.command()
def service(
    clients: ClientsOption = MILLION,
    calls: Annotated[int, typer.Option(min=10, help="Number of calls of each kind in each repetition.")] = 5000,
    connections: Annotated[int, typer.Option(min=1, help="Number of connections at the same time.")] = CONNECTIONS,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repetitions; the median is shown.")] = 5,
    json: JsonOption = False,
) -> None:
    """Measure check-ins and reports over HTTP, each on disk before it is answered, against an empty endpoint.

    All are sent by another process to one `turnout serve`, in turns. Most devices that check in are asked to wait, as
    in a fleet with far more clients than slots.

    Example: turnout bench service --clients 10000 --calls 1000
    """
    with progress_bar() as progress:
        task = progress.add_task("", total=repeats + 2)

        def watch(step: str) -> None:
            progress.update(task, description=step, advance=1)

        figures = measure_service(clients=clients, calls=calls, repeats=repeats, connections=connections, watch=watch)
    if json:
        targets = [
            {"target": name, "figure": figures.loads[name].ratio, "least": LEAST_RATIO, "met": figures.loads[name].met}
            for name in LOADS[1:]
        ]
        print_json({**asdict(figures), "targets": targets})
        return
    table = Table(title=f"{figures.clients:,} registered clients, {figures.connections} connections; latencies in ms")
    for heading in ("request", "a second", "/ empty", "at least", "", *(f"{percent} %" for percent in PERCENTILES)):
        table.add_column(heading, justify="left" if heading == "request" else "right")
    for name, load in figures.loads.items():
        is_target = name in LOADS[1:]
        table.add_row(
            name,
            f"{load.per_second:,.0f}",
            f"{load.ratio:.2f}",
            f"{LEAST_RATIO:g}" if is_target else "",
            ("met" if load.met else "[red]not met[/red]") if is_target else "",
            *(f"{load.milliseconds[percent]:,.0f}" for percent in PERCENTILES),
        )
    Console().print(table)


@bench.command()
def flower(
    nodes: Annotated[int, typer.Option(min=2, help="Number of virtual nodes.")] = 2000,
    cohort: CohortOption = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of each kind; the shortest round counts.")] = 5,
    json: JsonOption = False,
) -> None:
    """Measure a Flower round with fair selection against one of plain FedAvg, with virtual nodes in this process.

    The client only adds 1 to a small model. The targets are for rounds in which all nodes evaluate the model, which is
    Flower's default; rounds without evaluation are measured, too.

    Example: turnout bench flower --nodes 500
    """
    try:
        from turnout.adapters.flower.overhead import MOST_FIRST, MOST_ROUND, measure_overhead
    except ImportError as error:
        raise SettingError(str(error)) from error
    if cohort > nodes:
        raise SettingError(f"cohort must be at most the number of nodes, {nodes}, got {cohort}")
    with progress_bar() as progress:
        task = progress.add_task("", total=None)
        figures = measure_overhead(
            nodes=nodes, cohort=cohort, repeats=repeats, watch=lambda step: progress.update(task, description=step)
        )
    results = [
        Verdict("later round / round of plain FedAvg", figures.ratio, MOST_ROUND),
        Verdict("first round / round of plain FedAvg", figures.first_ratio, MOST_FIRST),
    ]
    if json:
        targets = [{**asdict(verdict), "met": verdict.met} for verdict in results]
        print_json({**asdict(figures), "ratio": figures.ratio, "first_ratio": figures.first_ratio, "targets": targets})
        return
    table = Table(title=f"A Flower round, {nodes:,} virtual nodes, {cohort} selected, shortest CPU time")
    for heading in ("round", "plain FedAvg", "fair, later", "fair, first", "fair, first, ids queried"):
        table.add_column(heading, justify="left" if heading == "round" else "right")
    for name, times in (("all nodes evaluate", figures.default), ("without evaluation", figures.train_only)):
        seconds = (times.plain, times.fair, times.first, times.query)
        table.add_row(name, *(f"{value * 1e3:,.1f} ms" for value in seconds))
    console = Console()
    console.print(table)
    console.print(_verdicts_table(results))
    short = figures.train_only
    added = 1e3 * (short.fair - short.plain)
    _print(
        f"Without evaluation, and with clients that do nothing, fair selection adds {added:.1f} ms to a round: "
        f"{short.fair / short.plain:.2f} rounds of plain FedAvg. No target is set for this."
    )


def _print(text: str) -> None:
    Console(highlight=False, soft_wrap=True, markup=False).print(text)


def _met(met: bool) -> str:
    return "met" if met else "not met"


def _measure_cases(cases: list[Case], repeats: int) -> list[Measured]:
    figures = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            description = f"{case.policy}, {case.condition}, N = {case.clients:,}, m = {case.cohort:,}"
            progress.update(task, description=description)
            figures.append(measure(case, repeats=repeats))
            progress.advance(task)
    return figures


def _figures_table(figures: list[Measured]) -> Table:
    table = Table(title=f"One full round, CPU time ({kernel_name()} kernel unless stated otherwise)")
    for heading in ("policy", "fleet", "clients", "selected", "round", "/ copy", "/ read", "bytes per client"):
        table.add_column(heading, justify="left" if heading in ("policy", "fleet") else "right")
    for figure in figures:
        case = figure.case
        name = case.condition if case.kernel == kernel_name() else f"{case.condition} ({case.kernel})"
        table.add_row(
            case.policy,
            name,
            f"{case.clients:,}",
            f"{case.cohort:,}",
            f"{figure.milliseconds:.1f} ms",
            f"{figure.copies:.2f}",
            f"{figure.reads:.2f}",
            f"{figure.bytes_per_client:.0f}",
        )
    return table


def _live_table(figures: LiveFigures) -> Table:
    table = Table(title=f"A live fleet of {figures.clients:,} clients, best times")
    for heading in ("task", "CPU time", "wall-clock time"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    tasks = {
        "registering all clients": figures.register,
        f"opening the file, {figures.unsaved_rounds} rounds after the last snapshot": figures.open,
        "snapshot": figures.snapshot,
        f"forgetting a client, first of {figures.forget_steps} transactions": figures.forget_start,
        "forgetting a client, longest other transaction": figures.forget_step,
    }
    for task, seconds in tasks.items():
        table.add_row(task, f"{seconds.cpu:.3f} s", f"{seconds.wall:.3f} s")
    return table


def _verdicts_table(results: list[Verdict]) -> Table:
    table = Table(title="Targets")
    for heading in ("target", "measured", "at most", ""):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for verdict in results:
        table.add_row(
            verdict.target,
            f"{verdict.figure:.2f}",
            f"{verdict.most:g}",
            "met" if verdict.met else "[red]not met[/red]",
        )
    return table
