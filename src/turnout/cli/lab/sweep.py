"""`turnout sweep`: the runs of a plan on many processes or machines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnout.cli.interruption import resumable
from turnout.cli.options import (
    AddressOption,
    BackendOption,
    DeviceOption,
    JsonOption,
    RoundsOption,
    SettingOption,
    WorkersOption,
    WorldOption,
    contenders,
    print_json,
    progress_bar,
    read_config,
)
from turnout.counting import counted
from turnout.errors import SettingError
from turnout.lab.clusters import connect
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import missing_plans
from turnout.lab.studies.framework.reproduce import check_device
from turnout.lab.training.distributed import play_plans
from turnout.lab.training.learner_cache import LearnerCache

#: The number of lines that report progress where standard error is not a terminal.
PROGRESS_LINES = 10


def sweep(
    plan: Annotated[Path, typer.Argument(help="TOML file with rounds, seeds, world, policies (docs/simulating.md).")],
    store: Annotated[
        Path | None,
        typer.Option(help="Store for the runs; by default the name of the plan with the ending .turnout."),
    ] = None,
    backend: BackendOption = "local",
    address: AddressOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …; by default that of the plan, or 10.")
    ] = None,
    rounds: RoundsOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    json: JsonOption = False,
) -> None:
    """Play all runs of a plan on processes of this machine, on Ray or on Dask, into one store.

    Runs that the store holds are not repeated, so the same command continues an interrupted sweep. The runs of a worker
    that dies are repeated. Every run is the same on every backend, byte for byte.

    Example: turnout sweep study.toml --backend ray --address auto --store runs.turnout
    """
    connection = connect(backend, address, workers=workers)
    plans = planned_runs(plan, settings, world, rounds, seeds)
    path = store or Path(plan.with_suffix(".turnout").name)
    check_device(plans, device)
    with LearnerCache(workers=1):
        for first in {run.name: run for run in plans}.values():
            first.build()  # reports invalid settings before a cluster is started
    with resumable(), RunStore(path) as opened:
        missing = missing_plans(plans, opened)
        with connection if missing else nullcontext() as executor, watched(missing, executor) as watch:
            ids = play_plans(plans, opened, workers=workers, backend=executor, device=device, watch=watch)
    if json:
        print_json({"store": str(path), "runs": ids, "played": len(missing), "held": len(set(ids)) - len(missing)})
        return
    console = Console(highlight=False, soft_wrap=True)
    count = len({run.seed for run in plans})
    verb = "was" if len(missing) == 1 else "were"
    console.print(
        f"{path}: {counted(len(set(ids)), 'run')} of {plan}, of which {len(missing):,} {verb} played now", markup=False
    )
    if count > 1:
        overrides = [f"--seeds={seeds}"] * (seeds is not None) + [f"--rounds={rounds}"] * (rounds is not None)
        overrides += [f"--set={text}" for text in settings or []] + [f"--world={text}" for text in world or []]
        command = shlex.join(["turnout", "compare", "--config", str(plan), *overrides, "--store", str(path)])
        console.print(f"To compare: {command}", markup=False)


def planned_runs(
    plan: Path,
    settings: Sequence[str] | None,
    world: Sequence[str] | None,
    rounds: int | None,
    seeds: int | None,
) -> list[RunPlan]:
    """Returns one plan for each policy and seed of a TOML file; options override the file.

    Args:
        plan: The TOML file.
        settings: Values of --set.
        world: Values of --world.
        rounds: Value of --rounds.
        seeds: Value of --seeds.
    """
    file = read_config(plan)
    if not file.get("policy"):
        raise SettingError(f"{plan} names no policy: add a [[policy]] table with a name")
    count = seeds or file.get("seeds", 10)
    return [
        replace(contender, seed=seed)
        for contender in contenders(None, plan, settings, world, rounds, ())
        for seed in range(count)
    ]


@contextmanager
def watched(missing: Sequence[RunPlan], executor: Executor | None) -> Iterator[Callable[[int], None]]:
    """Yields a callback for rounds that were played, which shows the progress of all workers on standard error.

    A terminal shows a bar; a log file receives about ten lines.
    """
    where = "" if executor is None else f" on {counted(executor.workers, 'worker')}"
    total = sum(plan.rounds for plan in missing)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    done = 0

    def description() -> str:
        return f"{counted(done, 'round', of=total)} of {counted(len(missing), 'run')}{where}"

    with progress_bar() as progress:
        task = progress.add_task(description(), total=total)

        def watch(rounds: int) -> None:
            nonlocal done
            lines = PROGRESS_LINES * done // total
            done += rounds
            progress.update(task, completed=done, description=description())
            if progress.disable and PROGRESS_LINES * done // total > lines:
                console.print(description())

        yield watch
