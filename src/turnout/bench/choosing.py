"""Measures a round of selection and learning in units of a memory copy of the arrays that it must read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.bench.fleets import CONDITIONS, BenchFleet
from turnout.bench.paced_fleets import PACED_CONDITIONS, PacedFleet
from turnout.bench.timing import import_seconds, interleaved
from turnout.kernel.backend import kernel_name, using_kernel

MILLION = 1_000_000
#: Targets for a round of FairPace with a cohort of 100, in copies.
PACED_TARGETS = {"mixed": 1.3, "settled": 1.3, "mostly cold": 1.3, "all urgent": 1.3, "all ties": 1.6}
CANDIDATE_BYTES = 96  # peak memory of the compiled kernel per candidate that it cannot exclude early


@dataclass(frozen=True, slots=True)
class Case:
    """A policy and a fleet in one of its CONDITIONS; `most` is the target in copies, or None."""

    condition: str
    clients: int
    cohort: int
    kernel: str
    most: float | None = None
    policy: str = "rbcsf"

    def build(self, seed: int) -> BenchFleet | PacedFleet:
        """Returns the fleet in its condition."""
        conditions = PACED_CONDITIONS if self.policy == "fair-pace" else CONDITIONS
        return conditions[self.condition](self.clients, self.cohort, np.random.default_rng(seed))


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a case: milliseconds of CPU time, and their ratio to a copy and to a read of the arrays."""

    case: Case
    milliseconds: float
    copies: float
    reads: float
    read_milliseconds: float
    bytes_per_client: float

    def as_dict(self) -> dict[str, Any]:
        """Returns the case and its figures as one flat dict."""
        flat = asdict(self)
        return {**flat.pop("case"), **flat}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the figure that was measured for it."""

    target: str
    figure: float
    most: float

    @property
    def met(self) -> bool:
        """Whether the figure is within the target."""
        return self.figure <= self.most


def standard_cases(clients: int, cohort: int | None = None) -> list[Case]:
    """Returns every condition with cohorts of 100 and of 1 %, or of `cohort`; targets apply to a million clients.

    RBCS-F comes first, then FairPace.
    """
    default = kernel_name()
    one_percent = max(clients // 100, 1)
    cohorts = [cohort] if cohort is not None else [min(100, clients), one_percent]
    targets = {
        ("mixed", 100): 1.3,
        ("mixed", one_percent): 2.0,
        ("mostly cold", 100): 2.5,
        ("all ties", 100): 5.0,
    }
    binding = clients == MILLION and default == "compiled"
    cases = [
        Case(condition, clients, size, default, targets.get((condition, size)) if binding else None)
        for condition in CONDITIONS
        for size in cohorts
    ]
    if default == "compiled":
        cases.append(Case("mixed", clients, cohorts[0], "numpy", 6.0 if binding and cohorts[0] == 100 else None))
    return cases + [
        Case(
            condition,
            clients,
            size,
            default,
            PACED_TARGETS[condition] if binding and size == 100 else None,
            "fair-pace",
        )
        for condition in PACED_CONDITIONS
        for size in cohorts
    ]


def large_case() -> Case:
    """Returns the case of ten million clients with a cohort of 100,000."""
    return Case("mixed", 10 * MILLION, MILLION // 10, kernel_name(), 3.0)


def measure(case: Case, *, repeats: int = 9, seed: int = 0) -> Measured:
    """Measures a round, a copy and a read of the same arrays, in turns."""
    fleet = case.build(seed)
    sources = fleet.arrays()
    targets = [np.empty_like(source) for source in sources]

    def copy() -> None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)

    with using_kernel(case.kernel):
        seconds = interleaved({"round": fleet.full_round, "copy": copy, "read": reader_of(sources)}, repeats)
        size = _bytes_per_client(fleet, case)
    return Measured(
        case=case,
        milliseconds=seconds["round"] * 1e3,
        copies=seconds["round"] / seconds["copy"],
        reads=seconds["round"] / seconds["read"],
        read_milliseconds=seconds["read"] * 1e3,
        bytes_per_client=size,
    )


def reader_of(sources: Sequence[npt.NDArray[Any]]) -> Callable[[], None]:
    """Returns a function that reads every byte of these arrays once."""
    buffers = [np.ascontiguousarray(source).reshape(-1).view(np.uint8) for source in sources]
    buffers = [buffer[: len(buffer) // 8 * 8].view(np.uint64) for buffer in buffers]

    def read() -> None:
        for buffer in buffers:
            np.bitwise_or.reduce(buffer)

    return read


def verdicts(figures: list[Measured], *, import_repeats: int = 9) -> list[Verdict]:
    """Compares the figures with their targets, and the import time of turnout with that of NumPy."""
    found = [
        Verdict(f"{_describe(figure.case)}: copies", figure.copies, figure.case.most)
        for figure in figures
        if figure.case.most is not None
    ]
    sizes = [
        figure.bytes_per_client
        for figure in figures
        if (figure.case.policy, figure.case.condition, figure.case.kernel) == ("rbcsf", "mixed", "compiled")
    ]
    if sizes:
        found.append(Verdict("bytes per client, mixed, compiled", max(sizes), 120))
    found.extend(_growth(figures))
    imports = import_seconds(("numpy", "turnout"), import_repeats)
    found.append(Verdict("import of turnout / import of numpy", imports["turnout"] / imports["numpy"], 1.5))
    return found


def _growth(figures: list[Measured]) -> list[Verdict]:
    def at(clients: int) -> Measured | None:
        key = ("rbcsf", "mixed", clients, clients // 100, "compiled")
        for figure in figures:
            case = figure.case
            if (case.policy, case.condition, case.clients, case.cohort, case.kernel) == key:
                return figure
        return None

    small, large = at(MILLION), at(10 * MILLION)
    if small is None or large is None:
        return []
    growth = (large.milliseconds / small.milliseconds) / (large.read_milliseconds / small.read_milliseconds)
    return [Verdict("growth from 1e6 to 1e7 clients / growth of the read", growth, 1.25)]


def _bytes_per_client(fleet: BenchFleet | PacedFleet, case: Case) -> float:
    """Returns the bytes per client of the offer, of the policy, and of the peak allocation in a round."""
    held = fleet.held_bytes()
    tracemalloc.start()
    try:
        fleet.full_round()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (held + peak + _untraced_bytes(fleet, case)) / case.clients


def _untraced_bytes(fleet: BenchFleet | PacedFleet, case: Case) -> int:
    """Returns the bytes that the compiled kernel allocates, which tracemalloc does not see."""
    return CANDIDATE_BYTES * fleet.considered(case.cohort) if case.kernel == "compiled" else 0


def _describe(case: Case) -> str:
    policy = "" if case.policy == "rbcsf" else f"{case.policy}, "
    return f"{policy}N = {case.clients:,}, m = {case.cohort:,}, {case.condition}, {case.kernel}"
