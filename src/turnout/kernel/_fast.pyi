"""Signatures of the compiled kernel; a cohort is returned as a tuple of the fields of `Cohort`."""

from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import FloatArray, IntArray

def cohort_of_times(
    times: FloatArray,
    owed: IntArray,
    common_credit: int,
    units_per_turn: float,
    available: npt.NDArray[np.uint8],
    size: int,
    speed_weight: float,
    floor: float,
    threads: int,
) -> tuple[IntArray, FloatArray, float, float, int]: ...
def cohort_of_contexts(
    contexts: FloatArray,
    bank: FloatArray,
    exploration: float,
    owed: IntArray,
    common_credit: int,
    units_per_turn: float,
    available: npt.NDArray[np.uint8],
    size: int,
    speed_weight: float,
    threads: int,
) -> tuple[IntArray, FloatArray, float, float, int]: ...
def paced_cohort_of_times(
    times: FloatArray,
    usual_times: FloatArray,
    pace: tuple[Any, ...],
    available: npt.NDArray[np.uint8],
    size: int,
    threads: int,
) -> tuple[tuple[IntArray, FloatArray, float, float, int], IntArray]: ...
def paced_cohort_of_contexts(
    contexts: FloatArray,
    bank: FloatArray,
    exploration: float,
    usual_sums: FloatArray,
    mean_context: FloatArray,
    pace: tuple[Any, ...],
    available: npt.NDArray[np.uint8],
    size: int,
    threads: int,
) -> tuple[tuple[IntArray, FloatArray, float, float, int], IntArray]: ...
def learn(bank: FloatArray, rows: IntArray, contexts: FloatArray, times: FloatArray) -> None: ...
def magnitude(numbers: FloatArray, threads: int) -> float: ...
def count_flags(counts: IntArray, flags: npt.NDArray[np.uint8]) -> None: ...
