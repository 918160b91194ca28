"""Measures a round of selection and learning in units of a memory copy of the arrays that it must read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.fleets import CONDITIONS, BenchFleet
from benchmarks.harness import MILLION, Repeats, Result, Target, alternate, announce
from turnout.kernel.backend import available_cores, kernel_name, using_kernel

#: The most copies of a round with a million clients, by policy, condition and cohort, where memory is fast.
TARGETS = {
    ("rbcsf", "mixed", 100): 2.2,
    ("rbcsf", "mixed", MILLION // 100): 3.0,
    **{("rbcsf", condition, 100): 3.0 for condition in ("mostly cold", "cold", "all ties")},
    **{("fair-pace", condition, 100): 2.5 for condition in ("mixed", "mixed, with value", "settled")},
    **{("fair-pace", condition, 100): 3.0 for condition in ("mostly cold", "all urgent", "all ties")},
}
#: The same without a compiler, and for ten million clients.
NUMPY_TARGET, LARGE_TARGET = 6.0, 3.0
#: The copies with two threads, in parts of those with one.
THREADED_SHARE = 0.6
MAX_BYTES, MAX_GROWTH = 120.0, 1.25
CANDIDATE_BYTES = 100  # peak memory of the compiled kernel per candidate that it cannot exclude early


@dataclass(frozen=True, slots=True)
class Case:
    """A policy and a fleet in one of its CONDITIONS; `most` is the target in copies, or None."""

    policy: str
    condition: str
    clients: int
    cohort: int
    kernel: str
    most: float | None = None

    def __str__(self) -> str:
        return f"{self.policy}, {self.condition}, N = {self.clients:,}, m = {self.cohort:,}, {self.kernel}"


def choose(
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients; by default 1,000,000 and, once, 10,000,000.")
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(min=1, help="Number of clients per round; by default 100 and 1 % of the fleet.")
    ] = None,
    repeats: Repeats = 9,
) -> Result:
    """Measure full rounds of RBCS-F and FairPace (offer, selection, report, learning) against a copy of their arrays.

    Needs about 3 GB of memory for the fleet of 10,000,000 clients, which --clients and --cohort leave out. The targets
    are for a million clients and the compiled kernel.

    Example: python -m benchmarks choose --clients 100000 --repeats 3
    """
    cases = standard_cases(clients or MILLION, cohort)
    if clients is None and cohort is None:
        cases.append(Case("rbcsf", "mixed", 10 * MILLION, MILLION // 10, kernel_name(), LARGE_TARGET))
    rows: dict[Case, dict[str, Any]] = {}
    for case in cases:
        announce(str(case))
        rows[case] = measure_round(case, repeats)
    targets = [
        Target(f"{case}: copies{threads}", copies, case.most * share)
        for case in cases
        for threads, share in (("", 1.0), (", 2 threads", THREADED_SHARE))
        if case.most is not None and (copies := rows[case].get(f"/ copy{threads}")) is not None
    ]
    title = f"One full round with one thread, CPU time ({kernel_name()} kernel unless stated otherwise); with two, time"
    return Result(title, list(rows.values()), targets=[*targets, *_scaling(rows)])


def standard_cases(clients: int, cohort: int | None = None) -> list[Case]:
    """Returns every condition with cohorts of 100 and of 1 %, or of `cohort`, and one without a compiler."""
    kernel = kernel_name()
    cohorts = [cohort] if cohort is not None else [min(100, clients), max(clients // 100, 1)]
    targets = TARGETS if clients == MILLION and kernel == "compiled" else {}
    cases = [
        Case(policy, condition, clients, size, kernel, targets.get((policy, condition, size)))
        for policy, conditions in CONDITIONS.items()
        for condition in conditions
        for size in cohorts
    ]
    if kernel == "compiled":
        most = NUMPY_TARGET if clients == MILLION and cohorts[0] == 100 else None
        cases.append(Case("rbcsf", "mixed", clients, cohorts[0], "numpy", most))
    return cases


def measure_round(case: Case, repeats: int) -> dict[str, Any]:
    """Measures a round, a copy and a read of the same arrays, alternately."""
    fleet = CONDITIONS[case.policy][case.condition](case.clients, case.cohort, np.random.default_rng(0))
    sources = fleet.arrays()
    copies = [np.empty_like(source) for source in sources]

    def copy() -> None:
        for target, source in zip(copies, sources, strict=True):
            np.copyto(target, source)

    tasks: dict[str, Callable[[], object]] = {"round": fleet.full_round, "copy": copy, "read": reader_of(sources)}
    with using_kernel(case.kernel, threads=1):
        seconds = alternate(tasks, repeats, time.thread_time)
        size = _bytes_per_client(fleet, case)
    row = {
        "policy": case.policy,
        "fleet": case.condition if case.kernel == kernel_name() else f"{case.condition} ({case.kernel})",
        "clients": case.clients,
        "selected": case.cohort,
        "round, ms": seconds["round"] * 1e3,
        "ns a client": seconds["round"] * 1e9 / case.clients,
        "/ copy": seconds["round"] / seconds["copy"],
        "/ read": seconds["round"] / seconds["read"],
        "bytes a client": size,
        "ns, 2 threads": None,
        "/ copy, 2 threads": None,
    }
    if case.kernel == "compiled" and available_cores() > 1:
        with using_kernel(case.kernel, threads=2):
            threaded = alternate({"round": fleet.full_round, "copy": copy}, repeats)
        row["ns, 2 threads"] = threaded["round"] * 1e9 / case.clients
        row["/ copy, 2 threads"] = threaded["round"] / threaded["copy"]
    return row


def reader_of(sources: Sequence[npt.NDArray[Any]]) -> Callable[[], None]:
    """Returns a function that reads every byte of these arrays once."""
    buffers = [np.ascontiguousarray(source).reshape(-1).view(np.uint8) for source in sources]
    buffers = [buffer[: len(buffer) // 8 * 8].view(np.uint64) for buffer in buffers]

    def read() -> None:
        for buffer in buffers:
            np.bitwise_or.reduce(buffer)

    return read


def _scaling(rows: dict[Case, dict[str, Any]]) -> list[Target]:
    """Returns the targets for memory, and for the growth of a round from one to ten million clients."""
    mixed = {
        case: row
        for case, row in rows.items()
        if (case.policy, case.condition, case.kernel) == ("rbcsf", "mixed", "compiled")
    }
    targets = [Target(f"{case}: bytes a client", row["bytes a client"], MAX_BYTES) for case, row in mixed.items()]
    one_percent = {case.clients: row for case, row in mixed.items() if case.cohort == case.clients // 100}
    small, large = one_percent.get(MILLION), one_percent.get(10 * MILLION)
    if small is not None and large is not None:
        reads = large["round, ms"] / large["/ read"] / (small["round, ms"] / small["/ read"])
        growth = large["round, ms"] / small["round, ms"] / reads
        targets.append(Target("growth from 1e6 to 1e7 clients / growth of the read", growth, MAX_GROWTH))
    return targets


def _bytes_per_client(fleet: BenchFleet, case: Case) -> float:
    """Returns the bytes per client of the offer, of the policy, and of the peak allocation in a round."""
    held = fleet.held_bytes()
    tracemalloc.start()
    try:
        fleet.full_round()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What the compiled kernel allocates, tracemalloc does not see.
    untraced = CANDIDATE_BYTES * fleet.considered(case.cohort) if case.kernel == "compiled" else 0
    return (held + peak + untraced) / case.clients


def imports(repeats: Repeats = 9) -> Result:
    """Measure the import of turnout, and of what a device needs of it, against the import of NumPy.

    Example: python -m benchmarks imports --repeats 3
    """
    modules = ("numpy", "turnout", "turnout.client")
    program = (
        "import sys, time; start = time.process_time(); import {}; print(time.process_time() - start, len(sys.modules))"
    )
    # Installed packages have compiled byte code, so it must be written for ours too.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def load(module: str) -> list[float]:
        command = [sys.executable, "-c", program.format(module)]
        return [float(word) for word in subprocess.check_output(command, env=environment).split()]

    loads = [{module: load(module) for module in modules} for _ in range(repeats + 1)][1:]
    medians = {module: np.median([each[module] for each in loads], axis=0).tolist() for module in modules}
    rows = [{"import": module, "CPU ms": cpu * 1e3, "modules": int(count)} for module, (cpu, count) in medians.items()]
    ratio = medians["turnout"][0] / medians["numpy"][0]
    return Result("Imports in a new process", rows, targets=[Target("import of turnout / import of numpy", ratio, 1.5)])
