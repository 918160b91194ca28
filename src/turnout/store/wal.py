"""SQLite's write-ahead log: what was committed and can no longer be read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

_HEADER, _FRAME = 32, 24
_ORDER = {0x377F0682: "<", 0x377F0683: ">"}
_Words = npt.NDArray[np.uint32]


def lost_commits(path: Path) -> int:
    """How many commits stand behind a damaged place in the log of this database.

    SQLite reads its log up to the first frame whose checksum is wrong, and drops the rest without a word. What a killed
    process leaves unfinished at the end was never committed and does not count.
    """
    log = path.with_name(f"{path.name}-wal")
    data = log.read_bytes() if log.exists() else b""
    if len(data) < _HEADER:
        return 0
    magic, _, page_size, _, first, second = struct.unpack(">6I", data[:24])
    order = _ORDER.get(magic, ">")
    sums = _summed(_words(data[:24], order)[None], (0, 0))
    if sums != [struct.unpack(">2I", data[24:_HEADER])]:
        return 1 if len(data) > _HEADER else 0  # at least; nothing of it can be read
    size = _FRAME + page_size
    count = (len(data) - _HEADER) // size
    frames = np.frombuffer(data, np.uint8, count * size, _HEADER).reshape(count, size)
    heads = np.ascontiguousarray(frames[:, :_FRAME]).view(">u4").astype(np.int64)
    summed_bytes = np.ascontiguousarray(np.concatenate([frames[:, :8], frames[:, _FRAME:]], axis=1))
    expected = _summed(summed_bytes.view(f"{order}u4").astype(np.uint32), sums[0])
    right = np.array(expected, dtype=np.int64).reshape(count, 2) == heads[:, 4:]
    salted = heads[:, 2:4] == (first, second)
    wrong = ~(right.all(axis=1) & salted.all(axis=1))
    if not wrong.any():
        return 0
    behind = np.arange(count) >= int(wrong.argmax())
    # Frames of an earlier log have other salts, both of them.
    return int((behind & salted.any(axis=1) & (heads[:, 1] > 0)).sum())


def _summed(frames: _Words, sums: tuple[int, int]) -> list[tuple[int, int]]:
    """SQLite's running checksum after each frame of words.

    A pair of words (x, y) takes the sums (a, b) to (a + b + x, a + 2b + x + y), in 32 bits: a linear step, so that the
    share of each word in the sums at the end of its frame can be written down beforehand.
    """
    pairs = frames.shape[1] // 2
    step = np.array([[1, 1], [1, 2]], dtype=np.uint32)
    power = np.eye(2, dtype=np.uint32)
    shares = np.empty((2, frames.shape[1]), dtype=np.uint32)
    for pair in range(pairs - 1, -1, -1):
        shares[:, 2 * pair] = power[:, 0] + power[:, 1]
        shares[:, 2 * pair + 1] = power[:, 1]
        power = power @ step
    added = np.stack([(frames * share).sum(axis=1, dtype=np.uint32) for share in shares], axis=1).tolist()
    (p, q), (r, s) = power.tolist()
    after, (a, b) = [], sums
    for one, other in added:
        a, b = (p * a + q * b + one) & 0xFFFFFFFF, (r * a + s * b + other) & 0xFFFFFFFF
        after.append((a, b))
    return after


def _words(data: bytes, order: str) -> _Words:
    return np.frombuffer(data, f"{order}u4").astype(np.uint32)
