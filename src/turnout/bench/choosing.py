"""What one round of choosing and learning costs, in units of copying what it must read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turnout.bench.fleets import CONDITIONS, BenchFleet
from turnout.bench.timing import import_seconds, interleaved
from turnout.kernel.backend import kernel_name, using_kernel
from turnout.kernel.cohort import cohort_of_contexts
from turnout.kernel.rounds import RoundOffer

MILLION = 1_000_000
CANDIDATE_BYTES = 96  # what the compiled kernel keeps, at its peak, of each client it considers to the end


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet in some condition; `most` is the target in copies, None where there is none."""

    condition: str
    clients: int
    cohort: int
    kernel: str
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A case and its figures: milliseconds of CPU time, and the same in copies and in plain reads."""

    case: Case
    milliseconds: float
    copies: float
    reads: float
    read_milliseconds: float
    bytes_per_client: float

    def as_dict(self) -> dict[str, Any]:
        """Flat, for JSON."""
        flat = asdict(self)
        return {**flat.pop("case"), **flat}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, the figure measured for it, and whether it is met."""

    target: str
    figure: float
    most: float

    @property
    def met(self) -> bool:
        """Is the figure within the target?"""
        return self.figure <= self.most


def standard_cases(clients: int, cohort: int | None = None) -> list[Case]:
    """Every condition at m = 100 and m = 1 %, or at one `cohort`; targets where there are any."""
    usual = kernel_name()
    one_percent = max(clients // 100, 1)
    cohorts = [cohort] if cohort is not None else [min(100, clients), one_percent]
    targets = {
        ("mixed", 100): 1.3,
        ("mixed", one_percent): 2.0,
        ("mostly cold", 100): 2.5,
        ("all ties", 100): 5.0,
    }
    binding = clients == MILLION and usual == "compiled"
    cases = [
        Case(condition, clients, size, usual, targets.get((condition, size)) if binding else None)
        for condition in CONDITIONS
        for size in cohorts
    ]
    if usual == "compiled":
        cases.append(Case("mixed", clients, cohorts[0], "numpy", 6.0 if binding and cohorts[0] == 100 else None))
    return cases


def large_case() -> Case:
    """Ten million clients, a hundred thousand chosen."""
    return Case("mixed", 10 * MILLION, MILLION // 10, kernel_name(), 3.0)


def measure(case: Case, *, repeats: int = 9, seed: int = 0) -> Measured:
    """Play the case's round beside a copy and a plain read of the same arrays, taken in turns."""
    fleet = CONDITIONS[case.condition](case.clients, case.cohort, np.random.default_rng(seed))
    sources = fleet.arrays()
    targets = [np.empty_like(source) for source in sources]

    def copy() -> None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)

    words = [np.ascontiguousarray(source).reshape(-1).view(np.uint8) for source in sources]
    words = [word[: len(word) // 8 * 8].view(np.uint64) for word in words]

    def read() -> None:
        for word in words:
            np.bitwise_or.reduce(word)

    with using_kernel(case.kernel):
        seconds = interleaved({"round": fleet.full_round, "copy": copy, "read": read}, repeats)
        size = _bytes_per_client(fleet, case)
    return Measured(
        case=case,
        milliseconds=seconds["round"] * 1e3,
        copies=seconds["round"] / seconds["copy"],
        reads=seconds["round"] / seconds["read"],
        read_milliseconds=seconds["read"] * 1e3,
        bytes_per_client=size,
    )


def verdicts(figures: list[Measured], *, import_repeats: int = 9) -> list[Verdict]:
    """Hold the figures against the targets."""
    found = [
        Verdict(f"{_told(one.case)}: copies", one.copies, one.case.most) for one in figures if one.case.most is not None
    ]
    sizes = [one.bytes_per_client for one in figures if (one.case.condition, one.case.kernel) == ("mixed", "compiled")]
    if sizes:
        found.append(Verdict("bytes a client, mixed, compiled", max(sizes), 120))
    found.extend(_growth(figures))
    imports = import_seconds(("numpy", "turnout"), import_repeats)
    found.append(Verdict("import of turnout / import of numpy", imports["turnout"] / imports["numpy"], 1.5))
    return found


def _growth(figures: list[Measured]) -> list[Verdict]:
    def at(clients: int) -> Measured | None:
        matches: Callable[[Measured], bool] = lambda one: (  # noqa: E731
            one.case.condition == "mixed"
            and one.case.clients == clients
            and one.case.cohort == clients // 100
            and one.case.kernel == "compiled"
        )
        return next(filter(matches, figures), None)

    small, large = at(MILLION), at(10 * MILLION)
    if small is None or large is None:
        return []
    growth = (large.milliseconds / small.milliseconds) / (large.read_milliseconds / small.read_milliseconds)
    return [Verdict("growth from 1e6 to 1e7 / growth of the plain read", growth, 1.25)]


def _bytes_per_client(fleet: BenchFleet, case: Case) -> float:
    """The offer, all that the policy keeps, and what a round allocates at its peak."""
    held = sum(array.nbytes for array in fleet.arrays()) + fleet.policy.turns.nbytes
    tracemalloc.start()
    try:
        fleet.full_round()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (held + peak + _unseen_bytes(fleet, case)) / case.clients


def _unseen_bytes(fleet: BenchFleet, case: Case) -> int:
    """Memory that only the compiled kernel knows of."""
    if case.kernel != "compiled":
        return 0
    policy = fleet.policy
    offer = RoundOffer(1, fleet.available, fleet.contexts)
    width = policy.exploration(1)
    owed = policy.queues.owed_exactly()
    cohort = cohort_of_contexts(
        policy.model, offer.contexts, width, owed, case.cohort, policy.speed_weight, offer.available
    )
    return CANDIDATE_BYTES * cohort.considered


def _told(case: Case) -> str:
    return f"N = {case.clients:,}, m = {case.cohort:,}, {case.condition}, {case.kernel}"
