"""Limits for files that others wrote: a small file cannot take a lot of memory, however it was made.

Compressed data can be a thousand times as large as the file, the header of an array can state any shape, and the
parser of nested text calls itself for each level. Every reader of such files uses these functions. They raise
ValueError, which the readers convert to their own errors.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from turnout.closing import close_on_error
from turnout.kernel.arrays import MAX_CLIENTS

#: The deepest nesting of lists and mappings: no file of turnout has more than ten levels.
MAX_LEVELS = 50
#: The size of a zip directory, in bytes: enough for 40,000 arrays.
MAX_DIRECTORY_BYTES = 1 << 22
_CHUNK = 1 << 16
#: The types of nested values, which parsers create themselves.
_CONTAINERS = frozenset((dict, list))


class BoundedReader(io.RawIOBase):
    """Reads from another file, and raises ValueError after `most` bytes."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        super().__init__()
        self._file, self._most, self._left = file, most, most

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer as far as possible, and returns the number of bytes."""
        data = self._file.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise too_large(self._most)
        buffer[: len(data)] = data
        return len(data)


def too_large(most: int) -> ValueError:
    """Returns the error for content of more than `most` bytes."""
    size = f"{most >> 20:,} MiB" if most >= 1 << 20 else f"{most:,} bytes"
    return ValueError(f"the content must have at most {size}, got more: split it into smaller files")


def read_bounded(file: IO[bytes], most: int) -> bytes:
    """Returns the whole content of a file that has at most `most` bytes."""
    content = io.BytesIO()  # grows with what is really there
    while chunk := file.read(_CHUNK):
        content.write(chunk)
        if content.tell() > most:
            raise too_large(most)
    return content.getvalue()


def read_file(path: Path, most: int) -> bytes:
    """Returns the content of the file at `path`, decompressed if its name ends in .gz, if it has at most `most` bytes.

    Raises:
        OSError: The file cannot be read, or is not a gzip file.
        EOFError: The compressed data is truncated.
        ValueError: The content is too large or damaged.
    """
    with path.open("rb") as file:
        return gunzip(file, most) if path.suffix == ".gz" else read_bounded(file, most)


def gunzip(file: IO[bytes], most: int) -> bytes:
    """Returns the decompressed content of a gzip file, if it has at most `most` bytes."""
    with gzip.GzipFile(fileobj=file) as content:
        try:
            return read_bounded(content, most)  # type: ignore[arg-type]  # a GzipFile reads like any other file
        except zlib.error as error:
            raise ValueError(f"the compressed data is damaged: {error}") from error


def inflate(data: bytes, most: int) -> bytes:
    """Returns the content of data that zlib compressed, if it has at most `most` bytes."""
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"the compressed data is damaged: {error}") from error
    if len(content) > most:
        raise too_large(most)
    if not reader.eof:
        raise ValueError("the compressed data is truncated")
    return content


def unpack_mask(bits: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.bool_]:
    """Returns `count` flags from bits that `numpy.packbits` packed; `numpy.unpackbits` would add missing ones."""
    if not 0 <= 8 * bits.shape[-1] - count < 8:
        raise ValueError(f"a mask of {count} flags must have {-(-count // 8)} bytes, got {bits.shape[-1]}")
    return np.unpackbits(bits, axis=-1, count=count).astype(np.bool_)


def check_clients(count: int) -> int:
    """Returns a stored number of clients; raises ValueError if it is negative or too large."""
    if not 0 <= count <= MAX_CLIENTS:
        raise ValueError(f"the number of clients must lie between 0 and {MAX_CLIENTS:,}, got {count}")
    return count


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; too deep nesting raises ValueError, not RecursionError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep() from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raises ValueError if lists and mappings are nested so deeply that working with them could fail."""
    containers = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_LEVELS):
        entries = [container.values() if type(container) is dict else container for container in containers]
        # Most entries of a long list are strings: their types are compared without a loop in Python.
        nested = [values for values in entries if not _CONTAINERS.isdisjoint(map(type, values))]
        containers = [entry for values in nested for entry in values if type(entry) in _CONTAINERS]
        if not containers:
            return
    raise too_deep()


def too_deep() -> ValueError:
    """Returns the error for lists and mappings that are nested too deeply."""
    return ValueError(f"lists and mappings must be nested at most {MAX_LEVELS} deep, got more: simplify the text")


def read_npz(file: IO[bytes], most: int | None, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of an npz file by name; pickled objects are never read.

    Args:
        file: The file, which must be seekable.
        most: The largest size of all arrays together, in bytes. None for files without compression: their arrays
            cannot be larger than the file.
        names: The arrays to read; all by default.

    Raises:
        ValueError: The file is not an npz file of plain arrays, is damaged, or its arrays are too large.
    """
    try:
        with open_zip(file, most) as archive:
            stored = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            wanted = stored if names is None else names
            return {name: read_npy(read_entry(archive, stored[name])) for name in wanted}
    except KeyError as error:
        raise ValueError(f"the file has no array {error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"the file is damaged: {error}") from error


def open_zip(file: IO[bytes], most: int | None) -> zipfile.ZipFile:
    """Opens a zip file whose entries have at most `most` bytes together; None: without compression.

    The sizes are those that the directory states: read the entries with `read_entry`. Methods other than deflate are
    refused, because zipfile decompresses them without a bound.
    """
    size = file.seek(0, io.SEEK_END)
    guarded = _Directory(file)
    archive = zipfile.ZipFile(guarded)
    guarded.most = size
    allowed = (zipfile.ZIP_STORED,) if most is None else (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    entries = archive.infolist()
    with close_on_error(archive):
        for entry in entries:
            if entry.compress_type not in allowed:
                raise ValueError(f"the entry {entry.filename[:80]!r} has a compression method that is not supported")
        if sum(entry.file_size for entry in entries) > (size if most is None else most):
            raise too_large(size if most is None else most)
        if len({entry.filename for entry in entries}) < len(entries):
            raise ValueError("an entry occurs twice")
    return archive


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Returns the content of an entry. Unlike `ZipFile.read`, it decompresses no more than the directory states."""
    with archive.open(entry) as content:
        return read_bounded(content, entry.file_size)


class _Directory:
    """A file of which no more than `most` bytes can be read at once; zipfile reads the whole directory at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.most = file, MAX_DIRECTORY_BYTES
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        if count > self.most:
            raise ValueError(f"a zip directory must have at most {self.most:,} bytes, got {count:,}")
        return self._file.read(count)


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """Returns an array in NumPy's format, after comparing the size that its header states with the data."""
    stream = io.BytesIO(data)
    try:
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran_order, dtype = readers[np.lib.format.read_magic(stream)](stream)
        expected, present = math.prod(shape) * max(dtype.itemsize, 1), len(data) - stream.tell()
        if dtype.hasobject:
            raise ValueError("arrays must hold numbers or strings, got pickled objects, which are never read")
        if expected != present or any(size < 0 for size in shape) or dtype.subdtype is not None:
            raise ValueError(f"an array of shape {shape} and type {dtype} does not have {present} bytes")
        stored: npt.NDArray[Any] = np.ndarray(shape, dtype, data, stream.tell(), order="F" if fortran_order else "C")
    except (KeyError, TypeError, OverflowError, RecursionError, SyntaxError, TokenError) as error:
        raise ValueError(f"the header of an array is damaged: {error}") from error
    return stored.copy(order="K")  # writable, unlike `data`
