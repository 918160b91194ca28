"""Detection of lost commits in SQLite's write-ahead log."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

_HEADER, _FRAME_HEADER = 32, 24
_BYTE_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
_Integers = npt.NDArray[np.uint32]


def lost_commits(path: Path) -> int:
    """Returns the number of commits that follow a damaged frame in the write-ahead log of this database.

    SQLite reads its log up to the first frame with a wrong checksum and silently ignores the rest. An incomplete
    frame that a killed process leaves at the end was never committed and does not count.
    """
    log = path.with_name(f"{path.name}-wal")
    data = log.read_bytes() if log.exists() else b""
    if len(data) < _HEADER:
        return 0
    magic, _, page_size, _, first_salt, second_salt = struct.unpack(">6I", data[:24])
    byte_order = _BYTE_ORDERS.get(magic, ">")
    checksums = _running_checksums(_integers(data[:24], byte_order)[None], (0, 0))
    if checksums != [struct.unpack(">2I", data[24:_HEADER])]:
        return 1 if len(data) > _HEADER else 0  # at least one: without a valid header nothing can be counted
    size = _FRAME_HEADER + page_size
    count = (len(data) - _HEADER) // size
    frames = np.frombuffer(data, np.uint8, count * size, _HEADER).reshape(count, size)
    headers = np.ascontiguousarray(frames[:, :_FRAME_HEADER]).view(">u4").astype(np.int64)
    covered = np.ascontiguousarray(np.concatenate([frames[:, :8], frames[:, _FRAME_HEADER:]], axis=1))
    expected = _running_checksums(covered.view(f"{byte_order}u4").astype(np.uint32), checksums[0])
    checksum_matches = np.array(expected, dtype=np.int64).reshape(count, 2) == headers[:, 4:]
    salt_matches = headers[:, 2:4] == (first_salt, second_salt)
    invalid = ~(checksum_matches.all(axis=1) & salt_matches.all(axis=1))
    if not invalid.any():
        return 0
    unreadable = np.arange(count) >= int(invalid.argmax())
    # In frames of an earlier log both salts are different; a nonzero database size marks a commit frame.
    return int((unreadable & salt_matches.any(axis=1) & (headers[:, 1] > 0)).sum())


def _running_checksums(frames: _Integers, initial: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns SQLite's running checksum after each frame of 32-bit integers.

    A pair of integers (x, y) changes the checksum (a, b) to (a + b + x, a + 2b + x + y) modulo 2³². This step is
    linear, so the contribution of each integer to the checksum at the end of its frame is a constant coefficient.
    """
    pairs = frames.shape[1] // 2
    step = np.array([[1, 1], [1, 2]], dtype=np.uint32)
    power = np.eye(2, dtype=np.uint32)
    coefficients = np.empty((2, frames.shape[1]), dtype=np.uint32)
    for pair in range(pairs - 1, -1, -1):
        coefficients[:, 2 * pair] = power[:, 0] + power[:, 1]
        coefficients[:, 2 * pair + 1] = power[:, 1]
        power = power @ step
    contributions = np.stack([(frames * row).sum(axis=1, dtype=np.uint32) for row in coefficients], axis=1).tolist()
    (p, q), (r, s) = power.tolist()
    checksums, (a, b) = [], initial
    for first, second in contributions:
        a, b = (p * a + q * b + first) & 0xFFFFFFFF, (r * a + s * b + second) & 0xFFFFFFFF
        checksums.append((a, b))
    return checksums


def _integers(data: bytes, byte_order: str) -> _Integers:
    return np.frombuffer(data, f"{byte_order}u4").astype(np.uint32)
